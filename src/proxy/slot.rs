//! The memory of one part: what it was built from, and what comes next.
//!
//! A [`Slot`] holds a part's output together with the *spec* it was built for (what the state decided to build: which
//! service, which chain) and the *reads* it made (which answers, at which revision). It is built again only if its spec
//! changed or one of the answers it read is marked changed.
//!
//! **Make before break.** When a rebuild lacks an answer and a complete output exists, the output stays in service, and the
//! attempt is remembered beside it. The reads of both stay wanted, so the output doesn't go stale: it is rebuilt from its own
//! spec when its answers change. The missing answer, its error, or the deadline ends that. A part that the proxy can't do
//! without is never given up for nothing: it stays in service until its replacement is there, whatever keeps that away.

use std::time::Duration;

use smallvec::SmallVec;

use crate::proxy::ProxySettings;
use crate::snapshot::PartId;
use crate::source::{Answer, Query, QueryError, QueryId};
use crate::sync::fault::{self, Point};

/// The state of a query as a part sees it.
#[derive(Debug, Clone)]
pub enum Input {
    /// Not answered yet.
    Pending,
    /// Answered.
    Answered(Answer),
    /// It fails; the last good answer, if there was one.
    Failed {
        /// Why.
        error: QueryError,
        /// What was last answered.
        last: Option<Answer>,
    },
}

/// Answers queries at one step. To ask is to want: a query stays subscribed as long as the last run of a part asked it.
pub trait Inputs {
    /// The number and the present state of a query.
    fn get(&mut self, query: &Query) -> (QueryId, Input);

    /// The present state of a query that was asked before, by its number; `None` if it has to be asked by [`Inputs::get`].
    fn again(&mut self, _query: QueryId) -> Option<Input> {
        None
    }

    /// The revision of the answer that [`Inputs::again`] would give, or `None` where a look at the answer is needed.
    fn revision(&mut self, query: QueryId) -> Option<PartId> {
        match self.again(query)? {
            Input::Answered(answer) => Some(answer.id()),
            Input::Pending | Input::Failed { .. } => None,
        }
    }
}

/// Something a proxy lacks, or an error it works around.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// What it is about: a query in words, or a setting.
    pub subject: String,
    /// The last error; `None` while the first answer is awaited.
    pub error: Option<String>,
    /// Whether the proxy has no snapshot, or serves an older one, until this is solved.
    pub blocks: bool,
}

/// Which answers changed since a state's last run.
#[derive(Debug, Clone, Copy)]
pub enum Changed<'a> {
    /// Everything must be looked at.
    All,
    /// These, sorted.
    Queries(&'a [QueryId]),
}

impl Changed<'_> {
    fn names(&self, query: QueryId) -> bool {
        match self {
            Self::All => true,
            Self::Queries(ids) => ids.binary_search(&query).is_ok(),
        }
    }

    fn touches(&self, reads: &[Read]) -> bool {
        match self {
            Self::All => true,
            Self::Queries(ids) => !ids.is_empty() && reads.iter().any(|r| self.names(r.query)),
        }
    }
}

/// One answer that a part read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Read {
    /// The query.
    pub query: QueryId,
    /// The revision read; `None` if there was none.
    seen: Option<PartId>,
    /// Whether the query failed.
    failed: bool,
}

/// Everything that a run hands to its slots.
pub(super) struct Run<'a> {
    /// Answers.
    pub inputs: &'a mut dyn Inputs,
    /// What changed.
    pub changed: Changed<'a>,
    /// Monotonic time.
    pub now: Duration,
    /// How long an output stays in service while its replacement is incomplete.
    pub patience: Duration,
    /// When to run again even if no answer changes.
    pub deadline: Option<Duration>,
    /// An error that ends the proxy.
    pub terminal: Option<QueryError>,
    /// Parts built in this run: a measure of the work done.
    pub built: u64,
    /// Whether the queries that are wanted may differ from those before.
    pub rewired: bool,
}

