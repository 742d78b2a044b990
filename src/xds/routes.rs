//! Routes of a discovery chain (xds.md 4.5): what stands behind the route table that an upstream's listener names.

use smol_str::SmolStr;

use super::clusters::{node_cluster, resolver_of};
use super::http;
use super::proto::{boolean, core, duration, matcher, route, string_match, uint32};
use super::{BuildError, matchers};
use crate::model::chain::{ChainNode, ChainNodeType, CompiledChain};
use crate::model::{
    GoDuration, HashPolicy, HeaderMatch, HeaderModifiers, HttpMatch, LoadBalancer, QueryParamMatch,
    RouteDestination,
};
use matcher::string_matcher::MatchPattern;
use route::route_action::ClusterSpecifier;

/// The route table of a configured chain.
///
/// # Errors
/// A rule that Envoy would refuse; a chain that isn't well formed.
pub(super) fn route_table(
    chain: &CompiledChain,
    name: &str,
    validate_clusters: bool,
) -> Result<route::RouteConfiguration, BuildError> {
    let start = chain.start().ok_or_else(|| {
        BuildError::new(format!(
            "the chain has no start node {:?}",
            chain.start_node
        ))
    })?;
    let routes = match start.kind {
        ChainNodeType::Router => router_routes(chain, start)?,
        ChainNodeType::Splitter | ChainNodeType::Resolver => {
            let action = action(chain, start)?;
            action
                .map(|action| http::route(http::prefix("/"), action))
                .into_iter()
                .collect()
        }
    };
    let mut table = http::route_table(name, name, routes);
    if validate_clusters {
        table.validate_clusters = boolean(true);
    }
    Ok(table)
}

/// One route for each of the router's, in its order: the first that fits decides.
fn router_routes(
    chain: &CompiledChain,
    router: &ChainNode,
) -> Result<Vec<route::Route>, BuildError> {
    let mut routes = Vec::with_capacity(router.routes.len());
    for (number, configured) in router.routes.iter().enumerate() {
        let place = format!("route {number} of {}", router.name);
        let next = node_of(chain, &configured.next_node)?;
        // The cluster is awaited: the route would lead nowhere.
        let Some(mut action) = action(chain, next).map_err(|e| e.at(&place))? else {
            continue;
        };
        let http = configured
            .definition
            .matches
            .as_ref()
            .and_then(|m| m.http.as_ref());
        let matches = http
            .map_or_else(|| Ok(http::prefix("/")), route_match)
            .map_err(|e| e.at(&place))?;
        let mut built = route::Route::default();
        if let Some(destination) = &configured.definition.destination {
            destine(&mut action, destination).map_err(|e| e.at(&place))?;
            let (add, remove) =
                modifiers(destination.request_headers.as_ref()).map_err(|e| e.at(&place))?;
            (
                built.request_headers_to_add,
                built.request_headers_to_remove,
            ) = (add, remove);
            let (add, remove) =
                modifiers(destination.response_headers.as_ref()).map_err(|e| e.at(&place))?;
            (
                built.response_headers_to_add,
                built.response_headers_to_remove,
            ) = (add, remove);
        }
        built.r#match = Some(matches);
        built.action = Some(route::route::Action::Route(action));
        routes.push(built);
    }
    Ok(routes)
}

fn node_of<'a>(chain: &'a CompiledChain, key: &str) -> Result<&'a ChainNode, BuildError> {
    chain
        .nodes
        .get(key)
        .map(|node| &**node)
        .ok_or_else(|| BuildError::new(format!("the chain has no node {key:?}")))
}

/// Where a splitter's or resolver's requests go; `None` while its cluster is awaited.
fn action(
    chain: &CompiledChain,
    node: &ChainNode,
) -> Result<Option<route::RouteAction>, BuildError> {
    let mut action = match node.kind {
        ChainNodeType::Router => {
            return Err(BuildError::new(format!(
                "the chain leads to the router {:?}, which must come first",
                node.name
            )));
        }
        ChainNodeType::Splitter => split(chain, node)?,
        ChainNodeType::Resolver => {
            let Some(cluster) = node_cluster(chain, node)? else {
                return Ok(None);
            };
            let mut action = http::to_cluster(&cluster);
            let timeout = resolver_of(node)?.request_timeout;
            if timeout.0 > 0 {
                action.timeout = duration(timeout);
            }
            action
        }
    };
    action.hash_policy = hash_policies(node.load_balancer.as_ref())?;
    Ok(Some(action))
}

