//! From a target to its resolver node (discovery-chain.md 5.5 to 5.9).

use crate::chain::compile::{Compiler, Node, NodeIx, Resolver, Stage, TargetIx};
use crate::chain::entries::{SamenessGroup, SamenessGroupMember};
use crate::chain::error::ChainError;
use crate::chain::names::TargetName;
use crate::model::{
    Failover, FailoverPolicy, GoDuration, MeshGatewayMode, Redirect, ServiceResolver, Subset,
};

/// The connect timeout where none is configured.
const DEFAULT_CONNECT_TIMEOUT: GoDuration = GoDuration::from_secs(5);

/// What governs a target: the resolver of its service, or without one the generated default, which may fail over to
/// the default sameness group.
#[derive(Clone, Copy)]
struct Governing<'a> {
    entry: Option<&'a ServiceResolver>,
    default_group: Option<&'a SamenessGroup>,
}

impl<'a> Governing<'a> {
    /// Whether nothing is configured; labels don't count.
    fn is_default(self) -> bool {
        let unset = |e: &ServiceResolver| {
            e.default_subset.is_empty()
                && e.subsets.is_empty()
                && e.redirect.is_none()
                && e.failover.is_empty()
                && e.connect_timeout.is_zero()
                && e.request_timeout.is_zero()
                && e.load_balancer.is_none()
                && e.prioritize_by_locality.is_none()
        };
        self.default_group.is_none() && self.entry.is_none_or(unset)
    }

    /// The redirect to another place.
    fn redirect(self) -> Option<&'a Redirect> {
        let redirect = self.entry?.redirect.as_ref()?;
        redirect.sameness_group.is_empty().then_some(redirect)
    }

    /// The definition of a subset.
    fn subset(self, name: &str) -> Option<&'a Subset> {
        let subsets = &self.entry?.subsets;
        subsets.get(name).or_else(|| {
            let same = |(key, _): &(&String, _)| key.eq_ignore_ascii_case(name);
            subsets.iter().find(same).map(|(_, subset)| subset)
        })
    }
}

