//! Loading, applying and reloading, without the program around it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::unbounded;
use parking_lot::Mutex;
use tempfile::TempDir;

use super::*;
use crate::clock::{Clock as _, RealClock};
use crate::model::{ConfigEntry, EntryKind, Place, Problems};
use crate::source::ChainCheck;
use crate::store::{MemoryBackend, Op, Store, Transaction};

/// Keeps what it was given, and can be told to refuse.
#[derive(Default)]
struct FakeLocal {
    /// Names of services and checks by file name.
    files: Mutex<BTreeMap<String, Vec<String>>>,
    /// Files that the last call named.
    named: Mutex<Vec<String>>,
    refuse: Mutex<Option<String>>,
    kept: Mutex<KeptRecords>,
}

fn file_name(path: &str) -> String {
    let name = Path::new(path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

impl LocalRecords for FakeLocal {
    fn replace(&self, records: Vec<OwnedRecords>) -> Result<(), Vec<RefusedRecord>> {
        if let Some(message) = &*self.refuse.lock() {
            let mut problems = Problems::default();
            problems.error(&Place::ROOT.key("Port"), message.clone());
            let with_services = records.into_iter().find(|r| !r.services.is_empty());
            return Err(vec![RefusedRecord {
                file: with_services.unwrap().file,
                is_check: false,
                position: 0,
                problems,
            }]);
        }
        let mut files = self.files.lock();
        *self.named.lock() = records.iter().map(|r| file_name(&r.file)).collect();
        for record in records {
            let services = record.services.iter().map(|s| s.name.clone());
            let checks = record.checks.iter().map(|c| c.name.clone());
            files.insert(file_name(&record.file), services.chain(checks).collect());
        }
        files.retain(|_, names| !names.is_empty());
        Ok(())
    }

    fn kept(&self) -> KeptRecords {
        self.kept.lock().clone()
    }
}

struct World {
    folder: TempDir,
    local: Arc<FakeLocal>,
    targets: FileTargets,
}

impl World {
    fn new(files: &[(&str, &str)]) -> Self {
        let store = Store::new(Box::new(MemoryBackend), Arc::new(ChainCheck)).unwrap();
        let local = Arc::new(FakeLocal::default());
        let world = Self {
            folder: tempfile::tempdir().unwrap(),
            targets: FileTargets {
                store: Arc::new(store),
                local: local.clone(),
            },
            local,
        };
        for (name, content) in files {
            world.write(name, content);
        }
        world
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.folder.path().join(name), content).unwrap();
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.folder.path().join(name)).unwrap();
    }

    fn paths(&self) -> Vec<PathBuf> {
        vec![self.folder.path().to_owned()]
    }

    fn load(&self) -> Result<FileSet, FileProblems> {
        load(&self.paths(), &FileLimits::default())
    }

    fn start(&self) -> Reloader {
        let set = self.load().unwrap();
        apply(&set, &self.targets, true).unwrap();
        let limits = FileLimits::default();
        Reloader::new(self.paths(), limits, self.targets.clone(), set)
    }

    fn put(&self, name: &str, protocol: &str) {
        let text =
            format!("Kind = \"service-defaults\"\nName = \"{name}\"\nProtocol = \"{protocol}\"");
        let document = crate::hcl::parse(text.as_bytes()).unwrap();
        let (entry, _) = ConfigEntry::read(&document).unwrap();
        let op = Op::SetConfig {
            entry: Box::new(entry),
            cas: None,
        };
        self.targets.store.apply(Transaction::of(op)).unwrap();
    }

    fn protocol(&self, name: &str) -> Option<String> {
        let snapshot = self.targets.store.snapshot();
        let row = snapshot.reader().config(EntryKind::ServiceDefaults, name)?;
        match &*row.value {
            ConfigEntry::ServiceDefaults(entry) => Some(entry.protocol.to_string()),
            _ => None,
        }
    }

    fn local(&self) -> Vec<(String, Vec<String>)> {
        let files = self.local.files.lock();
        files.iter().map(|(f, n)| (f.clone(), n.clone())).collect()
    }
}

fn defaults(name: &str, protocol: &str) -> String {
    format!("Kind = \"service-defaults\"\nName = \"{name}\"\nProtocol = \"{protocol}\"\n")
}

fn service(name: &str) -> String {
    format!("service {{ name = \"{name}\" port = 80 }}\n")
}

fn applied(outcome: ReloadOutcome) -> ApplyReport {
    match outcome {
        ReloadOutcome::Applied { report, .. } => report,
        other => panic!("{other:?}"),
    }
}

fn refused(outcome: ReloadOutcome) -> String {
    match outcome {
        ReloadOutcome::Refused(problems) => problems.to_string(),
        other => panic!("{other:?}"),
    }
}

