//! The free settings of a proxy (xds.md 3.5), read weakly: numbers and truth values may be written as text.
//!
//! A setting that can't be read is told and keeps its default; the others hold.

use serde_json::Value;

use super::proto::hcm;
use crate::model::Opaque;

/// Typed settings of a sidecar, with defaults filled in.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) struct ProxySettings {
    /// Protocol of the application, lower case; `tcp` unless given.
    pub protocol: String,
    /// Address of the public listener; empty means the service's.
    pub bind_address: String,
    /// Port of the public listener; 0 means the service's.
    pub bind_port: u16,
    /// Time to connect to the application.
    pub local_connect_timeout_ms: i64,
    /// Time for a request to the application; 0 means no limit.
    pub local_request_timeout_ms: Option<i64>,
    /// Time without bytes; 0 means no limit.
    pub local_idle_timeout_ms: Option<i64>,
    /// Most inbound connections; 0 means no limit.
    pub max_inbound_connections: u32,
    /// Spread inbound connections evenly over Envoy's threads.
    pub exact_balance: bool,
    /// Most kilobytes of headers of a request.
    pub max_request_headers_kb: Option<u32>,
    /// How long Envoy waits for the first endpoints of a cluster and for the first routes of a listener; 0 means for ever.
    pub fetch_timeout_ms: Option<i64>,
    /// The public listener, as Envoy's JSON; empty means the generated one.
    pub public_listener_json: String,
    /// The cluster of the application, as Envoy's JSON; empty means the generated one.
    pub local_cluster_json: String,
    /// Tracing of HTTP listeners, as Envoy's JSON; empty means none.
    pub tracing_json: String,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            protocol: "tcp".to_owned(),
            bind_address: String::new(),
            bind_port: 0,
            local_connect_timeout_ms: 5000,
            local_request_timeout_ms: None,
            local_idle_timeout_ms: None,
            max_inbound_connections: 0,
            exact_balance: false,
            max_request_headers_kb: None,
            fetch_timeout_ms: None,
            public_listener_json: String::new(),
            local_cluster_json: String::new(),
            tracing_json: String::new(),
        }
    }
}

/// Most kilobytes of request headers that Envoy takes.
const MOST_HEADERS_KB: u32 = 8192;

impl ProxySettings {
    /// Reads the settings. Keys are compared without regard to case; unknown ones belong to others and are ignored.
    pub(super) fn read(config: &Opaque) -> (Self, Vec<String>) {
        let mut settings = Self::default();
        let mut complaints = Vec::new();
        for (key, value) in config {
            let key_read = key.to_ascii_lowercase();
            if let Err(wanted) = settings.take(&key_read, value) {
                complaints.push(if key_read.ends_with("_json") {
                    // A whole resource may hold a private key (decision C1): it isn't shown.
                    format!("Proxy.Config.{key} {wanted}")
                } else {
                    format!("Proxy.Config.{key}: {value} {wanted}")
                });
            }
        }
        (settings, complaints)
    }

    fn take(&mut self, key: &str, value: &Value) -> Result<(), &'static str> {
        match key {
            "protocol" => {
                let protocol = text(value)?.to_ascii_lowercase();
                if !protocol.is_empty() {
                    self.protocol = protocol;
                }
            }
            "bind_address" => self.bind_address = text(value)?,
            "bind_port" => {
                self.bind_port = u16::try_from(whole(value)?).map_err(|_| "is not a port")?;
            }
            "local_connect_timeout_ms" => {
                let timeout = whole(value)?;
                if timeout >= 1 {
                    self.local_connect_timeout_ms = timeout;
                }
            }
            "local_request_timeout_ms" => {
                self.local_request_timeout_ms = Some(not_negative(value)?)
            }
            "local_idle_timeout_ms" => self.local_idle_timeout_ms = Some(not_negative(value)?),
            "max_inbound_connections" => {
                self.max_inbound_connections =
                    u32::try_from(whole(value)?).map_err(|_| "is out of range")?;
            }
            "balance_inbound_connections" => self.exact_balance = exact_balance(&text(value)?)?,
            "max_request_headers_kb" => {
                let kilobytes = u32::try_from(whole(value)?).unwrap_or_default();
                if kilobytes == 0 || kilobytes > MOST_HEADERS_KB {
                    return Err("is not between 1 and 8192");
                }
                self.max_request_headers_kb = Some(kilobytes);
            }
            "envoy_xds_fetch_timeout_ms" | "xds_fetch_timeout_ms" => {
                self.fetch_timeout_ms = Some(not_negative(value)?);
            }
            "envoy_public_listener_json" => self.public_listener_json = json(value)?,
            "envoy_local_cluster_json" => self.local_cluster_json = json(value)?,
            "envoy_listener_tracing_json" => self.tracing_json = json(value)?,
            _ => {}
        }
        Ok(())
    }
}