fn split(chain: &CompiledChain, splitter: &ChainNode) -> Result<route::RouteAction, BuildError> {
    let mut legs = Vec::with_capacity(splitter.splits.len());
    let mut total: u64 = 0;
    for leg in &splitter.splits {
        let next = node_of(chain, &leg.next_node)?;
        if next.kind != ChainNodeType::Resolver {
            return Err(BuildError::new(format!(
                "a leg of the splitter {:?} doesn't lead to a resolver",
                splitter.name
            )));
        }
        let Some(cluster) = node_cluster(chain, next)? else {
            continue;
        };
        let weight = hundredths(leg.weight);
        total += u64::from(weight);
        let (request_add, request_remove) = modifiers(leg.definition.request_headers.as_ref())?;
        let (response_add, response_remove) = modifiers(leg.definition.response_headers.as_ref())?;
        legs.push(route::weighted_cluster::ClusterWeight {
            name: cluster.to_string(),
            weight: uint32(weight),
            request_headers_to_add: request_add,
            request_headers_to_remove: request_remove,
            response_headers_to_add: response_add,
            response_headers_to_remove: response_remove,
            ..Default::default()
        });
    }
    if total == 0 {
        return Err(BuildError::new(format!(
            "the splitter {:?} has no leg with a weight",
            splitter.name
        )));
    }
    let weighted = route::WeightedCluster {
        clusters: legs,
        ..Default::default()
    };
    Ok(route::RouteAction {
        cluster_specifier: Some(ClusterSpecifier::WeightedClusters(weighted)),
        ..Default::default()
    })
}

/// Percent in hundredths (must-hold 45).
fn hundredths(percent: f32) -> u32 {
    let scaled = (f64::from(percent) * 100.0).round();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to the range of u32"
    )]
    let hundredths = scaled.clamp(0.0, f64::from(u32::MAX)) as u32;
    hundredths
}

fn route_match(http: &HttpMatch) -> Result<route::RouteMatch, BuildError> {
    use route::route_match::PathSpecifier;

    let path = if !http.path_exact.is_empty() {
        PathSpecifier::Path(http.path_exact.clone())
    } else if !http.path_prefix.is_empty() {
        PathSpecifier::Prefix(http.path_prefix.clone())
    } else if !http.path_regex.is_empty() {
        let pattern = matchers::pattern(&http.path_regex, http.case_insensitive)
            .map_err(|e| e.at("PathRegex"))?;
        let MatchPattern::SafeRegex(regex) = pattern else {
            return Err(BuildError::new("PathRegex is not a regular expression"));
        };
        PathSpecifier::SafeRegex(regex)
    } else {
        PathSpecifier::Prefix("/".to_owned())
    };
    // Envoy ignores the setting beside a regular expression.
    let case_insensitive = http.case_insensitive && !matches!(path, PathSpecifier::SafeRegex(_));
    let headers = http
        .header
        .iter()
        .filter_map(|condition| header(condition).transpose());
    let mut headers = headers.collect::<Result<Vec<_>, _>>()?;
    if !http.methods.is_empty() {
        headers.push(matchers::methods(&http.methods));
    }
    let query = http
        .query_param
        .iter()
        .filter_map(|condition| query(condition).transpose());
    Ok(route::RouteMatch {
        path_specifier: Some(path),
        case_sensitive: if case_insensitive {
            boolean(false)
        } else {
            None
        },
        headers,
        query_parameters: query.collect::<Result<_, _>>()?,
        ..Default::default()
    })
}

