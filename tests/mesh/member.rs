//! A service instance: its application, its sidecar's registration, and the ports of both.

use std::collections::BTreeMap;

use proxycfg::model::SIDECAR_SUFFIX;
use serde_json::{Map, Value, json};

use crate::support::apps::App;
use crate::support::ports::free_port;

/// An instance of a service with its application, which runs until this is dropped.
pub struct Member {
    pub id: String,
    pub app: App,
    /// Port of the sidecar's public listener.
    pub public: u16,
    name: String,
    meta: BTreeMap<String, String>,
    config: Value,
    /// More of the sidecar's `Proxy`.
    proxy: Map<String, Value>,
    /// The application's own checks, which nobody runs.
    checks: Vec<Value>,
    upstreams: Vec<Upstream>,
}

struct Upstream {
    name: String,
    port: u16,
    more: Value,
}

impl Member {
    /// An instance of a TCP service; the application greets with the instance's id.
    pub fn tcp(name: &str, id: &str) -> Self {
        Self::new(name, id, App::tcp(id))
    }

    /// An instance of an HTTP service; the application answers with the instance's id.
    pub fn http(name: &str, id: &str) -> Self {
        Self::new(name, id, App::http(id))
    }

    /// An instance of an HTTP/2 or gRPC service; the application answers with the instance's id.
    pub fn http2(name: &str, id: &str) -> Self {
        Self::new(name, id, App::http2(id))
    }

    fn new(name: &str, id: &str, app: App) -> Self {
        Self {
            id: id.to_owned(),
            app,
            public: free_port(),
            name: name.to_owned(),
            meta: BTreeMap::new(),
            config: json!({}),
            proxy: Map::new(),
            checks: Vec::new(),
            upstreams: Vec::new(),
        }
    }

    /// With a label.
    pub fn meta(mut self, key: &str, value: &str) -> Self {
        self.meta.insert(key.to_owned(), value.to_owned());
        self
    }

    /// With settings of the sidecar.
    pub fn config(mut self, config: Value) -> Self {
        self.config = config;
        self
    }

    /// With one more field of the sidecar's `Proxy`.
    pub fn proxy(mut self, field: &str, value: Value) -> Self {
        self.proxy.insert(field.to_owned(), value);
        self
    }

    /// With a check of the application at a path, which nobody runs.
    pub fn check_at(mut self, path: &str) -> Self {
        let url = format!("http://127.0.0.1:{}{path}", self.app.port());
        // What is opened for a check has a port by its id.
        let id = format!("{}-{path}-{}", self.id, std::process::id());
        self.checks.push(json!({
            "CheckID": id, "Name": path, "HTTP": url, "Interval": "24h", "Status": "passing",
        }));
        self
    }

    /// With an upstream on a port of its own.
    pub fn upstream(self, name: &str) -> Self {
        self.upstream_with(name, json!({}))
    }

    /// With an upstream on a port of its own, and more settings of it.
    pub fn upstream_with(mut self, name: &str, more: Value) -> Self {
        self.add_upstream(name, more);
        self
    }

    /// Adds an upstream; takes effect when the member is registered.
    pub fn add_upstream(&mut self, name: &str, more: Value) {
        self.upstreams.push(Upstream {
            name: name.to_owned(),
            port: free_port(),
            more,
        });
    }

    /// Gives an upstream settings; takes effect when the member is registered.
    pub fn configure_upstream(&mut self, name: &str, config: Value) {
        let found = self.upstreams.iter_mut().find(|u| u.name == name);
        found.unwrap().more["Config"] = config;
    }

    /// Removes an upstream; takes effect when the member is registered.
    pub fn remove_upstream(&mut self, name: &str) {
        self.upstreams.retain(|upstream| upstream.name != name);
    }

    /// `address:port` at which the application reaches an upstream.
    pub fn address_of(&self, upstream: &str) -> String {
        let found = self.upstreams.iter().find(|u| u.name == upstream);
        format!("127.0.0.1:{}", found.unwrap().port)
    }

    /// `address:port` of the sidecar's public listener.
    pub fn public_address(&self) -> String {
        format!("127.0.0.1:{}", self.public)
    }

    /// Id of the sidecar's instance.
    pub fn proxy_id(&self) -> String {
        format!("{}{SIDECAR_SUFFIX}", self.id)
    }

    /// Id of the sidecar's check, which the test sets.
    pub fn check_id(&self) -> String {
        format!("{}-check", self.proxy_id())
    }

    /// The service with its sidecar, as an agent takes it.
    pub fn definition(&self) -> Value {
        let mut proxy = self.proxy.clone();
        proxy.insert("Config".to_owned(), self.config.clone());
        proxy.insert("Upstreams".to_owned(), self.upstream_values().into());
        json!({
            "ID": self.id,
            "Name": self.name,
            "Address": "127.0.0.1",
            "Port": self.app.port(),
            "Meta": self.meta,
            "Checks": self.checks,
            "Connect": {"SidecarService": {
                "Port": self.public,
                "Check": {"CheckID": self.check_id(), "TTL": "24h", "Status": "passing"},
                "Proxy": proxy,
            }},
        })
    }

    /// The writes that put the sidecar, passing, into the catalog under any node.
    pub fn registration(&self, node: &str) -> Vec<Value> {
        let service = json!({
            "Kind": "connect-proxy",
            "ID": self.proxy_id(),
            "Service": format!("{}{SIDECAR_SUFFIX}", self.name),
            "Address": "127.0.0.1",
            "Port": self.public,
            "Meta": self.meta,
            "Proxy": {
                "DestinationServiceName": self.name,
                "DestinationServiceID": self.id,
                "LocalServiceAddress": "127.0.0.1",
                "LocalServicePort": self.app.port(),
                "Upstreams": self.upstream_values(),
            },
        });
        let check = json!({
            "CheckID": self.check_id(),
            "ServiceID": self.proxy_id(),
            "Name": "ready",
            "Status": "passing",
        });
        vec![
            json!({"Register": {"Node": node, "Address": "127.0.0.1", "Service": service, "Check": check}}),
        ]
    }

    fn upstream_values(&self) -> Vec<Value> {
        let value = |upstream: &Upstream| {
            let mut fields = Map::new();
            fields.insert("DestinationName".to_owned(), json!(upstream.name));
            fields.insert("LocalBindPort".to_owned(), json!(upstream.port));
            fields.extend(upstream.more.as_object().cloned().unwrap_or_default());
            Value::Object(fields)
        };
        self.upstreams.iter().map(value).collect()
    }
}
