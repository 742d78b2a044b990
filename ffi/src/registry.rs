//! Which proxies there are.

use proxycfg::model::{Problems, ServiceInstance, ServiceKind};
use proxycfg::{ProxyId, ProxySource, ProxyStatus, RegisterOptions, Registered, Registration};
use proxycfg::{hcl, model};
use serde_json::json;

use crate::engine::{Engine, EngineHandle};
use crate::guard::{Code, ErrorHandle, Failure, Outcome, call};
use crate::handles;
use crate::memory::{self, Str, TextHandle, TextObject};

/// Which proxy. Two ids with different tokens are different proxies, which never share a snapshot.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ProxyIdRef {
    /// The id of the proxy's service instance; must not be empty.
    pub id: Str,
    /// The node that the instance is on; may be empty.
    pub node: Str,
    /// The token that the proxy's data is fetched with; usually empty.
    pub token: Str,
}

impl ProxyIdRef {
    /// # Safety
    /// The pointer is NULL or points to an id whose texts are readable.
    pub(crate) unsafe fn read(id: *const Self) -> Outcome<ProxyId> {
        // SAFETY: as the caller promises.
        let id = unsafe { memory::fixed(id, "id") }?;
        // SAFETY: as the caller promises.
        let read = unsafe { id.read_any() }?;
        if read.service_id.is_empty() {
            return Err(Failure::argument(
                "id.id is empty: name the proxy's instance",
            ));
        }
        Ok(read)
    }

    /// # Safety
    /// The texts are readable.
    unsafe fn read_any(&self) -> Outcome<ProxyId> {
        // SAFETY: as the caller promises.
        let (id, node, token) = unsafe {
            (
                memory::text(self.id, "id.id")?,
                memory::text(self.node, "id.node")?,
                memory::text(self.token, "id.token")?,
            )
        };
        Ok(ProxyId::new(id, node).with_token(token))
    }

    pub(crate) fn of(id: &ProxyId) -> Self {
        Self {
            id: Str::of(&id.service_id),
            node: Str::of(&id.node),
            token: Str::of(&id.token),
        }
    }
}

impl memory::Nothing for ProxyIdRef {
    const NOTHING: Self = Self {
        id: Str::EMPTY,
        node: Str::EMPTY,
        token: Str::EMPTY,
    };
}

/// The kind of a proxy.
#[repr(i32)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProxyKind {
    /// None: of a NULL snapshot.
    #[default]
    None = 0,
    /// A sidecar.
    ConnectProxy = 1,
    /// A mesh gateway.
    MeshGateway = 2,
    /// A terminating gateway.
    TerminatingGateway = 3,
    /// An ingress gateway.
    IngressGateway = 4,
    /// An API gateway.
    ApiGateway = 5,
}

impl From<ServiceKind> for ProxyKind {
    fn from(kind: ServiceKind) -> Self {
        match kind {
            ServiceKind::Typical => Self::None,
            ServiceKind::ConnectProxy => Self::ConnectProxy,
            ServiceKind::MeshGateway => Self::MeshGateway,
            ServiceKind::TerminatingGateway => Self::TerminatingGateway,
            ServiceKind::IngressGateway => Self::IngressGateway,
            ServiceKind::ApiGateway => Self::ApiGateway,
        }
    }
}

impl ProxyKind {
    /// The kind that has a number.
    pub(crate) fn of_number(number: i32) -> Option<Self> {
        Self::read(number).map(Self::from)
    }

    fn read(number: i32) -> Option<ServiceKind> {
        [
            ServiceKind::ConnectProxy,
            ServiceKind::MeshGateway,
            ServiceKind::TerminatingGateway,
            ServiceKind::IngressGateway,
            ServiceKind::ApiGateway,
        ]
        .into_iter()
        .find(|kind| Self::from(*kind) as i32 == number)
    }
}

/// Flag of a registration: take the proxy over if another source has registered it.
pub const PROXYCFG_REGISTER_OVERWRITE: u32 = 1;

/// A proxy to register. Set `size` to `sizeof(proxycfg_registration)` and what isn't needed to zero. The struct may grow
/// in later versions.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RegistrationOptions {
    /// `sizeof(proxycfg_registration)`.
    pub size: usize,
    /// Which proxy. If `id.id` is empty, it is the `ID` of the definition, or its `Service`.
    pub id: ProxyIdRef,
    /// Who registers it: a name of the host's choice; empty means `host`. Only the same source can deregister it.
    pub source: Str,
    /// The proxy's service instance as JSON, in the form of Consul's catalog: `{"Kind": "connect-proxy", "Service": ...,
    /// "Port": ..., "Proxy": {...}}`. Empty means: follow the record of the store with the proxy's node and id.
    pub definition: Str,
    /// A `proxycfg_proxy_kind`; needed without a definition, else 0 or the same.
    pub kind: i32,
    /// The sum of `PROXYCFG_REGISTER_...`.
    pub flags: u32,
}