/// A condition on a header; none if it has no matcher (4.5.2).
fn header(condition: &HeaderMatch) -> Result<Option<route::HeaderMatcher>, BuildError> {
    let place = |e: BuildError| e.at(&format!("Header {:?}", condition.name));
    let specifier = if !condition.exact.is_empty() {
        matchers::text(MatchPattern::Exact(condition.exact.clone()), false)
    } else if !condition.regex.is_empty() {
        matchers::text(
            matchers::pattern(&condition.regex, false).map_err(place)?,
            false,
        )
    } else if !condition.prefix.is_empty() {
        matchers::text(MatchPattern::Prefix(condition.prefix.clone()), false)
    } else if !condition.suffix.is_empty() {
        matchers::text(MatchPattern::Suffix(condition.suffix.clone()), false)
    } else if condition.present {
        route::header_matcher::HeaderMatchSpecifier::PresentMatch(true)
    } else {
        return Ok(None);
    };
    matchers::header(&condition.name, specifier, condition.invert).map(Some)
}

fn query(condition: &QueryParamMatch) -> Result<Option<route::QueryParameterMatcher>, BuildError> {
    use route::query_parameter_matcher::QueryParameterMatchSpecifier as Specifier;

    if condition.name.is_empty() {
        return Err(BuildError::new("a QueryParam needs a Name"));
    }
    let specifier = if !condition.exact.is_empty() {
        Specifier::StringMatch(string_match(
            MatchPattern::Exact(condition.exact.clone()),
            false,
        ))
    } else if !condition.regex.is_empty() {
        let pattern = matchers::pattern(&condition.regex, false)
            .map_err(|e| e.at(&format!("QueryParam {:?}", condition.name)))?;
        Specifier::StringMatch(string_match(pattern, false))
    } else if condition.present {
        Specifier::PresentMatch(true)
    } else {
        return Ok(None);
    };
    Ok(Some(route::QueryParameterMatcher {
        name: condition.name.clone(),
        query_parameter_match_specifier: Some(specifier),
    }))
}

/// xds.md 4.5.3.
fn destine(
    action: &mut route::RouteAction,
    destination: &RouteDestination,
) -> Result<(), BuildError> {
    action
        .prefix_rewrite
        .clone_from(&destination.prefix_rewrite);
    if destination.request_timeout.0 > 0 {
        action.timeout = duration(destination.request_timeout);
    }
    match destination.idle_timeout.0 {
        0 => {}
        // A negative one switches the timeout off, which Envoy spells 0.
        _ => action.idle_timeout = duration(destination.idle_timeout),
    }
    action.retry_policy = retry_policy(destination)?;
    Ok(())
}

fn retry_policy(destination: &RouteDestination) -> Result<Option<route::RetryPolicy>, BuildError> {
    let codes = &destination.retry_on_status_codes;
    if destination.num_retries == 0
        && !destination.retry_on_connect_failure
        && destination.retry_on.is_empty()
        && codes.is_empty()
    {
        return Ok(None);
    }
    if let Some(code) = codes.iter().find(|code| !(100..600).contains(*code)) {
        return Err(BuildError::new(format!(
            "RetryOnStatusCodes: {code} is not an HTTP status"
        )));
    }
    let mut conditions: Vec<&str> = destination.retry_on.iter().map(String::as_str).collect();
    if destination.retry_on_connect_failure && !conditions.contains(&"connect-failure") {
        conditions.push("connect-failure");
    }
    if !codes.is_empty() && !conditions.contains(&"retriable-status-codes") {
        conditions.push("retriable-status-codes");
    }
    Ok(Some(route::RetryPolicy {
        retry_on: conditions.join(","),
        num_retries: if destination.num_retries == 0 {
            None
        } else {
            uint32(destination.num_retries)
        },
        retriable_status_codes: codes.clone(),
        ..Default::default()
    }))
}

/// Headers to add and to remove. Additions come before replacements, each sorted by name (xds.md 1.10).
type HeaderChanges = (Vec<core::HeaderValueOption>, Vec<String>);

