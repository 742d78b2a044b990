//! The thread that owns all checks.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, never, select};
use smol_str::SmolStr;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::clock::Clock;
use crate::model::{CheckDefinition, CheckStatus};

use super::http::cut;
use super::plan::{Kind, Plan};
use super::probe::{Outcome, Probe};
use super::{
    AliasTarget, CheckKey, CheckSink, DesiredCheck, Heartbeat, MAX_CONCURRENT_RUNS, Shared,
};

/// Threads that drive the runs' sockets.
const RUNTIME_THREADS: usize = 2;
/// Threads that look names up; a look-up holds its thread until the system's resolver gives up.
const RESOLVER_THREADS: usize = 16;

pub(super) struct Scheduler {
    shared: Arc<Shared>,
    sink: Arc<dyn CheckSink>,
    clock: Arc<dyn Clock>,
    runtime: Option<Runtime>,
    permits: Arc<Semaphore>,
    checks: BTreeMap<CheckKey, Check>,
    /// When each check wants to be looked at next.
    timers: BTreeSet<(Duration, CheckKey)>,
    /// Alias checks by the instance they copy.
    aliases: BTreeMap<String, BTreeSet<CheckKey>>,
    /// Alias checks that must look again, because a check that they copy changed.
    stale_aliases: BTreeSet<CheckKey>,
    last_run: u64,
}

struct Check {
    definition: CheckDefinition,
    plan: Result<Plan, String>,
    status: CheckStatus,
    /// What was reported last; `None` before the first report.
    output: Option<String>,
    /// The run that is under way.
    run: Option<(u64, AbortHandle)>,
    /// Runs that ended.
    runs: u64,
    /// When to run, look (alias) or expire (TTL).
    next: Option<Duration>,
    /// When the instance has been critical for too long.
    reap: Option<Duration>,
    /// The entry in the timers.
    timer: Option<Duration>,
}

