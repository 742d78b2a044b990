//! Names of resources and statistics (xds.md 3.1, 3.2, 4.2.4). Other people's dashboards read them: they don't change.

use smol_str::{SmolStr, format_smolstr};

use crate::model::SpiffeId;
use crate::model::chain::{ChainTarget, CompiledChain};

/// The secret with the proxy's own certificate and key (decision X1).
pub(super) const LEAF_SECRET: &str = "leaf";
/// The secret with the trust roots (decision X1).
pub(super) const ROOTS_SECRET: &str = "roots";
/// The cluster of the application itself.
pub(super) const LOCAL_APP: &str = "local_app";
/// Statistics prefix of the public listener, and the names in its route.
pub(super) const PUBLIC_LISTENER: &str = "public_listener";

/// The cluster name of a target as seen through this chain: `[<customization hash>~]<name>`.
pub(super) fn target_cluster(chain: &CompiledChain, target: &ChainTarget) -> SmolStr {
    if chain.customization_hash.is_empty() {
        target.name.clone()
    } else {
        format_smolstr!("{}~{}", chain.customization_hash, target.name)
    }
}

/// The `member`-th cluster (0 is the primary) of the failover aggregate `base`.
pub(super) fn failover_member(member: usize, base: &str) -> SmolStr {
    format_smolstr!("failover-target~{member}~{base}")
}

/// `<name>:<address>:<port>`: an address in the name makes a change of it a new listener (must-hold 28).
pub(super) fn listener(name: &str, address: &str, port: u16) -> SmolStr {
    format_smolstr!("{name}:{address}:{port}")
}

/// The name of a chain in routes: `<service>.<namespace>.<partition>.<datacenter>`.
pub(super) fn chain_filter(chain: &CompiledChain) -> String {
    chain.id()
}

/// The statistics prefix of an upstream's filter.
pub(super) fn upstream_stat_prefix(filter_name: &str) -> String {
    format!("upstream.{}", filter_name.replace(':', "_"))
}

/// The identity that instances of a target present; also of a failover target in another datacenter (must-hold 38).
pub(super) fn target_identity(trust_domain: &str, target: &ChainTarget) -> SpiffeId {
    let or_default = |name: &SmolStr| {
        if name.is_empty() {
            SmolStr::new_static("default")
        } else {
            name.clone()
        }
    };
    SpiffeId::Service {
        trust_domain: trust_domain.into(),
        partition: or_default(&target.partition),
        namespace: or_default(&target.namespace),
        datacenter: target.datacenter.clone(),
        service: target.service.clone(),
    }
}

/// The listener and the statistics of an exposed path leave out everything but letters and digits.
pub(super) fn stripped_path(path: &str) -> String {
    path.chars().filter(char::is_ascii_alphanumeric).collect()
}

/// The cluster that the keys of a token provider are fetched from.
pub(super) fn jwks_cluster(provider: &str) -> SmolStr {
    format_smolstr!("jwks_cluster_{provider}")
}

/// The cluster of an exposed path on a port of its own.
pub(super) fn exposed_cluster(port: u16) -> SmolStr {
    format_smolstr!("exposed_cluster_{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> ChainTarget {
        ChainTarget {
            service: "db".into(),
            namespace: "default".into(),
            partition: "default".into(),
            datacenter: "dc2".into(),
            name: "v1.db.default.dc2.internal.td.consul".into(),
            ..Default::default()
        }
    }

    #[test]
    fn xds_3_1_cluster_names_are_decorated() {
        let mut chain = CompiledChain::default();
        assert_eq!(
            target_cluster(&chain, &target()),
            "v1.db.default.dc2.internal.td.consul"
        );
        chain.customization_hash = "9aa9".into();
        assert_eq!(
            target_cluster(&chain, &target()),
            "9aa9~v1.db.default.dc2.internal.td.consul"
        );
        assert_eq!(failover_member(1, "x~y"), "failover-target~1~x~y");
    }

    #[test]
    fn xds_3_2_identities_carry_the_targets_datacenter() {
        assert_eq!(
            target_identity("td.consul", &target()).to_string(),
            "spiffe://td.consul/ns/default/dc/dc2/svc/db"
        );
        let other = ChainTarget {
            partition: "ap1".into(),
            namespace: "".into(),
            ..target()
        };
        assert_eq!(
            target_identity("td.consul", &other).to_string(),
            "spiffe://td.consul/ap/ap1/ns/default/dc/dc2/svc/db"
        );
    }

    #[test]
    fn xds_4_2_statistics_have_no_colons() {
        assert_eq!(upstream_stat_prefix("a:b.default"), "upstream.a_b.default");
        assert_eq!(stripped_path("/health-check/v1"), "healthcheckv1");
        assert_eq!(listener("db", "127.0.0.1", 5432), "db:127.0.0.1:5432");
    }
}
