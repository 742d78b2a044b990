//! Several writes that take effect together or not at all (decisions R3).
//!
//! ```json
//! {"Ops": [
//!   {"Register":     {"Node": "n1", "Address": "10.0.0.1", "Service": {"Service": "web", "Port": 80}}},
//!   {"Deregister":   {"Node": "n1", "ServiceID": "web"}},
//!   {"Config":       {"Kind": "service-defaults", "Name": "web", "Protocol": "http"}},
//!   {"DeleteConfig": {"Kind": "service-defaults", "Name": "web"}},
//!   {"Check":        {"Node": "n1", "CheckID": "web", "ServiceID": "web", "Status": "passing"}}
//! ]}
//! ```

use serde::ser::SerializeMap as _;

use crate::hcl::{Data, Value};
use crate::model::check::HealthCheck;
use crate::model::config_entry::{ConfigEntry, EntryKey, EntryKind};
use crate::model::decode::{Decode, Place, Problems, members_of, record, same_key};
use crate::model::registration::{CatalogDeregistration, CatalogRegistration};
use crate::model::rules;
use crate::model::validate::{self, Validate};

record! {
    /// Writes in order.
    pub struct Transaction {
        /// The writes.
        ops: Vec<Op> = "Ops" always,
    }
}

impl Transaction {
    /// Reads, checks and normalizes a transaction; the problems that come with it are warnings.
    ///
    /// # Errors
    /// All problems of all writes with their places, if there is an error among them.
    pub fn read(document: &Value) -> Result<(Self, Problems), Problems> {
        validate::read(document)
    }

    /// Puts the writes into a datacenter: those that name none are of it.
    ///
    /// # Errors
    /// Writes that name another one, each with its place.
    pub fn place_in(&mut self, datacenter: &str) -> Result<(), Vec<String>> {
        let mut problems = Vec::new();
        for (i, op) in self.ops.iter_mut().enumerate() {
            let key = op.key();
            let named = match op {
                Op::Register(registration) => &mut registration.datacenter,
                Op::Deregister(what) => &mut what.datacenter,
                Op::Config(_) | Op::DeleteConfig(_) | Op::Check(_) => continue,
            };
            if named.is_empty() {
                datacenter.clone_into(named);
            } else if !named.eq_ignore_ascii_case(datacenter) {
                problems.push(format!(
                    "Ops[{i}].{key}.Datacenter: {named:?} is not the datacenter {datacenter:?} that is kept here"
                ));
            }
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }
}

/// One write.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Puts a node, an instance, checks.
    Register(Box<CatalogRegistration>),
    /// Removes a node, an instance or a check.
    Deregister(CatalogDeregistration),
    /// Puts a config entry.
    Config(Box<ConfigEntry>),
    /// Removes a config entry.
    DeleteConfig(EntryDeletion),
    /// Puts a check of a node or instance that exists.
    Check(Box<HealthCheck>),
}

record! {
    /// A config entry to remove.
    pub struct EntryDeletion {
        /// Its kind.
        kind: String = "Kind" always,
        /// Its name; may be left out where there is only one.
        name: String = "Name" always,
    }
}

impl EntryDeletion {
    /// The deletion of an entry.
    #[must_use]
    pub fn of(key: &EntryKey) -> Self {
        Self {
            kind: key.kind.to_string(),
            name: key.name.to_string(),
        }
    }

    /// The entry's key; `None` if the kind isn't known, which validation refuses.
    #[must_use]
    pub fn key(&self) -> Option<EntryKey> {
        let kind = EntryKind::from_text(&self.kind)?;
        Some(EntryKey::new(kind, kind.only_name().unwrap_or(&self.name)))
    }
}

impl EntryKind {
    /// The name of the only entry of this kind, where there can be only one (store.md 3.1, 3.9).
    #[must_use]
    pub const fn only_name(self) -> Option<&'static str> {
        match self {
            Self::ProxyDefaults => Some("global"),
            Self::Mesh => Some("mesh"),
            _ => None,
        }
    }
}