fn of(file: &str, names: &[&str]) -> (String, Vec<String>) {
    let names = names.iter().map(|n| (*n).to_owned());
    (file.to_owned(), names.collect())
}

#[test]
fn all_forms_of_a_file_are_read() {
    let world = World::new(&[
        (
            "a.hcl",
            "service { name = \"one\" }\nservice { name = \"two\" }\ncheck { name = \"c\" ttl = \"10s\" }\n",
        ),
        (
            "b.json",
            "{\"services\": [{\"Name\": \"three\"}], \"config_entries\": {\"bootstrap\": [{\"kind\": \"mesh\"}]}}",
        ),
        (
            "c.hcl",
            "services { name = \"four\" }\nservices { name = \"five\" }\nNodeName = \"n\"\nports { grpc = 1000 }\n",
        ),
        ("d.hcl", &defaults("one", "http")),
        ("e.json", "{\"service\": null, \"datacenter\": \"dc5\"}"),
    ]);
    let set = world.load().unwrap();
    let names: Vec<&str> = set.services().map(|s| s.record.name.as_str()).collect();
    assert_eq!(names, ["one", "two", "three", "four", "five"]);
    let keys: Vec<String> = set.entries().map(|e| e.record.key().to_string()).collect();
    assert_eq!(keys, ["mesh/mesh", "service-defaults/one"]);
    assert_eq!(set.checks().count(), 1);
    assert_eq!(set.settings.node_name.unwrap().value, "n");
    assert_eq!(set.settings.xds_port.unwrap().value, 1000);
    assert_eq!(set.settings.datacenter.unwrap().value, "dc5");
    assert_eq!(set.warnings, []);
}

#[test]
fn every_agent_key_of_consul_is_known() {
    for key in agent_keys::IDLE {
        assert!(!agent_keys::USED.contains(key), "{key}");
        let world = World::new(&[("a.hcl", &format!("{key} = \"x\"\n"))]);
        let set = world.load().unwrap();
        let messages: Vec<&str> = set.warnings.iter().map(|w| w.message.as_str()).collect();
        assert_eq!(messages.len(), 1, "{key}: {messages:?}");
        assert!(messages[0].starts_with("has no effect here"), "{key}");
    }
}

#[test]
fn safety_relevant_keys_without_effect_say_what_to_do() {
    let world = World::new(&[(
        "a.hcl",
        "acl { default_policy = \"deny\" }\nclient_addr = \"0.0.0.0\"\n",
    )]);
    let warnings = world.load().unwrap().warnings;
    assert!(warnings[0].message.contains("default_intention_policy"));
    assert!(warnings[1].message.contains("--http-addr"));
}

#[test]
fn only_what_changed_is_written() {
    let world = World::new(&[
        ("a.hcl", &service("web")),
        ("b.hcl", &service("db")),
        ("c.hcl", &defaults("web", "http")),
        ("d.hcl", &defaults("db", "http")),
    ]);
    let mut reloader = world.start();
    assert_eq!(world.local.named.lock().len(), 4, "at the start all");
    assert_eq!(reloader.reload(false), ReloadOutcome::Unchanged);

    world.write("b.hcl", &service("cache"));
    world.write("d.hcl", &defaults("db", "grpc"));
    let report = applied(reloader.reload(false));
    assert_eq!((report.files_changed, report.files_gone), (2, 0));
    assert_eq!((report.entries_written, report.entries_deleted), (1, 0));
    assert_eq!(*world.local.named.lock(), ["b.hcl", "d.hcl"]);
    assert_eq!(
        world.local(),
        [of("a.hcl", &["web"]), of("b.hcl", &["cache"])]
    );
    assert_eq!(world.protocol("db").unwrap(), "grpc");

    world.remove("a.hcl");
    world.remove("c.hcl");
    let report = applied(reloader.reload(false));
    assert_eq!((report.files_changed, report.files_gone), (0, 2));
    assert_eq!(report.entries_deleted, 1);
    assert_eq!(world.local(), [of("b.hcl", &["cache"])]);
    assert_eq!(world.protocol("web"), None);
    assert_eq!(reloader.reload(true), ReloadOutcome::Unchanged);
}

#[test]
fn an_entry_that_moves_to_another_file_stays() {
    let world = World::new(&[("a.hcl", &defaults("web", "http"))]);
    let mut reloader = world.start();
    let index = world.targets.store.snapshot();
    let before = index
        .reader()
        .config(EntryKind::ServiceDefaults, "web")
        .unwrap()
        .modify_index;
    world.remove("a.hcl");
    world.write("z.hcl", &defaults("web", "http"));
    let report = applied(reloader.reload(false));
    assert_eq!((report.entries_written, report.entries_deleted), (1, 0));
    let snapshot = world.targets.store.snapshot();
    let row = snapshot
        .reader()
        .config(EntryKind::ServiceDefaults, "web")
        .unwrap();
    assert_eq!(row.modify_index, before, "an equal write is none");
}

