//! Tags of Envoy's statistics: what is encoded in names becomes labels (xds.md Part 2, and the names of 3.1 and 4.2.4).
//!
//! A tag's expression has two groups: the first is taken out of the statistic's name, the second is the tag's value.

use serde_json::{Value, json};

/// A part of a dotted name.
const LABEL: &str = r"[^.~]+";
/// What may stand before a cluster's name proper, except the customization hash.
const ROLE: &str = r"(?:(?:exported|passthrough|failover-target~[0-9]+)~)*";
/// The customization hash of a discovery chain.
const HASH: &str = r"(?:[0-9a-f]+~)?";
/// How the name says where it leads.
const ROUTING: &str = r"(?:internal(?:-v1)?|external)";

/// The statistics settings: Envoy's own tags, those of the mesh, then `extra` as name and value.
pub(super) fn config(service: &str, datacenter: &str, extra: &[(String, String)]) -> Value {
    let fixed = [
        ("local_cluster", service),
        ("consul.source.service", service),
        ("consul.source.namespace", "default"),
        ("consul.source.partition", "default"),
        ("consul.source.datacenter", datacenter),
    ];
    let tags: Vec<Value> = destination()
        .into_iter()
        .chain(upstream())
        .map(|(name, regex)| json!({"tag_name": name, "regex": regex}))
        .chain(
            fixed
                .iter()
                .map(|(name, value)| json!({"tag_name": name, "fixed_value": value})),
        )
        .chain(
            extra
                .iter()
                .map(|(name, value)| json!({"tag_name": name, "fixed_value": value})),
        )
        .collect();
    json!({"use_all_default_tags": true, "stats_tags": tags})
}

/// From the names of clusters:
/// `[<role>~][<hash>~][<subset>.]<service>.<namespace>.[<partition>.]<datacenter>.internal[-v1].<id>.consul`, with a peer in
/// the datacenter's place before `external`.
fn destination() -> Vec<(String, String)> {
    let l = LABEL;
    // What follows the namespace; how many labels depends on the routing type, so nothing here is ambiguous.
    let place = format!(r"(?:{l}\.(?:internal|external)|{l}\.{l}\.internal-v1)");
    let domain = format!(r"{l}\.consul\.");
    let tag = |name: &str, inner: String| {
        (
            format!("consul.destination.{name}"),
            format!(r"^cluster\.({ROLE}{inner})"),
        )
    };
    vec![
        tag(
            "custom_hash",
            format!(r"([0-9a-f]+)~(?:{l}\.){{3,5}}{ROUTING}\.{domain}"),
        ),
        tag(
            "service_subset",
            format!(r"{HASH}({l})\.{l}\.{l}\.{place}\.{domain}"),
        ),
        tag(
            "service",
            format!(r"{HASH}(?:{l}\.)?({l})\.{l}\.{place}\.{domain}"),
        ),
        tag(
            "namespace",
            format!(r"{HASH}(?:{l}\.)?{l}\.({l})\.{place}\.{domain}"),
        ),
        tag(
            "partition",
            format!(r"{HASH}(?:{l}\.)?{l}\.{l}\.({l})\.{l}\.internal-v1\.{domain}"),
        ),
        tag(
            "datacenter",
            format!(r"{HASH}(?:{l}\.){{2,4}}({l})\.internal(?:-v1)?\.{domain}"),
        ),
        tag(
            "peer",
            format!(r"{HASH}(?:{l}\.){{2,3}}({l})\.external\.{domain}"),
        ),
        tag(
            "routing_type",
            format!(r"{HASH}(?:{l}\.){{3,5}}({ROUTING})\.{domain}"),
        ),
        tag(
            "trust_domain",
            format!(r"{HASH}(?:{l}\.){{3,5}}{ROUTING}\.({l})\.consul\."),
        ),
        tag(
            "target",
            format!(r"({HASH}(?:{l}\.){{2,4}}{l})\.{ROUTING}\.{domain}"),
        ),
        tag(
            "full_target",
            format!(r"({HASH}(?:{l}\.){{3,5}}{ROUTING}\.{l})\.consul\."),
        ),
    ]
}

