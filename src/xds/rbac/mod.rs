//! Access rules from intentions (xds.md 4.4).
//!
//! Intentions are ordered: the first whose source fits the caller decides. Envoy's filter isn't: it has one set of
//! policies, and either whatever fits one is allowed (`ALLOW`) or it is denied (`DENY`). So the order is turned into
//! exclusions. With the intentions sorted, highest precedence first:
//!
//! 1. an intention that a higher one hides entirely is dropped (its source is the same, or part of the higher one's);
//! 2. each intention excludes the sources of all higher ones that overlap with its own;
//! 3. an intention that says what holds anyway is dropped, its source stays excluded from the others;
//! 4. what is left becomes policies of an `ALLOW` filter if callers are denied by default, else of a `DENY` filter.
//!
//! On TCP connections the filter decides only when a caller says something, so the TLS handshake has its own copy of the
//! rules (the module `callers`).
//!
//! The same happens among the permissions of an intention about requests. Tokens are one more condition of what is
//! allowed, never of what is denied: who comes without a token that a rule asks for is denied by that rule, and no other
//! rule gets to see him. In doubt the answer is no: an intention that can't be expressed denies its source, and that is
//! told.

mod callers;
mod permission;
mod source;
mod token;

use std::collections::BTreeMap;

use smol_str::SmolStr;
use triomphe::Arc;

use super::encode::Fields;
use super::jwt::TokenProvider;
use super::proto::{filter_of, hcm, http_filter_of, listener, matcher, rbac};
use crate::model::{Intention, IntentionAction, JwtProvider};
use permission::RequestRule;
use source::Source;
use token::{Demand, Providers};

use envoy_types::pb::envoy::extensions::filters::{
    http::rbac::v3 as http, network::rbac::v3 as network,
};

/// What a filter can see of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layer {
    /// Connections: only who calls.
    Connection,
    /// Connections that carry HTTP requests, which the filter can't see: who needs a token may not call.
    HiddenRequest,
    /// HTTP requests: also what they ask for.
    Request,
}

/// The rules of one listener.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AccessRules {
    action: rbac::rbac::Action,
    /// Sorted by name.
    policies: Vec<(SmolStr, rbac::Policy)>,
    /// Whom the TLS handshake lets in; empty if it is everybody with a certificate.
    callers: Vec<matcher::StringMatcher>,
    /// Whose tokens the rules ask for.
    providers: BTreeMap<SmolStr, TokenProvider>,
}

/// What the rules of a listener are made from.
#[derive(Debug, Clone, Copy)]
pub(super) struct RuleSource<'a> {
    /// Who may call.
    pub intentions: &'a [Intention],
    /// What holds for callers that no intention speaks of.
    pub default_allow: bool,
    /// The mesh's trust domain.
    pub trust_domain: &'a str,
    /// Issuers of tokens.
    pub jwt_providers: &'a [Arc<JwtProvider>],
}

/// What an intention decides.
#[derive(Debug, Clone)]
enum Decision {
    /// May call, with a token if one is asked for.
    Allow(Option<Demand>),
    Deny,
    /// Depends on the request, which needs a token first if one is asked for.
    Permissions(Vec<RequestRule>, Option<Demand>),
}

/// An intention without its order.
struct Rule<'a> {
    source: Source<'a>,
    decision: Decision,
    /// Sources that a higher intention decides about, the nearest one first.
    except: Vec<Source<'a>>,
}

impl AccessRules {
    /// Nobody may call.
    pub(super) fn deny_all() -> Self {
        Self {
            action: rbac::rbac::Action::Allow,
            policies: Vec::new(),
            callers: vec![callers::nobody()],
            providers: BTreeMap::new(),
        }
    }

