//! The records of all files together.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::problem::{FileProblem, ShownPath};
use super::scan::ContentHash;
use crate::hcl::Pos;
use crate::model::decode::same_key;
use crate::model::{AgentCheck, ConfigEntry, ServiceDefinition, SidecarPortRange, Step};

/// Where a record or setting is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The file.
    pub path: ShownPath,
    /// Line and column.
    pub pos: Pos,
    /// The keys from the top of the file.
    pub key: Vec<Step>,
    /// Where each key of the record is.
    pub(super) members: Vec<(String, Pos)>,
}

impl Source {
    /// A finding about what is written here, or at a key below it.
    pub fn problem(&self, key: Option<&str>, message: impl Into<String>) -> FileProblem {
        let below: Vec<Step> = key
            .map(|key| Step::Key(key.to_owned()))
            .into_iter()
            .collect();
        self.problem_at(&below, message)
    }

    /// A finding about something further below.
    pub(super) fn problem_at(&self, below: &[Step], message: impl Into<String>) -> FileProblem {
        let pos = match below.first() {
            Some(Step::Key(key)) => {
                let mut members = self.members.iter();
                let member = members.find(|(name, _)| same_key(name, key));
                member.map_or(self.pos, |(_, pos)| *pos)
            }
            _ => self.pos,
        };
        FileProblem {
            path: self.path.clone(),
            pos: Some(pos),
            key: [&self.key, below].concat(),
            message: message.into(),
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.path, self.pos)
    }
}

/// A record and where it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Sourced<T> {
    /// Where.
    pub source: Source,
    /// The record, valid by itself and normalized.
    pub record: T,
}

/// A setting of the agent and where it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where.
    pub source: Source,
}

/// What files say about the agent itself. Flags of the command line win over it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// `node_name`.
    pub node_name: Option<Setting<String>>,
    /// `datacenter`.
    pub datacenter: Option<Setting<String>>,
    /// `ports.http`.
    pub http_port: Option<Setting<u16>>,
    /// `ports.grpc`.
    pub xds_port: Option<Setting<u16>>,
    /// `ports.sidecar_min_port`.
    pub sidecar_min_port: Option<Setting<u16>>,
    /// `ports.sidecar_max_port`.
    pub sidecar_max_port: Option<Setting<u16>>,
    /// `default_intention_policy`: true for `allow`.
    pub intention_default_allow: Option<Setting<bool>>,
}

impl Settings {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Takes over what another file says.
    pub(super) fn merge(&mut self, other: Self, problems: &mut Vec<FileProblem>) {
        merge(&mut self.node_name, other.node_name, problems);
        merge(&mut self.datacenter, other.datacenter, problems);
        merge(&mut self.http_port, other.http_port, problems);
        merge(&mut self.xds_port, other.xds_port, problems);
        merge(&mut self.sidecar_min_port, other.sidecar_min_port, problems);
        merge(&mut self.sidecar_max_port, other.sidecar_max_port, problems);
        let policy = other.intention_default_allow;
        merge(&mut self.intention_default_allow, policy, problems);
    }

    /// The range of ports for sidecars that name none.
    #[must_use]
    pub fn sidecar_ports(&self) -> SidecarPortRange {
        let default = SidecarPortRange::default();
        let port = |given: &Option<Setting<u16>>, or: u16| given.as_ref().map_or(or, |s| s.value);
        SidecarPortRange {
            min: port(&self.sidecar_min_port, default.min),
            max: port(&self.sidecar_max_port, default.max),
        }
    }

    /// The settings that differ from `other`'s, by their keys.
    #[must_use]
    pub fn changed_from(&self, other: &Self) -> Vec<&'static str> {
        fn differ<T: PartialEq>(a: &Option<Setting<T>>, b: &Option<Setting<T>>) -> bool {
            a.as_ref().map(|s| &s.value) != b.as_ref().map(|s| &s.value)
        }
        [
            ("node_name", differ(&self.node_name, &other.node_name)),
            ("datacenter", differ(&self.datacenter, &other.datacenter)),
            ("ports.http", differ(&self.http_port, &other.http_port)),
            ("ports.grpc", differ(&self.xds_port, &other.xds_port)),
            (
                "ports.sidecar_min_port",
                differ(&self.sidecar_min_port, &other.sidecar_min_port),
            ),
            (
                "ports.sidecar_max_port",
                differ(&self.sidecar_max_port, &other.sidecar_max_port),
            ),
            (
                "default_intention_policy",
                differ(
                    &self.intention_default_allow,
                    &other.intention_default_allow,
                ),
            ),
        ]
        .into_iter()
        .filter_map(|(key, differs)| differs.then_some(key))
        .collect()
    }
}

fn merge<T: PartialEq + std::fmt::Debug>(
    have: &mut Option<Setting<T>>,
    other: Option<Setting<T>>,
    problems: &mut Vec<FileProblem>,
) {
    let Some(other) = other else { return };
    match have {
        None => *have = Some(other),
        Some(have) if have.value == other.value => {}
        Some(have) => problems.push(other.source.problem(
            None,
            format!(
                "{:?} differs from {:?} in {}; make them the same or remove one",
                other.value, have.value, have.source
            ),
        )),
    }
}

/// The records of one file.
#[derive(Debug, Clone, PartialEq)]
pub struct FileRecords {
    /// The file as messages name it.
    pub shown: ShownPath,
    /// Hash of its bytes.
    pub hash: ContentHash,
    /// Services with their checks and sidecars.
    pub services: Vec<Sourced<ServiceDefinition>>,
    /// Checks registered by themselves.
    pub checks: Vec<Sourced<AgentCheck>>,
    /// Config entries.
    pub entries: Vec<Sourced<ConfigEntry>>,
}

impl FileRecords {
    pub(super) fn new(shown: ShownPath, hash: ContentHash) -> Self {
        Self {
            shown,
            hash,
            services: Vec::new(),
            checks: Vec::new(),
            entries: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty() && self.checks.is_empty() && self.entries.is_empty()
    }
}

/// The records of all files, none of which contradicts another.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FileSet {
    /// Files by absolute path.
    pub files: BTreeMap<PathBuf, FileRecords>,
    /// What they say about the agent.
    pub settings: Settings,
    /// What has no effect here or looks like a mistake, sorted.
    pub warnings: Vec<FileProblem>,
}

impl FileSet {
    /// All services, by file and place.
    pub fn services(&self) -> impl Iterator<Item = &Sourced<ServiceDefinition>> {
        self.files.values().flat_map(|file| &file.services)
    }

    /// All checks registered by themselves, by file and place.
    pub fn checks(&self) -> impl Iterator<Item = &Sourced<AgentCheck>> {
        self.files.values().flat_map(|file| &file.checks)
    }

    /// All config entries, by file and place.
    pub fn entries(&self) -> impl Iterator<Item = &Sourced<ConfigEntry>> {
        self.files.values().flat_map(|file| &file.entries)
    }
}