/// From the prefixes of upstream listeners: `upstream.<service>.<namespace>.<partition>.<datacenter>` and
/// `upstream_peered.<service>.<namespace>.<peer>`.
fn upstream() -> Vec<(String, String)> {
    let l = LABEL;
    let tag = |name: &str, inner: String| {
        (
            format!("consul.upstream.{name}"),
            format!(r"^(?:http|tcp)\.{inner}"),
        )
    };
    vec![
        tag("service", format!(r"upstream(?:_peered)?\.(({l})\.)")),
        tag(
            "namespace",
            format!(r"upstream(?:_peered\.{l}|\.{l})\.(({l})\.){l}\."),
        ),
        tag("partition", format!(r"upstream\.{l}\.{l}\.(({l})\.){l}\.")),
        tag("datacenter", format!(r"upstream\.{l}\.{l}\.{l}\.(({l})\.)")),
        tag("peer", format!(r"upstream_peered\.{l}\.{l}\.(({l})\.)")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tags of a statistic, without those that stay empty.
    fn tags(statistic: &str) -> Vec<(String, String)> {
        let config = config("web", "dc1", &[]);
        let mut found = Vec::new();
        for tag in config["stats_tags"].as_array().unwrap() {
            let Some(regex) = tag["regex"].as_str() else {
                continue;
            };
            let regex = regex::Regex::new(regex).unwrap();
            assert_eq!(regex.captures_len(), 3, "two groups: {regex}");
            if let Some(captures) = regex.captures(statistic) {
                let name = tag["tag_name"]
                    .as_str()
                    .unwrap()
                    .trim_start_matches("consul.");
                found.push((name.to_owned(), captures[2].to_owned()));
            }
        }
        found
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn part2_tags_of_cluster_names() {
        let plain = "web.default.dc1.internal.11-22.consul";
        assert_eq!(
            tags(&format!("cluster.{plain}.upstream_cx_total")),
            pairs(&[
                ("destination.service", "web"),
                ("destination.namespace", "default"),
                ("destination.datacenter", "dc1"),
                ("destination.routing_type", "internal"),
                ("destination.trust_domain", "11-22"),
                ("destination.target", "web.default.dc1"),
                ("destination.full_target", "web.default.dc1.internal.11-22"),
            ])
        );
        assert_eq!(
            tags(&format!(
                "cluster.failover-target~0~abcd1234~v1.{plain}.upstream_rq_200"
            )),
            pairs(&[
                ("destination.custom_hash", "abcd1234"),
                ("destination.service_subset", "v1"),
                ("destination.service", "web"),
                ("destination.namespace", "default"),
                ("destination.datacenter", "dc1"),
                ("destination.routing_type", "internal"),
                ("destination.trust_domain", "11-22"),
                ("destination.target", "abcd1234~v1.web.default.dc1"),
                (
                    "destination.full_target",
                    "abcd1234~v1.web.default.dc1.internal.11-22"
                ),
            ])
        );
        assert_eq!(
            tags(
                "cluster.passthrough~v1.web.ns1.part1.dc1.internal-v1.11-22.consul.upstream_cx_total"
            ),
            pairs(&[
                ("destination.service_subset", "v1"),
                ("destination.service", "web"),
                ("destination.namespace", "ns1"),
                ("destination.partition", "part1"),
                ("destination.datacenter", "dc1"),
                ("destination.routing_type", "internal-v1"),
                ("destination.trust_domain", "11-22"),
                ("destination.target", "v1.web.ns1.part1.dc1"),
                (
                    "destination.full_target",
                    "v1.web.ns1.part1.dc1.internal-v1.11-22"
                ),
            ])
        );
        assert_eq!(
            tags("cluster.web.default.east.external.33-44.consul.upstream_cx_total"),
            pairs(&[
                ("destination.service", "web"),
                ("destination.namespace", "default"),
                ("destination.peer", "east"),
                ("destination.routing_type", "external"),
                ("destination.trust_domain", "33-44"),
                ("destination.target", "web.default.east"),
                ("destination.full_target", "web.default.east.external.33-44"),
            ])
        );
        for other in [
            "cluster.local_app.upstream_cx_total",
            "cluster.local_agent.upstream_rq_200",
            "server.live",
        ] {
            assert_eq!(tags(other), [], "{other}");
        }
    }

    #[test]
    fn part2_tags_of_upstream_listeners() {
        assert_eq!(
            tags("http.upstream.db.default.default.dc1.downstream_rq_2xx"),
            pairs(&[
                ("upstream.service", "db"),
                ("upstream.namespace", "default"),
                ("upstream.partition", "default"),
                ("upstream.datacenter", "dc1"),
            ])
        );
        assert_eq!(
            tags("tcp.upstream_peered.db.default.east.downstream_cx_total"),
            pairs(&[
                ("upstream.service", "db"),
                ("upstream.namespace", "default"),
                ("upstream.peer", "east")
            ])
        );
        assert_eq!(tags("http.public_listener.downstream_rq_2xx"), []);
    }
}
