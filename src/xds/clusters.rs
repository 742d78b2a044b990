//! Clusters of a discovery chain (xds.md 4.1, 4.2.2): one for each target that a resolver of the chain leads to.
//!
//! A resolver without failover gives one EDS cluster. One with failover gives an aggregate cluster under the primary
//! target's name, and an EDS cluster for each of its members. Nothing here depends on the proxy, so that all proxies with
//! equal settings share the encoded clusters.

use std::collections::{BTreeMap, HashMap};

use envoy_types::pb::envoy::extensions::clusters::aggregate::v3::ClusterConfig;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::{
    HttpProtocolOptions, http_protocol_options,
};
use envoy_types::pb::envoy::r#type::v3::Percent;
use envoy_types::pb::google::protobuf::Any;
use prost::Message as _;
use smol_str::SmolStr;

use super::encode::any;
use super::names;
use super::proto::{ads_within, cluster, core, duration, uint32, uint64};
use super::tls_context;
use super::{BuildError, custom};
use crate::model::chain::{ChainNode, ChainNodeType, ChainResolver, ChainTarget, CompiledChain};
use crate::model::{
    GoDuration, LoadBalancer, MeshDirectionalTls, MeshGatewayMode, PassiveHealthCheck,
    UpstreamLimits,
};
use crate::snapshot::UpstreamSettings;

/// What clusters depend on beside their chain.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeshContext<'a> {
    /// The mesh's trust domain.
    pub trust_domain: &'a str,
    /// The proxy's own datacenter.
    pub datacenter: &'a str,
    /// TLS parameters of connections that proxies make.
    pub outgoing: Option<&'a MeshDirectionalTls>,
    /// How long Envoy waits for a cluster's first endpoints, in milliseconds; `None` leaves it to Envoy.
    pub fetch_timeout_ms: Option<i64>,
}

/// A cluster, and the endpoint assignment that must go with it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChainCluster {
    /// The encoded message.
    pub bytes: Vec<u8>,
    /// Whether it refers to other clusters.
    pub composed: bool,
    /// Where its instances come from; none for an aggregate.
    pub assignment: Option<Assignment>,
    /// Whether it is of the chain's own service, whose settings go before those of other chains that lead here.
    pub own: bool,
}

/// Which instances an EDS cluster gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Assignment {
    /// The cluster, and the assignment's name.
    pub cluster: SmolStr,
    /// Id of the target in the chain.
    pub target: SmolStr,
    /// Instances that warn count as failing.
    pub only_passing: bool,
    /// It is a member of a failover: until its last instance fails, nothing goes to the next member.
    pub failover: bool,
    /// The target is in another datacenter and must be reached through mesh gateways, never directly.
    pub through_gateway: bool,
}

/// Whether the endpoints of a target stay unknown because it is in a peer whose trust bundle hasn't arrived. Bundles
/// aren't part of snapshots, so that holds for every peered target: its cluster is left out, which isn't an error (4.2.2).
pub(super) fn is_awaited(target: &ChainTarget) -> bool {
    !target.peer.is_empty()
}

/// All clusters of a chain, by name.
///
/// # Errors
/// A setting that Envoy would refuse, or that has no meaning; a chain that isn't well formed.
pub(super) fn chain_clusters(
    chain: &CompiledChain,
    settings: &UpstreamSettings,
    mesh: MeshContext<'_>,
) -> Result<BTreeMap<SmolStr, ChainCluster>, BuildError> {
    let mut clusters = BTreeMap::new();
    for (key, node) in &chain.nodes {
        if node.kind != ChainNodeType::Resolver {
            continue;
        }
        let resolver = resolver_of(node).map_err(|e| e.at(key))?;
        let builder = Builder {
            chain,
            settings,
            mesh,
            node,
            resolver,
        };
        builder.build(&mut clusters).map_err(|e| e.at(key))?;
    }
    Ok(clusters)
}

/// The resolver of a resolver node.
pub(super) fn resolver_of(node: &ChainNode) -> Result<&ChainResolver, BuildError> {
    node.resolver
        .as_ref()
        .ok_or_else(|| BuildError::new("a chain node of type resolver has no Resolver"))
}

/// A target of a chain by id.
pub(super) fn target_of<'a>(
    chain: &'a CompiledChain,
    id: &str,
) -> Result<&'a ChainTarget, BuildError> {
    chain
        .targets
        .get(id)
        .map(|target| &**target)
        .ok_or_else(|| BuildError::new(format!("the chain has no target {id:?}")))
}

