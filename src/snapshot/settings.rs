//! The settings of an upstream that reach its clusters, read from its free-form `Config` (xds.md 3.5).

use std::collections::BTreeMap;

use crate::model::{
    Decode, MeshGateway, Opaque, PassiveHealthCheck, Place, Problems, Upstream, UpstreamLimits,
    record,
};

record! {
    /// Typed settings of an upstream.
    pub struct UpstreamSettings {
        /// Protocol to speak with it; empty means the chain's.
        protocol: String = "protocol",
        /// Time to connect in milliseconds; 0 means the resolver's.
        connect_timeout_ms: i64 = "connect_timeout_ms",
        /// Circuit breakers.
        limits: Option<UpstreamLimits> = "limits",
        /// Ejection of failing instances.
        passive_health_check: Option<PassiveHealthCheck> = "passive_health_check",
        /// A whole Envoy listener as JSON.
        envoy_listener_json: String = "envoy_listener_json",
        /// A whole Envoy cluster as JSON.
        envoy_cluster_json: String = "envoy_cluster_json",
        /// `exact_balance` spreads outbound connections over Envoy's threads.
        balance_outbound_connections: String = "balance_outbound_connections",
        /// How traffic to other datacenters goes.
        mesh_gateway: MeshGateway = "mesh_gateway",
    }
}

impl UpstreamSettings {
    /// Reads an upstream's settings. Values are taken weakly (`"2500"` is a number); a key that can't be read is left
    /// out and told (kinds.md 7.3: the upstream works without it).
    #[must_use]
    pub fn read(upstream: &Upstream) -> (Self, Vec<String>) {
        let mut known = BTreeMap::new();
        let mut complaints = Vec::new();
        for (key, value) in &upstream.config {
            let key = key.to_ascii_lowercase();
            if key == "connect_timeout_ms" {
                match weak_integer(value) {
                    Some(n) => {
                        known.insert(key, serde_json::Value::from(n));
                    }
                    None => complaints.push(format!(
                        "upstream {}: Config.{key}: {value} is not a number",
                        upstream.destination_name
                    )),
                }
            } else {
                known.insert(key, weak_members(value));
            }
        }
        let mut settings = Self::default();
        for (key, value) in known {
            let one: Opaque = std::iter::once((key.clone(), value)).collect();
            let value = crate::hcl::Value::from_json(&serde_json::Value::Object(one));
            let mut problems = Problems::default();
            let read = Self::decode(&value, &Place::ROOT, &mut problems);
            match read {
                // A key that isn't ours is free-form and means nothing to clusters.
                Some(read) if problems.is_ok() => settings.take(read),
                _ if problems
                    .errors
                    .iter()
                    .any(|p| p.message.starts_with("unknown key"))
                    && problems.errors.len() == 1 => {}
                _ => complaints.push(format!(
                    "upstream {}: Config.{}",
                    upstream.destination_name,
                    problems.text()
                )),
            }
        }
        (settings, complaints)
    }

    fn take(&mut self, one: Self) {
        macro_rules! take {
            ($($field:ident),*) => { $( if !crate::model::decode::is_default(&one.$field) { self.$field = one.$field; } )* };
        }
        take!(
            protocol,
            connect_timeout_ms,
            limits,
            passive_health_check,
            envoy_listener_json,
            envoy_cluster_json,
            balance_outbound_connections,
            mesh_gateway
        );
    }
}

/// Whole numbers among the members of an object may be text too.
fn weak_members(value: &serde_json::Value) -> serde_json::Value {
    let serde_json::Value::Object(members) = value else {
        return value.clone();
    };
    let weak = |value: &serde_json::Value| {
        weak_integer(value).map_or_else(|| value.clone(), serde_json::Value::from)
    };
    members
        .iter()
        .map(|(key, value)| (key.clone(), weak(value)))
        .collect()
}

/// A whole number, also as text or as a float without fraction (xds.md 3.5: weakly typed).
fn weak_integer(value: &serde_json::Value) -> Option<i64> {
    match value {
        serde_json::Value::Number(n) => n.as_i64().or_else(|| {
            let float = n.as_f64()?;
            #[allow(
                clippy::cast_possible_truncation,
                reason = "checked to be whole and small"
            )]
            (float.fract() == 0.0 && float.abs() < 9e15).then_some(float as i64)
        }),
        serde_json::Value::String(s) => s.trim().parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: serde_json::Value) -> (UpstreamSettings, Vec<String>) {
        let config = config.as_object().unwrap().clone();
        UpstreamSettings::read(&Upstream {
            destination_name: "db".into(),
            config,
            ..Upstream::default()
        })
    }

    #[test]
    fn kinds_t15_numbers_may_be_text() {
        let (settings, complaints) = read(
            serde_json::json!({"protocol": "http", "connect_timeout_ms": "2500", "mine": [1]}),
        );
        assert_eq!(settings.protocol, "http");
        assert_eq!(settings.connect_timeout_ms, 2500);
        assert!(complaints.is_empty());
    }

    #[test]
    fn xds_3_5_numbers_of_limits_and_checks_may_be_text() {
        let (settings, complaints) = read(serde_json::json!({
            "limits": {"max_connections": "5", "max_pending_requests": 6.0},
            "passive_health_check": {"interval": "10s", "max_failures": "3", "base_ejection_time": "1m"},
        }));
        assert!(complaints.is_empty(), "{complaints:?}");
        let limits = settings.limits.unwrap();
        assert_eq!(limits.max_connections, Some(5));
        assert_eq!(limits.max_pending_requests, Some(6));
        let check = settings.passive_health_check.unwrap();
        assert_eq!(
            (check.max_failures, check.interval),
            (3, crate::model::GoDuration::from_secs(10))
        );
    }

    #[test]
    fn kinds_t16_a_bad_value_is_told_and_left_out() {
        let (settings, complaints) =
            read(serde_json::json!({"protocol": "http", "connect_timeout_ms": "abc"}));
        assert_eq!(settings.protocol, "http");
        assert_eq!(settings.connect_timeout_ms, 0);
        assert_eq!(
            complaints,
            ["upstream db: Config.connect_timeout_ms: \"abc\" is not a number"]
        );
    }
}
