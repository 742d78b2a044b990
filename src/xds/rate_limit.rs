//! Rate limits of service-defaults: how many requests an instance takes (store.md 3.2).
//!
//! They come as an extension of the proxy, which central configuration alone can give. The filter
//! `envoy.filters.http.local_ratelimit` stands after the access rules, so that denied requests cost nothing. A limit of
//! single paths is a route of its own, with its own bucket in place of the instance's.

use std::collections::HashMap;

use envoy_types::pb::envoy::extensions::filters::http::local_ratelimit::v3::LocalRateLimit;
use envoy_types::pb::envoy::r#type::v3::{FractionalPercent, TokenBucket};

use super::encode::any;
use super::http;
use super::matchers;
use super::proto::{core, duration, hcm, http_filter, matcher, route, uint32};
use super::{BuildError, names};
use crate::model::{
    EnvoyExtension, GoDuration, InstanceLevelRateLimits, RATE_LIMIT_EXTENSION, RateLimitRoute,
    RateLimits, decode_document,
};

const FILTER: &str = "envoy.filters.http.local_ratelimit";

/// The limits among a proxy's extensions, if there are any.
///
/// # Errors
/// They can't be read.
pub(super) fn of(
    extensions: &[EnvoyExtension],
) -> Result<Option<InstanceLevelRateLimits>, BuildError> {
    let Some(extension) = extensions.iter().find(|e| e.name == RATE_LIMIT_EXTENSION) else {
        return Ok(None);
    };
    let arguments = serde_json::Value::Object(extension.arguments.clone());
    let limits = decode_document::<RateLimits>(&crate::hcl::Value::from_json(&arguments))
        .map_err(|problems| BuildError::new(problems.text()).at("RateLimits"))?;
    let level = limits.0.instance_level;
    let none = level.requests_per_second == 0 && level.routes.is_empty();
    Ok((!none).then_some(level))
}

/// The filter. It has a bucket if there is a limit for all requests.
pub(super) fn filter(limits: &InstanceLevelRateLimits) -> hcm::HttpFilter {
    let bucket = bucket(limits.requests_per_second, limits.requests_max_burst);
    http_filter(FILTER, &limit(bucket))
}

/// A route for each limit of paths, all with this action, in their order; and what is wrong with some of them.
pub(super) fn routes(
    limits: &InstanceLevelRateLimits,
    action: &route::RouteAction,
) -> (Vec<route::Route>, Vec<String>) {
    let (mut routes, mut problems) = (Vec::new(), Vec::new());
    for (number, limited) in limits.routes.iter().enumerate() {
        match limited_route(limited, action) {
            Ok(route) => routes.push(route),
            Err(error) => problems.push(
                error
                    .at(&format!("RateLimits.InstanceLevel.Routes[{number}]"))
                    .to_string(),
            ),
        }
    }
    (routes, problems)
}

fn limited_route(
    limited: &RateLimitRoute,
    action: &route::RouteAction,
) -> Result<route::Route, BuildError> {
    use route::route_match::PathSpecifier;

    let path = if !limited.path_exact.is_empty() {
        PathSpecifier::Path(limited.path_exact.clone())
    } else if !limited.path_prefix.is_empty() {
        PathSpecifier::Prefix(limited.path_prefix.clone())
    } else if !limited.path_regex.is_empty() {
        let pattern =
            matchers::pattern(&limited.path_regex, false).map_err(|e| e.at("PathRegex"))?;
        match pattern {
            matcher::string_matcher::MatchPattern::SafeRegex(regex) => {
                PathSpecifier::SafeRegex(regex)
            }
            _ => return Err(BuildError::new("PathRegex is not a regular expression")),
        }
    } else {
        return Err(BuildError::new(
            "one of PathExact, PathPrefix and PathRegex is needed",
        ));
    };
    let bucket = bucket(limited.requests_per_second, limited.requests_max_burst)
        .ok_or_else(|| BuildError::new("RequestsPerSecond must be above 0"))?;
    let matches = route::RouteMatch {
        path_specifier: Some(path),
        ..Default::default()
    };
    let mut route = http::route(matches, action.clone());
    // One entry: there is no order that could change.
    route.typed_per_filter_config = HashMap::from([(FILTER.to_owned(), any(&limit(Some(bucket))))]);
    Ok(route)
}

fn limit(bucket: Option<TokenBucket>) -> LocalRateLimit {
    LocalRateLimit {
        stat_prefix: names::PUBLIC_LISTENER.to_owned(),
        token_bucket: bucket,
        filter_enabled: always(),
        filter_enforced: always(),
        ..Default::default()
    }
}

/// Of all requests; Envoy's default is none.
fn always() -> Option<core::RuntimeFractionalPercent> {
    Some(core::RuntimeFractionalPercent {
        default_value: Some(FractionalPercent {
            numerator: 100,
            ..Default::default()
        }),
        ..Default::default()
    })
}

