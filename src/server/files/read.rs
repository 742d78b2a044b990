//! One file into records: agent configuration, or a bare config entry.

use super::agent_keys::{IDLE, IDLE_PORTS, USED, USED_PORTS, idle_message};
use super::problem::{FileProblem, ShownPath};
use super::scan::ScannedFile;
use super::set::{FileRecords, Setting, Settings, Source, Sourced};
use crate::hcl::{self, Data, Member, Pos, SyntaxErrors, Value};
use crate::model::decode::{members_of, same_key, unknown_key};
use crate::model::{
    AgentCheck, ConfigEntry, Decode, Node, Place, Problems, ServiceDefinition, ServiceKind, Step,
    Validate, accept, read_at,
};

/// What a file holds.
pub(super) struct ReadFile {
    pub records: FileRecords,
    pub settings: Settings,
    pub errors: Vec<FileProblem>,
    pub warnings: Vec<FileProblem>,
}

/// Reads a file, noting everything that is wrong with it.
pub(super) fn read(file: &ScannedFile) -> ReadFile {
    let mut read = ReadFile {
        records: FileRecords::new(file.shown.clone(), file.hash),
        settings: Settings::default(),
        errors: Vec::new(),
        warnings: Vec::new(),
    };
    let document = match parse(file) {
        Ok(document) => document,
        Err(problems) => {
            read.errors = problems;
            return read;
        }
    };
    let mut reader = Reader {
        shown: &file.shown,
        document: &document,
        problems: Problems::default(),
    };
    reader.read(&mut read.records, &mut read.settings);
    let mut problems = reader.problems;
    problems.locate(&document);
    let shown = |problem| FileProblem::of_record(&file.shown, problem);
    read.errors = problems.errors.into_iter().map(shown).collect();
    read.warnings = problems.warnings.into_iter().map(shown).collect();
    let silent = read.errors.is_empty() && read.warnings.is_empty();
    if silent && read.records.is_empty() && read.settings.is_empty() {
        read.warnings.push(FileProblem::of_file(
            &file.shown,
            "the file defines nothing that is used here",
        ));
    }
    read
}

fn parse(file: &ScannedFile) -> Result<Value, Vec<FileProblem>> {
    let at = |pos: Pos, message: String| FileProblem {
        path: file.shown.clone(),
        pos: Some(pos),
        key: Vec::new(),
        message,
    };
    if file.bytes.iter().all(u8::is_ascii_whitespace) {
        let message = "the file is empty; write a service or a config entry into it, or remove it";
        return Err(vec![at(Pos::START, message.to_owned())]);
    }
    let syntax = |errors: SyntaxErrors| -> Vec<FileProblem> {
        let errors = errors.iter();
        errors.map(|e| at(e.pos, e.message.clone())).collect()
    };
    if !file.shown.ends_with(".json") {
        return hcl::parse(&file.bytes).map_err(syntax);
    }
    let document = hcl::parse_json(&file.bytes).map_err(syntax)?;
    match document.data {
        Data::Object(_) => Ok(document),
        _ => Err(vec![at(
            document.pos,
            format!(
                "a configuration file holds an object, not {}; write {{\"services\": [...]}} or one config entry",
                document.kind()
            ),
        )]),
    }
}

struct Reader<'a> {
    shown: &'a ShownPath,
    document: &'a Value,
    problems: Problems,
}

