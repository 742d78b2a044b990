//! The embedded views: every query that the store can answer.

use smol_str::SmolStr;
use triomphe::Arc;

use crate::chain::{self, ChainRequest, EntryLookup, ServiceKey};
use crate::model::{
    ConfigEntry, Endpoint, EntryKind, ExposedChecks, Locality, ProxyDefaults, ServiceDefaults,
    ServiceResolver, ServiceRouter, ServiceSplitter,
};
use crate::snapshot::Part;
use crate::store::Reader;

use super::instance_filter::{FilteredInstance, parse_instance_filter};
use super::service_config::{ResolveInput, resolve};
use super::{Answer, ChainQuery, EndpointsQuery, Query, QueryError, ServiceConfigQuery};

/// Answers queries from the embedded store.
#[derive(Debug, Clone)]
pub struct StoreViews {
    /// The datacenter that the store is of.
    pub datacenter: SmolStr,
}

impl StoreViews {
    /// Answers a query of any kind but a leaf.
    ///
    /// # Errors
    /// The stored records don't allow an answer: entries that contradict each other, a datacenter that isn't this one.
    pub fn answer(&self, query: &Query, reader: &Reader<'_>) -> Result<Answer, QueryError> {
        match query {
            Query::CaRoots => match reader.ca_roots() {
                Some(roots) => Ok(Answer::CaRoots(Part::new((*roots.value).clone()))),
                None => Err(QueryError::new("no CA bootstrapped yet")),
            },
            Query::Leaf { .. } => Err(QueryError::new(
                "certificates come from the certificate authority",
            )),
            Query::Intentions { service } => {
                Ok(Answer::Intentions(Part::new(reader.intentions_to(service))))
            }
            Query::Mesh => {
                let mesh =
                    reader
                        .config(EntryKind::Mesh, "mesh")
                        .and_then(|row| match &*row.value {
                            ConfigEntry::Mesh(mesh) => Some(mesh.clone()),
                            _ => None,
                        });
                Ok(Answer::Mesh(Part::new(mesh)))
            }
            Query::JwtProviders => {
                let rows = reader.config_list(EntryKind::JwtProvider);
                let providers = rows.iter().filter_map(|row| match &*row.value {
                    ConfigEntry::JwtProvider(provider) => Some(Arc::new(provider.clone())),
                    _ => None,
                });
                Ok(Answer::JwtProviders(Part::new(providers.collect())))
            }
            Query::Chain(query) => self.chain(query, reader),
            Query::Endpoints(query) => self.endpoints(query, reader),
            Query::ServiceConfig(query) => Ok(service_config(query, reader)),
            Query::ExposedChecks { node, service_id } => Ok(Answer::ExposedChecks(Part::new(
                exposed_checks(node, service_id, reader),
            ))),
            Query::ServiceRecord { node, service_id } => {
                let row = reader.instance(node.as_str(), service_id);
                Ok(Answer::ServiceRecord(Part::new(
                    row.map(|row| row.value.clone()),
                )))
            }
        }
    }

    /// store.md 4.3.
    fn chain(&self, query: &ChainQuery, reader: &Reader<'_>) -> Result<Answer, QueryError> {
        let Some(roots) = reader.ca_roots() else {
            return Err(QueryError::new(
                "no cluster CA config: the trust domain isn't known yet",
            ));
        };
        let mut request = ChainRequest::new(
            query.service.clone(),
            query.datacenter.clone(),
            roots.value.trust_domain.clone(),
        );
        request.override_mesh_gateway = query.override_mesh_gateway;
        request.override_protocol = query.override_protocol.clone();
        request.override_connect_timeout = query.override_connect_timeout;
        let entries = chain::gather(&request, &mut Lookup(reader));
        match chain::compile(&request, &entries) {
            Ok(chain) => Ok(Answer::Chain(Part::new(chain))),
            Err(error) => Err(QueryError::new(error.to_string())),
        }
    }