    /// The rules that intentions make, and what is wrong with some of them.
    pub(super) fn new(from: RuleSource<'_>, layer: Layer) -> (Self, Vec<String>) {
        let RuleSource {
            default_allow,
            trust_domain,
            ..
        } = from;
        let mut problems = Vec::new();
        if trust_domain.is_empty() {
            problems.push("nobody may call: the trust domain isn't known".to_owned());
            return (Self::deny_all(), problems);
        }
        let mut providers = Providers::new(from.jwt_providers);
        let mut rules = without_order(from.intentions, layer, &mut providers, &mut problems);
        let callers = match layer {
            Layer::Request => Vec::new(),
            Layer::Connection | Layer::HiddenRequest => {
                callers::identities(&rules, default_allow, trust_domain).unwrap_or_else(|why| {
                    problems.push(format!(
                        "callers are denied only when they say something: {why}"
                    ));
                    Vec::new()
                })
            }
        };
        rules.retain(|rule| rule.is_exception(default_allow));
        let mut principals = Vec::new();
        let mut policies = Vec::new();
        // Numbers of policies count all that is left, rules about connections too.
        for (number, rule) in rules.iter().enumerate() {
            let principal = source::principal(&rule.source, &rule.except, trust_domain);
            match &rule.decision {
                Decision::Allow(None) | Decision::Deny => principals.push(principal),
                Decision::Allow(Some(demand)) => {
                    principals.push(principal_with(principal, demand, !default_allow));
                }
                Decision::Permissions(permissions, demand) => {
                    let mut callers = principal.clone();
                    match demand {
                        // Who has no token is denied, whatever the request is.
                        Some(demand) if default_allow => {
                            principals.push(principal_with(principal, demand, false));
                        }
                        Some(demand) => callers = principal_with(principal, demand, true),
                        None => {}
                    }
                    let permissions = permission::without_order(permissions, default_allow);
                    if !permissions.is_empty() {
                        policies.push((
                            smol_str::format_smolstr!("consul-intentions-layer7-{number}"),
                            policy(permissions, vec![callers]),
                        ));
                    }
                }
            }
        }
        if !principals.is_empty() {
            let name = SmolStr::new_static("consul-intentions-layer4");
            policies.push((name, policy(vec![permission::any()], principals)));
        }
        policies.sort_by(|(a, _), (b, _)| a.cmp(b));
        let action = if default_allow {
            rbac::rbac::Action::Deny
        } else {
            rbac::rbac::Action::Allow
        };
        let rules = Self {
            action,
            policies,
            callers,
            providers: providers.usable(),
        };
        (rules, problems)
    }

    /// The identities of whom the TLS handshake is to let in, for TCP; empty if that is everybody with a certificate.
    pub(super) fn callers(&self) -> &[matcher::StringMatcher] {
        &self.callers
    }

    /// Whose tokens the rules ask for: requests are to be searched for them before the rules are looked at.
    pub(super) fn token_providers(&self) -> &BTreeMap<SmolStr, TokenProvider> {
        &self.providers
    }

    /// The filter in front of TCP connections.
    pub(super) fn network_filter(&self) -> listener::Filter {
        let config = Fields::default()
            .bytes(1, &self.encoded())
            .text(3, "connect_authz");
        filter_of("envoy.filters.network.rbac", config.any::<network::Rbac>())
    }

    /// The filter in front of HTTP requests.
    pub(super) fn http_filter(&self) -> hcm::HttpFilter {
        let config = Fields::default().bytes(1, &self.encoded());
        http_filter_of("envoy.filters.http.rbac", config.any::<http::Rbac>())
    }

    /// `envoy.config.rbac.v3.RBAC`, encoded with its policies in order.
    fn encoded(&self) -> Vec<u8> {
        use prost::Message as _;
        let policies = self
            .policies
            .iter()
            .map(|(name, policy)| (name.as_str(), policy.encode_to_vec()));
        // Both actions are small and not negative.
        let action = u64::from((self.action as i32).unsigned_abs());
        Fields::default().number(1, action).map(2, policies).done()
    }
}

fn policy(permissions: Vec<rbac::Permission>, principals: Vec<rbac::Principal>) -> rbac::Policy {
    rbac::Policy {
        permissions,
        principals,
        ..Default::default()
    }
}

/// Those of `callers` whose requests carry the token, or don't.
fn principal_with(callers: rbac::Principal, token: &Demand, carried: bool) -> rbac::Principal {
    use rbac::principal::{Identifier, Set};
    let of = |identifier| rbac::Principal {
        identifier: Some(identifier),
    };
    let mut ids = match callers.identifier {
        Some(Identifier::AndIds(set)) => set.ids,
        identifier => vec![rbac::Principal { identifier }],
    };
    let token = token.principal();
    ids.push(if carried {
        token
    } else {
        of(Identifier::NotId(Box::new(token)))
    });
    of(Identifier::AndIds(Set { ids }))
}

