//! The rules of `service-resolver` (discovery-chain.md 10.4).

use crate::filter::Filter;
use crate::model::config_entry::EntryKind;
use crate::model::config_entry::proxy_defaults::{FailoverPolicy, PrioritizeByLocality};
use crate::model::config_entry::resolver::{
    Failover, FailoverTarget, HashPolicy, LoadBalancer, Redirect, ServiceResolver,
};
use crate::model::decode::{Place, Problems};
use crate::model::rules;
use crate::model::validate::Validate;

const BALANCING_POLICIES: [&str; 6] = [
    "",
    "random",
    "round_robin",
    "least_request",
    "ring_hash",
    "maglev",
];

impl Validate for ServiceResolver {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::mesh_name("service name", &self.name, &at.key("Name"), problems);
        rules::meta(&self.meta, &at.key("Meta"), problems);
        self.validate_subsets(at, problems);
        if let Some(redirect) = &self.redirect {
            let here = at.key("Redirect");
            if !self.failover.is_empty() {
                problems.error(&here, "Redirect and Failover exclude each other");
            }
            redirect.validate(self, &here, problems);
        }
        let failover = at.key("Failover");
        for (key, section) in &self.failover {
            let here = failover.key(key);
            if key != "*" && !self.subsets.contains_key(key) {
                problems.error(
                    &here,
                    format!(
                        "{} is neither \"*\" nor a subset of {}",
                        rules::shown(key),
                        self.name
                    ),
                );
            }
            section.validate(self, &here, problems);
        }
        rules::not_negative(self.connect_timeout, &at.key("ConnectTimeout"), problems);
        rules::not_negative(self.request_timeout, &at.key("RequestTimeout"), problems);
        if let Some(balancer) = &self.load_balancer {
            balancer.validate(&at.key("LoadBalancer"), problems);
        }
        if let Some(near) = &self.prioritize_by_locality {
            near.validate(&at.key("PrioritizeByLocality"), problems);
        }
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::only_default(&self.namespace, &self.partition, at, problems);
        if let Some(r) = &self.redirect {
            let at = at.key("Redirect");
            rules::only_default(&r.namespace, &r.partition, &at, problems);
            rules::enterprise("SamenessGroup", !r.sameness_group.is_empty(), &at, problems);
        }
        let failover = at.key("Failover");
        for (key, section) in &self.failover {
            let at = failover.key(key);
            rules::default_tenancy("Namespace", &section.namespace, &at, problems);
            rules::enterprise(
                "SamenessGroup",
                !section.sameness_group.is_empty(),
                &at,
                problems,
            );
            let has_policy = section.policy.as_ref().is_some_and(|p| !p.mode.is_empty());
            rules::enterprise("Policy", has_policy, &at, problems);
            let targets = at.key("Targets");
            for (i, target) in section.targets.iter().enumerate() {
                let at = targets.index(i);
                rules::only_default(&target.namespace, &target.partition, &at, problems);
            }
        }
        let near = self.prioritize_by_locality.as_ref();
        let given = near.is_some_and(|p| !p.mode.is_empty());
        rules::enterprise("PrioritizeByLocality", given, at, problems);
    }

    fn normalize(&mut self) {
        self.kind = EntryKind::ServiceResolver.to_string();
        rules::clear_default(&mut self.namespace);
        rules::clear_default(&mut self.partition);
        if let Some(redirect) = &mut self.redirect {
            rules::clear_default(&mut redirect.namespace);
            rules::clear_default(&mut redirect.partition);
        }
        for section in self.failover.values_mut() {
            rules::clear_default(&mut section.namespace);
            for target in &mut section.targets {
                rules::clear_default(&mut target.namespace);
                rules::clear_default(&mut target.partition);
            }
        }
    }
}

impl ServiceResolver {
    fn validate_subsets(&self, at: &Place<'_>, problems: &mut Problems) {
        let subsets = at.key("Subsets");
        for (name, subset) in &self.subsets {
            let here = subsets.key(name);
            if name.is_empty() {
                problems.error(&here, "the name of a subset must not be empty");
            } else if !is_dns_label(name) {
                problems.error(
                    &here,
                    format!(
                        "the subset name {} must be a DNS label: at most 63 of a-z, 0-9 and inner '-'",
                        rules::shown(name)
                    ),
                );
            }
            check_filter(&subset.filter, &here.key("Filter"), problems);
        }
        if !self.default_subset.is_empty() && !self.subsets.contains_key(&self.default_subset) {
            problems.error(
                &at.key("DefaultSubset"),
                format!(
                    "{} is not one of the Subsets",
                    rules::shown(&self.default_subset)
                ),
            );
        }
    }

