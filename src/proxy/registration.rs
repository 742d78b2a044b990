//! The registration part: who the proxy is, with central configuration merged in.

use smol_str::SmolStr;
use triomphe::Arc;

use crate::model::{
    GoDuration, ProxyId, ResolvedServiceConfig, ServiceInstance, Upstream, UpstreamId,
};
use crate::proxy::ProxySettings;
use crate::proxy::cohort::CohortSpec;
use crate::proxy::merge::{central_config_query, merged_block, merged_upstreams};
use crate::proxy::shared::SharedParts;
use crate::proxy::slot::Asker;
use crate::snapshot::{Header, Part, PartRef, UpstreamDefinition, UpstreamSettings};
use crate::source::{Answer, ChainQuery, Query, QueryId};

/// How a proxy is registered (decision E3).
#[derive(Debug, Clone, PartialEq)]
pub enum Registration {
    /// With this definition.
    Definition(Arc<ServiceInstance>),
    /// By following the catalog's record of the proxy's node and id.
    Record,
}

/// The registration's output.
#[derive(Debug, Clone)]
pub(super) struct Base {
    /// Who the proxy is.
    pub header: PartRef<Header>,
    /// Which cohort it belongs to.
    pub cohort: CohortSpec,
    /// What it dials; shared by all proxies that dial the same in the same way.
    upstreams: PartRef<UpstreamPlans>,
    /// What it is built from.
    instance: Arc<ServiceInstance>,
    central: PartRef<ResolvedServiceConfig>,
    /// The query for the central configuration of `instance`.
    central_query: QueryId,
}

/// What a proxy dials, sorted by upstream id.
pub(super) type UpstreamPlans = Box<[PartRef<UpstreamPlan>]>;

/// An upstream to be served. It follows from its definition alone, so that proxies share it.
#[derive(Debug)]
pub(super) struct UpstreamPlan {
    /// Which, and its definition.
    pub definition: PartRef<UpstreamDefinition>,
    /// Its typed settings, shared.
    pub settings: PartRef<UpstreamSettings>,
    /// Its chain.
    pub chain: ChainQuery,
    /// What can't be read of its settings.
    pub complaints: Vec<String>,
}

impl UpstreamPlan {
    /// Which upstream.
    pub fn upstream_id(&self) -> &UpstreamId {
        &self.definition.id
    }
}

/// Builds the registration part. Parts of `previous` that come out equal keep their identity.
pub(super) fn build(
    id: &ProxyId,
    registration: &Registration,
    settings: &ProxySettings,
    shared: &SharedParts,
    previous: Option<&Base>,
    asker: &mut Asker<'_, '_>,
) -> Option<Base> {
    let instance = match registration {
        Registration::Definition(instance) => instance.clone(),
        Registration::Record => {
            let query = Query::ServiceRecord {
                node: id.node.clone(),
                service_id: id.service_id.clone(),
            };
            let Answer::ServiceRecord(record) = asker.ask(&query)? else {
                return None;
            };
            let Some(instance) = &**record else {
                asker.refuse(query.to_string(), "not in the catalog; register it");
                return None;
            };
            instance.clone()
        }
    };
    let previous = previous.filter(|p| p.header.proxy_id == *id);
    let unchanged = previous.filter(|p| Arc::ptr_eq(&p.instance, &instance));
    // Asked for the registration as it was given: a merged one would count what was filled in as its own.
    let query = || Query::ServiceConfig(central_config_query(&instance));
    let answer = match unchanged {
        Some(unchanged) => asker.ask_again(unchanged.central_query, query),
        None => asker.ask(&query()),
    };
    let central_query = asker.last_asked()?;
    let Answer::ServiceConfig(central) = answer? else {
        return None;
    };
    let proxy = merged_block(&instance, &central);
    let service = &proxy.destination_service_name;
    if previous.is_some_and(|p| p.header.proxy.destination_service_name != *service) {
        // The proxy is to stand for another service: it does so only with that service's certificate and rules at hand.
        let service = SmolStr::from(service);
        asker.ask(&Query::Leaf {
            service: service.clone(),
        })?;
        asker.ask(&Query::Intentions { service })?;
    }
    // Most central changes leave the upstreams as they are.
    let same_upstreams = unchanged.filter(|p| {
        p.header.proxy.mode == proxy.mode
            && (p.central.id() == central.id()
                || p.central.upstream_configs == central.upstream_configs)
    });
    let upstreams = match same_upstreams {
        Some(previous) => previous.upstreams.clone(),
        None => shared.list_of(&instance, proxy.mode, central.id(), || {
            let definitions = merged_upstreams(&instance, proxy.mode, &central);
            plans(definitions, settings, shared)
        }),
    };
    complain(&instance, &upstreams, asker);
    let header = Header {
        proxy_id: id.clone(),
        kind: instance.kind,
        service: SmolStr::from(&instance.service),
        address: SmolStr::from(&instance.address),
        port: instance.port,
        service_meta: instance.meta.clone(),
        tagged_addresses: instance.tagged_addresses.clone(),
        locality: instance.locality.clone(),
        proxy,
        datacenter: settings.datacenter.clone(),
        intention_default_allow: settings.intention_default_allow,
    };
    let header = match previous {
        Some(previous) if **previous.header == header => previous.header.clone(),
        _ => Part::new(header),
    };
    let service = &header.proxy.destination_service_name;
    let cohort = match previous.map(|p| &p.cohort) {
        Some(cohort) if cohort.is_of(service, &upstreams) => cohort.clone(),
        _ => CohortSpec::new(service, upstreams.clone()),
    };
    Some(Base {
        header,
        cohort,
        upstreams,
        instance,
        central,
        central_query,
    })
}

