//! `service-router` (store.md 3.3, discovery-chain.md 10.2).

use std::collections::BTreeMap;

use crate::model::decode::record;
use crate::model::duration::GoDuration;

record! {
    /// Routes requests of a service by path, header, query and method; the first match wins.
    pub struct ServiceRouter {
        /// Always `service-router`.
        kind: String = "Kind" always,
        /// The service.
        name: String = "Name" always,
        /// Routes in order.
        routes: Vec<ServiceRoute> = "Routes",
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
    /// One route.
    pub struct ServiceRoute {
        /// What it matches; everything unless given.
        matches: Option<RouteMatch> = "Match",
        /// Where it leads; the service itself unless given.
        destination: Option<RouteDestination> = "Destination",
    }
}

record! {
    /// What a route matches.
    pub struct RouteMatch {
        /// An HTTP request.
        http: Option<HttpMatch> = "HTTP",
    }
}

record! {
    /// Conditions on an HTTP request, all of which must hold.
    pub struct HttpMatch {
        /// This path.
        path_exact: String = "PathExact",
        /// Paths with this prefix.
        path_prefix: String = "PathPrefix",
        /// Paths that match.
        path_regex: String = "PathRegex",
        /// Compare paths without regard to case.
        case_insensitive: bool = "CaseInsensitive",
        /// Headers.
        header: Vec<HeaderMatch> = "Header",
        /// Query parameters.
        query_param: Vec<QueryParamMatch> = "QueryParam",
        /// Any of these methods.
        methods: Vec<String> = "Methods",
    }
}

record! {
    /// A condition on a header: exactly one matcher.
    pub struct HeaderMatch {
        /// Header.
        name: String = "Name",
        /// Is there.
        present: bool = "Present",
        /// Has this value.
        exact: String = "Exact",
        /// Begins so.
        prefix: String = "Prefix",
        /// Ends so.
        suffix: String = "Suffix",
        /// Matches.
        regex: String = "Regex",
        /// The condition must not hold.
        invert: bool = "Invert",
    }
}

record! {
    /// A condition on a query parameter: exactly one matcher.
    pub struct QueryParamMatch {
        /// Parameter.
        name: String = "Name",
        /// Is there.
        present: bool = "Present",
        /// Has this value.
        exact: String = "Exact",
        /// Matches.
        regex: String = "Regex",
    }
}

record! {
    /// Where a route leads and what happens on the way.
    pub struct RouteDestination {
        /// Service; the router's unless given.
        service: String = "Service",
        /// Subset of it; passes by its splitter.
        service_subset: String = "ServiceSubset",
        /// Only `default`.
        namespace: String = "Namespace",
        /// Only `default`.
        partition: String = "Partition",
        /// Replaces the matched prefix or path.
        prefix_rewrite: String = "PrefixRewrite",
        /// Time for a request.
        request_timeout: GoDuration = "RequestTimeout",
        /// Time without bytes.
        idle_timeout: GoDuration = "IdleTimeout",
        /// Retries.
        num_retries: u32 = "NumRetries",
        /// Retry when the connection fails.
        retry_on_connect_failure: bool = "RetryOnConnectFailure",
        /// Retry on these conditions.
        retry_on: Vec<String> = "RetryOn",
        /// Retry on these statuses.
        retry_on_status_codes: Vec<u32> = "RetryOnStatusCodes",
        /// Changes to the request's headers.
        request_headers: Option<HeaderModifiers> = "RequestHeaders",
        /// Changes to the response's headers.
        response_headers: Option<HeaderModifiers> = "ResponseHeaders",
    }
}

record! {
    /// Changes to headers.
    pub struct HeaderModifiers {
        /// Added beside existing values.
        add: BTreeMap<String, String> = "Add",
        /// Put in place of existing values.
        set: BTreeMap<String, String> = "Set",
        /// Removed.
        remove: Vec<String> = "Remove",
    }
}