    /// Whether a service named inside this entry is the entry's own.
    fn is_own(&self, service: &str) -> bool {
        service.is_empty() || service.eq_ignore_ascii_case(&self.name)
    }

    /// A subset of this very service must be one of its subsets; those of other services aren't known here.
    fn own_subset(&self, service: &str, subset: &str, at: &Place<'_>, problems: &mut Problems) {
        if subset.is_empty() {
            return;
        }
        if self.is_own(service) {
            if !self.subsets.contains_key(subset) {
                problems.error(
                    &at.key("ServiceSubset"),
                    format!("{} has no subset {}", self.name, rules::shown(subset)),
                );
            }
        } else {
            rules::mesh_name("subset", subset, &at.key("ServiceSubset"), problems);
        }
    }

    fn in_default_partition(&self) -> bool {
        is_default(&self.partition)
    }
}

impl Redirect {
    fn validate(&self, own: &ServiceResolver, at: &Place<'_>, problems: &mut Problems) {
        if *self == Self::default() {
            problems.error(at, "the redirect is empty; name a Service or Datacenter");
            return;
        }
        if !self.datacenter.is_empty() {
            let here = at.key("Datacenter");
            if !own.in_default_partition() {
                problems.error(
                    &here,
                    "only entries of the default partition may cross datacenters",
                );
            }
            if tenancy(&self.partition) != tenancy(&own.partition) {
                problems.error(
                    &here,
                    "a redirect can't cross both datacenter and partition",
                );
            }
        }
        let exclusive = [
            ("ServiceSubset", &self.service_subset),
            ("Partition", &self.partition),
            ("Datacenter", &self.datacenter),
        ];
        exclude(
            "SamenessGroup",
            &self.sameness_group,
            &exclusive,
            at,
            problems,
        );
        exclude("Peer", &self.peer, &exclusive, at, problems);
        if self.service.is_empty() {
            for (key, value) in [
                ("ServiceSubset", &self.service_subset),
                ("Namespace", &self.namespace),
                ("Partition", &self.partition),
                ("Peer", &self.peer),
            ] {
                if !value.is_empty() {
                    problems.error(&at.key(key), format!("{key} needs a Service"));
                }
            }
        } else {
            own.own_subset(&self.service, &self.service_subset, at, problems);
        }
        names(&self.service, &self.datacenter, &self.peer, at, problems);
    }
}

impl Failover {
    fn validate(&self, own: &ServiceResolver, at: &Place<'_>, problems: &mut Problems) {
        if !self.datacenters.is_empty() && !own.in_default_partition() {
            problems.error(
                &at.key("Datacenters"),
                "only entries of the default partition may cross datacenters",
            );
        }
        let empty = Self {
            policy: None,
            ..self.clone()
        };
        if empty == Self::default() {
            problems.error(
                at,
                "the failover is empty; give one of Service, ServiceSubset, Namespace, Datacenters, Targets and SamenessGroup",
            );
        }
        if let Some(policy) = &self.policy {
            policy.validate(&at.key("Policy"), problems);
        }
        own.own_subset(&self.service, &self.service_subset, at, problems);
        let datacenters = self.datacenters.join(",");
        let targets = if self.targets.is_empty() { "" } else { "given" }.to_owned();
        let with_group = [
            ("Datacenters", &datacenters),
            ("ServiceSubset", &self.service_subset),
            ("Targets", &targets),
        ];
        exclude(
            "SamenessGroup",
            &self.sameness_group,
            &with_group,
            at,
            problems,
        );
        let with_targets = [
            ("Datacenters", &datacenters),
            ("ServiceSubset", &self.service_subset),
            ("Service", &self.service),
        ];
        exclude("Targets", &targets, &with_targets, at, problems);
        let here = at.key("Targets");
        for (i, target) in self.targets.iter().enumerate() {
            target.validate(own, &here.index(i), problems);
        }
        let here = at.key("Datacenters");
        for (i, datacenter) in self.datacenters.iter().enumerate() {
            rules::mesh_name("datacenter name", datacenter, &here.index(i), problems);
        }
        rules::optional_mesh_name("service name", &self.service, &at.key("Service"), problems);
    }
}

