//! Escape hatches: whole resources that an operator writes in Envoy's own JSON (xds.md 4.1).
//!
//! They may use any part of Envoy, so that they are read with the descriptors of all its messages and are never turned
//! into the generated types, whose maps have no order (decision X2). What the mesh depends on is put in afterwards:
//! mutual TLS and access rules into each filter chain of a public listener, TLS into a cluster.
//!
//! The JSON may hold private keys. No error text shows what stands in it (decision C1).

mod canonical;

use prost::Message as _;
use prost_reflect::{DynamicMessage, ReflectMessage as _, Value};
use smol_str::SmolStr;

use super::proto::{cluster, core, hcm, listener};
use super::{BuildError, json, sidecar::ListenerResource};

const HTTP_MANAGER: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// A cluster that an operator wrote.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CustomCluster {
    pub name: SmolStr,
    pub bytes: Vec<u8>,
    /// The assignment that it asks for; none if it doesn't.
    pub assignment: Option<SmolStr>,
    /// Whether it refers to other clusters.
    pub composed: bool,
}

/// Reads a cluster. `socket` replaces the transport socket that it has.
///
/// # Errors
/// It isn't the JSON of a cluster with a name.
pub(super) fn cluster(
    text: &str,
    socket: Option<&core::TransportSocket>,
) -> Result<CustomCluster, BuildError> {
    let mut message = read(text, "envoy.config.cluster.v3.Cluster")?;
    if let Some(socket) = socket {
        set(&mut message, "transport_socket", socket)?;
    }
    let bytes = encode(&message)?;
    let typed = cluster::Cluster::decode(&*bytes).map_err(unreadable)?;
    if typed.name.is_empty() {
        return Err(BuildError::new("the cluster needs a name"));
    }
    use cluster::cluster::{ClusterDiscoveryType, DiscoveryType};
    let is_eds =
        typed.cluster_discovery_type == Some(ClusterDiscoveryType::Type(DiscoveryType::Eds as i32));
    let service = typed.eds_cluster_config.map(|eds| eds.service_name);
    let asks_for = service
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| typed.name.clone());
    Ok(CustomCluster {
        name: typed.name.into(),
        bytes,
        assignment: is_eds.then(|| asks_for.into()),
        composed: matches!(
            typed.cluster_discovery_type,
            Some(ClusterDiscoveryType::ClusterType(_))
        ),
    })
}

/// Reads the tracing of HTTP listeners.
///
/// # Errors
/// It isn't the JSON of that message.
pub(super) fn tracing(text: &str) -> Result<hcm::http_connection_manager::Tracing, BuildError> {
    let message = read(text, &format!("{HTTP_MANAGER}.Tracing"))?;
    // No map in it but inside of an `Any`.
    hcm::http_connection_manager::Tracing::decode(&*encode(&message)?).map_err(unreadable)
}

/// A listener that an operator wrote.
#[derive(Debug, Clone)]
pub(super) struct CustomListener(DynamicMessage);

impl CustomListener {
    /// Reads a listener.
    ///
    /// # Errors
    /// It isn't the JSON of a listener.
    pub(super) fn read(text: &str) -> Result<Self, BuildError> {
        read(text, "envoy.config.listener.v3.Listener").map(Self)
    }

    /// Whether each filter chain ends in an HTTP connection manager, so that rules about requests can be kept.
    pub(super) fn speaks_http(&mut self) -> bool {
        let mut all = true;
        let chains = self.each_chain(|chain| {
            all &= managers(chain).next().is_some();
            Ok(())
        });
        chains.is_ok_and(|chains| chains > 0) && all
    }

    /// Puts a filter in front of each chain, and gives each the transport socket.
    ///
    /// # Errors
    /// There is no filter chain.
    pub(super) fn guard_connections(
        &mut self,
        filter: &listener::Filter,
        socket: &core::TransportSocket,
    ) -> Result<(), BuildError> {
        self.guard(socket, |chain| {
            let filter = dynamic(chain, "envoy.config.listener.v3.Filter", filter)?;
            if let Some(filters) = list_mut(chain, "filters") {
                filters.insert(0, Value::Message(filter));
            }
            Ok(())
        })
    }

