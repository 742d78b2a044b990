//! What intentions say, straight from their records: nothing here knows of Envoy's rules.

use crate::model::{
    Intention, IntentionAction, IntentionHttpHeader, IntentionHttpPermission, IntentionJwt,
    IntentionPermission,
};

use super::envoy::{Request, fits_regex};

/// The issuers that there are.
pub(super) const PROVIDERS: [&str; 2] = ["okta", "auth0"];

/// Whether a request may pass: the first intention whose source fits the caller decides, with permissions the first of
/// them that fits the request. Whatever allows only allows those who carry the token that it asks for.
pub(super) fn may_pass(intentions: &[Intention], default_allow: bool, request: &Request) -> bool {
    let caller = request.caller.rsplit('/').next().unwrap();
    let mut sorted: Vec<_> = intentions.iter().collect();
    sorted.sort_by_key(|i| std::cmp::Reverse(i.precedence));
    let fits = |i: &&Intention| i.source_name == "*" || i.source_name == caller;
    let Some(first) = sorted.into_iter().find(fits) else {
        return default_allow;
    };
    if !has_token(first.jwt.as_ref(), request) {
        return false;
    }
    if first.permissions.is_empty() {
        return first.action == IntentionAction::Allow;
    }
    let about = |p: &&IntentionPermission| is_about(p.http.as_ref().unwrap(), request);
    match first.permissions.iter().find(about) {
        Some(permission) => {
            permission.action == IntentionAction::Allow
                && has_token(permission.jwt.as_ref(), request)
        }
        None => default_allow,
    }
}

fn has_token(asked: Option<&IntentionJwt>, request: &Request) -> bool {
    let Some(asked) = asked else { return true };
    asked.providers.iter().any(|provider| {
        let name = provider.name.to_ascii_lowercase();
        if !PROVIDERS.contains(&name.as_str()) {
            return false;
        }
        let Some(payload) = request.tokens.get(&name) else {
            return false;
        };
        provider.verify_claims.iter().all(|claim| {
            let found = claim.path.iter().try_fold(payload, |at, key| at.get(key));
            found.and_then(|value| value.as_str()) == Some(claim.value.as_str())
        })
    })
}

fn is_about(http: &IntentionHttpPermission, request: &Request) -> bool {
    let path = request.path.split('?').next().unwrap();
    (http.path_exact.is_empty() || path == http.path_exact)
        && path.starts_with(&http.path_prefix)
        && (http.path_regex.is_empty() || fits_regex(&http.path_regex, path))
        && (http.methods.is_empty() || http.methods.contains(&request.method))
        && http
            .header
            .iter()
            .all(|header| header_fits(header, request))
}

fn header_fits(of: &IntentionHttpHeader, request: &Request) -> bool {
    let name = of.name.to_ascii_lowercase();
    let values = request.headers.iter().filter(|(at, _)| *at == name);
    let values: Vec<_> = values.map(|(_, value)| value.as_str()).collect();
    let there = !values.is_empty();
    let joined = values.join(",");
    let (value, lower) = (joined.as_str(), joined.to_ascii_lowercase());
    let text = |wanted: &str, fits: fn(&str, &str) -> bool| {
        if of.ignore_case {
            fits(&lower, &wanted.to_ascii_lowercase())
        } else {
            fits(value, wanted)
        }
    };
    // A header that isn't there is one without text, where a text must not be there.
    let holds = if of.present {
        there
    } else if !there && !of.invert {
        false
    } else if !of.exact.is_empty() {
        text(&of.exact, |value, wanted| value == wanted)
    } else if !of.prefix.is_empty() {
        text(&of.prefix, |value, wanted| value.starts_with(wanted))
    } else if !of.suffix.is_empty() {
        text(&of.suffix, |value, wanted| value.ends_with(wanted))
    } else if !of.contains.is_empty() {
        text(&of.contains, |value, wanted| value.contains(wanted))
    } else if of.ignore_case {
        fits_regex(&format!("(?i){}", of.regex), value)
    } else {
        fits_regex(&of.regex, value)
    };
    holds != of.invert
}