/// The size of the first version of [`RegistrationOptions`], up to its last field.
const LEAST_REGISTRATION: usize =
    std::mem::offset_of!(RegistrationOptions, flags) + size_of::<u32>();

impl RegistrationOptions {
    const BASE: Self = Self {
        size: 0,
        id: <ProxyIdRef as memory::Nothing>::NOTHING,
        source: Str::EMPTY,
        definition: Str::EMPTY,
        kind: 0,
        flags: 0,
    };

    /// # Safety
    /// The texts are readable.
    unsafe fn read(&self) -> Outcome<(ProxyId, RegisterOptions)> {
        // SAFETY: as the caller promises.
        let (mut id, source, definition) = unsafe {
            (
                self.id.read_any()?,
                memory::text(self.source, "registration.source")?,
                memory::text(self.definition, "registration.definition")?,
            )
        };
        if self.flags & !PROXYCFG_REGISTER_OVERWRITE != 0 {
            return Err(Failure::argument(format!(
                "registration.flags: {:#x} has a flag that this version of the library doesn't know",
                self.flags
            )));
        }
        let named = match self.kind {
            0 => None,
            number => Some(ProxyKind::read(number).ok_or_else(|| {
                Failure::argument(format!(
                    "registration.kind: {number} is no proxycfg_proxy_kind"
                ))
            })?),
        };
        let (kind, registration) = if definition.is_empty() {
            let kind = named.ok_or_else(|| {
                Failure::argument(
                    "registration.kind is needed without a definition: the kind of the record to follow",
                )
            })?;
            (kind, Registration::Record)
        } else {
            let instance = read_definition(definition)?;
            if named.is_some_and(|named| named != instance.kind) {
                return Err(Failure::argument(
                    "registration.kind is another one than the definition's Kind; leave it 0",
                ));
            }
            if id.service_id.is_empty() {
                id.service_id = match instance.id.as_str() {
                    "" => instance.service.as_str().into(),
                    id => id.into(),
                };
            }
            let kind = instance.kind;
            (kind, Registration::Definition(triomphe::Arc::new(instance)))
        };
        if id.service_id.is_empty() {
            return Err(Failure::argument(
                "registration.id.id is empty: name the proxy's instance",
            ));
        }
        let source = if source.is_empty() { "host" } else { source };
        let options = RegisterOptions {
            kind,
            registration,
            source: ProxySource::new(source),
            token: id.token.clone(),
            overwrite: self.flags & PROXYCFG_REGISTER_OVERWRITE != 0,
        };
        Ok((id, options))
    }
}

fn read_definition(json: &str) -> Outcome<ServiceInstance> {
    let document = hcl::parse_json(json.as_bytes())
        .map_err(|e| Failure::argument(format!("registration.definition: {e}")))?;
    let (instance, notes): (_, Problems) =
        model::read(&document).map_err(|p| Failure::new(Code::Refused, p.text()))?;
    for warning in &notes.warnings {
        tracing::warn!(problem = %warning, "a definition says something without effect");
    }
    Ok(instance)
}

/// What a registration came to.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisteredAs {
    /// Nothing: the call failed.
    Nothing = 0,
    /// The proxy is new, or begins anew: its kind or token changed, or it had ended.
    Created = 1,
    /// The change takes effect in place: watches keep the last snapshot until the new one is complete.
    Changed = 2,
    /// There was nothing to change.
    Unchanged = 3,
}

impl memory::Nothing for RegisteredAs {
    const NOTHING: Self = Self::Nothing;
}

/// Registers a proxy, or changes its registration.
///
/// `registered` (may be NULL) receives what it came to. A registration that breaks a rule is `PROXYCFG_RESULT_REFUSED`; a
/// proxy of another source is `PROXYCFG_RESULT_OTHER_SOURCE`, unless the flags say to take it over.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_register(
    engine: *const EngineHandle,
    registration: *const RegistrationOptions,
    registered: *mut RegisteredAs,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_register", error, || {
        // SAFETY: the host gives NULL or a place for a number.
        let registered = unsafe { memory::out(registered) };
        let engine = handles::get::<Engine, _>(engine)?;
        engine.check_open()?;
        let base = RegistrationOptions::BASE;
        // SAFETY: all fields are numbers and pointers; the host gives a struct of the size that it says.
        let given =
            unsafe { memory::sized(registration, base, LEAST_REGISTRATION, "registration") }?;
        // SAFETY: the host gives texts.
        let (id, options) = unsafe { given.read() }?;
        let outcome = engine
            .manager()
            .register(&id, options)
            .map_err(|e| match e {
                proxycfg::RegisterError::Closed => Failure::new(Code::Closed, e.to_string()),
                e => Failure::new(Code::Refused, e.to_string()),
            })?;
        let outcome = match outcome {
            Registered::Created => RegisteredAs::Created,
            Registered::Changed => RegisteredAs::Changed,
            Registered::Unchanged => RegisteredAs::Unchanged,
            Registered::OtherSource => {
                return Err(Failure::new(
                    Code::OtherSource,
                    format!(
                        "{id} is registered by another source; set PROXYCFG_REGISTER_OVERWRITE to take it over"
                    ),
                ));
            }
        };
        if let Some(registered) = registered {
            registered.set(outcome);
        }
        Ok(())
    })
}