/// Why an upstream isn't served, if it never is.
fn unsupported(upstream: &Upstream) -> Option<&'static str> {
    if upstream.is_prepared_query() {
        Some("prepared queries are not supported yet; use a service")
    } else if !upstream.destination_peer.is_empty() {
        Some("peers are not supported yet; use a service of this datacenter")
    } else {
        None
    }
}

/// `*` and central entries without a bind address hold defaults for inferred upstreams (engine.md 3.2).
fn holds_defaults(upstream: &Upstream) -> bool {
    upstream.destination_name == "*" || upstream.centrally_configured
}

/// Notes what is amiss with the upstreams, whether they were planned anew or not.
fn complain(instance: &ServiceInstance, plans: &UpstreamPlans, asker: &mut Asker<'_, '_>) {
    for upstream in &instance.proxy.upstreams {
        if let Some(reason) = unsupported(upstream).filter(|_| !holds_defaults(upstream)) {
            asker.complain(format!("upstream {}", UpstreamId::of(upstream)), reason);
        }
    }
    for plan in plans {
        for complaint in &plan.complaints {
            asker.complain(
                format!("upstream {}", plan.upstream_id()),
                complaint.clone(),
            );
        }
    }
}

fn plans(
    definitions: Vec<Upstream>,
    settings: &ProxySettings,
    shared: &SharedParts,
) -> Vec<PartRef<UpstreamPlan>> {
    let mut plans: Vec<_> = definitions
        .into_iter()
        .filter(|u| !holds_defaults(u) && unsupported(u).is_none())
        .map(|definition| shared.plan(definition, |definition| plan(definition, settings, shared)))
        .collect();
    plans.sort_by(|a, b| a.upstream_id().cmp(b.upstream_id()));
    // Two entries of one id: the later wins (kinds.md 7.3). The sort is stable.
    plans.reverse();
    plans.dedup_by(|a, b| a.upstream_id() == b.upstream_id());
    plans.reverse();
    plans
}

fn plan(
    definition: PartRef<UpstreamDefinition>,
    settings: &ProxySettings,
    shared: &SharedParts,
) -> UpstreamPlan {
    let UpstreamDefinition { id, upstream } = &**definition;
    let (typed, complaints) = UpstreamSettings::read(upstream);
    let chain = ChainQuery {
        service: id.name.clone(),
        datacenter: if id.datacenter.is_empty() {
            settings.datacenter.clone()
        } else {
            id.datacenter.clone()
        },
        override_mesh_gateway: upstream.mesh_gateway.mode,
        override_protocol: SmolStr::from(typed.protocol.to_ascii_lowercase()),
        override_connect_timeout: GoDuration::from_millis(typed.connect_timeout_ms.max(0)),
    };
    UpstreamPlan {
        settings: shared.settings(typed),
        chain,
        complaints,
        definition,
    }
}