impl Validate for EntryDeletion {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        match EntryKind::from_text(&self.kind) {
            None => {
                let kinds = EntryKind::ALL.map(EntryKind::as_str);
                rules::one_of(&self.kind, &kinds, &at.key("Kind"), problems);
            }
            Some(kind) => {
                let alone = kind.only_name();
                if alone.is_none() && rules::is_blank(&self.name) {
                    problems.error(&at.key("Name"), "the name must not be empty");
                }
                if let Some(only) = alone
                    && !(self.name.is_empty() || self.name.eq_ignore_ascii_case(only))
                {
                    problems.error(
                        &at.key("Name"),
                        format!("{kind} has the one name \"{only}\""),
                    );
                }
            }
        }
    }

    fn normalize(&mut self) {
        if let Some(kind) = EntryKind::from_text(&self.kind) {
            self.kind = kind.to_string();
            if let Some(only) = kind.only_name() {
                only.clone_into(&mut self.name);
            }
        }
    }
}

impl Op {
    const KEYS: [&'static str; 5] = ["Register", "Deregister", "Config", "DeleteConfig", "Check"];

    const fn key(&self) -> &'static str {
        match self {
            Self::Register(_) => "Register",
            Self::Deregister(_) => "Deregister",
            Self::Config(_) => "Config",
            Self::DeleteConfig(_) => "DeleteConfig",
            Self::Check(_) => "Check",
        }
    }
}

impl Decode for Op {
    fn decode(value: &Value, at: &Place<'_>, problems: &mut Problems) -> Option<Self> {
        let members = members_of(value, at, problems)?;
        let mut given = members.iter().filter(|m| m.value.data != Data::Null);
        let (Some(member), None) = (given.next(), given.next()) else {
            problems.error(
                at,
                format!("a write needs exactly one key of {}", Self::KEYS.join(", ")),
            );
            return None;
        };
        let Some(key) = Self::KEYS.iter().find(|k| same_key(k, &member.key)) else {
            crate::model::decode::unknown_key(&member.key, &Self::KEYS, at, problems);
            return None;
        };
        let (value, at) = (&member.value, at.key(key));
        match *key {
            "Register" => Decode::decode(value, &at, problems).map(Self::Register),
            "Deregister" => Decode::decode(value, &at, problems).map(Self::Deregister),
            "Config" => Decode::decode(value, &at, problems).map(Self::Config),
            "DeleteConfig" => Decode::decode(value, &at, problems).map(Self::DeleteConfig),
            _ => Decode::decode(value, &at, problems).map(Self::Check),
        }
    }
}

impl serde::Serialize for Op {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        match self {
            Self::Register(r) => map.serialize_entry(self.key(), r)?,
            Self::Deregister(d) => map.serialize_entry(self.key(), d)?,
            Self::Config(e) => map.serialize_entry(self.key(), e)?,
            Self::DeleteConfig(d) => map.serialize_entry(self.key(), d)?,
            Self::Check(c) => map.serialize_entry(self.key(), c)?,
        }
        map.end()
    }
}

macro_rules! each_op {
    ($op:expr, $o:ident => $body:expr) => {
        match $op {
            Op::Register($o) => $body,
            Op::Deregister($o) => $body,
            Op::Config($o) => $body,
            Op::DeleteConfig($o) => $body,
            Op::Check($o) => $body,
        }
    };
}

impl Validate for Op {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        let at = at.key(self.key());
        each_op!(self, o => o.validate(&at, problems));
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        let at = at.key(self.key());
        each_op!(self, o => o.enterprise_only(&at, problems));
    }

    fn normalize(&mut self) {
        each_op!(self, o => o.normalize());
    }
}

impl Validate for Transaction {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        let ops = at.key("Ops");
        for (i, op) in self.ops.iter().enumerate() {
            op.validate(&ops.index(i), problems);
        }
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        let ops = at.key("Ops");
        for (i, op) in self.ops.iter().enumerate() {
            op.enterprise_only(&ops.index(i), problems);
        }
    }

    fn normalize(&mut self) {
        for op in &mut self.ops {
            op.normalize();
        }
    }
}
