//! Ids and server names of targets (discovery-chain.md 4).

use std::fmt::Write as _;

use crate::model::Upstream;

/// The namespace and the partition that an empty one stands for.
pub(crate) const DEFAULT: &str = "default";

/// The value, or `default` in place of an empty one.
pub(crate) fn or_default(tenancy: &str) -> &str {
    if tenancy.is_empty() { DEFAULT } else { tenancy }
}

/// Where instances are looked up. An empty namespace or partition stands for `default`; with a peer there is no
/// datacenter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TargetName<'a> {
    /// Service.
    pub service: &'a str,
    /// Subset, or empty for all instances.
    pub subset: &'a str,
    /// Namespace.
    pub namespace: &'a str,
    /// Partition; of a peer target the local one.
    pub partition: &'a str,
    /// Datacenter.
    pub datacenter: &'a str,
    /// Peer, or empty.
    pub peer: &'a str,
}

impl TargetName<'_> {
    /// The id (discovery-chain.md 4.1). A peer target's shows neither subset nor datacenter.
    #[must_use]
    pub fn id(&self) -> String {
        let mut id = String::with_capacity(64);
        let (namespace, partition) = (or_default(self.namespace), or_default(self.partition));
        if self.peer.is_empty() {
            push_labels(
                &mut id,
                &[
                    self.subset,
                    self.service,
                    namespace,
                    partition,
                    self.datacenter,
                ],
            );
        } else {
            push_labels(
                &mut id,
                &[self.service, namespace, partition, "external", self.peer],
            );
        }
        id
    }

    /// The server name in TLS (discovery-chain.md 4.3). Empty for a peer target: the peer's trust domain isn't known here.
    #[must_use]
    pub fn sni(&self, trust_domain: &str) -> String {
        if !self.peer.is_empty() {
            return String::new();
        }
        let mut sni = String::with_capacity(96);
        let (namespace, partition) = (or_default(self.namespace), or_default(self.partition));
        // The default partition keeps the form that names had before there were partitions.
        let (partition, version) = if partition == DEFAULT {
            ("", "internal")
        } else {
            (partition, "internal-v1")
        };
        push_labels(
            &mut sni,
            &[
                self.subset,
                self.service,
                namespace,
                partition,
                self.datacenter,
                version,
                trust_domain,
            ],
        );
        sni
    }
}

/// The server name of a datacenter's mesh gateways (discovery-chain.md 4.3).
#[must_use]
pub fn datacenter_sni(datacenter: &str, trust_domain: &str) -> String {
    format!("{datacenter}.internal.{trust_domain}")
}

/// The server name of a prepared query's instances (discovery-chain.md 4.3).
#[must_use]
pub fn query_sni(query: &str, datacenter: &str, trust_domain: &str) -> String {
    format!("{query}.default.{datacenter}.query.{trust_domain}")
}

/// The server name of an upstream that has no chain. The upstream's own datacenter, if it names one, replaces
/// `datacenter`.
#[must_use]
pub fn upstream_sni(upstream: &Upstream, datacenter: &str, trust_domain: &str) -> String {
    let datacenter = if upstream.datacenter.is_empty() {
        datacenter
    } else {
        &upstream.datacenter
    };
    if upstream.is_prepared_query() {
        return query_sni(&upstream.destination_name, datacenter, trust_domain);
    }
    TargetName {
        service: &upstream.destination_name,
        namespace: &upstream.destination_namespace,
        partition: &upstream.destination_partition,
        datacenter,
        ..TargetName::default()
    }
    .sni(trust_domain)
}

/// Appends the labels that aren't empty, dots between them.
fn push_labels(text: &mut String, labels: &[&str]) {
    for label in labels.iter().filter(|label| !label.is_empty()) {
        if !text.is_empty() {
            text.push('.');
        }
        text.push_str(label);
    }
}

/// The name of a router or splitter node (discovery-chain.md 4.2).
pub(crate) fn node_name(service: &str, namespace: &str, partition: &str) -> String {
    let mut name = String::with_capacity(service.len() + 24);
    // Writing to a String can't fail.
    let _ = write!(
        name,
        "{service}.{}.{}",
        or_default(namespace),
        or_default(partition)
    );
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_4_3_other_server_names() {
        assert_eq!(datacenter_sni("dc2", "t.consul"), "dc2.internal.t.consul");
        assert_eq!(
            query_sni("geo", "dc1", "t.consul"),
            "geo.default.dc1.query.t.consul"
        );
        let mut upstream = Upstream {
            destination_name: "db".to_owned(),
            ..Upstream::default()
        };
        assert_eq!(
            upstream_sni(&upstream, "dc1", "t"),
            "db.default.dc1.internal.t"
        );
        upstream.datacenter = "dc2".to_owned();
        assert_eq!(
            upstream_sni(&upstream, "dc1", "t"),
            "db.default.dc2.internal.t"
        );
        upstream.destination_type = "prepared_query".to_owned();
        assert_eq!(
            upstream_sni(&upstream, "dc1", "t"),
            "db.default.dc2.query.t"
        );
    }
}
