//! Sources of the host: a host that owns its data answers queries itself.
//!
//! The engine subscribes to a query, the host answers now or later and again on every change, until the engine
//! unsubscribes. Each subscription has a number that is never used again within its engine, so an answer that comes late is
//! recognised and ignored.

use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use proxycfg::source::{AuthScope, FeedSink, HostFeed, QueryKind, SubscriptionId};
use proxycfg::{Answer, Feed, Query, QueryError};

use crate::foreign::{Destructor, UserData};
use crate::guard::{Code, ErrorHandle, Failure, Outcome, call, infallible};
use crate::handles::{self, Number};
use crate::memory::{self, Str, null};

/// A source of the host. Made by `proxycfg_source_new`, given to one engine in its options, freed with
/// `proxycfg_source_free`. Usable from any number of threads at the same time.
#[derive(Debug)]
pub struct SourceHandle(());

/// The kinds of query, and what their answers are as JSON.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceQueryKind {
    /// Trust roots: `{"ActiveRootID": ..., "TrustDomain": ..., "Roots": [...]}`, Consul's form.
    CaRoots = 0,
    /// The certificate of a service, in Consul's form, with its private key.
    Leaf = 1,
    /// Who may call a service: a list of intentions.
    Intentions = 2,
    /// Settings of the mesh: the config entry, or `null`.
    Mesh = 3,
    /// All token providers: a list of config entries.
    JwtProviders = 4,
    /// A compiled discovery chain.
    Chain = 5,
    /// The instances of a service: a list of `{"Node": ..., "ServiceID": ..., "Address": ..., "Port": ..., "Health":
    /// "passing|warning|critical", "Weight": ...}`.
    Endpoints = 6,
    /// Central configuration of a service, resolved: `{}` if there is none.
    ServiceConfig = 7,
    /// The registration of an instance: a service instance, or `null`.
    ServiceRecord = 8,
    /// What of an instance's own checks a sidecar opens: `{"Paths": [...], "AgentAddress": ...}`, `{}` if nothing.
    ExposedChecks = 9,
}

impl From<QueryKind> for SourceQueryKind {
    fn from(kind: QueryKind) -> Self {
        match kind {
            QueryKind::CaRoots => Self::CaRoots,
            QueryKind::Leaf => Self::Leaf,
            QueryKind::Intentions => Self::Intentions,
            QueryKind::Mesh => Self::Mesh,
            QueryKind::JwtProviders => Self::JwtProviders,
            QueryKind::Chain => Self::Chain,
            QueryKind::Endpoints => Self::Endpoints,
            QueryKind::ServiceConfig => Self::ServiceConfig,
            QueryKind::ServiceRecord => Self::ServiceRecord,
            QueryKind::ExposedChecks => Self::ExposedChecks,
        }
    }
}

fn bit(kind: QueryKind) -> u64 {
    1 << SourceQueryKind::from(kind) as i32
}

/// A query that the engine wants answered. Lent for the call of `subscribe`, with its texts. Later versions may append
/// fields.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SourceQuery {
    /// The size that the library knows this struct with.
    pub size: usize,
    /// The number of the subscription, by which it is answered.
    pub subscription: u64,
    /// A `proxycfg_query_kind`.
    pub kind: i32,
    /// The token that the data is fetched with: that of the proxies that want the answer.
    pub token: Str,
    /// What is asked, as JSON: `{"Kind": "endpoints", "Service": "db", "Datacenter": "dc1"}`.
    pub json: Str,
}

/// What a source does. Set `size` to `sizeof(proxycfg_source_functions)`. All functions are called on threads of the engine
/// with no lock held, and may use every function of this library. Calls for one subscription come one after another, those
/// for different ones at the same time; one that blocks holds up its own subscription and one thread. They must not throw
/// or longjmp.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SourceFunctions {
    /// `sizeof(proxycfg_source_functions)`.
    pub size: usize,
    /// Begins to answer a query: with `proxycfg_source_answer` or `_error`, in this call or later, and again on every change.
    pub subscribe: Option<unsafe extern "C" fn(user_data: *mut c_void, query: *const SourceQuery)>,
    /// Nobody wants the answers of a subscription any more.
    pub unsubscribe: Option<unsafe extern "C" fn(user_data: *mut c_void, subscription: u64)>,
    /// A fresh answer is wanted now, where that makes sense: a new certificate. May be NULL.
    pub refresh: Option<unsafe extern "C" fn(user_data: *mut c_void, subscription: u64)>,
}

