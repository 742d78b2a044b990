//! SPIFFE identities (store.md 4.2): reading and writing their URIs.
//!
//! A URI is matched against five shapes on its *escaped* path, segment by segment, and each variable segment is
//! unescaped afterwards, so that an escaped slash stays inside its segment.

use std::fmt;
use std::str::FromStr;

use smol_str::SmolStr;

use super::DEFAULT_TENANCY;

/// An identity in the mesh, as the URI of a certificate carries it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SpiffeId {
    /// `spiffe://<td>[/ap/<partition>]/ns/<ns>/dc/<dc>/svc/<service>`
    Service {
        /// The trust domain.
        trust_domain: SmolStr,
        /// The partition, `default` if the URI has none.
        partition: SmolStr,
        /// The namespace.
        namespace: SmolStr,
        /// The datacenter.
        datacenter: SmolStr,
        /// The service's name.
        service: SmolStr,
    },
    /// `spiffe://<td>[/ap/<partition>]/gateway/mesh/dc/<dc>`
    MeshGateway {
        /// The trust domain.
        trust_domain: SmolStr,
        /// The partition, `default` if the URI has none.
        partition: SmolStr,
        /// The datacenter.
        datacenter: SmolStr,
    },
    /// `spiffe://<td>[/ap/<partition>]/agent/client/dc/<dc>/id/<agent id>`
    Agent {
        /// The trust domain.
        trust_domain: SmolStr,
        /// The partition, `default` if the URI has none.
        partition: SmolStr,
        /// The datacenter.
        datacenter: SmolStr,
        /// The agent's id.
        agent: SmolStr,
    },
    /// `spiffe://<td>/agent/server/dc/<dc>`
    Server {
        /// The trust domain.
        trust_domain: SmolStr,
        /// The datacenter.
        datacenter: SmolStr,
    },
    /// `spiffe://<cluster id>.<domain>`: the authority itself.
    Signing {
        /// The cluster id: the host up to its first dot.
        cluster_id: SmolStr,
        /// The rest of the host.
        domain: SmolStr,
    },
}

/// Why a text is no SPIFFE id of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpiffeIdError {
    /// The scheme isn't `spiffe`.
    #[error("{uri:?} doesn't start with spiffe://")]
    Scheme {
        /// The text.
        uri: String,
    },
    /// The host can't be a trust domain.
    #[error(
        "{uri:?} has no usable trust domain: it must be a plain host name without user, port, query or fragment"
    )]
    TrustDomain {
        /// The text.
        uri: String,
    },
    /// The path has none of the known shapes.
    #[error(
        "the path of {uri:?} is none of /ns/<ns>/dc/<dc>/svc/<service>, /gateway/mesh/dc/<dc>, \
         /agent/client/dc/<dc>/id/<id> (each may follow /ap/<partition>) and /agent/server/dc/<dc>"
    )]
    Shape {
        /// The text.
        uri: String,
    },
    /// A segment's percent-escapes are broken or hide text that isn't UTF-8.
    #[error("segment {segment:?} of {uri:?} has a broken percent escape")]
    Escape {
        /// The text.
        uri: String,
        /// The segment.
        segment: String,
    },
}

impl SpiffeId {
    /// The trust domain; of a signing id, its host.
    #[must_use]
    pub fn trust_domain(&self) -> SmolStr {
        match self {
            Self::Service { trust_domain, .. }
            | Self::MeshGateway { trust_domain, .. }
            | Self::Agent { trust_domain, .. }
            | Self::Server { trust_domain, .. } => trust_domain.clone(),
            Self::Signing { cluster_id, domain } => {
                smol_str::format_smolstr!("{cluster_id}.{domain}")
            }
        }
    }