fn modifiers(of: Option<&HeaderModifiers>) -> Result<HeaderChanges, BuildError> {
    use core::header_value_option::HeaderAppendAction::{
        AppendIfExistsOrAdd, OverwriteIfExistsOrAdd,
    };

    let Some(of) = of else {
        return Ok(HeaderChanges::default());
    };
    let add = of.add.iter().map(|header| (header, AppendIfExistsOrAdd));
    let set = of.set.iter().map(|header| (header, OverwriteIfExistsOrAdd));
    let options = add.chain(set).map(|((name, value), action)| {
        check_changeable(name)?;
        if value.contains(['\0', '\r', '\n']) {
            return Err(BuildError::new(format!(
                "the value of header {name:?} has a line break or a zero"
            )));
        }
        Ok(core::HeaderValueOption {
            header: Some(core::HeaderValue {
                key: name.clone(),
                value: value.clone(),
                ..Default::default()
            }),
            append_action: action as i32,
            ..Default::default()
        })
    });
    let options = options.collect::<Result<_, BuildError>>()?;
    of.remove
        .iter()
        .try_for_each(|name| check_changeable(name))?;
    Ok((options, of.remove.clone()))
}

/// Envoy lets nobody change pseudo headers and `Host`.
fn check_changeable(name: &str) -> Result<(), BuildError> {
    if name.starts_with(':') || name.eq_ignore_ascii_case("host") {
        return Err(BuildError::new(format!(
            "the header {name:?} can't be changed"
        )));
    }
    matchers::check_header_name(name)
}

/// What of a request chooses the instance (xds.md 4.5.4).
fn hash_policies(
    config: Option<&LoadBalancer>,
) -> Result<Vec<route::route_action::HashPolicy>, BuildError> {
    match config {
        Some(config) if matches!(config.policy.as_str(), "ring_hash" | "maglev") => {
            config.hash_policies.iter().map(hash_policy).collect()
        }
        _ => Ok(Vec::new()),
    }
}

fn hash_policy(configured: &HashPolicy) -> Result<route::route_action::HashPolicy, BuildError> {
    use route::route_action::hash_policy::{
        ConnectionProperties, Cookie, Header, PolicySpecifier, QueryParameter,
    };

    let name = &configured.field_value;
    if !configured.source_ip && name.is_empty() {
        return Err(BuildError::new(
            "LoadBalancer.HashPolicies: FieldValue is needed",
        ));
    }
    let specifier = match configured.field.as_str() {
        _ if configured.source_ip => {
            PolicySpecifier::ConnectionProperties(ConnectionProperties { source_ip: true })
        }
        "header" => {
            matchers::check_header_name(name)?;
            PolicySpecifier::Header(Header {
                header_name: name.clone(),
                ..Default::default()
            })
        }
        "cookie" => {
            let mut cookie = Cookie {
                name: name.clone(),
                ..Default::default()
            };
            if let Some(config) = &configured.cookie_config {
                cookie.path.clone_from(&config.path);
                if config.session {
                    cookie.ttl = duration(GoDuration(0));
                } else if !config.ttl.is_zero() {
                    cookie.ttl = duration(config.ttl);
                }
            }
            PolicySpecifier::Cookie(cookie)
        }
        "query_parameter" => PolicySpecifier::QueryParameter(QueryParameter { name: name.clone() }),
        other => {
            return Err(BuildError::new(format!(
                "LoadBalancer.HashPolicies: Field {other:?} is not one of header, cookie, query_parameter"
            )));
        }
    };
    Ok(route::route_action::HashPolicy {
        terminal: configured.terminal,
        policy_specifier: Some(specifier),
    })
}

/// The cluster that all traffic of a chain goes to, for listeners that can't choose by request: its start node must be a
/// resolver. `None` while the cluster is awaited.
///
/// # Errors
/// The chain starts with a router or splitter.
pub(super) fn only_cluster(chain: &CompiledChain) -> Result<Option<SmolStr>, BuildError> {
    match chain.start() {
        Some(start) if start.kind == ChainNodeType::Resolver => node_cluster(chain, start),
        Some(start) => Err(BuildError::new(format!(
            "the chain starts with a {}, which needs one of the protocols http, http2 and grpc",
            start.kind
        ))),
        None => Err(BuildError::new(format!(
            "the chain has no start node {:?}",
            chain.start_node
        ))),
    }
}