/// The cluster that a resolver node's traffic goes to; `None` while its target is awaited.
pub(super) fn node_cluster(
    chain: &CompiledChain,
    node: &ChainNode,
) -> Result<Option<SmolStr>, BuildError> {
    let target = target_of(chain, &resolver_of(node)?.target)?;
    Ok((!is_awaited(target)).then(|| names::target_cluster(chain, target)))
}

struct Builder<'a> {
    chain: &'a CompiledChain,
    settings: &'a UpstreamSettings,
    mesh: MeshContext<'a>,
    node: &'a ChainNode,
    resolver: &'a ChainResolver,
}

impl Builder<'_> {
    fn build(&self, clusters: &mut BTreeMap<SmolStr, ChainCluster>) -> Result<(), BuildError> {
        let primary = target_of(self.chain, &self.resolver.target)?;
        if is_awaited(primary) {
            return Ok(());
        }
        let base = names::target_cluster(self.chain, primary);
        let Some(failover) = &self.resolver.failover else {
            let (name, cluster) = if self.chain.default && !self.custom_json().is_empty() {
                self.custom_cluster(base, primary)?
            } else {
                (
                    base.clone(),
                    self.target_cluster(base, &self.resolver.target, primary)?,
                )
            };
            clusters.insert(name, cluster);
            return Ok(());
        };
        if let Some(policy) = &failover.policy
            && !matches!(policy.mode.as_str(), "" | "sequential")
        {
            return Err(BuildError::new(format!(
                "failover policy mode {:?} is not supported; use \"sequential\"",
                policy.mode
            )));
        }
        let mut members = Vec::new();
        for id in std::iter::once(&self.resolver.target).chain(&failover.targets) {
            let target = target_of(self.chain, id)?;
            if is_awaited(target) {
                continue;
            }
            let name = names::failover_member(members.len(), &base);
            members.push(name.to_string());
            clusters.insert(name.clone(), self.target_cluster(name, id, target)?);
        }
        clusters.insert(base.clone(), self.aggregate(base, members, primary));
        Ok(())
    }

    fn aggregate(
        &self,
        name: SmolStr,
        members: Vec<String>,
        primary: &ChainTarget,
    ) -> ChainCluster {
        let discovery = cluster::cluster::CustomClusterType {
            name: "envoy.clusters.aggregate".to_owned(),
            typed_config: Some(any(&ClusterConfig { clusters: members })),
        };
        let cluster = cluster::Cluster {
            name: name.to_string(),
            alt_stat_name: name.to_string(),
            connect_timeout: duration(self.connect_timeout()),
            lb_policy: cluster::cluster::LbPolicy::ClusterProvided as i32,
            cluster_discovery_type: Some(cluster::cluster::ClusterDiscoveryType::ClusterType(
                discovery,
            )),
            ..Default::default()
        };
        ChainCluster {
            bytes: cluster.encode_to_vec(),
            composed: true,
            assignment: None,
            own: self.is_own(primary),
        }
    }

    fn target_cluster(
        &self,
        name: SmolStr,
        id: &SmolStr,
        target: &ChainTarget,
    ) -> Result<ChainCluster, BuildError> {
        if target.name.is_empty() || self.mesh.trust_domain.is_empty() {
            return Err(BuildError::new(format!(
                "target {id:?} has no name: the trust roots and their trust domain are needed first"
            )));
        }
        let mut message = eds_cluster(&name, self.connect_timeout(), self.mesh.fetch_timeout_ms);
        message.alt_stat_name = name.to_string();
        message.common_lb_config = Some(no_panic());
        message.circuit_breakers = Some(circuit_breakers(self.settings.limits.as_ref())?);
        message.outlier_detection = Some(outlier_detection(
            self.settings.passive_health_check.as_ref(),
        )?);
        message.typed_extension_protocol_options = protocol_options(self.protocol());
        message.transport_socket = Some(self.transport_socket(target)?);
        load_balancing(&mut message, self.node.load_balancer.as_ref())?;
        Ok(ChainCluster {
            // Its one map has one entry at most (decision X2).
            bytes: message.encode_to_vec(),
            composed: false,
            assignment: Some(self.assignment(name, id, target)),
            own: self.is_own(target),
        })
    }

    /// The cluster that the operator wrote, with the mesh's TLS (xds.md 4.2.2).
    fn custom_cluster(
        &self,
        generated: SmolStr,
        target: &ChainTarget,
    ) -> Result<(SmolStr, ChainCluster), BuildError> {
        self.target_cluster(generated, &self.resolver.target, target)?;
        let socket = self.transport_socket(target)?;
        let custom = custom::cluster(self.custom_json(), Some(&socket))
            .map_err(|e| e.at("envoy_cluster_json"))?;
        let assignment = custom
            .assignment
            .map(|name| self.assignment(name, &self.resolver.target, target));
        let cluster = ChainCluster {
            bytes: custom.bytes,
            composed: custom.composed,
            assignment,
            own: self.is_own(target),
        };
        Ok((custom.name, cluster))
    }

    fn custom_json(&self) -> &str {
        self.settings.envoy_cluster_json.trim()
    }

    fn transport_socket(&self, target: &ChainTarget) -> Result<core::TransportSocket, BuildError> {
        let identity = names::target_identity(self.mesh.trust_domain, target);
        tls_context::upstream(self.mesh.outgoing, &[identity], &target.sni)
    }

    fn assignment(&self, cluster: SmolStr, id: &SmolStr, target: &ChainTarget) -> Assignment {
        let other_datacenter = target.datacenter != self.mesh.datacenter;
        let mode = target.mesh_gateway.mode;
        Assignment {
            cluster,
            target: id.clone(),
            only_passing: target.subset.only_passing,
            failover: self.resolver.failover.is_some(),
            through_gateway: other_datacenter
                && matches!(mode, MeshGatewayMode::Local | MeshGatewayMode::Remote),
        }
    }

    fn is_own(&self, target: &ChainTarget) -> bool {
        let chain = self.chain;
        (&target.service, &target.namespace, &target.partition)
            == (&chain.service_name, &chain.namespace, &chain.partition)
    }

    fn protocol(&self) -> &str {
        effective_protocol(self.chain, self.settings)
    }

    /// The resolver's; the compiler has merged the upstream's own into it (xds.md 3.5).
    fn connect_timeout(&self) -> GoDuration {
        match self.resolver.connect_timeout {
            GoDuration(..=0) => DEFAULT_CONNECT_TIMEOUT,
            timeout => timeout,
        }
    }
}

