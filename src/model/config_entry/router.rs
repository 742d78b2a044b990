//! `service-router` (store.md 3.3, discovery-chain.md 10.2).

use std::collections::BTreeMap;

use crate::model::config_entry::EntryKind;
use crate::model::decode::{Place, Problems, record};
use crate::model::duration::GoDuration;
use crate::model::rules;
use crate::model::validate::Validate;

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

const RETRY_CONDITIONS: [&str; 12] = [
    "5xx",
    "gateway-error",
    "reset",
    "connect-failure",
    "envoy-ratelimited",
    "retriable-4xx",
    "refused-stream",
    "cancelled",
    "deadline-exceeded",
    "internal",
    "resource-exhausted",
    "unavailable",
];

impl Validate for ServiceRouter {
    /// discovery-chain.md 10.2.
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::mesh_name("service name", &self.name, &at.key("Name"), problems);
        rules::meta(&self.meta, &at.key("Meta"), problems);
        let routes = at.key("Routes");
        for (i, route) in self.routes.iter().enumerate() {
            route.validate(&routes.index(i), problems);
        }
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::only_default(&self.namespace, &self.partition, at, problems);
        let routes = at.key("Routes");
        for (i, route) in self.routes.iter().enumerate() {
            if let Some(to) = &route.destination {
                let route = routes.index(i);
                let at = route.key("Destination");
                rules::only_default(&to.namespace, &to.partition, &at, problems);
            }
        }
    }

    fn normalize(&mut self) {
        self.kind = EntryKind::ServiceRouter.to_string();
        rules::clear_default(&mut self.namespace);
        rules::clear_default(&mut self.partition);
        for route in &mut self.routes {
            if let Some(http) = route.matches.as_mut().and_then(|m| m.http.as_mut()) {
                rules::upper_case(&mut http.methods);
            }
            if let Some(to) = &mut route.destination {
                rules::clear_default(&mut to.namespace);
                rules::clear_default(&mut to.partition);
            }
        }
    }
}

impl ServiceRoute {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        let http = self.matches.as_ref().and_then(|m| m.http.as_ref());
        if let Some(http) = http {
            let at = at.key("Match");
            http.validate(&at.key("HTTP"), problems);
        }
        let Some(to) = &self.destination else { return };
        let at = at.key("Destination");
        rules::optional_mesh_name("service name", &to.service, &at.key("Service"), problems);
        rules::optional_mesh_name(
            "subset",
            &to.service_subset,
            &at.key("ServiceSubset"),
            problems,
        );
        let has_path = http.is_some_and(|h| !h.path_exact.is_empty() || !h.path_prefix.is_empty());
        if !to.prefix_rewrite.is_empty() && !has_path {
            problems.error(
                &at.key("PrefixRewrite"),
                "needs PathExact or PathPrefix in the match of the same route",
            );
        }
        let conditions = at.key("RetryOn");
        for (i, condition) in to.retry_on.iter().enumerate() {
            rules::one_of(condition, &RETRY_CONDITIONS, &conditions.index(i), problems);
        }
        rules::not_negative(to.request_timeout, &at.key("RequestTimeout"), problems);
        rules::not_negative(to.idle_timeout, &at.key("IdleTimeout"), problems);
        for (key, modifiers) in [
            ("RequestHeaders", &to.request_headers),
            ("ResponseHeaders", &to.response_headers),
        ] {
            if let Some(modifiers) = modifiers {
                modifiers.validate(&at.key(key), problems);
            }
        }
    }
}

impl HttpMatch {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::paths(
            &self.path_exact,
            &self.path_prefix,
            &self.path_regex,
            at,
            problems,
        );
        let headers = at.key("Header");
        for (i, header) in self.header.iter().enumerate() {
            let at = headers.index(i);
            if rules::is_blank(&header.name) {
                problems.error(&at.key("Name"), "a header match needs a Name");
            }
            let given = usize::from(header.present)
                + [&header.exact, &header.prefix, &header.suffix, &header.regex]
                    .iter()
                    .filter(|m| !m.is_empty())
                    .count();
            if given != 1 {
                problems.error(
                    &at,
                    "a header match needs exactly one of Present, Exact, Prefix, Suffix and Regex",
                );
            }
            rules::regex(&header.regex, &at.key("Regex"), problems);
        }
        let parameters = at.key("QueryParam");
        for (i, parameter) in self.query_param.iter().enumerate() {
            let at = parameters.index(i);
            if rules::is_blank(&parameter.name) {
                problems.error(&at.key("Name"), "a query parameter match needs a Name");
            }
            let given = usize::from(parameter.present)
                + usize::from(!parameter.exact.is_empty())
                + usize::from(!parameter.regex.is_empty());
            if given != 1 {
                problems.error(
                    &at,
                    "a query parameter match needs exactly one of Present, Exact and Regex",
                );
            }
            rules::regex(&parameter.regex, &at.key("Regex"), problems);
        }
        rules::methods(&self.methods, &at.key("Methods"), problems);
    }
}

impl HeaderModifiers {
    /// Envoy refuses headers without a name, and line breaks in values.
    pub(crate) fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        for (key, map) in [("Add", &self.add), ("Set", &self.set)] {
            let at = at.key(key);
            for (name, value) in map {
                header_name(name, &at.key(name), problems);
                if value.chars().any(|c| matches!(c, '\r' | '\n' | '\0')) {
                    problems.error(&at.key(name), "a header value must be one line");
                }
            }
        }
        let removed = at.key("Remove");
        for (i, name) in self.remove.iter().enumerate() {
            header_name(name, &removed.index(i), problems);
        }
    }
}

fn header_name(name: &str, at: &Place<'_>, problems: &mut Problems) {
    if rules::is_blank(name) || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        problems.error(at, format!("{} is not a header name", rules::shown(name)));
    }
}