/// A list of failover targets in the one form that applies.
enum Candidates<'a> {
    /// The same place in several datacenters.
    Datacenters(&'a Failover),
    /// Single targets.
    Targets(&'a Failover),
    /// All members of a group.
    Group {
        name: &'a str,
        /// Found already, of the generated default.
        group: Option<&'a SamenessGroup>,
        /// What the group's user says about the place.
        place: TargetName<'a>,
    },
    /// One other service or subset.
    One(&'a Failover),
}

impl<'a> Compiler<'a> {
    /// The resolver node for a target, with its failover.
    pub(super) fn resolve(&mut self, start: TargetIx) -> Result<NodeIx, ChainError> {
        let target = self.settle(start)?;
        if let Some(node) = self.targets[target].node {
            return Ok(node);
        }
        self.fill_in(target)?;
        let governing = self.governing(target);
        let node = self.push(Node {
            name: self.targets[target].chain_target.id.clone(),
            load_balancer: governing.entry.and_then(|e| e.load_balancer.as_ref()),
            stage: Stage::Resolver(Resolver {
                target,
                default: governing.is_default(),
                request_timeout: governing
                    .entry
                    .map(|e| e.request_timeout)
                    .unwrap_or_default(),
                failover: Vec::new(),
                policy: None,
            }),
        });
        self.targets[target].node = Some(node);

        let (failover, policy) = self.failover(target, governing)?;
        if let Stage::Resolver(resolver) = &mut self.nodes[node].stage
            && !failover.is_empty()
        {
            resolver.failover = failover;
            resolver.policy = policy;
        }
        Ok(node)
    }

    /// Follows redirects and default subsets to where they end (discovery-chain.md 5.5 steps 1 to 6).
    fn settle(&mut self, start: TargetIx) -> Result<TargetIx, ChainError> {
        let mut history: Vec<TargetIx> = Vec::new();
        // A number that no search before has used: each search begins at a target that isn't settled.
        let visit = start + 1;
        let mut at = start;
        let end = loop {
            if let Some(end) = self.targets[at].settled {
                break end;
            }
            if self.targets[at].chain_target.peer.is_empty() {
                let service = self.targets[at].key.clone();
                self.record_protocol(&service)?;
            }
            let governing = self.governing(at);
            if self.targets[at].visit == visit {
                history.push(at);
                let id = |at: &TargetIx| self.targets[*at].chain_target.id.clone();
                return Err(ChainError::CircularRedirect {
                    path: history.iter().map(id).collect(),
                });
            }
            self.targets[at].visit = visit;
            history.push(at);

            if let Some(to) = governing.redirect() {
                let next = self.rewrite(at, redirect_place(to));
                if next != at {
                    at = next;
                    continue;
                }
            }
            let default_subset = governing.entry.map_or("", |e| e.default_subset.as_str());
            if self.targets[at].chain_target.service_subset.is_empty() && !default_subset.is_empty()
            {
                let next = self.rewrite(
                    at,
                    TargetName {
                        subset: default_subset,
                        ..TargetName::default()
                    },
                );
                at = next;
                continue;
            }
            break at;
        };
        for passed in history {
            self.targets[passed].settled = Some(end);
        }
        Ok(end)
    }

    /// What governs a target. Peer targets too are governed by the local resolver of their service's name.
    fn governing(&mut self, at: TargetIx) -> Governing<'a> {
        let entries = self.entries;
        let target = &self.targets[at];
        if let Some(entry) = entries.resolvers.get(&target.key) {
            return Governing {
                entry: Some(entry),
                default_group: None,
            };
        }
        let default_group = entries.default_sameness_group.as_deref().filter(|_| {
            // What the service got when it was first met holds for all its targets.
            let local = target.chain_target.peer.is_empty()
                && target.key.partition() == self.own.partition();
            *self.generated.entry(target.key.clone()).or_insert(local)
        });
        Governing {
            entry: None,
            default_group,
        }
    }

    /// Fills in the settings of a target that is part of the chain (discovery-chain.md 5.5 steps 7 to 11).
    fn fill_in(&mut self, at: TargetIx) -> Result<(), ChainError> {
        if self.targets[at].retained {
            return Ok(());
        }
        let governing = self.governing(at);
        let (entries, request) = (self.entries, self.request);
        let Self {
            targets,
            customized,
            own,
            ..
        } = self;
        let target = &mut targets[at];
        let key = &target.key;
        let into = &mut target.chain_target;
        let service = entries.services.get(key);
        let proxy = entries.proxy_defaults.get(key.partition());

        if !into.service_subset.is_empty() {
            let Some(subset) = governing.subset(&into.service_subset) else {
                return Err(ChainError::MissingSubset {
                    service: into.service.clone(),
                    subset: into.service_subset.clone(),
                });
            };
            into.subset = subset.clone();
        }

        let configured = governing
            .entry
            .map(|e| e.connect_timeout)
            .filter(|timeout| timeout.0 >= 1);
        into.connect_timeout = configured.unwrap_or(DEFAULT_CONNECT_TIMEOUT);
        let asked = request.override_connect_timeout;
        if asked.0 > 0 && asked != into.connect_timeout {
            into.connect_timeout = asked;
            customized.connect_timeout = true;
        }

        if into.peer.is_empty() && key.partition() == own.partition() {
            into.prioritize_by_locality = governing
                .entry
                .and_then(|e| e.prioritize_by_locality.as_ref())
                .or_else(|| proxy.and_then(|e| e.prioritize_by_locality.as_ref()))
                .cloned();
        }

        // An ExternalSNI says something about the local service of that name, not about a peer's.
        let external_sni = service
            .map(|e| e.external_sni.as_str())
            .filter(|sni| !sni.is_empty() && into.peer.is_empty());
        if let Some(sni) = external_sni {
            into.sni = sni.into();
            into.external = true;
            refuse_on_external(governing, &into.service)?;
        } else {
            if let Some(service) = service {
                into.mesh_gateway = service.mesh_gateway.clone();
                into.transparent_proxy.dialed_directly = service.transparent_proxy.dialed_directly;
            }
            if let Some(proxy) = proxy {
                if into.mesh_gateway.mode == MeshGatewayMode::Default {
                    into.mesh_gateway.mode = proxy.mesh_gateway.mode;
                }
                into.transparent_proxy.dialed_directly |= proxy.transparent_proxy.dialed_directly;
            }
            let asked = request.override_mesh_gateway;
            if asked != MeshGatewayMode::Default && asked != into.mesh_gateway.mode {
                into.mesh_gateway.mode = asked;
                customized.mesh_gateway = true;
            }
        }
        target.retained = true;
        Ok(())
    }

    /// The targets to fail over to, in order, and the policy (discovery-chain.md 5.8). Failover is one level deep.
    fn failover(
        &mut self,
        at: TargetIx,
        governing: Governing<'a>,
    ) -> Result<(Vec<TargetIx>, Option<&'a FailoverPolicy>), ChainError> {
        let partition = self.targets[at].key.partition();
        let proxy = self.entries.proxy_defaults.get(partition);
        let mut policy = proxy.and_then(|e| e.failover_policy.as_ref());

        let candidates = match governing.entry {
            None => governing.default_group.map(|group| Candidates::Group {
                name: &group.name,
                group: Some(group),
                place: TargetName::default(),
            }),
            Some(entry) if !entry.failover.is_empty() => {
                let subset = self.targets[at].chain_target.service_subset.as_str();
                let Some(section) = failover_section(entry, subset) else {
                    return Ok((Vec::new(), None));
                };
                policy = section.policy.as_ref().or(policy);
                Some(candidates_of(section))
            }
            Some(entry) => entry
                .redirect
                .as_ref()
                .filter(|redirect| !redirect.sameness_group.is_empty())
                .map(|redirect| Candidates::Group {
                    name: &redirect.sameness_group,
                    group: None,
                    place: redirect_place(redirect),
                }),
        };
        let Some(candidates) = candidates else {
            return Ok((Vec::new(), None));
        };

        let mut list = self.rewrite_all(at, &candidates)?;
        // Before their redirects are applied: one that leads back here stays.
        list.retain(|candidate| *candidate != at);
        for candidate in &mut list {
            *candidate = self.settle(*candidate)?;
            self.fill_in(*candidate)?;
        }
        Ok((list, policy))
    }

    /// The places that failover names, seen from a target.
    fn rewrite_all(
        &mut self,
        at: TargetIx,
        candidates: &Candidates<'a>,
    ) -> Result<Vec<TargetIx>, ChainError> {
        let section_place = |section: &'a Failover| TargetName {
            service: &section.service,
            subset: &section.service_subset,
            namespace: &section.namespace,
            ..TargetName::default()
        };
        Ok(match candidates {
            Candidates::Datacenters(section) => section
                .datacenters
                .iter()
                .map(|datacenter| TargetName {
                    datacenter,
                    ..section_place(section)
                })
                .map(|place| self.rewrite(at, place))
                .collect(),
            Candidates::Targets(section) => section
                .targets
                .iter()
                .map(|to| TargetName {
                    service: &to.service,
                    subset: &to.service_subset,
                    namespace: &to.namespace,
                    partition: &to.partition,
                    datacenter: &to.datacenter,
                    peer: &to.peer,
                })
                .map(|place| self.rewrite(at, place))
                .collect(),
            Candidates::One(section) => vec![self.rewrite(at, section_place(section))],
            Candidates::Group { name, group, place } => {
                let own = self.targets[at].key.clone();
                let found = match group {
                    Some(group) => Some(*group),
                    None => self.entries.sameness_groups.get(*name).map(|g| &**g),
                };
                let Some(group) = found else {
                    return Err(ChainError::MissingSamenessGroup {
                        service: own.name().clone(),
                        group: (*name).into(),
                    });
                };
                let local = SamenessGroupMember {
                    partition: self.own.partition().to_string(),
                    ..SamenessGroupMember::default()
                };
                let first = group.include_local.then_some(&local);
                first
                    .into_iter()
                    .chain(&group.members)
                    .map(|member| {
                        self.rewrite(
                            at,
                            TargetName {
                                service: given_or(place.service, own.name()),
                                subset: place.subset,
                                namespace: given_or(place.namespace, own.namespace()),
                                partition: given_or(
                                    &member.partition,
                                    given_or(place.partition, own.partition()),
                                ),
                                datacenter: place.datacenter,
                                peer: given_or(&member.peer, place.peer),
                            },
                        )
                    })
                    .collect()
            }
        })
    }
}