impl Scheduler {
    pub(super) fn new(
        shared: Arc<Shared>,
        sink: Arc<dyn CheckSink>,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .max_blocking_threads(RESOLVER_THREADS)
            .thread_name("checks-io")
            .enable_io()
            .enable_time()
            .build()?;
        Ok(Self {
            shared,
            sink,
            clock,
            runtime: Some(runtime),
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_RUNS)),
            checks: BTreeMap::new(),
            timers: BTreeSet::new(),
            aliases: BTreeMap::new(),
            stale_aliases: BTreeSet::new(),
            last_run: 0,
        })
    }

    /// Works until told to stop.
    pub(super) fn run(mut self, woken: &Receiver<()>) {
        let mut alarm: (Option<Duration>, Receiver<Instant>) = (None, never());
        while self.step() {
            let due = self.timers.first().map(|(due, _)| *due);
            if alarm.0 != due {
                let delay = due.map(|due| due.saturating_sub(self.clock.monotonic()));
                alarm = (
                    due,
                    delay.map_or_else(never, |delay| self.clock.alarm(delay)),
                );
            }
            select! {
                recv(woken) -> _ => {}
                recv(alarm.1) -> _ => alarm.0 = None,
            }
        }
    }

    /// Deals with the inbox and with everything due. False when told to stop.
    fn step(&mut self) -> bool {
        let (desired, heartbeats, outcomes, refresh_aliases) = {
            let mut inbox = self.shared.inbox.lock();
            if inbox.stop {
                return false;
            }
            (
                inbox.desired.take(),
                std::mem::take(&mut inbox.heartbeats),
                std::mem::take(&mut inbox.outcomes),
                std::mem::take(&mut inbox.refresh_aliases),
            )
        };
        if let Some(desired) = desired {
            self.apply(desired);
        }
        if refresh_aliases {
            self.stale_aliases
                .extend(self.aliases.values().flatten().cloned());
        }
        for heartbeat in heartbeats {
            self.heartbeat(heartbeat);
        }
        for (key, run, outcome) in outcomes {
            self.ended(&key, run, outcome);
        }
        let now = self.clock.monotonic();
        while let Some((due, key)) = self.timers.first().cloned()
            && due <= now
        {
            self.due(&key, now);
        }
        self.look_again();
        true
    }

    fn apply(&mut self, desired: BTreeMap<CheckKey, DesiredCheck>) {
        let gone: Vec<CheckKey> = self
            .checks
            .iter()
            .filter(|(key, check)| {
                desired
                    .get(*key)
                    .is_none_or(|desired| desired.definition != check.definition)
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in gone {
            self.stop(&key);
        }
        for (key, desired) in desired {
            if !self.checks.contains_key(&key) {
                self.start(key, desired);
            }
        }
    }

    fn start(&mut self, key: CheckKey, desired: DesiredCheck) {
        let now = self.clock.monotonic();
        let plan = Plan::of(&desired.definition);
        let mut check = Check {
            definition: desired.definition,
            plan,
            status: desired.status,
            output: None,
            run: None,
            runs: 0,
            next: Some(now),
            reap: None,
            timer: None,
        };
        match &check.plan {
            Ok(Plan {
                kind: Kind::Ttl(ttl),
                ..
            }) => check.next = Some(now.saturating_add(*ttl)),
            Ok(Plan {
                kind: Kind::Alias { service, .. },
                ..
            }) => {
                self.aliases
                    .entry(service.clone())
                    .or_default()
                    .insert(key.clone());
            }
            Ok(Plan {
                kind: Kind::Probe(_),
                ..
            })
            | Err(_) => {}
        }
        check.watch_critical(&key, now);
        self.checks.insert(key.clone(), check);
        self.set_timer(&key);
    }

    fn stop(&mut self, key: &CheckKey) {
        let Some(check) = self.checks.remove(key) else {
            return;
        };
        if let Some((_, run)) = check.run {
            run.abort();
        }
        if let Some(timer) = check.timer {
            self.timers.remove(&(timer, key.clone()));
        }
        if let Ok(Plan {
            kind: Kind::Alias { service, .. },
            ..
        }) = &check.plan
            && let Some(aliases) = self.aliases.get_mut(service)
        {
            aliases.remove(key);
            if aliases.is_empty() {
                self.aliases.remove(service);
            }
        }
        self.stale_aliases.remove(key);
        self.checks_changed(&key.service_id);
    }

    /// Does what a check's timer says.
    fn due(&mut self, key: &CheckKey, now: Duration) {
        let Some(check) = self.checks.get_mut(key) else {
            return;
        };
        if check.reap.is_some_and(|at| at <= now) {
            check.reap = None;
            check.watch_critical(key, now);
            tracing::warn!(
                check = %key.check_id,
                service = %key.service_id,
                "deregistering the service: the check has been critical for too long"
            );
            self.call(key, |sink| sink.deregister_service(&key.service_id));
        }
        let Some(check) = self.checks.get_mut(key) else {
            return;
        };
        if check.next.is_some_and(|at| at <= now) {
            check.next = None;
            match &check.plan {
                Ok(Plan {
                    kind: Kind::Probe(probe),
                    timeout,
                    ..
                }) => {
                    let (probe, timeout) = (probe.clone(), *timeout);
                    self.run_probe(key, probe, timeout);
                }
                Ok(Plan {
                    kind: Kind::Ttl(_), ..
                }) => {
                    let output = match check.output.as_deref() {
                        None | Some("") => "TTL expired".to_owned(),
                        Some(last) => {
                            format!("TTL expired (last output before timeout follows): {last}")
                        }
                    };
                    self.report(key, CheckStatus::Critical, output);
                }
                Ok(Plan {
                    kind: Kind::Alias { .. },
                    interval,
                    ..
                }) => {
                    check.next = Some(now.saturating_add(*interval));
                    self.stale_aliases.insert(key.clone());
                }
                Err(problem) => {
                    let output = format!("the check can't be run: {problem}");
                    self.report(key, CheckStatus::Critical, output);
                }
            }
        }
        self.set_timer(key);
    }

    fn run_probe(&mut self, key: &CheckKey, probe: Arc<Probe>, timeout: Duration) {
        let (Some(runtime), Some(check)) = (&self.runtime, self.checks.get_mut(key)) else {
            return;
        };
        self.last_run += 1;
        let id = self.last_run;
        let permits = self.permits.clone();
        let run = runtime.spawn(async move {
            // Never closed.
            let _permit = permits.acquire().await;
            probe.run(timeout).await
        });
        check.run = Some((id, run.abort_handle()));
        let (shared, key) = (self.shared.clone(), key.clone());
        runtime.spawn(async move {
            let outcome = match run.await {
                Ok(outcome) => outcome,
                Err(error) if error.is_cancelled() => return,
                Err(error) => (
                    CheckStatus::Critical,
                    format!("the run of the check failed: {error}"),
                ),
            };
            shared.inbox.lock().outcomes.push((key, id, outcome));
            shared.wake();
        });
    }

    fn ended(&mut self, key: &CheckKey, run: u64, (status, output): Outcome) {
        let now = self.clock.monotonic();
        let Some(check) = self.checks.get_mut(key) else {
            return;
        };
        if check
            .run
            .as_ref()
            .is_none_or(|(current, _)| *current != run)
        {
            return;
        }
        check.run = None;
        check.runs += 1;
        if let Ok(plan) = &check.plan {
            let late = if check.runs == 1 {
                lateness(key, plan.interval)
            } else {
                Duration::ZERO
            };
            check.next = Some(now.saturating_add(plan.interval).saturating_add(late));
        }
        self.report(key, status, output);
        self.set_timer(key);
    }

    fn heartbeat(&mut self, heartbeat: Heartbeat) {
        let Heartbeat {
            key,
            status,
            output,
            _done,
        } = heartbeat;
        let now = self.clock.monotonic();
        if let Some(check) = self.checks.get_mut(&key)
            && let Ok(Plan {
                kind: Kind::Ttl(ttl),
                ..
            }) = &check.plan
        {
            check.next = Some(now.saturating_add(*ttl));
            self.report(&key, status, cut(output.as_bytes()));
            self.set_timer(&key);
        }
    }

    /// Lets alias checks copy until nothing changes. Aliases of aliases settle in as many rounds as the longest chain;
    /// a circle that doesn't settle is left for the next interval.
    fn look_again(&mut self) {
        for _ in 0..=self.checks.len() {
            let stale = std::mem::take(&mut self.stale_aliases);
            if stale.is_empty() {
                return;
            }
            for key in stale {
                self.copy(&key);
            }
        }
        self.stale_aliases.clear();
    }

    fn copy(&mut self, key: &CheckKey) {
        let Some(Check {
            plan:
                Ok(Plan {
                    kind: Kind::Alias { node, service },
                    ..
                }),
            ..
        }) = self.checks.get(key)
        else {
            return;
        };
        let Some(target) = self.call(key, |sink| sink.alias_target(key, node, service)) else {
            return;
        };
        let (status, output) = match target {
            AliasTarget::Missing if service.is_empty() => (
                CheckStatus::Critical,
                format!("Node {node} could not be found"),
            ),
            AliasTarget::Missing => (
                CheckStatus::Critical,
                format!("Service {service} could not be found"),
            ),
            AliasTarget::NoChecks => (CheckStatus::Passing, "No checks found.".to_owned()),
            AliasTarget::Passing => (CheckStatus::Passing, "All checks passing.".to_owned()),
            AliasTarget::Failing {
                status,
                name,
                output,
            } => (status, format!("Aliased check {name:?} failing: {output}")),
        };
        self.report(key, status, output);
        self.set_timer(key);
    }

    /// Tells the sink, if there is anything new.
    fn report(&mut self, key: &CheckKey, status: CheckStatus, output: String) {
        let now = self.clock.monotonic();
        let Some(check) = self.checks.get_mut(key) else {
            return;
        };
        if check.status == status && check.output.as_deref() == Some(output.as_str()) {
            return;
        }
        if check.status != status {
            tracing::info!(check = %key.check_id, service = %key.service_id, from = ?check.status, to = ?status, "check");
        }
        check.status = status;
        check.output = Some(output.clone());
        check.watch_critical(key, now);
        self.call(key, |sink| sink.report(key, status, output));
        self.checks_changed(&key.service_id);
    }

    /// Marks the alias checks that copy an instance, or all of them after a change of the node's own checks.
    fn checks_changed(&mut self, service_id: &SmolStr) {
        if service_id.is_empty() {
            self.stale_aliases
                .extend(self.aliases.values().flatten().cloned());
        } else if let Some(aliases) = self.aliases.get(service_id.as_str()) {
            self.stale_aliases.extend(aliases.iter().cloned());
        }
    }

    fn set_timer(&mut self, key: &CheckKey) {
        let Some(check) = self.checks.get_mut(key) else {
            return;
        };
        let want = match (check.next, check.reap) {
            (Some(next), Some(reap)) => Some(next.min(reap)),
            (next, reap) => next.or(reap),
        };
        if check.timer == want {
            return;
        }
        if let Some(old) = check.timer {
            self.timers.remove(&(old, key.clone()));
        }
        if let Some(new) = want {
            self.timers.insert((new, key.clone()));
        }
        check.timer = want;
    }

    /// Calls the sink; a panic there is logged and costs only this call.
    fn call<T>(&self, key: &CheckKey, f: impl FnOnce(&dyn CheckSink) -> T) -> Option<T> {
        let result = catch_unwind(AssertUnwindSafe(|| f(&*self.sink)));
        if result.is_err() {
            tracing::error!(check = %key.check_id, service = %key.service_id, "the receiver of check results panicked");
        }
        result.ok()
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let mut inbox = self.shared.inbox.lock();
        inbox.stop = true;
        // Lets their senders go on.
        inbox.heartbeats.clear();
        drop(inbox);
        if let Some(runtime) = self.runtime.take() {
            // Doesn't wait for look-ups of names that hang.
            runtime.shutdown_background();
        }
    }
}

impl Check {
    /// Starts or ends the time after which the instance is removed.
    fn watch_critical(&mut self, key: &CheckKey, now: Duration) {
        let after = self
            .plan
            .as_ref()
            .ok()
            .and_then(|plan| plan.deregister_after);
        self.reap = match (after, self.status) {
            (Some(after), CheckStatus::Critical) if !key.service_id.is_empty() => {
                self.reap.or_else(|| Some(now.saturating_add(after)))
            }
            _ => None,
        };
    }
}

/// How late the second run of a check is: up to a tenth of its interval, by its id alone.
fn lateness(key: &CheckKey, interval: Duration) -> Duration {
    // FNV-1a: equal on every machine and in every release, unlike the standard library's hashers.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in key
        .service_id
        .bytes()
        .chain([0])
        .chain(key.check_id.bytes())
    {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    // Its last bytes reach the high bits badly.
    hash = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let thousandths = u32::try_from((hash >> 32) % 1000).unwrap_or(0);
    interval / 10 * thousandths / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_depends_on_the_id_and_stays_small() {
        let interval = Duration::from_secs(10);
        let of = |id: &str| lateness(&CheckKey::new("web", id), interval);
        let distinct: BTreeSet<Duration> = (0..100).map(|n| of(&format!("check-{n}"))).collect();
        assert!(distinct.len() > 80, "{}", distinct.len());
        assert!(distinct.iter().all(|late| *late < interval / 10));
        assert_eq!(of("a"), of("a"));
    }
}