/// The size of the first version of [`SourceFunctions`], up to its last field.
const LEAST_FUNCTIONS: usize =
    std::mem::offset_of!(SourceFunctions, refresh) + size_of::<*const c_void>();

/// One answer of a batch.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SourceAnswer {
    /// The subscription.
    pub subscription: u64,
    /// The answer, as JSON.
    pub json: Str,
}

/// A source of the host, as the engine's feed.
pub(crate) struct Source {
    functions: SourceFunctions,
    user_data: UserData,
    attached: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: HashMap<u64, (Query, FeedSink)>,
    /// The highest subscription so far.
    highest: u64,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

impl Source {
    /// Gives the source to an engine.
    pub fn attach(self: &Arc<Self>, kinds: u64) -> Outcome<HostFeed> {
        let known = QueryKind::ALL
            .into_iter()
            .fold(0, |all, kind| all | bit(kind));
        if kinds == 0 || kinds & !known != 0 {
            return Err(Failure::argument(format!(
                "options.source_kinds: {kinds:#x} must be a sum of 1 << PROXYCFG_QUERY_KIND_..., and not 0"
            )));
        }
        if self.attached.swap(true, Ordering::SeqCst) {
            return Err(Failure::argument(
                "options.source serves another engine; make one for each engine",
            ));
        }
        let kinds: BTreeSet<QueryKind> = QueryKind::ALL
            .into_iter()
            .filter(|kind| kinds & bit(*kind) != 0)
            .collect();
        Ok(HostFeed {
            kinds,
            feed: self.clone(),
        })
    }

    /// Takes the source back from an engine that didn't start.
    pub fn detach(&self) {
        self.attached.store(false, Ordering::SeqCst);
    }

    /// The query and sink of a live subscription; `None` if it has ended.
    fn find(&self, subscription: u64) -> Outcome<Option<(Query, FeedSink)>> {
        let state = self.state.lock();
        match state.live.get(&subscription) {
            Some(found) => Ok(Some(found.clone())),
            None if subscription <= state.highest => Ok(None),
            None => Err(Failure::new(
                Code::NotFound,
                format!("there never was a subscription {subscription}"),
            )),
        }
    }

    /// Gives answers that take effect together. If one can't be read, none is given.
    fn answer(&self, answers: &[(u64, &str)]) -> Outcome<()> {
        let mut read = Vec::with_capacity(answers.len());
        let mut taker = None;
        for (subscription, json) in answers {
            let Some((query, sink)) = self.find(*subscription)? else {
                continue;
            };
            let answer = Answer::from_json(&query, json.as_bytes()).map_err(|problems| {
                Failure::new(
                    Code::Refused,
                    format!("subscription {subscription}, {query}: {problems}"),
                )
            })?;
            read.push((SubscriptionId(*subscription), Ok(answer)));
            taker = Some(sink);
        }
        if let Some(sink) = taker {
            sink.answer_all(read);
        }
        Ok(())
    }
}

impl Feed for Source {
    fn subscribe(&self, id: SubscriptionId, scope: &AuthScope, query: &Query, sink: FeedSink) {
        let json = match serde_json::to_string(query) {
            Ok(json) => json,
            Err(error) => {
                sink.answer(id, Err(QueryError::new(error.to_string())));
                return;
            }
        };
        {
            let mut state = self.state.lock();
            state.live.insert(id.0, (query.clone(), sink));
            state.highest = state.highest.max(id.0);
        }
        let asked = SourceQuery {
            size: size_of::<SourceQuery>(),
            subscription: id.0,
            kind: SourceQueryKind::from(query.kind()) as i32,
            token: Str::of(&scope.0),
            json: Str::of(&json),
        };
        if let Some(subscribe) = self.functions.subscribe {
            // SAFETY: the host gave this function to be called so; the query lives until after the call.
            unsafe { subscribe(self.user_data.pointer(), &raw const asked) };
        }
    }

    fn unsubscribe(&self, id: SubscriptionId) {
        let gone = self.state.lock().live.remove(&id.0);
        if gone.is_none() {
            return;
        }
        if let Some(unsubscribe) = self.functions.unsubscribe {
            // SAFETY: the host gave this function to be called so.
            unsafe { unsubscribe(self.user_data.pointer(), id.0) };
        }
    }