impl<'a> Run<'a> {
    pub fn new(
        settings: &ProxySettings,
        inputs: &'a mut dyn Inputs,
        changed: Changed<'a>,
        now: Duration,
    ) -> Self {
        Self {
            inputs,
            changed,
            now,
            patience: settings.make_before_break,
            deadline: None,
            terminal: None,
            built: 0,
            rewired: false,
        }
    }

    /// Whether one of the answers read differs from what was read. A query is often marked where its answer turns out to be
    /// the same (in a herd, every answer that may have changed is): then nothing has to be built.
    fn differs(&mut self, reads: &[Read]) -> bool {
        reads.iter().any(|read| {
            self.changed.names(read.query)
                && (read.failed
                    || read.seen.is_none()
                    || self.inputs.revision(read.query) != read.seen)
        })
    }
}

/// The answers that a part read: one, for most.
type Reads = SmallVec<[Read; 1]>;

/// What is lacking or wrong: nothing, for most.
type Issues = Option<Box<Vec<Issue>>>;

fn issues(found: Vec<Issue>) -> Issues {
    (!found.is_empty()).then(|| Box::new(found))
}

/// Asks on behalf of one part and records what was read.
pub(super) struct Asker<'r, 'a> {
    run: &'r mut Run<'a>,
    reads: Reads,
    issues: Vec<Issue>,
    pending: bool,
    blocks: bool,
}

impl Asker<'_, '_> {
    /// The answer to a query, or the last good one. `None` if there is none; the reason is recorded.
    pub fn ask(&mut self, query: &Query) -> Option<Answer> {
        let (id, input) = self.run.inputs.get(query);
        self.read(id, input, || query.to_string())
    }

    /// The same for a query that the last build asked too, under this number: without writing it out again.
    pub fn ask_again(&mut self, id: QueryId, query: impl FnOnce() -> Query) -> Option<Answer> {
        match self.run.inputs.again(id) {
            Some(input) => self.read(id, input, || query().to_string()),
            None => self.ask(&query()),
        }
    }

    /// The number of the query asked last.
    pub fn last_asked(&self) -> Option<QueryId> {
        self.reads.last().map(|read| read.query)
    }

    fn read(
        &mut self,
        id: QueryId,
        input: Input,
        subject: impl FnOnce() -> String,
    ) -> Option<Answer> {
        let (answer, error) = match input {
            Input::Pending => {
                self.pending = true;
                self.issues.push(Issue {
                    subject: subject(),
                    error: None,
                    blocks: self.blocks,
                });
                self.reads.push(Read {
                    query: id,
                    seen: None,
                    failed: false,
                });
                return None;
            }
            Input::Answered(answer) => (Some(answer), None),
            Input::Failed { error, last } => (last, Some(error)),
        };
        self.reads.push(Read {
            query: id,
            seen: answer.as_ref().map(Answer::id),
            failed: error.is_some(),
        });
        if let Some(error) = error {
            let blocks = self.blocks && answer.is_none();
            self.issues.push(Issue {
                subject: subject(),
                error: Some(error.message.clone()),
                blocks,
            });
            if error.terminal {
                self.run.terminal = Some(error);
            }
        }
        answer
    }

    /// Notes something about a setting that the part works around.
    pub fn complain(&mut self, subject: impl Into<String>, error: impl Into<String>) {
        self.issues.push(Issue {
            subject: subject.into(),
            error: Some(error.into()),
            blocks: false,
        });
    }

    /// Notes a setting that makes the part impossible.
    pub fn refuse(&mut self, subject: impl Into<String>, error: impl Into<String>) {
        self.issues.push(Issue {
            subject: subject.into(),
            error: Some(error.into()),
            blocks: self.blocks,
        });
    }
}

/// The memory of one part.
#[derive(Debug, Clone)]
pub(super) struct Slot<S, O> {
    current: Option<Built<S, O>>,
    /// Rare, so that it stands elsewhere.
    attempt: Option<Box<Attempt<S>>>,
}

#[derive(Debug, Clone)]
struct Built<S, O> {
    spec: S,
    output: O,
    reads: Reads,
    issues: Issues,
    complete: bool,
}