/// A second's worth of requests at once, unless the burst says otherwise.
fn bucket(per_second: u32, burst: u32) -> Option<TokenBucket> {
    (per_second > 0).then(|| TokenBucket {
        max_tokens: if burst == 0 { per_second } else { burst },
        tokens_per_fill: uint32(per_second),
        fill_interval: duration(GoDuration::from_secs(1)),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::xds::ResourceType;
    use crate::xds::fixtures::*;

    const PUBLIC: &str = "public_listener:0.0.0.0:21000";

    fn limited(protocol: &str, level: &Value) -> Fixture {
        Fixture::web()
            .config(json!({ "protocol": protocol }))
            .proxy(|header| {
                header.proxy.envoy_extensions = vec![read(&json!({
                    "Name": super::RATE_LIMIT_EXTENSION, "Arguments": {"InstanceLevel": level},
                }))];
            })
    }

    fn bucket(of: &Value) -> (Value, Value) {
        assert_eq!(
            of["filterEnabled"]["defaultValue"],
            json!({"numerator": 100})
        );
        assert_eq!(
            of["filterEnforced"]["defaultValue"],
            json!({"numerator": 100})
        );
        let bucket = &of["tokenBucket"];
        (bucket["maxTokens"].clone(), bucket["tokensPerFill"].clone())
    }

    #[test]
    fn store_3_2_requests_of_an_instance_are_limited_after_the_rules() {
        let generated = limited(
            "http",
            &json!({
                "RequestsPerSecond": 100, "RequestsMaxBurst": 150, "Routes": [
                    {"PathExact": "/a", "RequestsPerSecond": 5},
                    {"PathPrefix": "/b", "RequestsPerSecond": 6, "RequestsMaxBurst": 7},
                    {"PathRegex": "/c/.*", "RequestsPerSecond": 8},
                ],
            }),
        )
        .generate();
        assert_eq!(generated.problems, []);
        let listener = shown(&generated, ResourceType::Listener, PUBLIC);
        let manager = last_filter(&listener);
        let filters = manager["httpFilters"].as_array().unwrap();
        let names: Vec<_> = filters
            .iter()
            .map(|f| f["name"].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "envoy.filters.http.rbac",
                "envoy.filters.http.header_to_metadata",
                super::FILTER,
                "envoy.filters.http.router"
            ]
        );
        assert_eq!(bucket(&filters[2]["typedConfig"]), (json!(150), json!(100)));
        let routes = manager["routeConfig"]["virtualHosts"][0]["routes"]
            .as_array()
            .unwrap();
        assert_eq!(routes.len(), 4);
        let own = |number: usize| bucket(&routes[number]["typedPerFilterConfig"][super::FILTER]);
        assert_eq!(routes[0]["match"], json!({"path": "/a"}));
        assert_eq!(own(0), (json!(5), json!(5)));
        assert_eq!(routes[1]["match"], json!({"prefix": "/b"}));
        assert_eq!(own(1), (json!(7), json!(6)));
        assert_eq!(routes[2]["match"], json!({"safeRegex": {"regex": "/c/.*"}}));
        assert_eq!(
            routes[3],
            json!({"match": {"prefix": "/"}, "route": {"cluster": "local_app"}})
        );
        assert!(
            routes
                .iter()
                .all(|route| route["route"] == routes[3]["route"])
        );
    }

    #[test]
    fn x3_a_limit_that_cannot_be_kept_is_told() {
        let generated = limited("http", &json!({"Routes": [
            {"PathExact": "/a"}, {"RequestsPerSecond": 1}, {"PathRegex": "(", "RequestsPerSecond": 1},
            {"PathPrefix": "/b", "RequestsPerSecond": 1},
        ]}))
        .generate();
        assert_eq!(generated.problems.len(), 3, "{:?}", generated.problems);
        let listener = shown(&generated, ResourceType::Listener, PUBLIC);
        let manager = last_filter(&listener);
        assert!(
            manager["httpFilters"][2]["typedConfig"]
                .get("tokenBucket")
                .is_none()
        );
        assert_eq!(
            manager["routeConfig"]["virtualHosts"][0]["routes"]
                .as_array()
                .unwrap()
                .len(),
            2
        );

        let tcp = limited("tcp", &json!({"RequestsPerSecond": 1})).generate();
        assert_eq!(tcp.problems.len(), 1);
        let bad = limited("http", &json!({"RequestsPerSecond": "many"})).generate();
        assert_eq!(bad.problems.len(), 1, "{:?}", bad.problems);
        assert!(
            !json_of(bad.set.get(ResourceType::Listener, PUBLIC).unwrap())
                .to_string()
                .contains("ratelimit")
        );
        let none = limited("http", &json!({})).generate();
        assert_eq!(none.problems, []);
        assert!(
            !json_of(none.set.get(ResourceType::Listener, PUBLIC).unwrap())
                .to_string()
                .contains("ratelimit")
        );
    }
}
