//! Health checks.

use std::collections::BTreeMap;

use crate::model::decode::{Place, Problems, record, words};
use crate::model::duration::GoDuration;
use crate::model::rules;
use crate::model::validate::Validate;

words! {
    /// A check's state; critical when left out (store.md 1.5).
    pub enum CheckStatus {
        /// The instance must not get traffic.
        Critical = "critical",
        /// The instance works, with less weight.
        Warning = "warning",
        /// The instance works.
        Passing = "passing",
    }
    empty_means Critical
}

record! {
    /// A health check of a node (no `ServiceID`) or of an instance (store.md 1.5).
    pub struct HealthCheck {
        /// Node.
        node: String = "Node" always,
        /// Id, unique on its node.
        check_id: String = "CheckID" always,
        /// Name for people.
        name: String = "Name" always,
        /// State.
        status: CheckStatus = "Status" always,
        /// Notes for people.
        notes: String = "Notes" always,
        /// What the last run said.
        output: String = "Output" always,
        /// The instance it is of; empty for a node check.
        service_id: String = "ServiceID" always,
        /// Filled by the store from the instance.
        service_name: String = "ServiceName" always,
        /// Filled by the store from the instance.
        service_tags: Vec<String> = "ServiceTags" always,
        /// `tcp`, `http`, `grpc`, `ttl`, `alias`, ...
        kind: String = "Type",
        /// Port opened for the check by the proxy.
        exposed_port: u16 = "ExposedPort",
        /// Interval, when the check is run by an agent.
        interval: String = "Interval",
        /// Timeout, when the check is run by an agent.
        timeout: String = "Timeout",
        /// The peer that it was imported from, or empty.
        peer_name: String = "PeerName",
        /// How to run it.
        definition: CheckDefinition = "Definition",
        /// Namespace; only `default`.
        namespace: String = "Namespace",
        /// Partition; only `default`.
        partition: String = "Partition",
    }
    ignored ["CreateIndex", "ModifyIndex"]
}

record! {
    /// How to run a check.
    pub struct CheckDefinition {
        /// URL to get.
        http: String = "HTTP",
        /// Request headers.
        header: BTreeMap<String, Vec<String>> = "Header",
        /// Request method; GET unless given.
        method: String = "Method",
        /// Request body.
        body: String = "Body",
        /// Address and port to connect to.
        tcp: String = "TCP",
        /// Address and port to send to.
        udp: String = "UDP",
        /// `address:port[/service]` to ask over gRPC.
        grpc: String = "GRPC",
        /// Use TLS for gRPC.
        grpc_use_tls: bool = "GRPCUseTLS",
        /// `address:port` for an HTTP/2 ping.
        h2ping: String = "H2PING",
        /// Time between runs.
        interval: GoDuration = "Interval",
        /// Time allowed for a run.
        timeout: GoDuration = "Timeout",
        /// Time until an untouched TTL check turns critical.
        ttl: GoDuration = "TTL",
        /// Remove the instance after this long critical.
        deregister_critical_service_after: GoDuration = "DeregisterCriticalServiceAfter",
        /// Node whose state to copy.
        alias_node: String = "AliasNode",
        /// Instance whose state to copy.
        alias_service: String = "AliasService",
        /// Name to check in the server's certificate.
        tls_server_name: String = "TLSServerName",
        /// Don't check the server's certificate.
        tls_skip_verify: bool = "TLSSkipVerify",
    }
    ignored ["IntervalDuration", "TimeoutDuration", "DeregisterCriticalServiceAfterDuration"]
    without_effect [
        "OSService", "ScriptArgs", "DockerContainerID", "Shell", "DisableRedirects", "OutputMaxSize", "TCPUseTLS", "H2PingUseTLS",
    ]
}

/// Id of the check that puts a node into maintenance (store.md 1.5).
pub const NODE_MAINTENANCE: &str = "_node_maintenance";

/// What the id of a check begins with that puts an instance into maintenance; the instance's id follows.
pub const SERVICE_MAINTENANCE_PREFIX: &str = "_service_maintenance:";

words! {
    /// The state of an instance over all its checks and its node's (store.md 1.5), the better the smaller.
    pub enum AggregatedStatus {
        /// All checks pass, or there are none.
        Passing = "passing",
        /// A check warns.
        Warning = "warning",
        /// A check is critical.
        Critical = "critical",
        /// An operator took the instance or its node out of service.
        Maintenance = "maintenance",
    }
}