    /// The datacenter; a signing id has none.
    #[must_use]
    pub fn datacenter(&self) -> Option<&SmolStr> {
        match self {
            Self::Service { datacenter, .. }
            | Self::MeshGateway { datacenter, .. }
            | Self::Agent { datacenter, .. }
            | Self::Server { datacenter, .. } => Some(datacenter),
            Self::Signing { .. } => None,
        }
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service {
                trust_domain,
                partition,
                namespace,
                datacenter,
                service,
            } => {
                write!(f, "spiffe://{trust_domain}{}", Partition(partition))?;
                let (namespace, datacenter) = (Escaped(namespace), Escaped(datacenter));
                write!(
                    f,
                    "/ns/{namespace}/dc/{datacenter}/svc/{}",
                    Escaped(service)
                )
            }
            Self::MeshGateway {
                trust_domain,
                partition,
                datacenter,
            } => {
                write!(f, "spiffe://{trust_domain}{}", Partition(partition))?;
                write!(f, "/gateway/mesh/dc/{}", Escaped(datacenter))
            }
            Self::Agent {
                trust_domain,
                partition,
                datacenter,
                agent,
            } => {
                write!(f, "spiffe://{trust_domain}{}", Partition(partition))?;
                let datacenter = Escaped(datacenter);
                write!(f, "/agent/client/dc/{datacenter}/id/{}", Escaped(agent))
            }
            Self::Server {
                trust_domain,
                datacenter,
            } => {
                write!(
                    f,
                    "spiffe://{trust_domain}/agent/server/dc/{}",
                    Escaped(datacenter)
                )
            }
            Self::Signing { cluster_id, domain } => write!(f, "spiffe://{cluster_id}.{domain}"),
        }
    }
}

impl FromStr for SpiffeId {
    type Err = SpiffeIdError;

    fn from_str(uri: &str) -> Result<Self, SpiffeIdError> {
        const SCHEME: &str = "spiffe://";
        let rest = match uri.split_at_checked(SCHEME.len()) {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case(SCHEME) => rest,
            _ => return Err(SpiffeIdError::Scheme { uri: uri.into() }),
        };
        let (host, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let host_is_plain = |host: &str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
            !host.is_empty() && host.bytes().all(plain)
        };
        if !host_is_plain(host) {
            return Err(SpiffeIdError::TrustDomain { uri: uri.into() });
        }
        let trust_domain = SmolStr::from(host);
        if path.is_empty() {
            let Some((cluster_id, domain)) = host.split_once('.') else {
                return Err(SpiffeIdError::TrustDomain { uri: uri.into() });
            };
            return Ok(Self::Signing {
                cluster_id: cluster_id.into(),
                domain: domain.into(),
            });
        }
        parse_path(uri, trust_domain, path)
    }
}

fn parse_path(uri: &str, trust_domain: SmolStr, path: &str) -> Result<SpiffeId, SpiffeIdError> {
    let shape = || SpiffeIdError::Shape { uri: uri.into() };
    if path.contains(['?', '#']) {
        return Err(shape());
    }
    let text = |segment: &str| {
        if segment.is_empty() {
            return Err(shape());
        }
        unescape(segment).ok_or_else(|| SpiffeIdError::Escape {
            uri: uri.into(),
            segment: segment.into(),
        })
    };
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let (partition, segments) = match segments.as_slice() {
        ["ap", partition, rest @ ..] => (Some(text(partition)?), rest),
        rest => (None, rest),
    };
    let in_partition = partition.is_some();
    let partition = partition.unwrap_or_else(|| SmolStr::new_static(DEFAULT_TENANCY));
    match segments {
        ["ns", namespace, "dc", datacenter, "svc", service] => Ok(SpiffeId::Service {
            trust_domain,
            partition,
            namespace: text(namespace)?,
            datacenter: text(datacenter)?,
            service: text(service)?,
        }),
        ["gateway", "mesh", "dc", datacenter] => Ok(SpiffeId::MeshGateway {
            trust_domain,
            partition,
            datacenter: text(datacenter)?,
        }),
        ["agent", "client", "dc", datacenter, "id", agent] => Ok(SpiffeId::Agent {
            trust_domain,
            partition,
            datacenter: text(datacenter)?,
            agent: text(agent)?,
        }),
        ["agent", "server", "dc", datacenter] if !in_partition => Ok(SpiffeId::Server {
            trust_domain,
            datacenter: text(datacenter)?,
        }),
        _ => Err(shape()),
    }
}

/// `/ap/<partition>`, or nothing for the default one.
struct Partition<'a>(&'a str);

impl fmt::Display for Partition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() || self.0.eq_ignore_ascii_case(DEFAULT_TENANCY) {
            return Ok(());
        }
        write!(f, "/ap/{}", Escaped(self.0))
    }
}