/// Time to connect where nothing is configured.
pub(super) const DEFAULT_CONNECT_TIMEOUT: GoDuration = GoDuration::from_secs(5);

/// The protocol that is spoken with an upstream: its own, else the chain's, else `tcp`.
pub(super) fn effective_protocol<'a>(
    chain: &'a CompiledChain,
    settings: &'a UpstreamSettings,
) -> &'a str {
    [settings.protocol.as_str(), chain.protocol.as_str()]
        .into_iter()
        .find(|protocol| !protocol.is_empty())
        .unwrap_or("tcp")
}

/// A cluster whose instances come over this stream, under its own name.
fn eds_cluster(
    name: &str,
    connect_timeout: GoDuration,
    fetch_timeout_ms: Option<i64>,
) -> cluster::Cluster {
    cluster::Cluster {
        name: name.to_owned(),
        connect_timeout: duration(connect_timeout),
        cluster_discovery_type: Some(cluster::cluster::ClusterDiscoveryType::Type(
            cluster::cluster::DiscoveryType::Eds as i32,
        )),
        eds_cluster_config: Some(cluster::cluster::EdsClusterConfig {
            eds_config: ads_within(fetch_timeout_ms),
            service_name: String::new(),
        }),
        ..Default::default()
    }
}

/// Never sends traffic to unhealthy instances, however few healthy ones are left.
fn no_panic() -> cluster::cluster::CommonLbConfig {
    cluster::cluster::CommonLbConfig {
        healthy_panic_threshold: Some(Percent { value: 0.0 }),
        ..Default::default()
    }
}

/// HTTP/2 towards the instances, for protocols that need it (xds.md 4.1). The map has one entry at most.
pub(super) fn protocol_options(protocol: &str) -> HashMap<String, Any> {
    if !matches!(protocol, "http2" | "grpc") {
        return HashMap::new();
    }
    let http2 = http_protocol_options::explicit_http_config::ProtocolConfig::Http2ProtocolOptions(
        core::Http2ProtocolOptions::default(),
    );
    let options = HttpProtocolOptions {
        upstream_protocol_options: Some(
            http_protocol_options::UpstreamProtocolOptions::ExplicitHttpConfig(
                http_protocol_options::ExplicitHttpConfig {
                    protocol_config: Some(http2),
                },
            ),
        ),
        ..Default::default()
    };
    HashMap::from([(
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions".to_owned(),
        any(&options),
    )])
}