/// A build that lacks something.
#[derive(Debug, Clone)]
struct Attempt<S> {
    spec: S,
    reads: Reads,
    issues: Issues,
    since: Duration,
}

struct Assembled<O> {
    output: Option<O>,
    reads: Reads,
    issues: Issues,
    complete: bool,
}

impl<S, O> Default for Slot<S, O> {
    fn default() -> Self {
        Self {
            current: None,
            attempt: None,
        }
    }
}

impl<S: PartialEq, O> Slot<S, O> {
    /// Brings the part up to date for `spec`. `blocks`: the proxy has no snapshot without this part. `build` gets the
    /// present output, to keep what didn't change; it returns `None` if nothing can be built. Returns whether the output
    /// changed.
    pub fn refresh(
        &mut self,
        spec: S,
        blocks: bool,
        run: &mut Run<'_>,
        build: impl Fn(&S, Option<&O>, &mut Asker<'_, '_>) -> Option<O>,
    ) -> bool {
        let settled =
            self.attempt.is_none() && self.current.as_ref().is_some_and(|c| c.spec == spec);
        if settled {
            if !self.differs(run) {
                return false;
            }
        } else if let Some(attempt) = &self.attempt {
            let due = !blocks && self.current.is_some() && run.now >= attempt.since + run.patience;
            let touched = run.changed.touches(&attempt.reads)
                || self
                    .current
                    .as_ref()
                    .is_some_and(|c| run.changed.touches(&c.reads));
            if attempt.spec == spec && !due && !touched {
                self.arm(blocks, run);
                return false;
            }
        }
        let new = assemble(
            &spec,
            self.current.as_ref().map(|c| &c.output),
            blocks,
            run,
            &build,
        );
        self.settle(spec, new, blocks, run, &build)
    }

    /// Whether the part has what it was last built for, and every answer that it read is as it was.
    pub fn is_settled(&self, run: &mut Run<'_>) -> bool {
        self.attempt.is_none() && self.current.is_some() && !self.differs(run)
    }

    fn differs(&self, run: &mut Run<'_>) -> bool {
        self.current.as_ref().is_some_and(|c| run.differs(&c.reads))
    }

    fn settle(
        &mut self,
        spec: S,
        new: Assembled<O>,
        blocks: bool,
        run: &mut Run<'_>,
        build: &impl Fn(&S, Option<&O>, &mut Asker<'_, '_>) -> Option<O>,
    ) -> bool {
        let since = match &self.attempt {
            Some(attempt) if attempt.spec == spec => attempt.since,
            _ => run.now,
        };
        let serving = self.current.as_ref().is_some_and(|c| c.complete);
        let replace = if blocks {
            self.current.is_none() || new.output.is_some()
        } else {
            new.complete || !serving || run.now >= since + run.patience
        };
        if replace {
            return match new.output {
                Some(output) => {
                    let same = self
                        .current
                        .as_ref()
                        .is_some_and(|c| c.spec == spec && c.reads == new.reads);
                    if let (true, Some(current)) = (same, &mut self.current) {
                        current.issues = new.issues;
                        current.complete = new.complete;
                    } else {
                        let Assembled {
                            reads,
                            issues,
                            complete,
                            ..
                        } = new;
                        let before = self.current.as_ref().map(|c| &c.reads);
                        run.rewired |= self.attempt.is_some()
                            || before.is_none_or(|before| !same_queries(before, &reads));
                        self.current = Some(Built {
                            spec,
                            output,
                            reads,
                            complete,
                            issues,
                        });
                    }
                    run.rewired |= self.attempt.take().is_some();
                    !same
                }
                None => {
                    run.rewired = true;
                    self.attempt = Some(Box::new(Attempt {
                        spec,
                        reads: new.reads,
                        issues: new.issues,
                        since,
                    }));
                    self.current.take().is_some()
                }
            };
        }
        run.rewired = true;
        self.attempt = Some(Box::new(Attempt {
            spec,
            reads: new.reads,
            issues: new.issues,
            since,
        }));
        self.arm(blocks, run);
        self.keep_fresh(blocks, run, build)
    }

