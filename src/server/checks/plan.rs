//! From a definition to what is to be done: kind, times, target, checked once before anything runs.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{CheckDefinition, GoDuration};

use super::grpc::GrpcProbe;
use super::http::HttpProbe;
use super::probe::Probe;

/// Time allowed for a run unless the definition says otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between runs unless the definition says otherwise.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);
/// The shortest time between runs.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time after which a critical instance is removed.
const MIN_DEREGISTER_AFTER: Duration = Duration::from_secs(60);

/// What a check does.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    /// Time from the end of one run to the start of the next.
    pub(super) interval: Duration,
    /// Time allowed for a run.
    pub(super) timeout: Duration,
    /// Remove the instance after this long critical.
    pub(super) deregister_after: Option<Duration>,
}

/// The kinds of check.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// Asks a target over the network.
    Probe(Arc<Probe>),
    /// Waits to be told; critical when nothing was heard for this long.
    Ttl(Duration),
    /// Copies the state of an instance, or of a node's own checks if `service` is empty.
    Alias { node: String, service: String },
}

/// Whether the definition is of a check that waits to be told.
pub(super) fn is_ttl(definition: &CheckDefinition) -> bool {
    matches!(
        Plan::of(definition),
        Ok(Plan {
            kind: Kind::Ttl(_),
            ..
        })
    )
}

impl Plan {
    /// Reads a definition. The error says what is wrong with it, for the check's output.
    pub(super) fn of(definition: &CheckDefinition) -> Result<Self, String> {
        let mut kinds: Vec<(&str, Result<Kind, String>)> = Vec::new();
        let probe = |probe: Result<Probe, String>| probe.map(|probe| Kind::Probe(Arc::new(probe)));
        if !definition.http.is_empty() {
            kinds.push(("HTTP", probe(HttpProbe::of(definition).map(Probe::Http))));
        }
        if !definition.tcp.is_empty() {
            kinds.push((
                "TCP",
                probe(target("TCP", &definition.tcp).map(|address| Probe::Tcp { address })),
            ));
        }
        if !definition.udp.is_empty() {
            kinds.push((
                "UDP",
                probe(target("UDP", &definition.udp).map(|address| Probe::Udp { address })),
            ));
        }
        if !definition.grpc.is_empty() {
            kinds.push(("GRPC", probe(GrpcProbe::of(definition).map(Probe::Grpc))));
        }
        if !definition.h2ping.is_empty() {
            let ping = target("H2PING", &definition.h2ping).map(|address| Probe::H2Ping {
                address,
                server_name: definition.tls_server_name.clone(),
                skip_verify: definition.tls_skip_verify,
            });
            kinds.push(("H2PING", probe(ping)));
        }
        if definition.ttl.0 > 0 {
            kinds.push(("TTL", Ok(Kind::Ttl(definition.ttl.to_std()))));
        }
        if !definition.alias_service.is_empty() || !definition.alias_node.is_empty() {
            let alias = Kind::Alias {
                node: definition.alias_node.clone(),
                service: definition.alias_service.clone(),
            };
            kinds.push(("AliasService", Ok(alias)));
        }
        let names: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
        let kind = match kinds.len() {
            0 => {
                return Err("there is nothing to run: give one of HTTP, TCP, UDP, GRPC, H2PING, TTL, AliasService".into());
            }
            1 => kinds.remove(0).1?,
            _ => {
                return Err(format!(
                    "one check does one thing: leave only one of {}",
                    names.join(", ")
                ));
            }
        };
        Ok(Self {
            kind,
            interval: or_default(definition.interval, DEFAULT_INTERVAL).max(MIN_INTERVAL),
            timeout: or_default(definition.timeout, DEFAULT_TIMEOUT),
            deregister_after: (definition.deregister_critical_service_after.0 > 0).then(|| {
                definition
                    .deregister_critical_service_after
                    .to_std()
                    .max(MIN_DEREGISTER_AFTER)
            }),
        })
    }
}

fn or_default(given: GoDuration, default: Duration) -> Duration {
    if given.0 > 0 { given.to_std() } else { default }
}

/// An `address:port`, checked for its form.
pub(super) fn target(key: &str, text: &str) -> Result<String, String> {
    let wrong = || {
        format!(
            "{key} {text:?} is not an address and a port, like \"127.0.0.1:8080\" or \"[::1]:8080\""
        )
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host_ok = match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && !host.contains([':', '/', '[', ']', ' ']),
    };
    match port.parse::<u16>() {
        Ok(1..) if host_ok => Ok(text.to_owned()),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: i64) -> GoDuration {
        GoDuration::from_secs(seconds)
    }

    #[test]
    fn times_have_defaults_and_floors() {
        let plan = Plan::of(&CheckDefinition {
            tcp: "127.0.0.1:80".into(),
            ..Default::default()
        })
        .unwrap();
        assert_eq!(
            (plan.interval, plan.timeout, plan.deregister_after),
            (DEFAULT_INTERVAL, DEFAULT_TIMEOUT, None)
        );
        let plan = Plan::of(&CheckDefinition {
            tcp: "127.0.0.1:80".into(),
            interval: GoDuration::from_millis(1),
            timeout: secs(2),
            deregister_critical_service_after: secs(1),
            ..Default::default()
        })
        .unwrap();
        assert_eq!(plan.interval, MIN_INTERVAL);
        assert_eq!(plan.timeout, Duration::from_secs(2));
        assert_eq!(plan.deregister_after, Some(MIN_DEREGISTER_AFTER));
    }

    #[test]
    fn one_kind_exactly() {
        let nothing = Plan::of(&CheckDefinition::default()).unwrap_err();
        assert!(nothing.contains("nothing to run"), "{nothing}");
        let two = CheckDefinition {
            tcp: "127.0.0.1:80".into(),
            ttl: secs(1),
            ..Default::default()
        };
        let two = Plan::of(&two).unwrap_err();
        assert!(two.contains("TCP, TTL"), "{two}");
        assert!(is_ttl(&CheckDefinition {
            ttl: secs(1),
            ..Default::default()
        }));
        assert!(!is_ttl(&CheckDefinition {
            tcp: "127.0.0.1:80".into(),
            ..Default::default()
        }));
    }

    #[test]
    fn targets_are_an_address_and_a_port() {
        for good in ["127.0.0.1:80", "localhost:65535", "[::1]:8080"] {
            assert_eq!(target("TCP", good).unwrap(), good);
        }
        for bad in [
            "",
            "127.0.0.1",
            "127.0.0.1:0",
            "127.0.0.1:65536",
            ":80",
            "::1:80",
            "[localhost]:80",
            "http://a:80",
        ] {
            assert!(target("TCP", bad).is_err(), "{bad}");
        }
    }
}