    /// Puts HTTP filters in front of those of each connection manager, and gives each chain the transport socket.
    ///
    /// # Errors
    /// There is no filter chain.
    pub(super) fn guard_requests(
        &mut self,
        filters: &[hcm::HttpFilter],
        socket: &core::TransportSocket,
    ) -> Result<(), BuildError> {
        self.guard(socket, |chain| {
            let name = "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter";
            let guards = filters
                .iter()
                .map(|filter| Ok(Value::Message(dynamic(chain, name, filter)?)));
            let guards = guards.collect::<Result<Vec<_>, BuildError>>()?;
            for config in managers(chain) {
                let mut manager = canonical::opened(config).map_err(BuildError::new)?;
                if let Some(filters) = list_mut(&mut manager, "http_filters") {
                    filters.splice(0..0, guards.iter().cloned());
                }
                let bytes = manager.encode_to_vec();
                config.set_field_by_name("value", Value::Bytes(bytes.into()));
            }
            Ok(())
        })
    }

    fn guard(
        &mut self,
        socket: &core::TransportSocket,
        mut each: impl FnMut(&mut DynamicMessage) -> Result<(), BuildError>,
    ) -> Result<(), BuildError> {
        let chains = self.each_chain(|chain| {
            each(chain)?;
            set(chain, "transport_socket", socket)
        })?;
        if chains == 0 {
            return Err(BuildError::new("the listener needs a filter chain"));
        }
        Ok(())
    }

    /// Visits all filter chains, the default one too; returns how many there are.
    fn each_chain(
        &mut self,
        mut visit: impl FnMut(&mut DynamicMessage) -> Result<(), BuildError>,
    ) -> Result<usize, BuildError> {
        let mut chains = 0;
        let mut visited = |chain: &mut DynamicMessage| {
            chains += 1;
            visit(chain)
        };
        if let Some(list) = list_mut(&mut self.0, "filter_chains") {
            list.iter_mut()
                .filter_map(Value::as_message_mut)
                .try_for_each(&mut visited)?;
        }
        if self.0.has_field_by_name("default_filter_chain")
            && let Some(chain) = self.0.get_field_by_name_mut("default_filter_chain")
            && let Some(chain) = chain.as_message_mut()
        {
            visited(chain)?;
        }
        Ok(chains)
    }

    /// The finished listener, under its own name and at its own address.
    ///
    /// # Errors
    /// It has no name, or a filter in it is of a type that isn't known.
    pub(super) fn built(&self) -> Result<ListenerResource, BuildError> {
        let bytes = encode(&self.0)?;
        let typed = listener::Listener::decode(&*bytes).map_err(unreadable)?;
        if typed.name.is_empty() {
            return Err(BuildError::new("the listener needs a name"));
        }
        Ok(ListenerResource {
            place: place(&typed).unwrap_or_else(|| {
                smol_str::format_smolstr!("no address of listener {}", typed.name)
            }),
            routes: route_tables(&typed),
            name: typed.name.into(),
            bytes,
        })
    }
}

fn place(of: &listener::Listener) -> Option<SmolStr> {
    use core::address::Address;
    use core::socket_address::PortSpecifier;
    match of.address.as_ref()?.address.as_ref()? {
        Address::SocketAddress(socket) => match socket.port_specifier.as_ref()? {
            PortSpecifier::PortValue(port) => {
                Some(smol_str::format_smolstr!("{}:{port}", socket.address))
            }
            PortSpecifier::NamedPort(_) => None,
        },
        Address::Pipe(pipe) => Some(SmolStr::from(&pipe.path)),
        Address::EnvoyInternalAddress(_) => None,
    }
}