    /// Rebuilds the output in service from its own spec, if its answers changed and still allow it.
    fn keep_fresh(
        &mut self,
        blocks: bool,
        run: &mut Run<'_>,
        build: &impl Fn(&S, Option<&O>, &mut Asker<'_, '_>) -> Option<O>,
    ) -> bool {
        let Some(current) = &mut self.current else {
            return false;
        };
        if !run.changed.touches(&current.reads) {
            return false;
        }
        let rebuilt = assemble(&current.spec, Some(&current.output), blocks, run, build);
        match rebuilt {
            Assembled {
                output: Some(output),
                reads,
                issues,
                complete: true,
            } if reads != current.reads => {
                run.rewired = true;
                current.output = output;
                current.reads = reads;
                current.issues = issues;
                true
            }
            _ => false,
        }
    }

    /// Sees to it that the state runs again when the patience with an attempt ends.
    fn arm(&self, blocks: bool, run: &mut Run<'_>) {
        if let (false, Some(attempt), Some(_)) = (blocks, &self.attempt, &self.current) {
            let due = attempt.since + run.patience;
            run.deadline = Some(run.deadline.map_or(due, |d| d.min(due)));
        }
    }
}

impl<S: Clone, O: Clone> Slot<S, O> {
    /// Takes over what another slot has in service, if that is complete and this one has nothing complete. The next run must
    /// look at everything: the answers that were read there have not been asked for here.
    pub fn adopt(&mut self, from: &Self) {
        if from.is_complete() && !self.is_complete() {
            self.current.clone_from(&from.current);
            if self.attempt.is_none() {
                // What was awaited there is awaited no longer for being awaited here.
                self.attempt.clone_from(&from.attempt);
            }
        }
    }
}

impl<S, O> Slot<S, O> {
    /// Whether it has an output that lacks nothing.
    pub fn is_complete(&self) -> bool {
        self.current.as_ref().is_some_and(|c| c.complete)
    }

    /// Whether something is lacking or wrong.
    pub fn has_issues(&self) -> bool {
        self.current.as_ref().is_some_and(|c| c.issues.is_some())
            || self.attempt.as_ref().is_some_and(|a| a.issues.is_some())
    }

    /// Whether a replacement is awaited.
    pub fn is_waiting(&self) -> bool {
        self.attempt.is_some()
    }

    /// The output in service.
    pub fn output(&self) -> Option<&O> {
        self.current.as_ref().map(|c| &c.output)
    }

    /// Adds every query that must stay subscribed.
    pub fn wants(&self, into: &mut Vec<QueryId>) {
        let current = self.current.iter().flat_map(|c| &c.reads);
        let attempt = self.attempt.iter().flat_map(|a| &a.reads);
        into.extend(current.chain(attempt).map(|r| r.query));
    }

    /// Adds what is lacking or wrong.
    pub fn issues(&self, into: &mut Vec<Issue>) {
        let current = self.current.iter().filter_map(|c| c.issues.as_deref());
        let attempt = self.attempt.iter().filter_map(|a| a.issues.as_deref());
        into.extend(current.chain(attempt).flatten().cloned());
    }
}

fn same_queries(a: &[Read], b: &[Read]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.query == b.query)
}

fn assemble<S, O>(
    spec: &S,
    previous: Option<&O>,
    blocks: bool,
    run: &mut Run<'_>,
    build: &impl Fn(&S, Option<&O>, &mut Asker<'_, '_>) -> Option<O>,
) -> Assembled<O> {
    run.built += 1;
    let _ = fault::hit(Point::Part);
    let mut asker = Asker {
        run,
        reads: Reads::new(),
        issues: Vec::new(),
        pending: false,
        blocks,
    };
    let output = build(spec, previous, &mut asker);
    let Asker {
        mut reads,
        issues: found,
        pending,
        ..
    } = asker;
    reads.shrink_to_fit();
    Assembled {
        output,
        reads,
        issues: issues(found),
        complete: !pending,
    }
}
