//! Checks as their owners write them, and what the catalog makes of them (store.md 1.5, decisions R1).

use std::collections::BTreeMap;

use crate::hcl::Value;
use crate::model::check::{CheckDefinition, CheckStatus, HealthCheck};
use crate::model::decode::{Place, Problems, record, words};
use crate::model::duration::GoDuration;
use crate::model::rules;
use crate::model::service::ServiceInstance;
use crate::model::validate::{self, Validate};

record! {
    /// A check as its owner writes it.
    pub struct AgentCheck {
        /// Id; `service:<service id>[:n]` unless given.
        check_id: String = "CheckID",
        /// Also an id: the older key.
        id: String = "ID",
        /// Name.
        name: String = "Name",
        /// Notes.
        notes: String = "Notes",
        /// State until the first run; critical unless given.
        status: Option<CheckStatus> = "Status",
        /// Instance it belongs to, for checks registered on their own.
        service_id: String = "ServiceID",
        /// URL to get.
        http: String = "HTTP",
        /// Request headers.
        header: BTreeMap<String, Vec<String>> = "Header",
        /// Request method.
        method: String = "Method",
        /// Request body.
        body: String = "Body",
        /// Address and port to connect to.
        tcp: String = "TCP",
        /// Address and port to send to.
        udp: String = "UDP",
        /// `address:port[/service]`.
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
        /// A program to run: refused, since programs aren't run here.
        script_args: Vec<String> = "ScriptArgs",
        /// The older key of `ScriptArgs`.
        args: Vec<String> = "Args",
        /// A container to run a program in: refused.
        docker_container_id: String = "DockerContainerID",
        /// An operating system service to watch: refused.
        os_service: String = "OSService",
        /// Namespace; only `default`.
        namespace: String = "Namespace",
        /// Partition; only `default`.
        partition: String = "Partition",
    }
    ignored ["Token"]
    without_effect [
        "Shell", "SuccessBeforePassing", "FailuresBeforeWarning", "FailuresBeforeCritical", "DisableRedirects",
        "OutputMaxSize", "H2PingUseTLS", "TCPUseTLS",
    ]
}

words! {
    /// How a check finds out.
    pub enum CheckKind {
        /// Gets a URL.
        Http = "http",
        /// Connects.
        Tcp = "tcp",
        /// Sends a datagram.
        Udp = "udp",
        /// Asks the gRPC health service.
        Grpc = "grpc",
        /// Pings over HTTP/2.
        H2ping = "h2ping",
        /// Waits to be told.
        Ttl = "ttl",
        /// Copies the state of another instance or node.
        Alias = "alias",
    }
}

impl CheckKind {
    /// Whether such checks are run at intervals.
    #[must_use]
    pub const fn needs_interval(self) -> bool {
        !matches!(self, Self::Ttl | Self::Alias)
    }
}

impl CheckDefinition {
    /// All kinds that are given; a valid check of an agent has exactly one.
    pub fn kinds(&self) -> impl Iterator<Item = CheckKind> + use<> {
        [
            (CheckKind::Http, !self.http.is_empty()),
            (CheckKind::Tcp, !self.tcp.is_empty()),
            (CheckKind::Udp, !self.udp.is_empty()),
            (CheckKind::Grpc, !self.grpc.is_empty()),
            (CheckKind::H2ping, !self.h2ping.is_empty()),
            (CheckKind::Ttl, !self.ttl.is_zero()),
            (
                CheckKind::Alias,
                !self.alias_node.is_empty() || !self.alias_service.is_empty(),
            ),
        ]
        .into_iter()
        .filter_map(|(kind, given)| given.then_some(kind))
    }
}

impl AgentCheck {
    /// Reads, checks and normalizes a check that is registered on its own; the problems that come with it are warnings.
    ///
    /// # Errors
    /// All problems with their places, if there is an error among them.
    pub fn read(document: &Value) -> Result<(Self, Problems), Problems> {
        validate::read(document)
    }

    /// The id, if one is given.
    #[must_use]
    pub fn given_id(&self) -> &str {
        if self.check_id.is_empty() {
            &self.id
        } else {
            &self.check_id
        }
    }

    /// How to run it.
    #[must_use]
    pub fn definition(&self) -> CheckDefinition {
        CheckDefinition {
            http: self.http.clone(),
            header: self.header.clone(),
            method: self.method.clone(),
            body: self.body.clone(),
            tcp: self.tcp.clone(),
            udp: self.udp.clone(),
            grpc: self.grpc.clone(),
            grpc_use_tls: self.grpc_use_tls,
            h2ping: self.h2ping.clone(),
            interval: self.interval,
            timeout: self.timeout,
            ttl: self.ttl,
            deregister_critical_service_after: self.deregister_critical_service_after,
            alias_node: self.alias_node.clone(),
            alias_service: self.alias_service.clone(),
            tls_server_name: self.tls_server_name.clone(),
            tls_skip_verify: self.tls_skip_verify,
        }
    }