    /// store.md 4.10: the connect lookup, with unhealthy instances kept.
    fn endpoints(&self, query: &EndpointsQuery, reader: &Reader<'_>) -> Result<Answer, QueryError> {
        if !query.peer.is_empty() {
            return Err(QueryError::new(format!(
                "peer {:?} is not known here",
                query.peer
            )));
        }
        if !query.datacenter.is_empty() && query.datacenter != self.datacenter {
            return Err(QueryError::new(format!(
                "no path to datacenter {:?}",
                query.datacenter
            )));
        }
        let filter = parse_instance_filter(&query.filter).map_err(|error| {
            QueryError::new(format!(
                "filter {:?} of a subset of {}: {error}",
                query.filter, query.service
            ))
        })?;
        let mut endpoints = Vec::new();
        for row in reader.connect_instances(query.service.as_str()) {
            let passes = filter.matches(&FilteredInstance(&row)).map_err(|error| {
                QueryError::new(format!(
                    "filter {:?} of a subset of {}: {error}",
                    query.filter, query.service
                ))
            })?;
            if passes {
                endpoints.push(Endpoint::of(
                    &row.node.value,
                    &row.service.value,
                    row.checks.iter().map(|c| &*c.value),
                ));
            }
        }
        Ok(Answer::Endpoints(Part::new(endpoints)))
    }
}

fn exposed_checks(node: &str, service_id: &str, reader: &Reader<'_>) -> ExposedChecks {
    let Some(instance) = reader.instance(node, service_id) else {
        return ExposedChecks::default();
    };
    let address = reader.node(node).map(|row| row.value.address.clone());
    let services = reader.node_services(node);
    let services: Vec<_> = services.iter().map(|row| &*row.value).collect();
    let checks = reader.node_checks(node);
    let checks: Vec<_> = checks.iter().map(|row| &*row.value).collect();
    ExposedChecks::of(
        &instance.value,
        &address.unwrap_or_default(),
        &services,
        &checks,
    )
}

fn service_config(query: &ServiceConfigQuery, reader: &Reader<'_>) -> Answer {
    let input = ResolveInput {
        request: query,
        proxy_defaults: proxy_defaults(reader),
        service_defaults: service_defaults(reader, &query.service),
        upstream_defaults: &|name| service_defaults(reader, name),
    };
    Answer::ServiceConfig(Part::new(resolve(&input)))
}

fn proxy_defaults<'a>(reader: &Reader<'a>) -> Option<&'a ProxyDefaults> {
    match &*reader.config(EntryKind::ProxyDefaults, "global")?.value {
        ConfigEntry::ProxyDefaults(entry) => Some(entry),
        _ => None,
    }
}

fn service_defaults<'a>(reader: &Reader<'a>, name: &str) -> Option<&'a ServiceDefaults> {
    match &*reader.config(EntryKind::ServiceDefaults, name)?.value {
        ConfigEntry::ServiceDefaults(entry) => Some(entry),
        _ => None,
    }
}

/// The entries of a store for the chain compiler; every look-up is a recorded read.
pub(crate) struct Lookup<'r, 'a>(pub &'r Reader<'a>);

macro_rules! look_up {
    ($method:ident, $kind:ident, $entry:ty) => {
        fn $method(&mut self, service: &ServiceKey) -> Option<Arc<$entry>> {
            match &*self.0.config(EntryKind::$kind, service.name())?.value {
                ConfigEntry::$kind(entry) => Some(Arc::new(entry.clone())),
                _ => None,
            }
        }
    };
}

impl EntryLookup for Lookup<'_, '_> {
    look_up!(router, ServiceRouter, ServiceRouter);
    look_up!(splitter, ServiceSplitter, ServiceSplitter);
    look_up!(resolver, ServiceResolver, ServiceResolver);
    look_up!(service_defaults, ServiceDefaults, ServiceDefaults);

    fn proxy_defaults(&mut self, _partition: &str) -> Option<Arc<ProxyDefaults>> {
        proxy_defaults(self.0).cloned().map(Arc::new)
    }

    fn peer_locality(&mut self, _partition: &str, _peer: &str) -> Option<Locality> {
        None
    }
}
