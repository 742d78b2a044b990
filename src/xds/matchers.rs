//! Conditions on HTTP requests that routes and access rules share.

use super::proto::{matcher, regex, route, string_match};
use super::{BuildError, re2};
use matcher::string_matcher::MatchPattern;

/// Checks that Envoy takes a name as that of a header.
///
/// # Errors
/// It is empty or has characters that no header name has.
pub(super) fn check_header_name(name: &str) -> Result<(), BuildError> {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let plain = name.strip_prefix(':').unwrap_or(name);
    if plain.is_empty() || !plain.chars().all(token) {
        return Err(BuildError::new(format!(
            "{name:?} can't be the name of a header"
        )));
    }
    Ok(())
}

/// A condition on a header.
///
/// # Errors
/// The name can't be that of a header.
pub(super) fn header(
    name: &str,
    specifier: route::header_matcher::HeaderMatchSpecifier,
    invert: bool,
) -> Result<route::HeaderMatcher, BuildError> {
    check_header_name(name)?;
    Ok(route::HeaderMatcher {
        name: name.to_owned(),
        header_match_specifier: Some(specifier),
        invert_match: invert,
        ..Default::default()
    })
}

/// A condition on the text of a header.
pub(super) fn text(
    pattern: MatchPattern,
    ignore_case: bool,
) -> route::header_matcher::HeaderMatchSpecifier {
    route::header_matcher::HeaderMatchSpecifier::StringMatch(string_match(pattern, ignore_case))
}

/// A checked regular expression.
///
/// # Errors
/// Envoy wouldn't take it.
pub(super) fn pattern(pattern: &str, ignore_case: bool) -> Result<MatchPattern, BuildError> {
    re2::check(pattern)?;
    // Envoy ignores its own setting beside a regular expression.
    let pattern = if ignore_case {
        format!("(?i:{pattern})")
    } else {
        pattern.to_owned()
    };
    Ok(MatchPattern::SafeRegex(regex(pattern)))
}

/// Fits requests with any of these methods (must-hold 47).
pub(super) fn methods(methods: &[String]) -> route::HeaderMatcher {
    let any: Vec<String> = methods.iter().map(|method| re2::escape(method)).collect();
    route::HeaderMatcher {
        name: ":method".to_owned(),
        header_match_specifier: Some(text(MatchPattern::SafeRegex(regex(any.join("|"))), false)),
        ..Default::default()
    }
}
