//! The health checks of the local agent, run: the local state says which there are, the runner says how they are.
//!
//! One thread follows the local state and gives the runner the checks that are wanted now. Outcomes go from the runner's
//! thread straight into the local state, which brings them into the catalog.

use std::fmt;
use std::sync::Arc;

use crossbeam_channel::{Receiver, select};

use super::checks::{AliasTarget, CheckKey, CheckRunner, CheckSink, DesiredCheck};
use super::http::Heartbeats;
use crate::clock::Clock;
use crate::config_source::LocalState;
use crate::model::{CheckStatus, HealthCheck, NameKey};
use crate::store::Store;
use crate::sync::Background;

/// Runs the checks of a local state until dropped.
pub struct LocalChecks {
    runner: Arc<CheckRunner>,
    thread: Background,
}

impl LocalChecks {
    /// Starts to run them. Alias checks of services elsewhere read the store.
    ///
    /// # Errors
    /// The operating system refuses threads or sockets.
    pub fn start(
        state: Arc<LocalState>,
        store: Arc<Store>,
        clock: Arc<dyn Clock>,
    ) -> std::io::Result<Self> {
        let sink = Arc::new(Sink {
            state: state.clone(),
            store,
        });
        let runner = Arc::new(CheckRunner::new(sink, clock)?);
        let changed = state.subscribe();
        let of_thread = runner.clone();
        let thread = Background::spawn("proxycfg-checks", move |stopped| {
            follow(&state, &of_thread, &changed, stopped);
        })?;
        Ok(Self { runner, thread })
    }

    /// Stops following the local state. Checks that run go on until the last handle is dropped. Twice is fine.
    pub fn stop(&self) {
        self.thread.stop();
        self.runner.set_checks(Vec::new());
    }
}

impl Drop for LocalChecks {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for LocalChecks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalChecks").finish_non_exhaustive()
    }
}

impl Heartbeats for LocalChecks {
    fn report(&self, check: &HealthCheck, status: CheckStatus, output: &str) -> bool {
        let updated = self
            .runner
            .ttl_update(&check.check_id, status, output.to_owned());
        // Not in the set yet: the caller writes the state itself, and the runner begins with it.
        updated.is_ok()
    }
}

fn follow(
    state: &LocalState,
    runner: &CheckRunner,
    changed: &Receiver<()>,
    stopped: &Receiver<()>,
) {
    loop {
        runner.set_checks(desired(&state.checks()));
        runner.refresh_aliases();
        select! {
            recv(stopped) -> _ => return,
            recv(changed) -> token => if token.is_err() { return },
        }
    }
}

fn desired(checks: &[crate::config_source::LocalCheck]) -> Vec<DesiredCheck> {
    checks
        .iter()
        .map(|local| &local.check)
        .filter(|check| check.definition.kinds().next().is_some())
        .map(|check| DesiredCheck {
            key: CheckKey::new(check.service_id.as_str(), check.check_id.as_str()),
            definition: check.definition.clone(),
            status: check.status,
        })
        .collect()
}

struct Sink {
    state: Arc<LocalState>,
    store: Arc<Store>,
}

impl CheckSink for Sink {
    fn report(&self, key: &CheckKey, status: CheckStatus, output: String) {
        // Unknown: it was removed while its last run was under way.
        let _ = self.state.set_check(&key.check_id, status, &output);
    }

    fn deregister_service(&self, service_id: &str) {
        // Unknown: somebody else was quicker.
        let _ = self.state.remove(service_id);
    }

    fn alias_target(&self, asking: &CheckKey, node: &str, service_id: &str) -> AliasTarget {
        let asking = NameKey::new(&asking.check_id);
        if !node.is_empty() && !node.eq_ignore_ascii_case(self.state.node()) {
            return self.elsewhere(node, service_id);
        }
        let service = self.state.service(service_id);
        if service.is_none() && !service_id.is_empty() {
            return AliasTarget::Missing;
        }
        let of_node = self.state.checks();
        let of_node = of_node.iter().filter(|c| c.check.service_id.is_empty());
        let of_service = service.iter().flat_map(|s| s.checks.values());
        worst(
            of_node
                .chain(of_service)
                .map(|local| &*local.check)
                .filter(|check| NameKey::new(&check.check_id) != asking),
        )
    }
}

impl Sink {
    fn elsewhere(&self, node: &str, service_id: &str) -> AliasTarget {
        let snapshot = self.store.snapshot();
        let reader = snapshot.reader();
        let there = if service_id.is_empty() {
            reader.node(node).is_some()
        } else {
            reader.instance(node, service_id).is_some()
        };
        if !there {
            return AliasTarget::Missing;
        }
        let checks = reader.node_checks(node).into_iter().map(|row| &*row.value);
        worst(checks.filter(|check| {
            check.service_id.is_empty() || check.service_id.eq_ignore_ascii_case(service_id)
        }))
    }
}

/// What checks come to: of several that don't pass the worst, by state and then by id.
fn worst<'c>(checks: impl Iterator<Item = &'c HealthCheck>) -> AliasTarget {
    let badness = |status: CheckStatus| match status {
        CheckStatus::Passing => 0,
        CheckStatus::Warning => 1,
        CheckStatus::Critical => 2,
    };
    let mut any = false;
    let mut failing: Option<&HealthCheck> = None;
    for check in checks {
        any = true;
        let rank = |check: &HealthCheck| {
            let by_id = std::cmp::Reverse(check.check_id.clone());
            (badness(check.status), by_id)
        };
        if badness(check.status) > 0 && failing.is_none_or(|worst| rank(check) > rank(worst)) {
            failing = Some(check);
        }
    }
    match failing {
        Some(check) => AliasTarget::Failing {
            status: check.status,
            name: check.name.clone(),
            output: check.output.clone(),
        },
        None if any => AliasTarget::Passing,
        None => AliasTarget::NoChecks,
    }
}