    /// The check as the catalog holds it: of an instance on a node, or, without an instance, of `ServiceID` or the node
    /// itself. `default_id` holds where the owner gave no id.
    #[must_use]
    pub fn to_health_check(
        &self,
        node: &str,
        default_id: &str,
        service: Option<&ServiceInstance>,
    ) -> HealthCheck {
        let definition = self.definition();
        let text = |time: GoDuration| {
            if time.is_zero() {
                String::new()
            } else {
                time.to_string()
            }
        };
        let check_id = match self.given_id() {
            "" => default_id,
            given => given,
        };
        let name = match (self.name.as_str(), service) {
            ("", Some(service)) => format!("Service '{}' check", service.service),
            ("", None) => check_id.to_owned(),
            (given, _) => given.to_owned(),
        };
        HealthCheck {
            node: node.to_owned(),
            check_id: check_id.to_owned(),
            name,
            status: self.status.unwrap_or_default(),
            notes: self.notes.clone(),
            service_id: service.map_or_else(|| self.service_id.clone(), |s| s.id.clone()),
            service_name: service.map(|s| s.service.clone()).unwrap_or_default(),
            service_tags: service.map(|s| s.tags.clone()).unwrap_or_default(),
            kind: definition
                .kinds()
                .next()
                .map(|kind| kind.to_string())
                .unwrap_or_default(),
            interval: text(self.interval),
            timeout: text(self.timeout),
            definition,
            ..HealthCheck::default()
        }
    }

    /// The checks of an instance with their ids: `service:<id>` for the only one, `service:<id>:<n>` with n from 1 for
    /// one of several (store.md 1.4).
    pub fn of_service<'a>(
        checks: impl IntoIterator<Item = &'a Self>,
        node: &str,
        service: &ServiceInstance,
    ) -> Vec<HealthCheck> {
        let checks: Vec<_> = checks.into_iter().collect();
        let several = checks.len() > 1;
        checks
            .iter()
            .enumerate()
            .map(|(i, check)| {
                let id = if several {
                    format!("service:{}:{}", service.id, i + 1)
                } else {
                    format!("service:{}", service.id)
                };
                check.to_health_check(node, &id, Some(service))
            })
            .collect()
    }
}

impl Validate for AgentCheck {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        if !self.given_id().is_empty() {
            let key = if self.check_id.is_empty() {
                "ID"
            } else {
                "CheckID"
            };
            rules::plain_text("check id", self.given_id(), &at.key(key), problems);
        }
        let mut refused = false;
        for (key, given) in [
            ("ScriptArgs", !self.script_args.is_empty()),
            ("Args", !self.args.is_empty()),
            ("DockerContainerID", !self.docker_container_id.is_empty()),
            ("OSService", !self.os_service.is_empty()),
        ] {
            if given {
                refused = true;
                problems.error(
                    &at.key(key),
                    "checks of this type are not run here; use HTTP, TCP, UDP, GRPC, H2PING, TTL or an alias",
                );
            }
        }
        let kinds: Vec<_> = self.definition().kinds().collect();
        if kinds.len() != 1 && !refused {
            problems.error(
                at,
                "a check needs exactly one of HTTP, TCP, UDP, GRPC, H2PING, TTL and AliasNode or AliasService",
            );
        }
        if let Some(kind) = kinds.iter().find(|k| k.needs_interval())
            && self.interval.0 <= 0
        {
            problems.error(
                &at.key("Interval"),
                format!("a check of type {kind} needs an interval above 0, such as \"10s\""),
            );
        }
        for (key, time) in [
            ("Timeout", self.timeout),
            ("TTL", self.ttl),
            (
                "DeregisterCriticalServiceAfter",
                self.deregister_critical_service_after,
            ),
        ] {
            rules::not_negative(time, &at.key(key), problems);
        }
        if !self.http.is_empty() {
            rules::http_url(&self.http, &at.key("HTTP"), problems);
        }
        let grpc_address = self.grpc.split('/').next().unwrap_or_default();
        for (key, address) in [
            ("TCP", self.tcp.as_str()),
            ("UDP", &self.udp),
            ("GRPC", grpc_address),
            ("H2PING", &self.h2ping),
        ] {
            if !address.is_empty() && !rules::is_host_port(address) {
                problems.error(
                    &at.key(key),
                    format!("{} is not an address with a port", rules::shown(address)),
                );
            }
        }
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::only_default(&self.namespace, &self.partition, at, problems);
    }

    fn normalize(&mut self) {
        rules::clear_default(&mut self.namespace);
        rules::clear_default(&mut self.partition);
    }
}
