//! Rules about HTTP requests (xds.md 4.4, steps 5 and 7).

use crate::model::{
    IntentionAction, IntentionHttpHeader, IntentionHttpPermission, IntentionPermission,
};
use crate::xds::BuildError;
use crate::xds::matchers;
use crate::xds::proto::{matcher, rbac, route, string_match};
use matcher::string_matcher::MatchPattern;

/// Fits every request.
pub(super) fn any() -> rbac::Permission {
    of(rbac::permission::Rule::Any(true))
}

/// Whether a permission lets requests through; without an action it doesn't.
pub(super) fn allows(permission: &IntentionPermission) -> bool {
    permission.action == IntentionAction::Allow
}

/// The first permission that fits decides; the result doesn't depend on order: each permission that says something else
/// than what holds anyway excludes all earlier ones.
///
/// # Errors
/// A condition that can't be expressed.
pub(super) fn without_order(
    permissions: &[IntentionPermission],
    default_allow: bool,
) -> Result<Vec<rbac::Permission>, BuildError> {
    let mut earlier: Vec<rbac::Permission> = Vec::new();
    let mut rules = Vec::new();
    for (number, permission) in permissions.iter().enumerate() {
        let own = match &permission.http {
            Some(http) => {
                conditions(http).map_err(|e| e.at(&format!("Permissions[{number}].HTTP")))?
            }
            None => any(),
        };
        if allows(permission) != default_allow {
            let not = earlier
                .iter()
                .rev()
                .map(|rule| of(rbac::permission::Rule::NotRule(Box::new(rule.clone()))));
            rules.push(all_of(std::iter::once(own.clone()).chain(not).collect()));
        }
        earlier.push(own);
    }
    Ok(rules)
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
    matchers::header(&condition.name, specifier, condition.invert)
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
