//! Which protocol a service speaks (discovery-chain.md 7).

use smol_str::SmolStr;

use crate::model::{ProxyDefaults, ServiceDefaults};

/// The protocol of a service: what its service-defaults say, even when they say nothing; without such an entry what
/// proxy-defaults say. Nothing said means `tcp`. In lower case.
#[must_use]
pub fn service_protocol(
    service: Option<&ServiceDefaults>,
    proxy: Option<&ProxyDefaults>,
) -> SmolStr {
    let protocol = match (service, proxy) {
        (Some(service), _) => SmolStr::from(service.protocol.as_str()),
        (None, Some(proxy)) => default_protocol(proxy),
        (None, None) => SmolStr::default(),
    };
    if protocol.is_empty() {
        SmolStr::new_static("tcp")
    } else if protocol.chars().any(char::is_uppercase) {
        SmolStr::from(protocol.to_lowercase())
    } else {
        protocol
    }
}

/// The protocol in the free settings of proxy-defaults, as written; empty if there is none. The key's case doesn't
/// count, and a number or boolean counts as its text.
#[must_use]
pub fn default_protocol(proxy: &ProxyDefaults) -> SmolStr {
    let value = proxy.config.get("protocol").or_else(|| {
        let other =
            |(key, value): (&String, _)| key.eq_ignore_ascii_case("protocol").then_some(value);
        proxy.config.iter().find_map(other)
    });
    match value {
        Some(serde_json::Value::String(text)) => SmolStr::from(text.as_str()),
        Some(serde_json::Value::Number(number)) => SmolStr::from(number.to_string()),
        Some(serde_json::Value::Bool(yes)) => SmolStr::new_static(if *yes { "1" } else { "0" }),
        _ => SmolStr::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_7_protocol_of_a_service() {
        let proxy = |json: serde_json::Value| ProxyDefaults {
            config: json.as_object().unwrap().clone(),
            ..ProxyDefaults::default()
        };
        let http = proxy(serde_json::json!({"Protocol": "HTTP"}));
        let silent = ServiceDefaults::default();
        assert_eq!(service_protocol(None, Some(&http)), "http");
        assert_eq!(service_protocol(Some(&silent), Some(&http)), "tcp");
        assert_eq!(
            service_protocol(None, Some(&proxy(serde_json::json!({})))),
            "tcp"
        );
        assert_eq!(
            service_protocol(None, Some(&proxy(serde_json::json!({"protocol": 5})))),
            "5"
        );
        assert_eq!(service_protocol(None, None), "tcp");
    }
}