    fn refresh(&self, id: SubscriptionId) {
        if let Some(refresh) = self.functions.refresh {
            // SAFETY: the host gave this function to be called so.
            unsafe { refresh(self.user_data.pointer(), id.0) };
        }
    }
}

/// Makes a source of the host.
///
/// `functions` is copied. `destructor` (may be NULL) is called with `user_data` exactly once, when the source and the engine
/// that it serves have been freed and no function of it runs any more; if this function fails it isn't called.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_source_new(
    functions: *const SourceFunctions,
    user_data: *mut c_void,
    destructor: Destructor,
    source: *mut *mut SourceHandle,
    error: *mut *mut ErrorHandle,
) -> Code {
    let mut held = Some(UserData::new(user_data, destructor));
    let code = call("proxycfg_source_new", error, || {
        // SAFETY: the host gives NULL or a place for a pointer.
        let source = unsafe { memory::needed_out(source, "source") }?;
        let base = SourceFunctions {
            size: 0,
            subscribe: None,
            unsubscribe: None,
            refresh: None,
        };
        // SAFETY: all fields are a number and nullable functions; the host gives a struct of the size that it says.
        let functions = unsafe { memory::sized(functions, base, LEAST_FUNCTIONS, "functions") }?;
        if functions.subscribe.is_none() {
            return Err(null("functions.subscribe"));
        }
        if functions.unsubscribe.is_none() {
            return Err(null("functions.unsubscribe"));
        }
        let Some(user_data) = held.take() else {
            return Ok(());
        };
        let number = handles::put(Arc::new(Source {
            functions,
            user_data,
            attached: AtomicBool::new(false),
            state: Mutex::default(),
        }));
        source.set(number.handle());
        Ok(())
    });
    if let Some(user_data) = held {
        user_data.give_back();
    }
    code
}

/// Answers a subscription. An answer that can't be read is `PROXYCFG_RESULT_REFUSED`, with all problems in the message; the
/// last one stays. One for a subscription that has ended is ignored.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_source_answer(
    source: *const SourceHandle,
    subscription: u64,
    json: Str,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_source_answer", error, || {
        let source = handles::get::<Source, _>(source)?;
        // SAFETY: the host gives a text.
        let json = unsafe { memory::text(json, "json") }?;
        source.answer(&[(subscription, json)])
    })
}

/// Answers several subscriptions, in one step: no snapshot shows some of the answers without the others. If one can't be
/// read, none is given.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_source_answer_batch(
    source: *const SourceHandle,
    answers: *const SourceAnswer,
    count: usize,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_source_answer_batch", error, || {
        let source = handles::get::<Source, _>(source)?;
        // SAFETY: the host gives NULL or an array of that length.
        let answers = unsafe { memory::array(answers, count, "answers") }?;
        let mut read = Vec::with_capacity(answers.len());
        for answer in answers {
            // SAFETY: the host gives texts.
            let json = unsafe { memory::text(answer.json, "answers[].json") }?;
            read.push((answer.subscription, json));
        }
        source.answer(&read)
    })
}

/// Says that a subscription can't be answered at present, and why. The last good answer stays in use. With
/// `token_invalid` other than 0 the proxies that asked end, and their watches with them: their token is no longer valid.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_source_error(
    source: *const SourceHandle,
    subscription: u64,
    message: Str,
    token_invalid: i32,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_source_error", error, || {
        let source = handles::get::<Source, _>(source)?;
        // SAFETY: the host gives a text.
        let message = unsafe { memory::text(message, "message") }?;
        if let Some((_, sink)) = source.find(subscription)? {
            let told = if token_invalid == 0 {
                QueryError::new(message)
            } else {
                QueryError::token_invalid(message)
            };
            sink.answer(SubscriptionId(subscription), Err(told));
        }
        Ok(())
    })
}

/// Frees a source. An engine that it serves goes on calling its functions, but can't be answered any more; free the engine
/// first. NULL is fine; freeing one twice does nothing.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_source_free(source: *mut SourceHandle) {
    infallible("proxycfg_source_free", || {
        // Of a stale handle there is nothing to free.
        drop(handles::take::<Source>(Number::of(source)));
    });
}