/// Removes a proxy that `source` (empty: `host`) has registered; else `PROXYCFG_RESULT_NOT_FOUND`. Watches stay and serve a
/// later registration; after this returns, no snapshot of the removed registration is delivered.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_deregister(
    engine: *const EngineHandle,
    id: *const ProxyIdRef,
    source: Str,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_deregister", error, || {
        let engine = handles::get::<Engine, _>(engine)?;
        // SAFETY: the host gives NULL or an id.
        let id = unsafe { ProxyIdRef::read(id) }?;
        // SAFETY: the host gives a text.
        let source = match unsafe { memory::text(source, "source") }? {
            "" => "host",
            source => source,
        };
        if engine.manager().deregister(&id, &ProxySource::new(source)) {
            return Ok(());
        }
        Err(Failure::new(
            Code::NotFound,
            format!("the source {source:?} has registered no proxy {id}"),
        ))
    })
}

/// The proxies of an engine as JSON: a list, sorted by node and id, of objects as `proxycfg_status` gives them.
///
/// With a `source`, those that it has registered; with an empty one, all that are registered or watched. Free `proxies`
/// with `proxycfg_text_free`.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_list(
    engine: *const EngineHandle,
    source: Str,
    proxies: *mut *mut TextHandle,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_list", error, || {
        // SAFETY: the host gives NULL or a place for a pointer.
        let proxies = unsafe { memory::needed_out(proxies, "proxies") }?;
        let engine = handles::get::<Engine, _>(engine)?;
        // SAFETY: the host gives a text.
        let source = unsafe { memory::text(source, "source") }?;
        let wanted = |status: &ProxyStatus| {
            source.is_empty() || status.source.as_ref().is_some_and(|s| s.0 == source)
        };
        let all = engine.manager().proxies();
        let list: Vec<_> = all.iter().filter(|s| wanted(s)).map(show).collect();
        proxies.set(TextObject::give(serde_json::Value::from(list).to_string()));
        Ok(())
    })
}

/// The state of one proxy as JSON: `ID`, `Node`, `Kind`, `Source`, `Ready`, `WaitingFor` (a list of what it waits for or what
/// is wrong: `Subject`, `Error`, `Blocks`), `Index` (the store index of its last snapshot), `Watchers`, and `Ended` or
/// `Fault` with a reason if there is one. `PROXYCFG_RESULT_NOT_FOUND` if it is neither registered nor watched. Free
/// `status` with `proxycfg_text_free`.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_status(
    engine: *const EngineHandle,
    id: *const ProxyIdRef,
    status: *mut *mut TextHandle,
    error: *mut *mut ErrorHandle,
) -> Code {
    call("proxycfg_status", error, || {
        // SAFETY: the host gives NULL or a place for a pointer.
        let status = unsafe { memory::needed_out(status, "status") }?;
        let engine = handles::get::<Engine, _>(engine)?;
        // SAFETY: the host gives NULL or an id.
        let id = unsafe { ProxyIdRef::read(id) }?;
        let Some(found) = engine.manager().status(&id) else {
            return Err(Failure::new(
                Code::NotFound,
                format!("the proxy {id} is neither registered nor watched"),
            ));
        };
        status.set(TextObject::give(show(&found).to_string()));
        Ok(())
    })
}

fn show(status: &ProxyStatus) -> serde_json::Value {
    let waiting: Vec<_> = status
        .issues
        .iter()
        .map(
            |issue| json!({"Subject": issue.subject, "Error": issue.error, "Blocks": issue.blocks}),
        )
        .collect();
    let mut shown = json!({
        "ID": status.id.service_id,
        "Node": status.id.node,
        "Kind": status.kind,
        "Source": status.source.as_ref().map(|s| s.0.as_str()),
        "Ready": status.ready,
        "WaitingFor": waiting,
        "Index": status.store_index,
        "Watchers": status.watchers,
    });
    if let Some(ended) = &status.ended {
        shown["Ended"] = ended.as_str().into();
    }
    if let Some(fault) = &status.fault {
        shown["Fault"] = fault.as_str().into();
    }
    shown
}