/// A path segment with everything escaped that may not stand in one.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.bytes() {
            let plain = byte.is_ascii_alphanumeric()
                || matches!(
                    byte,
                    b'-' | b'_' | b'.' | b'~' | b'$' | b'&' | b'+' | b':' | b'=' | b'@'
                );
            if plain {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

fn unescape(segment: &str) -> Option<SmolStr> {
    if !segment.contains('%') {
        return Some(segment.into());
    }
    let mut plain = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            plain.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            plain.push(byte);
        }
    }
    String::from_utf8(plain).ok().map(SmolStr::from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn service(partition: &str, name: &str) -> SpiffeId {
        SpiffeId::Service {
            trust_domain: "c1.consul".into(),
            partition: partition.into(),
            namespace: "default".into(),
            datacenter: "dc1".into(),
            service: name.into(),
        }
    }

    #[test]
    fn uris_of_every_kind_read_and_write() {
        for (uri, id) in [
            (
                "spiffe://c1.consul/ns/default/dc/dc1/svc/web",
                service("default", "web"),
            ),
            (
                "spiffe://c1.consul/ap/p1/ns/default/dc/dc1/svc/web",
                service("p1", "web"),
            ),
            (
                "spiffe://c1.consul/gateway/mesh/dc/dc1",
                SpiffeId::MeshGateway {
                    trust_domain: "c1.consul".into(),
                    partition: "default".into(),
                    datacenter: "dc1".into(),
                },
            ),
            (
                "spiffe://c1.consul/ap/p1/agent/client/dc/dc1/id/n%2F1",
                SpiffeId::Agent {
                    trust_domain: "c1.consul".into(),
                    partition: "p1".into(),
                    datacenter: "dc1".into(),
                    agent: "n/1".into(),
                },
            ),
            (
                "spiffe://c1.consul/agent/server/dc/dc1",
                SpiffeId::Server {
                    trust_domain: "c1.consul".into(),
                    datacenter: "dc1".into(),
                },
            ),
            (
                "spiffe://c1.some.domain",
                SpiffeId::Signing {
                    cluster_id: "c1".into(),
                    domain: "some.domain".into(),
                },
            ),
        ] {
            assert_eq!(uri.parse::<SpiffeId>().as_ref(), Ok(&id), "{uri}");
            assert_eq!(id.to_string(), uri);
        }
    }

    #[test]
    fn a_default_partition_is_not_written() {
        let read: SpiffeId = "spiffe://c1.consul/ap/default/ns/default/dc/dc1/svc/web"
            .parse()
            .unwrap();
        assert_eq!(
            read.to_string(),
            "spiffe://c1.consul/ns/default/dc/dc1/svc/web"
        );
    }

    #[test]
    fn other_shapes_are_refused() {
        for uri in [
            "",
            "https://c1.consul/ns/default/dc/dc1/svc/web",
            "spiffe:/c1.consul/ns/default/dc/dc1/svc/web",
            "spiffe:///ns/default/dc/dc1/svc/web",
            "spiffe://me@c1.consul/ns/default/dc/dc1/svc/web",
            "spiffe://c1.consul:8080/ns/default/dc/dc1/svc/web",
            "spiffe://c1",
            "spiffe://c1.consul/",
            "spiffe://c1.consul/ns/default/dc/dc1/svc/",
            "spiffe://c1.consul/ns/default/dc/dc1/svc/web/",
            "spiffe://c1.consul/ns//dc/dc1/svc/web",
            "spiffe://c1.consul/ns/default/dc/dc1/svc/web/more",
            "spiffe://c1.consul/ns/default/dc/dc1/svc/web?a=b",
            "spiffe://c1.consul/ns/default/dc/dc1/svc/web#a",
            "spiffe://c1.consul/dc/dc1/svc/web",
            "spiffe://c1.consul/NS/default/dc/dc1/svc/web",
            "spiffe://c1.consul/ap/p1/agent/server/dc/dc1",
            "spiffe://c1.consul/gateway/ingress/dc/dc1",
            "spiffe://c1.consul/ns/default/dc/dc1/svc/w%2",
            "spiffe://c1.consul/ns/default/dc/dc1/svc/w%zz",
            "spiffe://c1.consul/ns/default/dc/dc1/svc/%ff",
        ] {
            assert!(uri.parse::<SpiffeId>().is_err(), "{uri:?} was accepted");
        }
    }

    proptest! {
        #[test]
        fn any_name_survives_the_round_trip(name in "\\PC{1,20}", partition in "[a-z/% ]{1,8}") {
            let id = service(&partition, &name);
            prop_assert_eq!(id.to_string().parse::<SpiffeId>(), Ok(id));
        }

        #[test]
        fn parsing_never_panics(uri in "(spiffe://)?\\PC{0,40}") {
            let _ = uri.parse::<SpiffeId>();
        }
    }
}
