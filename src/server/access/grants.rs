//! Rights: which services a caller may stand for, read and write.
//!
//! Rights are about services. A sidecar counts as its service, also by its own name (`web-sidecar-proxy` as `web`). To
//! *watch* a service is to stand for it: its proxies' configuration and its certificate with the key. What belongs to no
//! service (nodes, mesh-wide config entries, the certificate authority, metrics) is the operator's.

use std::fmt;

use smol_str::SmolStr;

use crate::model::{SIDECAR_SUFFIX, ServiceInstance};

/// Something that a caller wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access<'a> {
    /// Nothing that a known caller may not do.
    Any,
    /// Stand for a service: have its proxies' snapshots and resources, and its certificate with the key.
    Watch(&'a str),
    /// Read the records of a service.
    Read(&'a str),
    /// Read the records of all services, and of nodes.
    ReadAll,
    /// Write the records of a service.
    Write(&'a str),
    /// Write the records of all services, and of nodes.
    WriteAll,
    /// What belongs to no service.
    Operator,
}

/// The caller lacks a right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Permission denied: {who} lacks the right to {what}")]
pub struct Denied {
    who: String,
    what: String,
}

/// What the holder of a token may do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    /// The name of the token, for messages; never its secret.
    pub name: SmolStr,
    /// Services to stand for; this includes reading them.
    pub watch: Services,
    /// Services to read.
    pub read: Services,
    /// Services to write; this includes reading them.
    pub write: Services,
    /// Everything.
    pub operator: bool,
}

/// A set of services: names, names up to a `*`, or `*` for all. Case doesn't count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Services {
    names: Vec<String>,
    prefixes: Vec<String>,
}

impl Services {
    /// Reads a list.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Self {
        let mut services = Self::default();
        for pattern in patterns {
            let pattern = pattern.to_ascii_lowercase();
            match pattern.strip_suffix('*') {
                Some(prefix) => services.prefixes.push(prefix.to_owned()),
                None => services.names.push(pattern),
            }
        }
        services
    }

    fn contains(&self, service: &str) -> bool {
        self.has(service)
            || service
                .to_ascii_lowercase()
                .strip_suffix(SIDECAR_SUFFIX)
                .is_some_and(|of| self.has(of))
    }

    fn has(&self, service: &str) -> bool {
        let starts = |prefix: &String| {
            let start = service.as_bytes().get(..prefix.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
        };
        self.names.iter().any(|n| n.eq_ignore_ascii_case(service))
            || self.prefixes.iter().any(starts)
    }

    fn has_all(&self) -> bool {
        self.prefixes.iter().any(String::is_empty)
    }
}

impl Grants {
    /// Every right.
    pub fn all(name: impl Into<SmolStr>) -> Self {
        Self {
            name: name.into(),
            operator: true,
            ..Self::default()
        }
    }

    /// Whether an access is granted.
    #[must_use]
    pub fn allows(&self, access: Access<'_>) -> bool {
        self.operator
            || match access {
                Access::Any => true,
                Access::Watch(service) => self.watch.contains(service),
                Access::Read(service) => [&self.read, &self.write, &self.watch]
                    .iter()
                    .any(|services| services.contains(service)),
                Access::ReadAll => self.read.has_all() || self.write.has_all(),
                Access::Write(service) => self.write.contains(service),
                Access::WriteAll => self.write.has_all(),
                Access::Operator => false,
            }
    }

    /// Insists on an access.
    ///
    /// # Errors
    /// It isn't granted.
    pub fn require(&self, access: Access<'_>) -> Result<(), Denied> {
        if self.allows(access) {
            return Ok(());
        }
        Err(Denied {
            who: if self.name.is_empty() {
                "a caller without a token".to_owned()
            } else {
                format!("token {:?}", self.name)
            },
            what: access.to_string(),
        })
    }
}

impl fmt::Display for Access<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("ask at all"),
            Self::Watch(service) => write!(f, "stand for service {service:?} (watch)"),
            Self::Read(service) => write!(f, "read service {service:?}"),
            Self::ReadAll => f.write_str("read all services (read = [\"*\"])"),
            Self::Write(service) => write!(f, "write service {service:?}"),
            Self::WriteAll => f.write_str("write all services (write = [\"*\"])"),
            Self::Operator => f.write_str("operate the control plane (operator)"),
        }
    }
}

/// The service whose rights an instance is under: a sidecar's destination, else its own.
#[must_use]
pub fn service_of(instance: &ServiceInstance) -> &str {
    if instance.is_sidecar() {
        &instance.proxy.destination_service_name
    } else {
        &instance.service
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(watch: &[&str], read: &[&str], write: &[&str]) -> Grants {
        let set = |of: &[&str]| Services::new(of.iter().copied());
        Grants {
            name: "t".into(),
            watch: set(watch),
            read: set(read),
            write: set(write),
            operator: false,
        }
    }

    #[test]
    fn c2_rights_are_of_services_and_of_nothing_else() {
        use Access::{Any, Operator, Read, ReadAll, Watch, Write, WriteAll};
        let web = grants(&["web"], &["db", "pay-*"], &["shop"]);
        for access in [
            Any,
            Watch("web"),
            Watch("WEB"),
            Watch("web-sidecar-proxy"),
            Read("web"),
            Read("db"),
            Read("pay-in"),
            Read("shop"),
            Write("shop"),
            Write("shop-sidecar-proxy"),
        ] {
            assert!(web.allows(access), "{access:?}");
        }
        for access in [
            Watch("db"),
            Watch("web2"),
            Watch("web-other"),
            Watch("we"),
            Watch(""),
            Read("other"),
            Read("pay"),
            ReadAll,
            Write("web"),
            Write("db"),
            WriteAll,
            Operator,
        ] {
            assert!(!web.allows(access), "{access:?}");
            let denied = web.require(access).unwrap_err().to_string();
            assert!(
                denied.starts_with("Permission denied: token \"t\" lacks"),
                "{denied}"
            );
        }
        let all = grants(&[], &["*"], &[]);
        assert!(all.allows(ReadAll) && all.allows(Read("x")));
        assert!(!all.allows(Watch("x")) && !all.allows(Write("x")) && !all.allows(Operator));
        assert!(Grants::all("op").allows(Operator));
        assert!(Grants::all("op").allows(Write("x")));
        let nothing = Grants::default();
        assert!(!nothing.allows(Read("x")) && !nothing.allows(ReadAll));
        assert!(
            nothing
                .require(ReadAll)
                .unwrap_err()
                .to_string()
                .contains("without a token")
        );
    }
}
