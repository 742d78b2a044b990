//! Envoy's bootstrap: who it is, where the control plane listens, and what it does by itself (xds.md Part 2).
//!
//! [`BootstrapParams::build`] is pure: equal parameters give equal JSON. The proxy's own settings (`Proxy.Config`) count
//! as far as they concern the bootstrap; those that concern resources come over xDS.

mod extras;
mod stats;

use std::fmt;

use serde_json::{Value, json};

use crate::model::Opaque;
use crate::server::ads::Protocol;

use extras::Extras;

/// Name of the static cluster that leads to the control plane.
pub const XDS_CLUSTER: &str = "local_agent";

/// What a bootstrap is made of.
#[derive(Clone)]
pub struct BootstrapParams {
    /// Id of the proxy's instance: `node.id`.
    pub proxy_id: String,
    /// The service that the proxy stands for: `node.cluster`, and the tag `consul.source.service`.
    pub cluster: String,
    /// Catalog node of the instance; the control plane takes its own if this is `None`.
    pub node_name: Option<String>,
    /// Datacenter of the control plane, for the tag `consul.source.datacenter`.
    pub datacenter: String,
    /// Host of the control plane: an IP address or a name.
    pub xds_host: String,
    /// Port of the control plane.
    pub xds_port: u16,
    /// In which form Envoy asks the control plane.
    pub xds_protocol: Protocol,
    /// How the connection to the control plane is secured; plain if `None`.
    pub xds_tls: Option<XdsTls>,
    /// Token that is sent along to the control plane; empty for none. Stands in the bootstrap as it is.
    pub token: String,
    /// Address of Envoy's admin interface: an IP address.
    pub admin_address: String,
    /// Port of Envoy's admin interface.
    pub admin_port: u16,
    /// File for the access log of the admin interface; `/dev/null` for none.
    pub admin_access_log: String,
    /// The proxy's settings: `Proxy.Config`, central ones merged in.
    pub config: Opaque,
}

/// How Envoy secures its connection to the control plane.
#[derive(Clone, Default)]
pub struct XdsTls {
    /// Certificates (PEM) of the authorities that the control plane's certificate may come from.
    pub ca_pem: String,
    /// Name to ask for and to find in the certificate; the host if empty.
    pub server_name: String,
    /// Files, on Envoy's machine, with a certificate and its key that Envoy shows to the control plane.
    pub client_files: Option<(String, String)>,
}

/// What is wrong with the parameters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", problems.join("\n"))]
pub struct BootstrapError {
    /// Each problem: the key, what is wrong, what to do.
    pub problems: Vec<String>,
}

impl BootstrapParams {
    /// Parameters with defaults for all but the essentials: delta over a plain connection, no token, admin interface on
    /// 127.0.0.1:19000, no settings.
    pub fn new(
        proxy_id: impl Into<String>,
        cluster: impl Into<String>,
        xds_host: impl Into<String>,
        xds_port: u16,
    ) -> Self {
        Self {
            proxy_id: proxy_id.into(),
            cluster: cluster.into(),
            node_name: None,
            datacenter: "dc1".to_owned(),
            xds_host: xds_host.into(),
            xds_port,
            xds_protocol: Protocol::Delta,
            xds_tls: None,
            token: String::new(),
            admin_address: "127.0.0.1".to_owned(),
            admin_port: 19000,
            admin_access_log: "/dev/null".to_owned(),
            config: Opaque::new(),
        }
    }

    /// The bootstrap. `environment` looks up a variable that a statsd URL names as `$NAME`.
    ///
    /// # Errors
    /// Every problem with the parameters and the settings.
    pub fn build(
        &self,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Value, BootstrapError> {
        let mut problems = Vec::new();
        let extras = Extras::read(&self.config, environment, &mut problems);
        self.check(&mut problems);
        if !problems.is_empty() {
            return Err(BootstrapError { problems });
        }
        Ok(self.assemble(extras))
    }

    fn check(&self, problems: &mut Vec<String>) {
        if self.proxy_id.is_empty() {
            problems.push("the proxy's id is empty: name the registered instance".to_owned());
        }
        if self.xds_host.is_empty() || self.xds_port == 0 {
            problems.push(
                "the control plane's address needs a host and a port, like 127.0.0.1:8502"
                    .to_owned(),
            );
        }
        if self.admin_address.parse::<std::net::IpAddr>().is_err() {
            problems.push(format!(
                "the admin interface's address {:?} is not an IP address",
                self.admin_address
            ));
        }
        if self.admin_port == 0 {
            problems.push("the admin interface needs a port: Envoy's default is 19000".to_owned());
        }
        if self
            .xds_tls
            .as_ref()
            .is_some_and(|tls| tls.ca_pem.is_empty())
        {
            problems.push(
                "TLS to the control plane needs the certificates of its authorities".to_owned(),
            );
        }
    }

    fn assemble(&self, extras: Extras) -> Value {
        let mut clusters = vec![self.xds_cluster()];
        if !extras.admin_listeners.is_empty() {
            clusters.push(extras::admin_cluster(&self.admin_address, self.admin_port));
        }
        clusters.extend(extras.clusters);
        let listeners: Vec<Value> = extras
            .admin_listeners
            .iter()
            .map(extras::AdminListener::to_json)
            .chain(extras.listeners)
            .collect();
        let mut static_resources = json!({"clusters": clusters});
        if !listeners.is_empty() {
            static_resources["listeners"] = Value::Array(listeners);
        }
        let mut bootstrap = json!({
            "node": self.node(),
            "admin": {
                "access_log": [{
                    "name": "envoy.access_loggers.file",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
                        "path": self.admin_access_log,
                    },
                }],
                "address": socket(&self.admin_address, self.admin_port),
            },
            "layered_runtime": {"layers": [{
                "name": "base",
                "static_layer": {"re2.max_program_size.error_level": 1_048_576},
            }]},
            "static_resources": static_resources,
            "dynamic_resources": self.dynamic_resources(),
            "stats_config": extras
                .stats_config
                .unwrap_or_else(|| stats::config(&self.cluster, &self.datacenter, &extras.stats_tags)),
        });
        if !extras.stats_sinks.is_empty() {
            bootstrap["stats_sinks"] = Value::Array(extras.stats_sinks);
        }
        if let Some(interval) = extras.stats_flush_interval {
            bootstrap["stats_flush_interval"] = Value::String(interval);
        }
        if let Some(tracing) = extras.tracing {
            bootstrap["tracing"] = tracing;
        }
        bootstrap
    }

