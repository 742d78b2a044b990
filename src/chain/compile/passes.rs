//! What happens to the finished graph (discovery-chain.md 6.1 to 6.4).

use std::collections::BTreeMap;

use smol_str::SmolStr;

use crate::chain::compile::{Compiler, Leg, NodeIx, Stage};
use crate::chain::error::ChainError;
use crate::chain::headers::nested_definition;
use crate::chain::weight::nested_weight;
use crate::model::chain::{
    ChainFailover, ChainNode, ChainNodeType, ChainResolver, ChainRoute, ChainSplit, ChainTarget,
};

/// By how many splits flattening may lengthen a chain's splitters. Splitters that feed splitters multiply; a share is at least 0.01
/// percent, so that more would serve nobody, but could exhaust the memory.
pub const MAX_FLATTENED_SPLITS: usize = 50_000;

/// How far the search for circles is with a node.
#[derive(Clone, Copy, PartialEq)]
enum Mark {
    New,
    /// On the path from the start.
    Open,
    Done,
}

impl<'a> Compiler<'a> {
    /// Refuses a graph with a circle.
    pub(super) fn refuse_cycles(&self, start: NodeIx) -> Result<(), ChainError> {
        let mut marks = vec![Mark::New; self.nodes.len()];
        // The path from the start: each node and how many of its successors are done.
        let mut path = vec![(start, 0)];
        marks[start] = Mark::Open;
        while let Some((node, done)) = path.last_mut() {
            let (node, nth) = (*node, *done);
            *done += 1;
            let Some(next) = self.successor(node, nth) else {
                marks[node] = Mark::Done;
                path.pop();
                continue;
            };
            match marks[next] {
                Mark::Done => {}
                Mark::New => {
                    marks[next] = Mark::Open;
                    path.push((next, 0));
                }
                Mark::Open => {
                    let circle = path.iter().map(|(node, _)| *node);
                    let circle = circle.skip_while(|node| *node != next).chain([next]);
                    return Err(ChainError::CircularReference {
                        path: circle.map(|node| self.node_key(node)).collect(),
                    });
                }
            }
        }
        Ok(())
    }

    /// The node that the nth route or split of a node leads to.
    fn successor(&self, node: NodeIx, nth: usize) -> Option<NodeIx> {
        match &self.nodes[node].stage {
            Stage::Router(routes) => routes.get(nth).map(|route| route.next),
            Stage::Splitter(legs) => legs.get(nth).map(|leg| leg.next),
            Stage::Resolver(_) => None,
        }
    }

    /// Replaces every split that leads to a splitter by that splitter's splits, until none does. The graph must have no
    /// circle.
    pub(super) fn flatten_splitters(&mut self) -> Result<(), ChainError> {
        // In the order of their names, since each weight is rounded and the order of rounding must not change.
        let mut splitters: Vec<NodeIx> = self.splitters.values().copied().collect();
        splitters.sort_by(|a, b| self.nodes[*a].name.cmp(&self.nodes[*b].name));
        let mut made = 0;
        let mut changed = true;
        while changed {
            changed = false;
            for splitter in &splitters {
                let Stage::Splitter(legs) = &mut self.nodes[*splitter].stage else {
                    continue;
                };
                let legs = std::mem::take(legs);
                let is_nested = |leg: &Leg<'_>| self.legs(leg.next).is_some();
                let legs = if legs.iter().any(is_nested) {
                    changed = true;
                    self.flatten(legs, &mut made)?
                } else {
                    legs
                };
                self.nodes[*splitter].stage = Stage::Splitter(legs);
            }
        }
        Ok(())
    }