#[test]
fn what_was_written_otherwise_stands_until_its_file_changes() {
    let world = World::new(&[
        ("a.hcl", &defaults("web", "http")),
        ("b.hcl", &defaults("db", "http")),
    ]);
    let mut reloader = world.start();
    world.put("web", "grpc");
    world.write("b.hcl", &defaults("db", "http2"));
    applied(reloader.reload(false));
    assert_eq!(world.protocol("web").unwrap(), "grpc");

    // The same after a restart on the same store: it remembers the files.
    let set = world.load().unwrap();
    let report = apply(&set, &world.targets, true).unwrap();
    assert_eq!((report.files_changed, report.entries_written), (0, 0));
    assert_eq!(world.protocol("web").unwrap(), "grpc");

    world.write("a.hcl", &format!("# touched\n{}", defaults("web", "http")));
    applied(reloader.reload(false));
    assert_eq!(world.protocol("web").unwrap(), "http");
}

#[test]
fn a_change_while_nothing_runs_is_found_at_the_start() {
    let world = World::new(&[
        ("a.hcl", &defaults("web", "http")),
        ("b.hcl", &defaults("db", "http")),
    ]);
    drop(world.start());
    world.put("db", "grpc");
    world.remove("a.hcl");
    let set = world.load().unwrap();
    let report = apply(&set, &world.targets, true).unwrap();
    assert_eq!((report.files_gone, report.entries_deleted), (1, 1));
    assert_eq!(world.protocol("web"), None);
    assert_eq!(world.protocol("db").unwrap(), "grpc");
}

#[test]
fn services_written_over_http_stand_at_a_restart_until_their_file_changes() {
    let two = format!("{}{}", service("web"), service("db"));
    let world = World::new(&[("a.hcl", &two), ("b.hcl", &service("api"))]);
    drop(world.start());
    *world.local.kept.lock() = KeptRecords {
        files: ["/gone/c.hcl".to_owned()].into(),
        services: ["web".into(), "api".into()].into(),
        checks: BTreeSet::new(),
    };
    world.write("b.hcl", &format!("# touched\n{}", service("api")));
    let set = world.load().unwrap();
    apply(&set, &world.targets, true).unwrap();
    // A file that went without its records' going, in a crash, is let go of now.
    assert_eq!(*world.local.named.lock(), ["a.hcl", "b.hcl", "c.hcl"]);
    assert_eq!(world.local(), [of("a.hcl", &["db"]), of("b.hcl", &["api"])]);

    // What is refused has its place in the file, whatever was left out before it.
    *world.local.refuse.lock() = Some("no port is free".to_owned());
    let problems = apply(&set, &world.targets, true).unwrap_err().to_string();
    let line = service("web").lines().count() + 1;
    let place = format!("a.hcl:{line}:");
    assert!(problems.contains(&place), "{place} is not in: {problems}");
}

#[test]
fn nothing_is_half_applied_if_the_store_refuses() {
    let router = "Kind = \"service-router\"\nName = \"web\"\nRoutes = [{ Match { HTTP { PathPrefix = \"/\" } } }]\n";
    let world = World::new(&[("a.hcl", &service("web"))]);
    let mut reloader = world.start();
    let index = world.targets.store.snapshot().index();
    world.write("b.hcl", router);
    world.write("c.hcl", &service("db"));
    let problems = refused(reloader.reload(false));
    assert!(problems.contains("b.hcl:1:1: "), "{problems}");
    assert!(problems.contains("set protocol http"), "{problems}");
    assert_eq!(world.targets.store.snapshot().index(), index);
    assert_eq!(world.local(), [of("a.hcl", &["web"])]);
    // Seen; only a change, or being told to, makes it try again.
    assert_eq!(reloader.reload(false), ReloadOutcome::Unchanged);
    refused(reloader.reload(true));
    world.put("web", "http");
    applied(reloader.reload(true));
    assert_eq!(world.local(), [of("a.hcl", &["web"]), of("c.hcl", &["db"])]);
}

