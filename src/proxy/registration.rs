//! The registration part: who the proxy is, with central configuration merged in.

use smol_str::SmolStr;
use triomphe::Arc;

use crate::model::{GoDuration, ProxyId, ServiceInstance, Upstream, UpstreamId};
use crate::proxy::ProxySettings;
use crate::proxy::merge::{central_config_query, merge_central_config};
use crate::proxy::shared::SharedParts;
use crate::proxy::slot::Asker;
use crate::snapshot::{Header, Part, PartRef, UpstreamSettings};
use crate::source::{Answer, ChainQuery, Query};

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
    /// What it dials, sorted by upstream id.
    pub upstreams: Vec<UpstreamPlan>,
}

/// An upstream to be served.
#[derive(Debug, Clone)]
pub(super) struct UpstreamPlan {
    /// Which.
    pub id: UpstreamId,
    /// Its definition.
    pub definition: PartRef<Upstream>,
    /// Its typed settings, shared.
    pub settings: PartRef<UpstreamSettings>,
    /// Its chain; `None` for what has none (yet).
    pub chain: Option<ChainQuery>,
    /// What can't be read of its settings.
    pub complaints: Vec<String>,
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
    // Asked for the registration as it was given: a merged one would count what was filled in as its own.
    let query = Query::ServiceConfig(central_config_query(&instance));
    let Answer::ServiceConfig(central) = asker.ask(&query)? else {
        return None;
    };
    let mut merged = merge_central_config(&instance, &central);
    let service = &merged.proxy.destination_service_name;
    if previous.is_some_and(|p| p.header.proxy.destination_service_name != *service) {
        // The proxy is to stand for another service: it does so only with that service's certificate and rules at hand.
        let service = SmolStr::from(service);
        asker.ask(&Query::Leaf {
            service: service.clone(),
        })?;
        asker.ask(&Query::Intentions { service })?;
    }
    let definitions = std::mem::take(&mut merged.proxy.upstreams);
    let header = Header {
        proxy_id: id.clone(),
        kind: merged.kind,
        service: SmolStr::from(merged.service),
        address: SmolStr::from(merged.address),
        port: merged.port,
        service_meta: merged.meta,
        tagged_addresses: merged.tagged_addresses,
        locality: merged.locality,
        proxy: merged.proxy,
        datacenter: settings.datacenter.clone(),
        intention_default_allow: settings.intention_default_allow,
    };
    let header = match previous {
        Some(previous) if **previous.header == header => previous.header.clone(),
        _ => Part::new(header),
    };
    let mut upstreams: Vec<UpstreamPlan> = Vec::with_capacity(definitions.len());
    for definition in definitions {
        if let Some(plan) = plan(definition, settings, shared, previous, asker) {
            upstreams.push(plan);
        }
    }
    upstreams.sort_by(|a, b| a.id.cmp(&b.id));
    // Two entries of one id: the later wins (kinds.md 7.3). The sort is stable.
    upstreams.reverse();
    upstreams.dedup_by(|a, b| a.id == b.id);
    upstreams.reverse();
    Some(Base { header, upstreams })
}

fn plan(
    definition: Upstream,
    settings: &ProxySettings,
    shared: &SharedParts,
    previous: Option<&Base>,
    asker: &mut Asker<'_, '_>,
) -> Option<UpstreamPlan> {
    let id = UpstreamId::of(&definition);
    // `*` and central entries without a bind address hold defaults for inferred upstreams (engine.md 3.2).
    if id.is_wildcard() || definition.centrally_configured {
        return None;
    }
    let subject = format!("upstream {id}");
    if id.prepared_query {
        asker.complain(
            subject,
            "prepared queries are not supported yet; use a service",
        );
        return None;
    }
    if !id.peer.is_empty() {
        asker.complain(
            subject,
            "peers are not supported yet; use a service of this datacenter",
        );
        return None;
    }
    let known = previous.and_then(|base| base.upstreams.iter().find(|u| u.id == id));
    if let Some(known) = known.filter(|known| **known.definition == definition) {
        for complaint in &known.complaints {
            asker.complain(subject.clone(), complaint.clone());
        }
        return Some(known.clone());
    }
    let (typed, complaints) = UpstreamSettings::read(&definition);
    for complaint in &complaints {
        asker.complain(subject.clone(), complaint.clone());
    }
    let chain = ChainQuery {
        service: id.name.clone(),
        datacenter: if id.datacenter.is_empty() {
            settings.datacenter.clone()
        } else {
            id.datacenter.clone()
        },
        override_mesh_gateway: definition.mesh_gateway.mode,
        override_protocol: SmolStr::from(typed.protocol.to_ascii_lowercase()),
        override_connect_timeout: GoDuration::from_millis(typed.connect_timeout_ms.max(0)),
    };
    let settings = shared.settings(typed);
    Some(UpstreamPlan {
        id,
        definition: Part::new(definition),
        settings,
        chain: Some(chain),
        complaints,
    })
}