    /// One round of replacing.
    fn flatten(&self, legs: Vec<Leg<'a>>, made: &mut usize) -> Result<Vec<Leg<'a>>, ChainError> {
        let mut flat = Vec::with_capacity(legs.len());
        for leg in legs {
            let Some(inner) = self.legs(leg.next) else {
                flat.push(leg);
                continue;
            };
            *made += inner.len().saturating_sub(1);
            if *made > MAX_FLATTENED_SPLITS {
                return Err(ChainError::TooManySplits {
                    chain: self.request.service_name.clone(),
                    limit: MAX_FLATTENED_SPLITS,
                });
            }
            flat.extend(inner.iter().map(|inner| Leg {
                definition: nested_definition(&leg.definition, &inner.definition),
                weight: nested_weight(leg.weight, inner.weight),
                next: inner.next,
            }));
        }
        Ok(flat)
    }

    /// The splits of a splitter node.
    fn legs(&self, node: NodeIx) -> Option<&[Leg<'a>]> {
        match &self.nodes[node].stage {
            Stage::Splitter(legs) => Some(legs),
            Stage::Router(_) | Stage::Resolver(_) => None,
        }
    }

    /// The key of a node (discovery-chain.md 4.2).
    pub(super) fn node_key(&self, node: NodeIx) -> String {
        let node = &self.nodes[node];
        let kind = match node.stage {
            Stage::Router(_) => ChainNodeType::Router,
            Stage::Splitter(_) => ChainNodeType::Splitter,
            Stage::Resolver(_) => ChainNodeType::Resolver,
        };
        format!("{kind}:{}", node.name)
    }

    /// The nodes that can be reached and the targets in use, as they appear in the chain.
    pub(super) fn copy_out(
        &self,
        start: NodeIx,
    ) -> (
        BTreeMap<String, Box<ChainNode>>,
        BTreeMap<String, Box<ChainTarget>>,
    ) {
        let mut keys: Vec<Option<SmolStr>> = vec![None; self.nodes.len()];
        let mut reachable = vec![start];
        keys[start] = Some(SmolStr::from(self.node_key(start)));
        let mut next = 0;
        while let Some(node) = reachable.get(next).copied() {
            next += 1;
            let mut nth = 0;
            while let Some(to) = self.successor(node, nth) {
                nth += 1;
                if keys[to].is_none() {
                    keys[to] = Some(SmolStr::from(self.node_key(to)));
                    reachable.push(to);
                }
            }
        }
        let key = |node: NodeIx| keys[node].clone().unwrap_or_default();
        let nodes = reachable
            .iter()
            .map(|node| {
                let copy = Box::new(self.chain_node(*node, &key));
                (key(*node).to_string(), copy)
            })
            .collect();
        let targets = self
            .targets
            .iter()
            .filter(|target| target.retained)
            .map(|target| {
                (
                    target.chain_target.id.to_string(),
                    Box::new(target.chain_target.clone()),
                )
            })
            .collect();
        (nodes, targets)
    }

    fn chain_node(&self, at: NodeIx, key: &impl Fn(NodeIx) -> SmolStr) -> ChainNode {
        let node = &self.nodes[at];
        let mut out = ChainNode {
            name: node.name.clone(),
            load_balancer: node.load_balancer.cloned(),
            ..ChainNode::default()
        };
        match &node.stage {
            Stage::Router(routes) => {
                out.kind = ChainNodeType::Router;
                let copy = |route: &super::Route<'_>| ChainRoute {
                    definition: route.definition.as_ref().clone(),
                    next_node: key(route.next),
                };
                out.routes = routes.iter().map(copy).collect();
            }
            Stage::Splitter(legs) => {
                out.kind = ChainNodeType::Splitter;
                let copy = |leg: &Leg<'_>| ChainSplit {
                    definition: leg.definition.as_ref().clone(),
                    weight: leg.weight,
                    next_node: key(leg.next),
                };
                out.splits = legs.iter().map(copy).collect();
            }
            Stage::Resolver(resolver) => {
                out.kind = ChainNodeType::Resolver;
                let target = &self.targets[resolver.target].chain_target;
                let id = |at: &super::TargetIx| self.targets[*at].chain_target.id.clone();
                out.resolver = Some(ChainResolver {
                    default: resolver.default,
                    connect_timeout: target.connect_timeout,
                    request_timeout: resolver.request_timeout,
                    target: target.id.clone(),
                    failover: (!resolver.failover.is_empty()).then(|| ChainFailover {
                        targets: resolver.failover.iter().map(id).collect(),
                        policy: resolver.policy.cloned(),
                        regions: Vec::new(),
                    }),
                });
            }
        }
        out
    }
}