fn given_or<'s>(given: &'s str, otherwise: &'s str) -> &'s str {
    if given.is_empty() { otherwise } else { given }
}

fn redirect_place(to: &Redirect) -> TargetName<'_> {
    TargetName {
        service: &to.service,
        subset: &to.service_subset,
        namespace: &to.namespace,
        partition: &to.partition,
        datacenter: &to.datacenter,
        peer: &to.peer,
    }
}

/// The failover section for a subset (empty: for all instances).
fn failover_section<'a>(entry: &'a ServiceResolver, subset: &str) -> Option<&'a Failover> {
    let sections = &entry.failover;
    let other_spelling = || {
        let same = |(key, _): &(&String, _)| key.eq_ignore_ascii_case(subset);
        sections.iter().find(same).map(|(_, section)| section)
    };
    sections
        .get(subset)
        .or_else(other_spelling)
        .or_else(|| sections.get("*"))
}

/// The form of a section's list; validation allows one, and this is the order of precedence.
fn candidates_of(section: &Failover) -> Candidates<'_> {
    if !section.datacenters.is_empty() {
        Candidates::Datacenters(section)
    } else if !section.targets.is_empty() {
        Candidates::Targets(section)
    } else if !section.sameness_group.is_empty() {
        Candidates::Group {
            name: &section.sameness_group,
            group: None,
            place: TargetName {
                service: &section.service,
                subset: &section.service_subset,
                namespace: &section.namespace,
                ..TargetName::default()
            },
        }
    } else {
        Candidates::One(section)
    }
}

/// Refuses settings that make no sense for a service outside the mesh (discovery-chain.md 5.7).
fn refuse_on_external(governing: Governing<'_>, service: &str) -> Result<(), ChainError> {
    let service = service.into();
    let entry = governing.entry;
    if governing.default_group.is_some() || entry.is_some_and(|e| e.redirect.is_some()) {
        Err(ChainError::ExternalSniRedirect { service })
    } else if entry.is_some_and(|e| !e.subsets.is_empty()) {
        Err(ChainError::ExternalSniSubsets { service })
    } else if entry.is_some_and(|e| !e.failover.is_empty()) {
        Err(ChainError::ExternalSniFailover { service })
    } else {
        Ok(())
    }
}