/// Whether connections are balanced exactly (xds.md 3.5).
pub(super) fn exact_balance(text: &str) -> Result<bool, &'static str> {
    match text {
        "" => Ok(false),
        "exact_balance" => Ok(true),
        _ => Err("is not \"exact_balance\", the only kind there is"),
    }
}

/// The text of an action on odd requests, as Envoy's own enumeration; empty means Envoy's default.
pub(super) fn escaped_slashes(text: &str) -> Result<i32, String> {
    use hcm::http_connection_manager::PathWithEscapedSlashesAction as Action;
    if text.is_empty() {
        return Ok(0);
    }
    Action::from_str_name(text).map(|action| action as i32).ok_or_else(|| {
        format!(
            "mesh HTTP.Incoming.RequestNormalization.PathWithEscapedSlashesAction: {text:?} is not one of IMPLEMENTATION_SPECIFIC_DEFAULT, KEEP_UNCHANGED, REJECT_REQUEST, UNESCAPE_AND_REDIRECT, UNESCAPE_AND_FORWARD"
        )
    })
}

fn text(value: &Value) -> Result<String, &'static str> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Null => Ok(String::new()),
        Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
        Value::Array(_) | Value::Object(_) => Err("is not text"),
    }
}

/// JSON as text; white space alone is nothing.
fn json(value: &Value) -> Result<String, &'static str> {
    match value {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.trim().to_owned()),
        _ => Err("is not text that holds JSON"),
    }
}

fn whole(value: &Value) -> Result<i64, &'static str> {
    const WANTED: &str = "is not a whole number";
    match value {
        Value::Null => Ok(0),
        Value::Bool(is) => Ok(i64::from(*is)),
        Value::String(text) if text.trim().is_empty() => Ok(0),
        Value::String(text) => text.trim().parse().map_err(|_| WANTED),
        Value::Number(number) => number
            .as_i64()
            .or_else(|| {
                let float = number.as_f64()?;
                #[allow(
                    clippy::cast_possible_truncation,
                    reason = "checked to be whole and small"
                )]
                (float.fract() == 0.0 && float.abs() < 9e15).then_some(float as i64)
            })
            .ok_or(WANTED),
        Value::Array(_) | Value::Object(_) => Err(WANTED),
    }
}

fn not_negative(value: &Value) -> Result<i64, &'static str> {
    match whole(value)? {
        ..0 => Err("is negative"),
        number => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: Value) -> (ProxySettings, Vec<String>) {
        ProxySettings::read(config.as_object().unwrap())
    }

    #[test]
    fn xds_3_5_weak_values_and_defaults() {
        let (settings, complaints) = read(serde_json::json!({
            "Protocol": "HTTP", "bind_port": "8443", "local_connect_timeout_ms": 0, "local_request_timeout_ms": 0,
            "max_inbound_connections": 5.0, "balance_inbound_connections": "exact_balance", "mine": {},
        }));
        assert!(complaints.is_empty(), "{complaints:?}");
        assert_eq!(
            settings,
            ProxySettings {
                protocol: "http".into(),
                bind_port: 8443,
                local_request_timeout_ms: Some(0),
                max_inbound_connections: 5,
                exact_balance: true,
                ..Default::default()
            }
        );
    }

    #[test]
    fn xds_3_5_a_bad_value_is_told_and_the_rest_holds() {
        let (settings, complaints) = read(serde_json::json!({
            "protocol": "grpc", "bind_port": 70000, "local_idle_timeout_ms": -1,
            "balance_inbound_connections": "some", "envoy_public_listener_json": ["TOP-SECRET"], "envoy_local_cluster_json": "",
        }));
        assert_eq!(
            settings,
            ProxySettings {
                protocol: "grpc".into(),
                ..Default::default()
            }
        );
        assert_eq!(complaints.len(), 4, "{complaints:?}");
        assert!(
            !complaints.concat().contains("TOP-SECRET"),
            "{complaints:?}"
        );
    }
}
