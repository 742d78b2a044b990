//! From the service through router and splitters (discovery-chain.md 5.1 to 5.4).

use std::borrow::Cow;

use smol_str::SmolStr;

use crate::chain::compile::{Compiler, Leg, Node, NodeIx, Route, Stage};
use crate::chain::entries::ServiceKey;
use crate::chain::error::ChainError;
use crate::chain::names::{TargetName, node_name};
use crate::model::{
    HttpMatch, LoadBalancer, RouteDestination, RouteMatch, ServiceRoute, ServiceRouter,
    ServiceSplitter,
};

/// A splitter whose splits are being walked.
struct Walk<'a> {
    node: NodeIx,
    service: ServiceKey,
    entry: &'a ServiceSplitter,
    next_split: usize,
}

impl<'a> Compiler<'a> {
    /// Builds the graph and returns its first node.
    pub(super) fn assemble(&mut self) -> Result<NodeIx, ChainError> {
        let entries = self.entries;
        let own = self.own.clone();
        match entries.routers.get(&own) {
            Some(_) if self.disable_advanced => self.customized.protocol = true,
            Some(router) => return self.router(router),
            None => {}
        }
        self.splitter_or_resolver(&own)
    }

    fn router(&mut self, entry: &'a ServiceRouter) -> Result<NodeIx, ChainError> {
        self.uses_advanced = true;
        let own = self.own.clone();
        self.record_protocol(&own)?;
        let node = self.push(Node {
            name: service_node_name(&own),
            load_balancer: None,
            stage: Stage::Router(Vec::new()),
        });
        let mut routes = Vec::with_capacity(entry.routes.len() + 1);
        for route in &entry.routes {
            let next = match &route.destination {
                None => self.splitter_or_resolver(&own)?,
                Some(to) => {
                    let service = own.naming(&to.service, &to.namespace, &to.partition);
                    self.service_or_subset(&service, &to.service_subset)?
                }
            };
            let definition = Cow::Borrowed(route);
            routes.push(Route { definition, next });
        }
        routes.push(Route {
            definition: Cow::Owned(catch_all(&own)),
            next: self.splitter_or_resolver(&own)?,
        });
        self.nodes[node].stage = Stage::Router(routes);
        Ok(node)
    }

    /// Where a route leads. A subset passes by the service's splitter.
    fn service_or_subset(
        &mut self,
        service: &ServiceKey,
        subset: &str,
    ) -> Result<NodeIx, ChainError> {
        if subset.is_empty() {
            self.splitter_or_resolver(service)
        } else {
            let target = self.target(place(service, subset));
            self.resolve(target)
        }
    }

    fn splitter_or_resolver(&mut self, service: &ServiceKey) -> Result<NodeIx, ChainError> {
        // The target is made first, so that its spelling is the one of whoever named the service first.
        let target = self.target(place(service, ""));
        match self.splitter(service)? {
            Some(node) => Ok(node),
            None => self.resolve(target),
        }
    }

    /// The splitter node of a service with everything behind it, if the service has a splitter.
    fn splitter(&mut self, service: &ServiceKey) -> Result<Option<NodeIx>, ChainError> {
        let mut open = Vec::new();
        let Some(first) = self.enter_splitter(service, &mut open) else {
            return Ok(None);
        };
        while let Some(walk) = open.last_mut() {
            let Some(split) = walk.entry.splits.get(walk.next_split) else {
                open.pop();
                continue;
            };
            walk.next_split += 1;
            let (node, own) = (walk.node, walk.service.clone());
            let to = own.naming(&split.service, &split.namespace, &split.partition);
            let nested = if to != own && split.service_subset.is_empty() {
                self.enter_splitter(&to, &mut open)
            } else {
                None
            };
            let mut donated = None;
            let next = match nested {
                Some(next) => next,
                None => {
                    let target = self.target(place(&to, &split.service_subset));
                    let next = self.resolve(target)?;
                    donated = self.nodes[next]
                        .load_balancer
                        .filter(|lb| is_hash_based(lb));
                    next
                }
            };
            let splitter = &mut self.nodes[node];
            splitter.load_balancer = splitter.load_balancer.or(donated);
            if let Stage::Splitter(legs) = &mut splitter.stage {
                legs.push(Leg {
                    definition: Cow::Borrowed(split),
                    weight: split.weight,
                    next,
                });
            }
        }
        Ok(Some(first))
    }

    /// The splitter node of a service. A new one is recorded at once, so that a circle ends at it, and put on `open`
    /// to have its splits walked.
    fn enter_splitter(&mut self, service: &ServiceKey, open: &mut Vec<Walk<'a>>) -> Option<NodeIx> {
        if let Some(node) = self.splitters.get(service) {
            return Some(*node);
        }
        let entries = self.entries;
        let entry = entries.splitters.get(service)?;
        if self.disable_advanced {
            self.customized.protocol = true;
            return None;
        }
        self.uses_advanced = true;
        let node = self.push(Node {
            name: service_node_name(service),
            load_balancer: None,
            stage: Stage::Splitter(Vec::with_capacity(entry.splits.len())),
        });
        self.splitters.insert(service.clone(), node);
        open.push(Walk {
            node,
            service: service.clone(),
            entry,
            next_split: 0,
        });
        Some(node)
    }
}

fn service_node_name(service: &ServiceKey) -> SmolStr {
    let name = node_name(service.name(), service.namespace(), service.partition());
    SmolStr::from(name)
}

/// The place of a service, or of a subset of it.
fn place<'k>(service: &'k ServiceKey, subset: &'k str) -> TargetName<'k> {
    TargetName {
        service: service.name(),
        subset,
        namespace: service.namespace(),
        partition: service.partition(),
        ..TargetName::default()
    }
}

/// The route that every router ends with.
fn catch_all(service: &ServiceKey) -> ServiceRoute {
    ServiceRoute {
        matches: Some(RouteMatch {
            http: Some(HttpMatch {
                path_prefix: "/".to_owned(),
                ..HttpMatch::default()
            }),
        }),
        destination: Some(RouteDestination {
            service: service.name().to_string(),
            namespace: service.namespace().to_string(),
            partition: service.partition().to_string(),
            ..RouteDestination::default()
        }),
    }
}

/// Whether a balancer chooses by a hash of the request, which then has to be taken where the traffic is split.
fn is_hash_based(balancer: &LoadBalancer) -> bool {
    matches!(balancer.policy.as_str(), "ring_hash" | "maglev")
}