impl Reader<'_> {
    fn read(&mut self, records: &mut FileRecords, settings: &mut Settings) {
        let Some(members) = members_of(self.document, &Place::ROOT, &mut self.problems) else {
            return;
        };
        match members.iter().find(|m| same_key(&m.key, "Kind")) {
            Some(kind) => self.bare_entry(kind, records),
            None => self.agent(members, records, settings),
        }
    }

    fn bare_entry(&mut self, kind: &Member, records: &mut FileRecords) {
        if let Data::String(text) = &kind.value.data
            && !text.is_empty()
            && ServiceKind::from_text(text).is_some()
        {
            self.problems.error(
                &Place::ROOT.key("Kind"),
                format!(
                    "{text:?} is a kind of service, not of config entry; put the definition into a service block"
                ),
            );
            return;
        }
        let entry = self.record::<ConfigEntry>(self.document, &Place::ROOT);
        records.entries.extend(entry);
    }

    fn agent(&mut self, members: &[Member], records: &mut FileRecords, settings: &mut Settings) {
        for (i, member) in members.iter().enumerate() {
            if member.value.data == Data::Null {
                continue;
            }
            let value = &member.value;
            let Some(key) = USED.iter().find(|name| same_key(&member.key, name)) else {
                self.unused(&member.key, members);
                continue;
            };
            let here = Place::ROOT.key(key);
            if members[..i].iter().any(|m| same_key(&m.key, key)) {
                self.problems.error(&here, "given twice; remove one");
                continue;
            }
            match *key {
                "service" | "services" => {
                    let services = self.list::<ServiceDefinition>(value, &here, *key == "services");
                    records.services.extend(services);
                }
                "check" | "checks" => {
                    let checks = self.list::<AgentCheck>(value, &here, *key == "checks");
                    records.checks.extend(checks);
                }
                "config_entries" => self.config_entries(value, &here, records),
                "node_name" => settings.node_name = self.text(value, &here),
                "datacenter" => settings.datacenter = self.text(value, &here),
                "ports" => self.ports(value, &here, settings),
                _ => settings.intention_default_allow = self.policy(value, &here),
            }
        }
    }

    /// A key at the top that isn't used.
    fn unused(&mut self, key: &str, members: &[Member]) {
        let here = Place::ROOT.key(key);
        if IDLE.iter().any(|name| same_key(key, name)) {
            self.problems.warning(&here, idle_message(key));
            return;
        }
        let in_service = ["name", "id", "port", "address", "tags", "meta", "proxy"];
        let named = members.iter().any(|m| same_key(&m.key, "name"));
        if named && in_service.iter().any(|name| same_key(key, name)) {
            self.problems.error(
                &here,
                "unknown key; put a service's definition into a service block, or give a config entry its Kind",
            );
            return;
        }
        let known: Vec<&str> = USED.iter().chain(IDLE).copied().collect();
        unknown_key(key, &known, &Place::ROOT, &mut self.problems);
    }

    fn config_entries(&mut self, value: &Value, at: &Place<'_>, records: &mut FileRecords) {
        let Some(members) = members_of(value, at, &mut self.problems) else {
            return;
        };
        for member in members {
            if !same_key(&member.key, "bootstrap") {
                unknown_key(&member.key, &["bootstrap"], at, &mut self.problems);
            } else if member.value.data != Data::Null {
                let entries = self.list::<ConfigEntry>(&member.value, &at.key("bootstrap"), true);
                records.entries.extend(entries);
            }
        }
    }

    fn ports(&mut self, value: &Value, at: &Place<'_>, settings: &mut Settings) {
        let Some(members) = members_of(value, at, &mut self.problems) else {
            return;
        };
        for member in members.iter().filter(|m| m.value.data != Data::Null) {
            let is = |name: &&str| same_key(&member.key, name);
            let Some(key) = USED_PORTS.iter().copied().find(|name| is(name)) else {
                if IDLE_PORTS.iter().any(is) {
                    let here = at.key(&member.key);
                    self.problems.warning(&here, "has no effect here");
                } else {
                    let known: Vec<&str> = USED_PORTS.iter().chain(IDLE_PORTS).copied().collect();
                    unknown_key(&member.key, &known, at, &mut self.problems);
                }
                continue;
            };
            let here = at.key(key);
            let port = i64::decode(&member.value, &here, &mut self.problems);
            let port = port.and_then(|port| match u16::try_from(port) {
                // Switching off the assignment of sidecar ports is Consul's meaning of 0 there.
                Ok(port) if port != 0 || key.starts_with("sidecar") => Some(port),
                _ => {
                    let message = format!("{port} is not a port; give one from 1 to 65535");
                    self.problems.error(&here, message);
                    None
                }
            });
            let setting = port.map(|port| self.setting(port, &here));
            match key {
                "http" => settings.http_port = setting,
                "grpc" => settings.xds_port = setting,
                "sidecar_min_port" => settings.sidecar_min_port = setting,
                _ => settings.sidecar_max_port = setting,
            }
        }
    }

    fn text(&mut self, value: &Value, at: &Place<'_>) -> Option<Setting<String>> {
        let text = String::decode(value, at, &mut self.problems)?;
        let is_datacenter = at.path() == [Step::Key("datacenter".to_owned())];
        let result = if is_datacenter {
            check_datacenter(&text)
        } else {
            check_node_name(&text)
        };
        match result {
            Ok(()) => Some(self.setting(text, at)),
            Err(message) => {
                self.problems.error(at, message);
                None
            }
        }
    }

    fn policy(&mut self, value: &Value, at: &Place<'_>) -> Option<Setting<bool>> {
        let text = String::decode(value, at, &mut self.problems)?;
        match text.as_str() {
            "allow" => Some(self.setting(true, at)),
            "deny" => Some(self.setting(false, at)),
            _ => {
                let message = format!("{text:?} is not one of \"allow\", \"deny\"");
                self.problems.error(at, message);
                None
            }
        }
    }

    fn setting<T>(&self, value: T, at: &Place<'_>) -> Setting<T> {
        Setting {
            value,
            source: self.source(at, &[]),
        }
    }

    /// One record, or a list of them. `indexed` says that a list is the usual form.
    fn list<T: Decode + Validate>(
        &mut self,
        value: &Value,
        at: &Place<'_>,
        indexed: bool,
    ) -> Vec<Sourced<T>> {
        match &value.data {
            Data::List(items) => items
                .iter()
                .enumerate()
                .filter_map(|(i, item)| self.record(item, &at.index(i)))
                .collect(),
            Data::Object(_) if indexed => self.record(value, &at.index(0)).into_iter().collect(),
            Data::Object(_) => self.record(value, at).into_iter().collect(),
            _ => {
                let message = format!("must be an object or a list, not {}", value.kind());
                self.problems.error(at, message);
                Vec::new()
            }
        }
    }

    fn record<T: Decode + Validate>(
        &mut self,
        value: &Value,
        at: &Place<'_>,
    ) -> Option<Sourced<T>> {
        let record = read_at(value, at, &mut self.problems)?;
        let members = match &value.data {
            Data::Object(members) => members.as_slice(),
            _ => &[],
        };
        Some(Sourced {
            source: self.source(at, members),
            record,
        })
    }

    fn source(&self, at: &Place<'_>, members: &[Member]) -> Source {
        let mut place = Problems::default();
        place.error(at, "");
        place.locate(self.document);
        let place = place.errors.pop();
        Source {
            path: self.shown.clone(),
            pos: place.and_then(|p| p.pos).unwrap_or(Pos::START),
            key: at.path(),
            members: members.iter().map(|m| (m.key.clone(), m.pos)).collect(),
        }
    }
}

/// Whether a text can be the name of a node.
///
/// # Errors
/// What is wrong with it.
pub fn check_node_name(name: &str) -> Result<(), String> {
    check_node(name, "")
}

/// Whether a text can be the name of a datacenter.
///
/// # Errors
/// What is wrong with it.
pub fn check_datacenter(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("must not be empty; give a name such as \"dc1\"".to_owned());
    }
    check_node("node", name)
}

fn check_node(name: &str, datacenter: &str) -> Result<(), String> {
    let node = Node {
        node: name.to_owned(),
        address: "127.0.0.1".to_owned(),
        datacenter: datacenter.to_owned(),
        ..Node::default()
    };
    match accept(node) {
        Ok(_) => Ok(()),
        Err(problems) => {
            let messages: Vec<_> = problems.errors.into_iter().map(|p| p.message).collect();
            Err(messages.join("; "))
        }
    }
}