    fn node(&self) -> Value {
        let mut metadata = json!({"namespace": "default", "partition": "default"});
        if let Some(node_name) = &self.node_name {
            metadata["node_name"] = json!(node_name);
        }
        json!({"id": self.proxy_id, "cluster": self.cluster, "metadata": metadata})
    }

    fn dynamic_resources(&self) -> Value {
        let mut service = json!({"envoy_grpc": {"cluster_name": XDS_CLUSTER}});
        if !self.token.is_empty() {
            service["initial_metadata"] = json!([{"key": "x-consul-token", "value": self.token}]);
        }
        // Without a time limit: an Envoy that comes up before its control plane waits, and doesn't serve nothing.
        let ads = json!({"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"});
        let api_type = match self.xds_protocol {
            Protocol::Delta => "DELTA_GRPC",
            Protocol::StateOfTheWorld => "GRPC",
        };
        json!({
            "lds_config": ads,
            "cds_config": ads,
            "ads_config": {
                "api_type": api_type,
                "transport_api_version": "V3",
                "set_node_on_first_message_only": true,
                "grpc_services": [service],
            },
        })
    }

    fn xds_cluster(&self) -> Value {
        let host = self.xds_host.trim_start_matches('[').trim_end_matches(']');
        let is_address = host.parse::<std::net::IpAddr>().is_ok();
        let mut cluster = json!({
            "name": XDS_CLUSTER,
            "ignore_health_on_host_removal": false,
            "connect_timeout": "1s",
            "type": if is_address { "STATIC" } else { "STRICT_DNS" },
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                    "explicit_http_config": {"http2_protocol_options": {
                        // Notices a control plane that is gone without a word.
                        "connection_keepalive": {"interval": "30s", "timeout": "10s"},
                    }},
                },
            },
            "load_assignment": {
                "cluster_name": XDS_CLUSTER,
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(host, self.xds_port)}}]}],
            },
        });
        if let Some(tls) = &self.xds_tls {
            cluster["transport_socket"] = tls.transport_socket(host);
        }
        cluster
    }
}

impl XdsTls {
    fn transport_socket(&self, host: &str) -> Value {
        let name = if self.server_name.is_empty() {
            host
        } else {
            &self.server_name
        };
        let kind = if name.parse::<std::net::IpAddr>().is_ok() {
            "IP_ADDRESS"
        } else {
            "DNS"
        };
        let mut common = json!({
            "alpn_protocols": ["h2"],
            "validation_context": {
                "trusted_ca": {"inline_string": self.ca_pem},
                "match_typed_subject_alt_names": [{"san_type": kind, "matcher": {"exact": name}}],
            },
        });
        if let Some((certificate, key)) = &self.client_files {
            common["tls_certificates"] = json!([{"certificate_chain": {"filename": certificate}, "private_key": {"filename": key}}]);
        }
        let mut context = json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": common,
        });
        if kind == "DNS" {
            context["sni"] = json!(name);
        }
        json!({"name": "tls", "typed_config": context})
    }
}

/// Without the token, which is a secret.
impl fmt::Debug for BootstrapParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BootstrapParams")
            .field("proxy_id", &self.proxy_id)
            .field("cluster", &self.cluster)
            .field("node_name", &self.node_name)
            .field("xds", &(&self.xds_host, self.xds_port))
            .field("admin", &(&self.admin_address, self.admin_port))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for XdsTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdsTls")
            .field("server_name", &self.server_name)
            .field("client_files", &self.client_files)
            .finish_non_exhaustive()
    }
}

fn socket(address: &str, port: u16) -> Value {
    json!({"socket_address": {"address": address, "port_value": port}})
}

#[cfg(test)]
mod tests;
