//! `service-splitter` (store.md 3.4).

use std::collections::BTreeMap;

use crate::model::config_entry::router::HeaderModifiers;
use crate::model::decode::record;

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
