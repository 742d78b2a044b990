//! Rules about HTTP requests (xds.md 4.4, steps 5 and 7).

use super::token::{Demand, Providers};
use crate::model::{
    IntentionAction, IntentionHttpHeader, IntentionHttpPermission, IntentionPermission,
};
use crate::xds::BuildError;
use crate::xds::matchers;
use crate::xds::proto::{matcher, rbac, route, string_match};
use matcher::string_matcher::MatchPattern;

/// A permission without its order.
#[derive(Debug, Clone)]
pub(super) struct RequestRule {
    /// The requests that it is about.
    about: rbac::Permission,
    verdict: Verdict,
}

#[derive(Debug, Clone)]
enum Verdict {
    Allow,
    /// Allowed with a token, denied without.
    AllowWith(Demand),
    Deny,
}

impl RequestRule {
    /// Whether it says something else than what holds anyway.
    pub(super) fn is_exception(&self, default_allow: bool) -> bool {
        match self.verdict {
            Verdict::Allow => !default_allow,
            Verdict::AllowWith(_) => true,
            Verdict::Deny => default_allow,
        }
    }
}

/// Fits every request.
pub(super) fn any() -> rbac::Permission {
    of(rbac::permission::Rule::Any(true))
}

/// Reads permissions. One without an action denies, and so does one that asks for a token that can't be had.
///
/// # Errors
/// A condition that can't be expressed.
pub(super) fn read(
    permissions: &[IntentionPermission],
    intention: &str,
    providers: &mut Providers<'_>,
    problems: &mut Vec<String>,
) -> Result<Vec<RequestRule>, BuildError> {
    let mut rules = Vec::with_capacity(permissions.len());
    for (number, permission) in permissions.iter().enumerate() {
        let about = match &permission.http {
            Some(http) => {
                conditions(http).map_err(|e| e.at(&format!("Permissions[{number}].HTTP")))?
            }
            None => any(),
        };
        let verdict = match (&permission.jwt, permission.action) {
            (None, IntentionAction::Allow) => Verdict::Allow,
            (Some(jwt), IntentionAction::Allow) => match providers.demand(jwt, problems) {
                Ok(demand) => Verdict::AllowWith(demand),
                Err(why) => {
                    problems.push(format!("{intention}: Permissions[{number}] denies: {why}"));
                    Verdict::Deny
                }
            },
            (_, IntentionAction::Deny | IntentionAction::Unset) => Verdict::Deny,
        };
        rules.push(RequestRule { about, verdict });
    }
    Ok(rules)
}

/// The first permission that fits decides; the result doesn't depend on order: each permission that says something else
/// than what holds anyway excludes all earlier ones.
pub(super) fn without_order(rules: &[RequestRule], default_allow: bool) -> Vec<rbac::Permission> {
    let mut earlier: Vec<&rbac::Permission> = Vec::new();
    let mut exceptions = Vec::new();
    for rule in rules {
        if rule.is_exception(default_allow) {
            let mut all = vec![rule.about.clone()];
            all.extend(earlier.iter().rev().map(|about| not((*about).clone())));
            if let Verdict::AllowWith(token) = &rule.verdict {
                let token = token.permission();
                all.push(if default_allow { not(token) } else { token });
            }
            exceptions.push(all_of(all));
        }
        earlier.push(&rule.about);
    }
    exceptions
}

fn not(rule: rbac::Permission) -> rbac::Permission {
    of(rbac::permission::Rule::NotRule(Box::new(rule)))
}

fn conditions(http: &IntentionHttpPermission) -> Result<rbac::Permission, BuildError> {
    let mut rules = Vec::new();
    if let Some(path) = path(http)? {
        rules.push(of(rbac::permission::Rule::UrlPath(matcher::PathMatcher {
            rule: Some(matcher::path_matcher::Rule::Path(string_match(path, false))),
        })));
    }
    for (number, condition) in http.header.iter().enumerate() {
        let matcher = header(condition).map_err(|e| e.at(&format!("Header[{number}]")))?;
        rules.push(of(rbac::permission::Rule::Header(matcher)));
    }
    if !http.methods.is_empty() {
        rules.push(of(rbac::permission::Rule::Header(matchers::methods(
            &http.methods,
        ))));
    }
    Ok(all_of(rules))
}

fn path(http: &IntentionHttpPermission) -> Result<Option<MatchPattern>, BuildError> {
    Ok(if !http.path_exact.is_empty() {
        Some(MatchPattern::Exact(http.path_exact.clone()))
    } else if !http.path_prefix.is_empty() {
        Some(MatchPattern::Prefix(http.path_prefix.clone()))
    } else if !http.path_regex.is_empty() {
        Some(matchers::pattern(&http.path_regex, false).map_err(|e| e.at("PathRegex"))?)
    } else {
        None
    })
}

fn header(condition: &IntentionHttpHeader) -> Result<route::HeaderMatcher, BuildError> {
    let ignore_case = condition.ignore_case;
    let specifier = if !condition.exact.is_empty() {
        matchers::text(MatchPattern::Exact(condition.exact.clone()), ignore_case)
    } else if !condition.regex.is_empty() {
        matchers::text(
            matchers::pattern(&condition.regex, ignore_case).map_err(|e| e.at("Regex"))?,
            false,
        )
    } else if !condition.prefix.is_empty() {
        matchers::text(MatchPattern::Prefix(condition.prefix.clone()), ignore_case)
    } else if !condition.suffix.is_empty() {
        matchers::text(MatchPattern::Suffix(condition.suffix.clone()), ignore_case)
    } else if !condition.contains.is_empty() {
        matchers::text(
            MatchPattern::Contains(condition.contains.clone()),
            ignore_case,
        )
    } else if condition.present {
        route::header_matcher::HeaderMatchSpecifier::PresentMatch(true)
    } else {
        return Err(BuildError::new(
            "one of Present, Exact, Prefix, Suffix, Contains and Regex is needed",
        ));
    };
    let mut matcher = matchers::header(&condition.name, specifier, condition.invert)?;
    // Envoy by itself finds that no condition fits a header that isn't there, not even an inverted one: who is denied for
    // not having a certain value would only have to leave the header out.
    matcher.treat_missing_header_as_empty = condition.invert && !condition.present;
    Ok(matcher)
}

fn all_of(mut rules: Vec<rbac::Permission>) -> rbac::Permission {
    match (rules.len(), rules.pop()) {
        (1, Some(only)) => only,
        (_, Some(last)) => {
            rules.push(last);
            of(rbac::permission::Rule::AndRules(rbac::permission::Set {
                rules,
            }))
        }
        (_, None) => any(),
    }
}

fn of(rule: rbac::permission::Rule) -> rbac::Permission {
    rbac::Permission { rule: Some(rule) }
}