/// Steps 1 and 2 of the module's algorithm.
fn without_order<'a>(
    intentions: &'a [Intention],
    layer: Layer,
    providers: &mut Providers<'_>,
    problems: &mut Vec<String>,
) -> Vec<Rule<'a>> {
    let mut sorted: Vec<&Intention> = intentions
        .iter()
        // The trust bundles of peers aren't known: such rules fit nobody (4.4.2).
        .filter(|intention| intention.source_peer.is_empty())
        .collect();
    sorted.sort_by(|a, b| {
        b.precedence
            .cmp(&a.precedence)
            .then_with(|| a.source_ns.cmp(&b.source_ns))
            .then_with(|| a.source_name.cmp(&b.source_name))
            .then_with(|| a.destination_ns.cmp(&b.destination_ns))
            .then_with(|| a.destination_name.cmp(&b.destination_name))
    });
    let mut rules: Vec<Rule<'a>> = Vec::with_capacity(sorted.len());
    for intention in sorted {
        let source = Source::of(intention);
        if rules.iter().any(|higher| higher.source.covers(&source)) {
            continue;
        }
        let except = rules
            .iter()
            .rev()
            .map(|higher| higher.source)
            .filter(|higher| higher.overlaps(&source));
        rules.push(Rule {
            source,
            except: source::without_covered(except.collect()),
            decision: decide(intention, layer, providers, problems),
        });
    }
    rules
}

impl Rule<'_> {
    /// Whether it says something else than what holds anyway.
    fn is_exception(&self, default_allow: bool) -> bool {
        match &self.decision {
            Decision::Allow(token) => !default_allow || token.is_some(),
            Decision::Deny => default_allow,
            Decision::Permissions(permissions, token) => {
                (default_allow && token.is_some())
                    || permissions
                        .iter()
                        .any(|rule| rule.is_exception(default_allow))
            }
        }
    }
}

fn decide(
    intention: &Intention,
    layer: Layer,
    providers: &mut Providers<'_>,
    problems: &mut Vec<String>,
) -> Decision {
    let about = format!(
        "intention {} -> {}",
        intention.source_name, intention.destination_name
    );
    let denies = |why: String| format!("{about} denies everything: {why}");
    if !intention.permissions.is_empty() && layer != Layer::Request {
        let why = match layer {
            Layer::Connection => "the protocol of the service is not http, http2 or grpc",
            Layer::HiddenRequest | Layer::Request => "its listener shows none",
        };
        problems.push(denies(format!(
            "its Permissions are about HTTP requests, and {why}"
        )));
        return Decision::Deny;
    }
    if intention.permissions.is_empty() {
        match intention.action {
            IntentionAction::Allow => {}
            IntentionAction::Deny => return Decision::Deny,
            IntentionAction::Unset => {
                problems.push(denies("it has neither Action nor Permissions".to_owned()));
                return Decision::Deny;
            }
        }
    }
    let token = match &intention.jwt {
        None => None,
        Some(_) if layer == Layer::Connection => {
            problems.push(format!(
                "{about} asks for no token: connections carry none, only requests of the protocols http, http2 and grpc do"
            ));
            None
        }
        Some(_) if layer == Layer::HiddenRequest => {
            problems.push(denies(
                "it asks for a token, and its listener shows no requests that could carry one"
                    .to_owned(),
            ));
            return Decision::Deny;
        }
        Some(jwt) => match providers.demand(jwt, problems) {
            Ok(demand) => Some(demand),
            Err(why) => {
                problems.push(denies(why));
                return Decision::Deny;
            }
        },
    };
    if intention.permissions.is_empty() {
        return Decision::Allow(token);
    }
    match permission::read(&intention.permissions, &about, providers, problems) {
        Ok(rules) => Decision::Permissions(rules, token),
        Err(error) => {
            problems.push(denies(error.to_string()));
            Decision::Deny
        }
    }
}

#[cfg(test)]
mod tests;
