//! What only sidecars have (xds.md 4.2): the application's cluster, the public listener, a listener for each upstream and
//! for each exposed path.

mod exposed_paths;
mod local_app;
mod public_listener;
mod upstream_listener;

use smol_str::SmolStr;

use super::access_log::Loggers;
use super::proto::{core, listener, pipe, socket_address};
use super::settings::ProxySettings;
use super::{BuildError, names};
use crate::snapshot::Header;

pub(super) use exposed_paths::exposed_paths;
pub(super) use local_app::local_app;
pub(super) use public_listener::{Inbound, public_listener};
pub(super) use upstream_listener::{Routing, upstream_listener};

/// The proxy's settings, read once for all that is built from them.
#[derive(Debug, Clone)]
pub(super) struct Proxy<'a> {
    /// Who it is.
    pub header: &'a Header,
    /// Its free settings.
    pub settings: ProxySettings,
    /// Its access logs.
    pub loggers: Loggers,
}

impl<'a> Proxy<'a> {
    /// Reads the settings; what can't be read is told and has no effect.
    pub(super) fn new(header: &'a Header) -> (Self, Vec<String>) {
        let (settings, mut complaints) = ProxySettings::read(&header.proxy.config);
        let loggers = Loggers::new(&header.proxy.access_logs).unwrap_or_else(|error| {
            complaints.push(format!("nothing is logged: {error}"));
            Loggers::default()
        });
        (
            Self {
                header,
                settings,
                loggers,
            },
            complaints,
        )
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
pub(super) struct BuiltListener {
    /// The message.
    pub message: listener::Listener,
    /// `address:port`, or the path of a socket.
    pub place: SmolStr,
    /// Route tables that it names.
    pub routes: Vec<SmolStr>,
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
