//! What only sidecars have (xds.md 4.2): the application's cluster, the public listener, a listener for each upstream and
//! for each exposed path.

mod exposed_paths;
mod local_app;
mod public_listener;
mod upstream_listener;

use std::fmt;

use prost::Message as _;
use smol_str::SmolStr;

use super::access_log::Loggers;
use super::proto::{core, hcm, listener, pipe, socket_address};
use super::settings::ProxySettings;
use super::{BuildError, custom, http, names, rate_limit};
use crate::model::{InstanceLevelRateLimits, RATE_LIMIT_EXTENSION, is_http_like};
use crate::snapshot::Header;
use hcm::http_connection_manager::Tracing;

pub(super) use exposed_paths::exposed_paths;
pub(super) use local_app::local_app;
pub(super) use public_listener::{Inbound, public_listener};
pub(super) use upstream_listener::{Routing, upstream_listener};

/// A proxy's settings, read once for all that is built from them.
pub(super) struct Settings {
    free: ProxySettings,
    loggers: Loggers,
    tracing: Tracing,
    rate_limits: Option<InstanceLevelRateLimits>,
    /// An extension that the proxy must not be without, and that there isn't.
    unsupported_required: Option<String>,
    /// What can't be read, and has no effect.
    pub complaints: Vec<String>,
}

/// Leaves the settings out: an operator's JSON may hold a private key (decision C1).
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("complaints", &self.complaints)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// Reads the settings.
    pub(super) fn read(header: &Header) -> Self {
        let (free, mut complaints) = ProxySettings::read(&header.proxy.config);
        let loggers = Loggers::new(&header.proxy.access_logs).unwrap_or_else(|error| {
            complaints.push(format!("nothing is logged: {error}"));
            Loggers::default()
        });
        let mut tracing = http::no_sampling();
        if !free.tracing_json.is_empty() {
            match custom::tracing(&free.tracing_json) {
                Ok(custom) => tracing = custom,
                Err(error) => complaints.push(
                    error
                        .at("Proxy.Config.envoy_listener_tracing_json")
                        .to_string(),
                ),
            }
        }
        let mut unsupported_required = None;
        for extension in &header.proxy.envoy_extensions {
            if extension.name == RATE_LIMIT_EXTENSION {
                continue;
            }
            complaints.push(format!(
                "the extension {:?} has no effect: extensions aren't supported",
                extension.name
            ));
            if extension.required {
                unsupported_required = Some(extension.name.clone());
            }
        }
        if header.proxy.expose.checks && header.proxy.destination_service_id.is_empty() {
            complaints.push(
                "Proxy.Expose.Checks has no effect without Proxy.DestinationServiceID: it says whose checks are meant"
                    .to_owned(),
            );
        }
        let rate_limits = rate_limit::of(&header.proxy.envoy_extensions).unwrap_or_else(|error| {
            complaints.push(format!("requests aren't limited: {error}"));
            None
        });
        if rate_limits.is_some() && !is_http_like(&free.protocol) {
            complaints.push(format!(
                "RateLimits have no effect: they are about requests, and the protocol is {}, not http, http2 or grpc",
                free.protocol
            ));
        }
        Self {
            free,
            loggers,
            tracing,
            rate_limits,
            unsupported_required,
            complaints,
        }
    }
}

/// A proxy with its settings.
#[derive(Clone, Copy)]
pub(super) struct Proxy<'a> {
    /// Who it is.
    pub header: &'a Header,
    /// Its free settings.
    pub settings: &'a ProxySettings,
    /// Its access logs.
    pub loggers: &'a Loggers,
    /// What its HTTP listeners trace.
    pub tracing: &'a Tracing,
    /// How many requests it takes.
    pub rate_limits: Option<&'a InstanceLevelRateLimits>,
    /// An extension that it must not be without, and that there isn't.
    pub unsupported_required: Option<&'a str>,
}

impl<'a> Proxy<'a> {
    pub(super) fn new(header: &'a Header, settings: &'a Settings) -> Self {
        Self {
            header,
            settings: &settings.free,
            loggers: &settings.loggers,
            tracing: &settings.tracing,
            rate_limits: settings.rate_limits.as_ref(),
            unsupported_required: settings.unsupported_required.as_deref(),
        }
    }

    /// The address that inbound listeners bind to.
    fn bind_address(&self) -> &str {
        [
            self.settings.bind_address.as_str(),
            self.header.address.as_str(),
        ]
        .into_iter()
        .find(|address| !address.is_empty())
        .unwrap_or("0.0.0.0")
    }
}

/// A listener, and where it binds: no two may bind to the same place.
#[derive(Debug, Clone, PartialEq)]
struct BuiltListener {
    /// The message.
    pub message: listener::Listener,
    /// `address:port`, or the path of a socket.
    pub place: SmolStr,
    /// Route tables that it names.
    pub routes: Vec<SmolStr>,
}

/// An encoded listener.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ListenerResource {
    /// Its name.
    pub name: SmolStr,
    /// The message.
    pub bytes: Vec<u8>,
    /// `address:port`, or the path of a socket.
    pub place: SmolStr,
    /// Route tables that it names.
    pub routes: Vec<SmolStr>,
}

impl BuiltListener {
    /// The message encoded: it has no map but inside of an `Any` (decision X2).
    fn encoded(self) -> ListenerResource {
        ListenerResource {
            bytes: self.message.encode_to_vec(),
            name: self.message.name.into(),
            place: self.place,
            routes: self.routes,
        }
    }
}

/// A listener at a port.
fn at_port(
    name: &str,
    address: &str,
    port: u16,
    direction: core::TrafficDirection,
) -> Result<BuiltListener, BuildError> {
    if port == 0 {
        return Err(BuildError::new("there is no port to listen on"));
    }
    let socket = socket_address(address, port)?;
    Ok(bound(
        names::listener(name, address, port),
        socket,
        smol_str::format_smolstr!("{address}:{port}"),
        direction,
    ))
}

/// A listener at a unix socket.
fn at_socket(
    name: &str,
    path: &str,
    mode: u32,
    direction: core::TrafficDirection,
) -> Result<BuiltListener, BuildError> {
    let name = smol_str::format_smolstr!("{name}:{path}");
    Ok(bound(name, pipe(path, mode)?, path.into(), direction))
}

fn bound(
    name: SmolStr,
    address: core::Address,
    place: SmolStr,
    direction: core::TrafficDirection,
) -> BuiltListener {
    let message = listener::Listener {
        name: name.to_string(),
        address: Some(address),
        traffic_direction: direction as i32,
        ..Default::default()
    };
    BuiltListener {
        message,
        place,
        routes: Vec::new(),
    }
}

/// Spreads connections evenly over Envoy's threads.
fn exact_balance() -> listener::listener::ConnectionBalanceConfig {
    use listener::listener::connection_balance_config::{BalanceType, ExactBalance};
    listener::listener::ConnectionBalanceConfig {
        balance_type: Some(BalanceType::ExactBalance(ExactBalance {})),
    }
}

#[cfg(test)]
mod tests;