/// Always present; with one threshold if there are limits, which holds only the ones that are given (xds.md 4.1).
pub(super) fn circuit_breakers(
    limits: Option<&UpstreamLimits>,
) -> Result<cluster::CircuitBreakers, BuildError> {
    let Some(limits) = limits else {
        return Ok(cluster::CircuitBreakers::default());
    };
    let limit = |name: &str, value: Option<i64>| match value {
        None => Ok(None),
        Some(value) => u32::try_from(value).map(uint32).map_err(|_| {
            BuildError::new(format!(
                "limits.{name}: {value} is not between 0 and {}",
                u32::MAX
            ))
        }),
    };
    let threshold = cluster::circuit_breakers::Thresholds {
        max_connections: limit("max_connections", limits.max_connections)?,
        max_pending_requests: limit("max_pending_requests", limits.max_pending_requests)?,
        max_requests: limit("max_concurrent_requests", limits.max_concurrent_requests)?,
        ..Default::default()
    };
    Ok(cluster::CircuitBreakers {
        thresholds: vec![threshold],
        ..Default::default()
    })
}

/// Always present; empty means Envoy's defaults (xds.md 4.1).
pub(super) fn outlier_detection(
    check: Option<&PassiveHealthCheck>,
) -> Result<cluster::OutlierDetection, BuildError> {
    let Some(check) = check else {
        return Ok(cluster::OutlierDetection::default());
    };
    let span = |name: &str, value: GoDuration| match value.0 {
        0 => Ok(None),
        ..0 => Err(BuildError::new(format!(
            "passive_health_check.{name}: {value} must be positive"
        ))),
        _ => Ok(duration(value)),
    };
    let percent = |name: &str, value: Option<u32>| match value {
        Some(value) if value > 100 => Err(BuildError::new(format!(
            "passive_health_check.{name}: {value} is more than 100 percent"
        ))),
        value => Ok(value.and_then(uint32)),
    };
    Ok(cluster::OutlierDetection {
        interval: span("interval", check.interval)?,
        consecutive_5xx: if check.max_failures == 0 {
            None
        } else {
            uint32(check.max_failures)
        },
        enforcing_consecutive_5xx: percent(
            "enforcing_consecutive_5xx",
            check.enforcing_consecutive_5xx,
        )?,
        max_ejection_percent: percent("max_ejection_percent", check.max_ejection_percent)?,
        base_ejection_time: span(
            "base_ejection_time",
            check.base_ejection_time.unwrap_or_default(),
        )?,
        ..Default::default()
    })
}

/// Largest ring that Envoy accepts.
const LARGEST_RING: u64 = 8 * 1024 * 1024;

/// How an instance is chosen (xds.md 4.1).
pub(super) fn load_balancing(
    message: &mut cluster::Cluster,
    config: Option<&LoadBalancer>,
) -> Result<(), BuildError> {
    use cluster::cluster::{LbConfig, LbPolicy, LeastRequestLbConfig, RingHashLbConfig};

    let Some(config) = config else { return Ok(()) };
    let policy = match config.policy.as_str() {
        "" => return Ok(()),
        "round_robin" => LbPolicy::RoundRobin,
        "random" => LbPolicy::Random,
        "maglev" => LbPolicy::Maglev,
        "least_request" => {
            if let Some(least) = &config.least_request_config
                && least.choice_count != 0
            {
                if least.choice_count == 1 {
                    return Err(BuildError::new(
                        "LoadBalancer.LeastRequestConfig.ChoiceCount must be 2 or more",
                    ));
                }
                message.lb_config = Some(LbConfig::LeastRequestLbConfig(LeastRequestLbConfig {
                    choice_count: uint32(least.choice_count),
                    ..Default::default()
                }));
            }
            LbPolicy::LeastRequest
        }
        "ring_hash" => {
            if let Some(ring) = &config.ring_hash_config {
                let size = |value: u64| if value == 0 { None } else { uint64(value) };
                let (minimum, maximum) = (ring.minimum_ring_size, ring.maximum_ring_size);
                let too_small = maximum != 0 && minimum > maximum;
                if minimum > LARGEST_RING || maximum > LARGEST_RING || too_small {
                    return Err(BuildError::new(format!(
                        "LoadBalancer.RingHashConfig: ring sizes {minimum} to {maximum} must rise and be at most {LARGEST_RING}"
                    )));
                }
                message.lb_config = Some(LbConfig::RingHashLbConfig(RingHashLbConfig {
                    minimum_ring_size: size(minimum),
                    maximum_ring_size: size(maximum),
                    ..Default::default()
                }));
            }
            LbPolicy::RingHash
        }
        other => {
            return Err(BuildError::new(format!(
                "LoadBalancer.Policy {other:?} is not one of round_robin, random, least_request, ring_hash, maglev"
            )));
        }
    };
    message.lb_policy = policy as i32;
    Ok(())
}
