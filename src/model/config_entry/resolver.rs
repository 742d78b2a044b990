//! `service-resolver` (store.md 3.5).

use std::collections::BTreeMap;

use crate::model::config_entry::proxy_defaults::{FailoverPolicy, PrioritizeByLocality};
use crate::model::decode::record;
use crate::model::duration::GoDuration;

record! {
    /// Which instances a service's name stands for.
    pub struct ServiceResolver {
        /// Always `service-resolver`.
        kind: String = "Kind" always,
        /// The service.
        name: String = "Name" always,
        /// Subset meant when none is named.
        default_subset: String = "DefaultSubset",
        /// Named parts of the instances.
        subsets: BTreeMap<String, Subset> = "Subsets",
        /// Another service in place of this one.
        redirect: Option<Redirect> = "Redirect",
        /// Where to go when all instances are unhealthy, by subset or `*`.
        failover: BTreeMap<String, Failover> = "Failover",
        /// Time to connect.
        connect_timeout: GoDuration = "ConnectTimeout",
        /// Time for a request.
        request_timeout: GoDuration = "RequestTimeout",
        /// How to choose an instance.
        load_balancer: Option<LoadBalancer> = "LoadBalancer",
        /// Preference for near instances.
        prioritize_by_locality: Option<PrioritizeByLocality> = "PrioritizeByLocality",
        /// Free labels.
        meta: BTreeMap<String, String> = "Meta",
        /// Only `default`.
        namespace: String = "Namespace",
        /// Only `default`.
        partition: String = "Partition",
    }
    ignored ["CreateIndex", "ModifyIndex", "Hash"]
}

record! {
    /// A named part of a service's instances.
    pub struct Subset {
        /// Filter expression over instances (store.md 4.10).
        filter: String = "Filter",
        /// Instances that warn count as failing.
        only_passing: bool = "OnlyPassing",
    }
}

record! {
    /// Another service in place of this one.
    pub struct Redirect {
        /// Service.
        service: String = "Service",
        /// Subset.
        service_subset: String = "ServiceSubset",
        /// Only `default`.
        namespace: String = "Namespace",
        /// Only `default`.
        partition: String = "Partition",
        /// Datacenter.
        datacenter: String = "Datacenter",
        /// Peer.
        peer: String = "Peer",
        /// Enterprise only.
        sameness_group: String = "SamenessGroup",
    }
}

record! {
    /// Where to go when all instances are unhealthy.
    pub struct Failover {
        /// Service.
        service: String = "Service",
        /// Subset.
        service_subset: String = "ServiceSubset",
        /// Only `default`.
        namespace: String = "Namespace",
        /// Datacenters in order.
        datacenters: Vec<String> = "Datacenters",
        /// Targets in order.
        targets: Vec<FailoverTarget> = "Targets",
        /// Order.
        policy: Option<FailoverPolicy> = "Policy",
        /// Enterprise only.
        sameness_group: String = "SamenessGroup",
    }
}

record! {
    /// A failover target.
    pub struct FailoverTarget {
        /// Service.
        service: String = "Service",
        /// Subset.
        service_subset: String = "ServiceSubset",
        /// Only `default`.
        partition: String = "Partition",
        /// Only `default`.
        namespace: String = "Namespace",
        /// Datacenter.
        datacenter: String = "Datacenter",
        /// Peer.
        peer: String = "Peer",
    }
}

record! {
    /// How to choose an instance.
    pub struct LoadBalancer {
        /// `random`, `round_robin`, `least_request`, `ring_hash`, `maglev`, or empty for Envoy's default.
        policy: String = "Policy",
        /// For `ring_hash`.
        ring_hash_config: Option<RingHashConfig> = "RingHashConfig",
        /// For `least_request`.
        least_request_config: Option<LeastRequestConfig> = "LeastRequestConfig",
        /// What of a request is hashed.
        hash_policies: Vec<HashPolicy> = "HashPolicies",
    }
}

record! {
    /// Ring sizes.
    pub struct RingHashConfig {
        /// Least entries.
        minimum_ring_size: u64 = "MinimumRingSize",
        /// Most entries.
        maximum_ring_size: u64 = "MaximumRingSize",
    }
}

record! {
    /// Candidates of a choice.
    pub struct LeastRequestConfig {
        /// How many instances are compared.
        choice_count: u32 = "ChoiceCount",
    }
}

record! {
    /// What of a request is hashed.
    pub struct HashPolicy {
        /// `header`, `cookie` or `query_parameter`.
        field: String = "Field",
        /// The header, cookie or parameter.
        field_value: String = "FieldValue",
        /// How a missing cookie is made.
        cookie_config: Option<CookieConfig> = "CookieConfig",
        /// The client's address.
        source_ip: bool = "SourceIP",
        /// Stop here if this one gave a hash.
        terminal: bool = "Terminal",
    }
}

record! {
    /// How a missing cookie is made.
    pub struct CookieConfig {
        /// Ends with the browser session.
        session: bool = "Session",
        /// Life time.
        ttl: GoDuration = "TTL",
        /// Path.
        path: String = "Path",
    }
}