impl FailoverTarget {
    fn validate(&self, own: &ServiceResolver, at: &Place<'_>, problems: &mut Problems) {
        let exclusive = [
            ("ServiceSubset", &self.service_subset),
            ("Partition", &self.partition),
            ("Datacenter", &self.datacenter),
        ];
        exclude("Peer", &self.peer, &exclusive, at, problems);
        exclude("Partition", &self.partition, &exclusive[2..], at, problems);
        // The subset of a peer's service is the peer's business, and already refused above.
        if self.peer.is_empty() {
            own.own_subset(&self.service, &self.service_subset, at, problems);
        }
        names(&self.service, &self.datacenter, &self.peer, at, problems);
    }
}

impl FailoverPolicy {
    pub(crate) fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        let modes = ["", "sequential", "order-by-locality"];
        rules::one_of(&self.mode, &modes, &at.key("Mode"), problems);
    }
}

impl PrioritizeByLocality {
    pub(crate) fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        let modes = ["", "none", "failover"];
        rules::one_of(&self.mode, &modes, &at.key("Mode"), problems);
    }
}

impl LoadBalancer {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::one_of(
            &self.policy,
            &BALANCING_POLICIES,
            &at.key("Policy"),
            problems,
        );
        if let Some(ring) = &self.ring_hash_config {
            let here = at.key("RingHashConfig");
            if self.policy != "ring_hash" {
                problems.error(&here, "only goes with the policy \"ring_hash\"");
            }
            if ring.maximum_ring_size != 0 && ring.minimum_ring_size > ring.maximum_ring_size {
                problems.error(&here, "MinimumRingSize is larger than MaximumRingSize");
            }
        }
        if self.least_request_config.is_some() && self.policy != "least_request" {
            problems.error(
                &at.key("LeastRequestConfig"),
                "only goes with the policy \"least_request\"",
            );
        }
        let policies = at.key("HashPolicies");
        if !self.hash_policies.is_empty() && !matches!(self.policy.as_str(), "ring_hash" | "maglev")
        {
            problems.error(
                &policies,
                "only go with the policies \"ring_hash\" and \"maglev\"",
            );
        }
        for (i, policy) in self.hash_policies.iter().enumerate() {
            policy.validate(&policies.index(i), problems);
        }
    }
}

impl HashPolicy {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        let fields = ["", "header", "cookie", "query_parameter"];
        rules::one_of(&self.field, &fields, &at.key("Field"), problems);
        if self.source_ip && !(self.field.is_empty() && self.field_value.is_empty()) {
            problems.error(at, "SourceIP excludes Field and FieldValue");
        } else if self.field.is_empty() != self.field_value.is_empty() {
            problems.error(at, "Field and FieldValue need each other");
        }
        let Some(cookie) = &self.cookie_config else {
            return;
        };
        let here = at.key("CookieConfig");
        if self.field != "cookie" {
            problems.error(&here, "only goes with the field \"cookie\"");
        }
        if cookie.session && !cookie.ttl.is_zero() {
            problems.error(&here, "a session cookie has no TTL");
        }
        rules::not_negative(cookie.ttl, &here.key("TTL"), problems);
    }
}

/// The syntax of a subset's filter. Which fields there are is known to the store, which checks them on writing.
fn check_filter(filter: &str, at: &Place<'_>, problems: &mut Problems) {
    if let Err(why) = Filter::parse(filter) {
        problems.error(
            at,
            format!("{} is not a filter: {why}", rules::shown(filter)),
        );
    }
}

/// Notes every given key that a given key excludes.
fn exclude(
    key: &str,
    value: &str,
    excluded: &[(&str, &String)],
    at: &Place<'_>,
    problems: &mut Problems,
) {
    if value.is_empty() {
        return;
    }
    for (other, _) in excluded.iter().filter(|(_, v)| !v.is_empty()) {
        problems.error(at, format!("{key} and {other} exclude each other"));
    }
}

fn names(service: &str, datacenter: &str, peer: &str, at: &Place<'_>, problems: &mut Problems) {
    rules::optional_mesh_name("service name", service, &at.key("Service"), problems);
    rules::optional_mesh_name(
        "datacenter name",
        datacenter,
        &at.key("Datacenter"),
        problems,
    );
    rules::optional_mesh_name("peer name", peer, &at.key("Peer"), problems);
}

fn is_default(tenancy: &str) -> bool {
    tenancy.is_empty() || tenancy.eq_ignore_ascii_case("default")
}

fn tenancy(text: &str) -> String {
    if is_default(text) {
        "default".to_owned()
    } else {
        text.to_ascii_lowercase()
    }
}

fn is_dns_label(name: &str) -> bool {
    name.len() <= rules::MAX_NAME
        && !name.starts_with('-')
        && !name.ends_with('-')
        && name
            .bytes()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
}