impl AggregatedStatus {
    /// The state over a set of checks.
    pub fn of<'a>(checks: impl IntoIterator<Item = &'a HealthCheck>) -> Self {
        checks
            .into_iter()
            .map(|check| {
                if check.is_maintenance() {
                    return Self::Maintenance;
                }
                match check.status {
                    CheckStatus::Critical => Self::Critical,
                    CheckStatus::Warning => Self::Warning,
                    CheckStatus::Passing => Self::Passing,
                }
            })
            .max()
            .unwrap_or_default()
    }
}

impl HealthCheck {
    /// Whether it stands for maintenance, whatever its state.
    #[must_use]
    pub fn is_maintenance(&self) -> bool {
        self.check_id == NODE_MAINTENANCE || self.check_id.starts_with(SERVICE_MAINTENANCE_PREFIX)
    }

    /// As [`Validate::validate`], where the node's name may come from elsewhere.
    pub(crate) fn check(&self, needs_node: bool, at: &Place<'_>, problems: &mut Problems) {
        if needs_node || !self.node.is_empty() {
            rules::plain_text("node name", &self.node, &at.key("Node"), problems);
        }
        // A name alone is enough: it becomes the id.
        if self.check_id.is_empty() && rules::is_blank(&self.name) {
            problems.error(&at.key("CheckID"), "a check needs a CheckID or a Name");
        } else if !self.check_id.is_empty() {
            rules::plain_text("check id", &self.check_id, &at.key("CheckID"), problems);
        }
        if !self.service_id.is_empty() {
            rules::plain_text(
                "service id",
                &self.service_id,
                &at.key("ServiceID"),
                problems,
            );
        }
        let how = at.key("Definition");
        for (key, time) in [
            ("Interval", self.definition.interval),
            ("Timeout", self.definition.timeout),
            ("TTL", self.definition.ttl),
            (
                "DeregisterCriticalServiceAfter",
                self.definition.deregister_critical_service_after,
            ),
        ] {
            rules::not_negative(time, &how.key(key), problems);
        }
    }
}

impl Validate for HealthCheck {
    /// store.md 1.5. That node and instance exist is checked by the store.
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        self.check(true, at, problems);
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::only_default(&self.namespace, &self.partition, at, problems);
    }

    fn normalize(&mut self) {
        if self.check_id.is_empty() {
            self.check_id.clone_from(&self.name);
        }
        if self.name.is_empty() {
            self.name.clone_from(&self.check_id);
        }
        rules::clear_default(&mut self.namespace);
        rules::clear_default(&mut self.partition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(id: &str, status: CheckStatus) -> HealthCheck {
        HealthCheck {
            node: "n".into(),
            check_id: id.into(),
            status,
            ..HealthCheck::default()
        }
    }

    #[test]
    fn store_27_aggregate_status() {
        use CheckStatus::{Critical, Passing, Warning};
        for (checks, wanted) in [
            (
                vec![check("a", Passing), check("b", Warning)],
                AggregatedStatus::Warning,
            ),
            (
                vec![check("a", Warning), check("b", Critical)],
                AggregatedStatus::Critical,
            ),
            (
                vec![check("a", Passing), check(NODE_MAINTENANCE, Critical)],
                AggregatedStatus::Maintenance,
            ),
            (
                vec![
                    check("a", Critical),
                    check("_service_maintenance:web1", Passing),
                ],
                AggregatedStatus::Maintenance,
            ),
            (vec![check("a", Passing)], AggregatedStatus::Passing),
            (vec![], AggregatedStatus::Passing),
        ] {
            assert_eq!(AggregatedStatus::of(&checks), wanted, "{checks:?}");
        }
    }

    #[test]
    fn a_name_stands_in_for_an_id_and_the_reverse() {
        let mut named = HealthCheck {
            name: "serf".into(),
            ..check("", CheckStatus::Passing)
        };
        named.normalize();
        assert_eq!(named.check_id, "serf");
        let mut problems = Problems::default();
        check("", CheckStatus::Passing).validate(&Place::ROOT, &mut problems);
        assert_eq!(
            problems.text(),
            "CheckID: a check needs a CheckID or a Name"
        );
    }
}
