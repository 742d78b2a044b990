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
//! The same happens among the permissions of an intention about requests. In doubt the answer is no: an intention that
//! can't be expressed denies its source, and that is told.

mod callers;
mod permission;
mod source;

use smol_str::SmolStr;

use super::encode::Fields;
use super::proto::{filter_of, hcm, http_filter_of, listener, matcher, rbac};
use crate::model::{Intention, IntentionAction, IntentionPermission};
use source::Source;

use envoy_types::pb::envoy::extensions::filters::{
    http::rbac::v3 as http, network::rbac::v3 as network,
};

/// What a filter can see of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layer {
    /// Connections: only who calls.
    Connection,
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
}

/// What an intention decides.
#[derive(Debug, Clone, Copy)]
enum Decision<'a> {
    Allow,
    Deny,
    /// Depends on the request.
    Permissions(&'a [IntentionPermission]),
}

/// An intention without its order.
struct Rule<'a> {
    source: Source<'a>,
    decision: Decision<'a>,
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
        }
    }

    /// The rules that intentions make, and what is wrong with some of them.
    pub(super) fn new(
        intentions: &[Intention],
        default_allow: bool,
        trust_domain: &str,
        layer: Layer,
    ) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        if trust_domain.is_empty() {
            problems.push("nobody may call: the trust domain isn't known".to_owned());
            return (Self::deny_all(), problems);
        }
        let mut rules = without_order(intentions, default_allow, layer, &mut problems);
        let callers = match layer {
            Layer::Request => Vec::new(),
            Layer::Connection => callers::identities(&rules, default_allow, trust_domain)
                .unwrap_or_else(|why| {
                    problems.push(format!(
                        "callers are denied only when they say something: {why}"
                    ));
                    Vec::new()
                }),
        };
        rules.retain(|rule| rule.is_exception(default_allow));
        let mut principals = Vec::new();
        let mut policies = Vec::new();
        // Numbers of policies count all that is left, rules about connections too.
        for (number, rule) in rules.iter().enumerate() {
            let principal = source::principal(&rule.source, &rule.except, trust_domain);
            match rule.decision {
                Decision::Allow | Decision::Deny => principals.push(principal),
                Decision::Permissions(permissions) => {
                    match permission::without_order(permissions, default_allow) {
                        Ok(permissions) if permissions.is_empty() => {}
                        Ok(permissions) => policies.push((
                            smol_str::format_smolstr!("consul-intentions-layer7-{number}"),
                            policy(permissions, vec![principal]),
                        )),
                        // Ruled out before: such a rule is a denial.
                        Err(error) => problems.push(error.to_string()),
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
        };
        (rules, problems)
    }

    /// The identities of whom the TLS handshake is to let in, for TCP; empty if that is everybody with a certificate.
    pub(super) fn callers(&self) -> &[matcher::StringMatcher] {
        &self.callers
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

/// Steps 1 and 2 of the module's algorithm.
fn without_order<'a>(
    intentions: &'a [Intention],
    default_allow: bool,
    layer: Layer,
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
            decision: decide(intention, default_allow, layer, problems),
        });
    }
    rules
}

impl Rule<'_> {
    /// Whether it says something else than what holds anyway.
    fn is_exception(&self, default_allow: bool) -> bool {
        match self.decision {
            Decision::Allow => !default_allow,
            Decision::Deny => default_allow,
            Decision::Permissions(permissions) => permissions
                .iter()
                .any(|p| permission::allows(p) != default_allow),
        }
    }
}

fn decide<'a>(
    intention: &'a Intention,
    default_allow: bool,
    layer: Layer,
    problems: &mut Vec<String>,
) -> Decision<'a> {
    let mut deny = |why: String| {
        problems.push(format!(
            "intention {} -> {} denies everything: {why}",
            intention.source_name, intention.destination_name
        ));
        Decision::Deny
    };
    if !intention.permissions.is_empty() {
        if layer == Layer::Connection {
            return deny(
                "its Permissions are about HTTP requests, and the protocol of the service is not http, http2 or grpc"
                    .to_owned(),
            );
        }
        let tokens =
            intention.jwt.is_some() || intention.permissions.iter().any(|p| p.jwt.is_some());
        if tokens {
            return deny("JWT is not supported yet".to_owned());
        }
        return match permission::without_order(&intention.permissions, default_allow) {
            Ok(_) => Decision::Permissions(&intention.permissions),
            Err(error) => deny(error.to_string()),
        };
    }
    match intention.action {
        IntentionAction::Allow if layer == Layer::Request && intention.jwt.is_some() => {
            deny("JWT is not supported yet".to_owned())
        }
        IntentionAction::Allow => Decision::Allow,
        IntentionAction::Deny => Decision::Deny,
        IntentionAction::Unset => deny("it has neither Action nor Permissions".to_owned()),
    }
}

#[cfg(test)]
mod tests;