/// The route tables that connection managers of a listener ask for.
fn route_tables(of: &listener::Listener) -> Vec<SmolStr> {
    use hcm::http_connection_manager::RouteSpecifier;
    let chains = of.filter_chains.iter().chain(&of.default_filter_chain);
    let configs = chains
        .flat_map(|chain| &chain.filters)
        .filter_map(|filter| match filter.config_type.as_ref()? {
            listener::filter::ConfigType::TypedConfig(any) => {
                any.type_url.ends_with(HTTP_MANAGER).then_some(&any.value)
            }
            listener::filter::ConfigType::ConfigDiscovery(_) => None,
        });
    let tables = configs.filter_map(|config| {
        match hcm::HttpConnectionManager::decode(&**config)
            .ok()?
            .route_specifier?
        {
            RouteSpecifier::Rds(rds) => Some(rds.route_config_name.into()),
            RouteSpecifier::RouteConfig(_) | RouteSpecifier::ScopedRoutes(_) => None,
        }
    });
    tables.collect()
}

/// The configurations of a chain's HTTP connection managers, whatever the filters are called.
fn managers(chain: &mut DynamicMessage) -> impl Iterator<Item = &mut DynamicMessage> {
    let filters = list_mut(chain, "filters").map(|filters| filters.iter_mut());
    let filters = filters
        .into_iter()
        .flatten()
        .filter_map(Value::as_message_mut);
    filters
        .filter(|filter| filter.has_field_by_name("typed_config"))
        .filter_map(|filter| {
            filter
                .get_field_by_name_mut("typed_config")?
                .as_message_mut()
        })
        .filter(|config| canonical::parts(config).0 == HTTP_MANAGER)
}

fn list_mut<'m>(message: &'m mut DynamicMessage, field: &str) -> Option<&'m mut Vec<Value>> {
    message.get_field_by_name_mut(field)?.as_list_mut()
}

/// Sets a field to one of our own messages.
fn set<M: prost::Message + prost::Name>(
    into: &mut DynamicMessage,
    field: &str,
    message: &M,
) -> Result<(), BuildError> {
    let value = dynamic(into, &M::full_name(), message)?;
    into.set_field_by_name(field, Value::Message(value));
    Ok(())
}

/// One of our own messages, described like `like`.
fn dynamic<M: prost::Message>(
    like: &DynamicMessage,
    name: &str,
    message: &M,
) -> Result<DynamicMessage, BuildError> {
    let descriptor = like.descriptor().parent_pool().get_message_by_name(name);
    let descriptor =
        descriptor.ok_or_else(|| BuildError::new(format!("the type {name} isn't known")))?;
    DynamicMessage::decode(descriptor, &*message.encode_to_vec()).map_err(unreadable)
}

fn encode(message: &DynamicMessage) -> Result<Vec<u8>, BuildError> {
    canonical::encode(message).map_err(BuildError::new)
}

fn unreadable(error: prost::DecodeError) -> BuildError {
    BuildError::new(format!("can't be read again: {error}"))
}

/// Reads JSON that says in `@type` what it is.
fn read(text: &str, wanted: &str) -> Result<DynamicMessage, BuildError> {
    let any = json::pool()
        .and_then(|pool| {
            pool.get_message_by_name("google.protobuf.Any")
                .ok_or_else(|| "there are no descriptors".to_owned())
        })
        .map_err(BuildError::new)?;
    let refuse = |error: serde_json::Error| {
        BuildError::new(format!(
            "is not the JSON of an Envoy resource: {}",
            without_values(&error.to_string())
        ))
    };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let message = DynamicMessage::deserialize(any, &mut deserializer).map_err(refuse)?;
    deserializer.end().map_err(refuse)?;
    let (name, _) = canonical::parts(&message);
    if name != wanted {
        return Err(BuildError::new(format!(
            "its \"@type\" is not \"type.googleapis.com/{wanted}\""
        )));
    }
    canonical::opened(&message).map_err(BuildError::new)
}

/// An error text without the values that it quotes; names of fields stand in single quotes and stay.
fn without_values(text: &str) -> String {
    let mut pieces = text.split('"');
    let mut shown = pieces.next().unwrap_or_default().to_owned();
    while let (Some(_), Some(after)) = (pieces.next(), pieces.next()) {
        shown.push_str("\"...\"");
        shown.push_str(after);
    }
    shown
}

#[cfg(test)]
pub(super) mod tests;
