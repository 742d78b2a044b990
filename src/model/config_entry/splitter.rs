//! `service-splitter` (store.md 3.4).

use std::collections::BTreeMap;

use crate::model::config_entry::EntryKind;
use crate::model::config_entry::router::HeaderModifiers;
use crate::model::decode::{Place, Problems, record};
use crate::model::rules;
use crate::model::validate::Validate;

record! {
    /// Splits a service's traffic by weight.
    pub struct ServiceSplitter {
        /// Always `service-splitter`.
        kind: String = "Kind" always,
        /// The service.
        name: String = "Name" always,
        /// Shares; weights add up to 100.
        splits: Vec<ServiceSplit> = "Splits",
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
    /// One share.
    pub struct ServiceSplit {
        /// Percent, in steps of 0.01.
        weight: f32 = "Weight" always,
        /// Service; the splitter's unless given.
        service: String = "Service",
        /// Subset of it.
        service_subset: String = "ServiceSubset",
        /// Only `default`.
        namespace: String = "Namespace",
        /// Only `default`.
        partition: String = "Partition",
        /// Changes to the request's headers.
        request_headers: Option<HeaderModifiers> = "RequestHeaders",
        /// Changes to the response's headers.
        response_headers: Option<HeaderModifiers> = "ResponseHeaders",
    }
}

/// All of a service's traffic, in units of 0.01 percent.
const WHOLE: i64 = 10_000;

/// A weight of a split (percent) in units of 0.01 percent, the resolution that weights have, half a unit rounded away from
/// zero (discovery-chain.md 10.3). 10000 units are the whole.
#[must_use]
pub fn weight_units(weight: f32) -> i64 {
    // The product is taken in f32 and rounded in f64, as the weights that users see were always rounded.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the cast saturates, and turns what is not a number into 0"
    )]
    let units = f64::from(weight * 100.0).round() as i64;
    units
}

impl ServiceSplit {
    /// The weight in units of 0.01 percent, see [`weight_units`].
    #[must_use]
    pub fn units(&self) -> i64 {
        weight_units(self.weight)
    }

    /// Whether two shares of a service's traffic lead to the same place. One with header changes is like no other.
    fn same_destination(&self, other: &Self, own: &str) -> bool {
        let modifies = |s: &Self| s.request_headers.is_some() || s.response_headers.is_some();
        let named = |s: &'_ Self| {
            let service = if s.service.is_empty() {
                own
            } else {
                &s.service
            };
            service.to_ascii_lowercase()
        };
        let tenancy = |t: &str| {
            if t.is_empty() {
                "default".to_owned()
            } else {
                t.to_ascii_lowercase()
            }
        };
        !modifies(self)
            && !modifies(other)
            && named(self) == named(other)
            && self.service_subset == other.service_subset
            && tenancy(&self.namespace) == tenancy(&other.namespace)
            && tenancy(&self.partition) == tenancy(&other.partition)
    }
}

impl Validate for ServiceSplitter {
    /// discovery-chain.md 10.3.
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::mesh_name("service name", &self.name, &at.key("Name"), problems);
        rules::meta(&self.meta, &at.key("Meta"), problems);
        let splits = at.key("Splits");
        if self.splits.is_empty() {
            problems.error(&splits, "a splitter needs at least one split");
            return;
        }
        let mut sum: i64 = 0;
        for (i, split) in self.splits.iter().enumerate() {
            let at = splits.index(i);
            let units = split.units();
            sum = sum.saturating_add(units);
            if units < 0 || split.weight.is_nan() {
                problems.error(&at.key("Weight"), "a weight must not be negative");
            }
            rules::optional_mesh_name("service name", &split.service, &at.key("Service"), problems);
            rules::optional_mesh_name(
                "subset",
                &split.service_subset,
                &at.key("ServiceSubset"),
                problems,
            );
            for (key, modifiers) in [
                ("RequestHeaders", &split.request_headers),
                ("ResponseHeaders", &split.response_headers),
            ] {
                if let Some(modifiers) = modifiers {
                    modifiers.validate(&at.key(key), problems);
                }
            }
            let twin = self.splits[..i]
                .iter()
                .position(|s| s.same_destination(split, &self.name));
            if let Some(twin) = twin {
                let service = if split.service.is_empty() {
                    &self.name
                } else {
                    &split.service
                };
                problems.error(
                    &at,
                    format!(
                        "leads to the same place as split {twin}: service {}, subset {}",
                        rules::shown(service),
                        rules::shown(&split.service_subset)
                    ),
                );
            }
        }
        if sum != WHOLE {
            problems.error(
                &splits,
                format!(
                    "the weights add up to {}{}.{:02}, not to 100",
                    if sum < 0 { "-" } else { "" },
                    sum.unsigned_abs() / 100,
                    sum.unsigned_abs() % 100
                ),
            );
        }
    }

    /// Decisions R4 hold for splits too, though discovery-chain.md 10.7 lets them pass.
    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::only_default(&self.namespace, &self.partition, at, problems);
        let splits = at.key("Splits");
        for (i, split) in self.splits.iter().enumerate() {
            let at = splits.index(i);
            rules::only_default(&split.namespace, &split.partition, &at, problems);
        }
    }

    fn normalize(&mut self) {
        self.kind = EntryKind::ServiceSplitter.to_string();
        rules::clear_default(&mut self.namespace);
        rules::clear_default(&mut self.partition);
        for split in &mut self.splits {
            #[allow(
                clippy::cast_precision_loss,
                reason = "valid weights have at most five digits"
            )]
            let weight = split.units() as f32 / 100.0;
            split.weight = weight;
            rules::clear_default(&mut split.namespace);
            rules::clear_default(&mut split.partition);
        }
    }
}