#[test]
fn nothing_is_half_applied_if_the_local_state_refuses() {
    let world = World::new(&[
        ("a.hcl", &defaults("web", "http")),
        ("b.hcl", &defaults("old", "http")),
    ]);
    let mut reloader = world.start();
    world.put("web", "grpc");
    *world.local.refuse.lock() = Some("no port is free".to_owned());
    world.write("a.hcl", &format!("# new\n{}", defaults("web", "http")));
    world.remove("b.hcl");
    world.write("c.hcl", &service("db"));
    world.write("d.hcl", &defaults("new", "http"));
    let problems = refused(reloader.reload(false));
    assert!(
        problems.ends_with("c.hcl:1:23: service.Port: no port is free"),
        "{problems}"
    );
    let protocols = ["web", "old", "new"].map(|name| world.protocol(name));
    assert_eq!(
        protocols,
        [Some("grpc".to_owned()), Some("http".to_owned()), None]
    );
    // And it is tried again as if nothing had been.
    *world.local.refuse.lock() = None;
    let report = applied(reloader.reload(true));
    assert_eq!((report.files_changed, report.files_gone), (3, 1));
    let protocols = ["web", "old", "new"].map(|name| world.protocol(name));
    assert_eq!(
        protocols,
        [Some("http".to_owned()), None, Some("http".to_owned())]
    );
}

#[test]
fn a_check_is_written_with_its_service() {
    let world = World::new(&[
        ("a.hcl", &service("web")),
        (
            "b.hcl",
            "check {\n  name = \"c\"\n  service_id = \"WEB\"\n  ttl = \"10s\"\n}\n",
        ),
        ("c.hcl", &service("db")),
    ]);
    let mut reloader = world.start();
    world.write("a.hcl", &format!("# touched\n{}", service("web")));
    applied(reloader.reload(false));
    assert_eq!(*world.local.named.lock(), ["a.hcl", "b.hcl"]);
}

#[test]
fn new_warnings_are_told_and_old_ones_not_again() {
    let world = World::new(&[("a.hcl", &format!("server = true\n{}", service("web")))]);
    let mut reloader = world.start();
    world.write("a.hcl", &format!("server = true\n\n{}", service("web")));
    world.write("b.hcl", "retry_join = []\nnode_name = \"n\"\n");
    match reloader.reload(false) {
        ReloadOutcome::Applied {
            warnings, settings, ..
        } => {
            let keys: Vec<String> = warnings.iter().map(FileProblem::key_text).collect();
            assert_eq!(keys, ["retry_join"]);
            assert_eq!(settings, ["node_name"]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_that_can_not_be_read_keep_the_last_good_state() {
    let world = World::new(&[("a.hcl", &service("web"))]);
    let mut reloader = world.start();
    world.remove("a.hcl");
    std::os::unix::fs::symlink("nowhere", world.folder.path().join("a.hcl")).unwrap();
    let problems = refused(reloader.reload(false));
    assert!(problems.contains("symbolic link"), "{problems}");
    assert_eq!(world.local(), [of("a.hcl", &["web"])]);
    assert_eq!(reloader.reload(false), ReloadOutcome::Unchanged);
}

#[test]
fn the_watcher_tells_each_change_once_and_ends() {
    let world = World::new(&[("a.hcl", &service("web"))]);
    let reloader = world.start();
    // Before the watch begins: found by its first look.
    world.write("b.hcl", &service("db"));
    let (outcomes, told) = unbounded();
    let options = WatchOptions {
        quiet: Duration::from_millis(50),
        ..WatchOptions::default()
    };
    let clock = Arc::new(RealClock::new());
    let deadline = || clock.alarm(Duration::from_secs(60));
    let watcher = FileWatcher::start(reloader, options, clock.clone(), move |outcome| {
        outcomes.send(outcome.clone()).unwrap();
    })
    .unwrap();
    let next = || {
        crossbeam_channel::select! {
            recv(told) -> outcome => outcome.unwrap(),
            recv(deadline()) -> _ => panic!("nothing was told"),
        }
    };
    applied(next());
    world.write("b.hcl", "service {\n");
    refused(next());
    world.write("b.hcl", &service("cache"));
    applied(next());
    watcher.reload_now();
    assert_eq!(next(), ReloadOutcome::Unchanged);
    drop(watcher);
    assert!(
        told.try_recv().is_err(),
        "nothing more, and the thread has ended"
    );
}

#[test]
fn bursts_of_changes_are_read_together() {
    let world = World::new(&[]);
    let mut reloader = world.start();
    for n in 0..20 {
        world.write(&format!("{n}.hcl"), &service(&format!("s{n}")));
    }
    let report = applied(reloader.reload(false));
    assert_eq!(report.files_changed, 20);
    assert_eq!(world.local().len(), 20);
}

#[test]
fn a_large_file_is_refused_by_its_size() {
    let world = World::new(&[]);
    let path = world.folder.path().join("a.hcl");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(crate::hcl::MAX_SIZE as u64 + 1).unwrap();
    let problems = world.load().unwrap_err().to_string();
    assert!(
        problems.contains("larger than 16 MiB; split it"),
        "{problems}"
    );
}
