//! The proxy settings that concern the bootstrap alone (xds.md Part 2).
//!
//! Settings are weakly typed: numbers and booleans may come as text.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use crate::model::{GoDuration, Opaque};

use super::socket;

/// Name of the static cluster that leads to Envoy's own admin interface.
const ADMIN_CLUSTER: &str = "self_admin";

/// What the settings add to a bootstrap.
#[derive(Debug, Default)]
pub(super) struct Extras {
    pub(super) clusters: Vec<Value>,
    pub(super) listeners: Vec<Value>,
    /// Listeners that show a path of the admin interface.
    pub(super) admin_listeners: Vec<AdminListener>,
    pub(super) stats_sinks: Vec<Value>,
    pub(super) stats_tags: Vec<(String, String)>,
    /// In place of the statistics settings that are made here.
    pub(super) stats_config: Option<Value>,
    pub(super) stats_flush_interval: Option<String>,
    pub(super) tracing: Option<Value>,
}

/// A listener that shows one path of the admin interface.
#[derive(Debug)]
pub(super) struct AdminListener {
    name: &'static str,
    address: String,
    port: u16,
    /// Whether all paths below `path` are shown too.
    prefix: bool,
    path: &'static str,
    /// Where `path` leads on the admin interface.
    rewrite: &'static str,
}

impl Extras {
    /// Reads the settings; what is wrong goes to `problems`.
    pub(super) fn read(
        config: &Opaque,
        environment: &dyn Fn(&str) -> Option<String>,
        problems: &mut Vec<String>,
    ) -> Self {
        let mut reader = Reader {
            config,
            environment,
            problems,
        };
        let mut extras = Self::default();
        if reader.text("envoy_bootstrap_json_tpl").is_some() {
            reader.problem(
                "envoy_bootstrap_json_tpl",
                "templates are not supported; use the envoy_extra_... settings, or change the printed bootstrap",
            );
        }
        extras.clusters = reader.objects("envoy_extra_static_clusters_json");
        extras.listeners = reader.objects("envoy_extra_static_listeners_json");

        extras.stats_sinks.extend(reader.statsd(
            "envoy_statsd_url",
            "envoy.stat_sinks.statsd",
            "StatsdSink",
        ));
        extras.stats_sinks.extend(reader.statsd(
            "envoy_dogstatsd_url",
            "envoy.stat_sinks.dog_statsd",
            "DogStatsdSink",
        ));
        extras
            .stats_sinks
            .extend(reader.objects("envoy_extra_stats_sinks_json"));
        extras.stats_tags = reader.tags();
        extras.stats_config = reader.object("envoy_stats_config_json");
        extras.stats_flush_interval = reader.flush_interval();
        extras.tracing = reader.object("envoy_tracing_json");

        if let Some((address, port)) = reader.bind("envoy_prometheus_bind_addr") {
            extras.admin_listeners.push(AdminListener {
                name: "envoy_prometheus_metrics",
                address,
                port,
                prefix: false,
                path: "/metrics",
                rewrite: "/stats/prometheus",
            });
        }
        if let Some((address, port)) = reader.bind("envoy_stats_bind_addr") {
            extras.admin_listeners.push(AdminListener {
                name: "envoy_metrics",
                address,
                port,
                prefix: true,
                path: "/stats",
                rewrite: "/stats",
            });
        }
        if let Some((address, port)) = reader.ready_bind() {
            extras.admin_listeners.push(AdminListener {
                name: "envoy_ready",
                address,
                port,
                prefix: false,
                path: "/ready",
                rewrite: "/ready",
            });
        }
        extras
    }
}

impl AdminListener {
    pub(super) fn to_json(&self) -> Value {
        let shown = json!({
            "match": if self.prefix { json!({"prefix": self.path}) } else { json!({"path": self.path}) },
            "route": {"cluster": ADMIN_CLUSTER, "prefix_rewrite": self.rewrite},
        });
        let hidden = json!({"match": {"prefix": "/"}, "direct_response": {"status": 404}});
        let manager = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": self.name,
            "codec_type": "AUTO",
            "route_config": {
                "name": format!("{}_route", self.name),
                "virtual_hosts": [{"name": self.name, "domains": ["*"], "routes": [shown, hidden]}],
            },
            "http_filters": [{
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
            }],
        });
        json!({
            "name": format!("{}_listener", self.name),
            "address": socket(&self.address, self.port),
            "filter_chains": [{"filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": manager,
            }]}],
        })
    }
}

/// The static cluster of Envoy's own admin interface.
pub(super) fn admin_cluster(address: &str, port: u16) -> Value {
    // An admin interface on all addresses is reached on loopback.
    let address = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(v4)) if v4.is_unspecified() => "127.0.0.1",
        Ok(IpAddr::V6(v6)) if v6.is_unspecified() => "::1",
        _ => address,
    };
    json!({
        "name": ADMIN_CLUSTER,
        "ignore_health_on_host_removal": false,
        "connect_timeout": "5s",
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": ADMIN_CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(address, port)}}]}],
        },
    })
}

struct Reader<'a> {
    config: &'a Opaque,
    environment: &'a dyn Fn(&str) -> Option<String>,
    problems: &'a mut Vec<String>,
}

