//! Health checks.

use std::collections::BTreeMap;

use crate::model::decode::{record, words};
use crate::model::duration::GoDuration;

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
    without_effect ["OSService", "ScriptArgs", "DockerContainerID", "Shell", "DisableRedirects", "OutputMaxSize"]
}