impl Reader<'_> {
    fn problem(&mut self, key: &str, what: impl std::fmt::Display) {
        self.problems.push(format!("{key}: {what}"));
    }

    /// A setting as text; `None` if it is absent or empty.
    fn text(&mut self, key: &str) -> Option<String> {
        match self.config.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => {
                Some(text.trim().to_owned()).filter(|text| !text.is_empty())
            }
            Some(Value::Number(number)) => Some(number.to_string()),
            Some(Value::Bool(flag)) => Some(flag.to_string()),
            Some(Value::Array(_) | Value::Object(_)) => {
                self.problem(key, "must be text");
                None
            }
        }
    }

    /// JSON objects: in a list, or one after the other with commas between.
    fn objects(&mut self, key: &str) -> Vec<Value> {
        let Some(text) = self.text(key) else {
            return Vec::new();
        };
        let list = if text.starts_with('[') {
            text
        } else {
            format!("[{}]", text.trim_end_matches(','))
        };
        match serde_json::from_str::<Vec<Value>>(&list) {
            Ok(objects) if objects.iter().all(Value::is_object) => objects,
            Ok(_) => {
                self.problem(key, "must hold JSON objects, with commas between them");
                Vec::new()
            }
            Err(error) => {
                self.problem(key, format!("is not JSON: {error}"));
                Vec::new()
            }
        }
    }

    fn object(&mut self, key: &str) -> Option<Value> {
        let text = self.text(key)?;
        match serde_json::from_str::<Value>(&text) {
            Ok(value) if value.is_object() => return Some(value),
            Ok(_) => self.problem(key, "must be a JSON object"),
            Err(error) => self.problem(key, format!("is not JSON: {error}")),
        }
        None
    }

    fn statsd(&mut self, key: &str, sink: &str, message: &str) -> Option<Value> {
        let mut url = self.text(key)?;
        if let Some(name) = url.strip_prefix('$') {
            let name = name.trim_start_matches('{').trim_end_matches('}');
            match (self.environment)(name).filter(|value| !value.is_empty()) {
                Some(value) => url = value,
                None => {
                    self.problem(
                        key,
                        format!("names the environment variable {name}, which is not set"),
                    );
                    return None;
                }
            }
        }
        let address = if let Some(target) = url.strip_prefix("udp://") {
            match target.trim_end_matches('/').parse::<SocketAddr>() {
                Ok(target) => {
                    json!({"socket_address": {
                        "protocol": "UDP",
                        "address": target.ip().to_string(),
                        "port_value": target.port(),
                    }})
                }
                Err(_) => {
                    self.problem(
                        key,
                        format!(
                            "{target:?} is not an IP address and a port, like udp://127.0.0.1:8125"
                        ),
                    );
                    return None;
                }
            }
        } else if let Some(path) = url.strip_prefix("unix://").filter(|path| !path.is_empty()) {
            json!({"pipe": {"path": path}})
        } else {
            self.problem(
                key,
                format!("{url:?} starts with neither udp:// nor unix://"),
            );
            return None;
        };
        Some(json!({
            "name": sink,
            "typed_config": {
                "@type": format!("type.googleapis.com/envoy.config.metrics.v3.{message}"),
                "address": address,
            },
        }))
    }

    /// `name=value` each.
    fn tags(&mut self) -> Vec<(String, String)> {
        let key = "envoy_stats_tags";
        let list = match self.config.get(key) {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(list)) => list.clone(),
            Some(single) => vec![single.clone()],
        };
        let mut tags = Vec::new();
        for item in list {
            match item.as_str().and_then(|text| text.split_once('=')) {
                Some((name, value)) if !name.is_empty() => {
                    tags.push((name.to_owned(), value.to_owned()))
                }
                _ => self.problem(key, format!("{item} is not of the form \"name=value\"")),
            }
        }
        tags
    }

    fn flush_interval(&mut self) -> Option<String> {
        let key = "envoy_stats_flush_interval";
        let text = self.text(key)?;
        match GoDuration::parse(&text) {
            // What Envoy takes.
            Some(interval) if (1_000_000..300_000_000_000).contains(&interval.0) => {
                Some(seconds(interval))
            }
            Some(_) => {
                self.problem(
                    key,
                    format!("{text:?} is not at least \"1ms\" and less than \"5m\""),
                );
                None
            }
            None => {
                self.problem(key, format!("{text:?} is not a duration like \"10s\""));
                None
            }
        }
    }

    /// An `address:port` to listen on.
    fn bind(&mut self, key: &str) -> Option<(String, u16)> {
        let text = self.text(key)?;
        match text.parse::<SocketAddr>() {
            Ok(bind) if bind.port() != 0 => Some((bind.ip().to_string(), bind.port())),
            _ => {
                self.problem(
                    key,
                    format!("{text:?} is not an IP address and a port, like \"0.0.0.0:9102\""),
                );
                None
            }
        }
    }

    /// Where to show `/ready`: only if both address and port are given.
    fn ready_bind(&mut self) -> Option<(String, u16)> {
        let (address_key, port_key) = ("envoy_ready_bind_address", "envoy_ready_bind_port");
        match (self.text(address_key), self.text(port_key)) {
            (None, None) => None,
            (Some(_), None) => {
                self.problem(port_key, format!("is missing beside {address_key}"));
                None
            }
            (None, Some(_)) => {
                self.problem(address_key, format!("is missing beside {port_key}"));
                None
            }
            (Some(address), Some(port)) => {
                if address.parse::<IpAddr>().is_err() {
                    self.problem(address_key, format!("{address:?} is not an IP address"));
                }
                match port.parse::<u16>() {
                    Ok(port @ 1..) => Some((address, port)),
                    _ => {
                        self.problem(port_key, format!("{port:?} is not a port"));
                        None
                    }
                }
            }
        }
    }
}

/// A duration as protobuf's JSON writes it.
fn seconds(duration: GoDuration) -> String {
    let (whole, nanos) = (duration.0 / 1_000_000_000, duration.0 % 1_000_000_000);
    if nanos == 0 {
        format!("{whole}s")
    } else {
        format!("{whole}.{nanos:09}s")
    }
}
