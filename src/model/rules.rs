//! Checks and canonical forms that several records share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::model::decode::{Place, Problems};
use crate::model::duration::GoDuration;
use crate::model::pattern;

/// Most bytes of a name that is used in the mesh: names become DNS labels (decisions E12).
pub const MAX_NAME: usize = 63;

/// What the generated name of a sidecar ends with (store.md 1.4).
pub const SIDECAR_SUFFIX: &str = "-sidecar-proxy";

const MAX_META_PAIRS: usize = 64;
const MAX_META_KEY: usize = 128;
const MAX_META_VALUE: usize = 512;

const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE",
];

/// Whether a text has nothing but white space.
pub fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// A text for a message: quoted, and cut if it is long.
pub fn shown(text: &str) -> String {
    const MOST: usize = 80;
    if text.chars().count() > MOST {
        let start: String = text.chars().take(MOST).collect();
        format!("{start:?}...")
    } else {
        format!("{text:?}")
    }
}

/// A name that is used in the mesh must be given, and have only letters, digits, `-` and `_`, at most 63 bytes
/// (decisions E12).
pub fn mesh_name(what: &str, name: &str, at: &Place<'_>, problems: &mut Problems) {
    name_up_to(MAX_NAME, what, name, at, problems);
}

/// As [`mesh_name`], but may be left out.
pub fn optional_mesh_name(what: &str, name: &str, at: &Place<'_>, problems: &mut Problems) {
    if !name.is_empty() {
        mesh_name(what, name, at, problems);
    }
}

/// The name of a proxy's own service: as [`mesh_name`], with room for the ending of generated names, since it never
/// becomes a DNS label.
pub fn proxy_name(what: &str, name: &str, at: &Place<'_>, problems: &mut Problems) {
    name_up_to(MAX_NAME + SIDECAR_SUFFIX.len(), what, name, at, problems);
}

fn name_up_to(max: usize, what: &str, name: &str, at: &Place<'_>, problems: &mut Problems) {
    let odd = |c: &char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    if is_blank(name) {
        problems.error(at, format!("the {what} must not be empty"));
    } else if let Some(odd) = name.chars().find(odd) {
        problems.error(
            at,
            format!(
                "the {what} {} has the character {odd:?}; names in the mesh consist of letters, digits, '-' and '_'",
                shown(name)
            ),
        );
    } else if name.len() > max {
        problems.error(
            at,
            format!(
                "the {what} {} is {} bytes long; names in the mesh have at most {max}",
                shown(name),
                name.len()
            ),
        );
    }
}

/// An id or node name: any text that is not blank and has no control characters.
pub fn plain_text(what: &str, text: &str, at: &Place<'_>, problems: &mut Problems) {
    const MAX: usize = 512;
    if is_blank(text) {
        problems.error(at, format!("the {what} must not be empty"));
    } else if text.chars().any(char::is_control) {
        problems.error(
            at,
            format!("the {what} {} has control characters", shown(text)),
        );
    } else if text.len() > MAX {
        problems.error(
            at,
            format!(
                "the {what} {} is {} bytes long; at most {MAX} are allowed",
                shown(text),
                text.len()
            ),
        );
    }
}

/// Only the namespace and partition `default` exist here (decisions R4).
pub fn only_default(namespace: &str, partition: &str, at: &Place<'_>, problems: &mut Problems) {
    default_tenancy("Namespace", namespace, at, problems);
    default_tenancy("Partition", partition, at, problems);
}

/// The value of a key that holds a namespace or partition must be absent or `default`.
pub fn default_tenancy(key: &str, value: &str, at: &Place<'_>, problems: &mut Problems) {
    if !(value.is_empty() || value.eq_ignore_ascii_case("default")) {
        problems.error(
            &at.key(key),
            format!(
                "{}: namespaces and partitions other than \"default\" are enterprise only",
                shown(value)
            ),
        );
    }
}

/// A feature that must be left out.
pub fn enterprise(key: &str, given: bool, at: &Place<'_>, problems: &mut Problems) {
    if given {
        problems.error(&at.key(key), "enterprise only; leave it out");
    }
}

/// The canonical form of a namespace or partition: `default` is left out.
pub fn clear_default(value: &mut String) {
    if value.eq_ignore_ascii_case("default") {
        value.clear();
    }
}

/// Limits of free labels (store.md 1.1): at most 64 pairs, keys of 128 and values of 512 characters.
pub fn meta(meta: &BTreeMap<String, String>, at: &Place<'_>, problems: &mut Problems) {
    if meta.len() > MAX_META_PAIRS {
        problems.error(
            at,
            format!(
                "has {} pairs; at most {MAX_META_PAIRS} are allowed",
                meta.len()
            ),
        );
    }
    for (key, value) in meta {
        let here = at.key(key);
        if is_blank(key) {
            problems.error(&here, "a key must not be empty");
        }
        let (k, v) = (key.chars().count(), value.chars().count());
        if k > MAX_META_KEY {
            problems.error(
                &here,
                format!("the key has {k} characters; at most {MAX_META_KEY} are allowed"),
            );
        }
        if v > MAX_META_VALUE {
            problems.error(
                &here,
                format!("the value has {v} characters; at most {MAX_META_VALUE} are allowed"),
            );
        }
    }
}

/// A text that must be one of a few words.
pub fn one_of(value: &str, words: &[&str], at: &Place<'_>, problems: &mut Problems) {
    if !words.contains(&value) {
        let all = words
            .iter()
            .map(|w| format!("{w:?}"))
            .collect::<Vec<_>>()
            .join(", ");
        problems.error(at, format!("{} is not one of {all}", shown(value)));
    }
}

/// A duration that must not be negative.
pub fn not_negative(value: GoDuration, at: &Place<'_>, problems: &mut Problems) {
    if value.0 < 0 {
        problems.error(at, format!("{value} must not be negative"));
    }
}

/// A number that must not be negative.
pub fn natural(value: i64, at: &Place<'_>, problems: &mut Problems) {
    if value < 0 {
        problems.error(at, format!("{value} must not be negative"));
    }
}

/// A pattern that Envoy will compile (decisions R4).
pub fn regex(pattern: &str, at: &Place<'_>, problems: &mut Problems) {
    if let Err(why) = pattern::check(pattern) {
        problems.error(
            at,
            format!(
                "{} is not a valid regular expression (RE2): {why}",
                shown(pattern)
            ),
        );
    }
}

/// At most one of the three path forms, the first two beginning with a slash; returns how many are given.
pub fn paths(
    exact: &str,
    prefix: &str,
    pattern: &str,
    at: &Place<'_>,
    problems: &mut Problems,
) -> usize {
    for (key, path) in [("PathExact", exact), ("PathPrefix", prefix)] {
        if !path.is_empty() && !path.starts_with('/') {
            problems.error(&at.key(key), format!("{} must begin with '/'", shown(path)));
        }
    }
    if !pattern.is_empty() {
        regex(pattern, &at.key("PathRegex"), problems);
    }
    let given = [exact, prefix, pattern]
        .iter()
        .filter(|p| !p.is_empty())
        .count();
    if given > 1 {
        problems.error(
            at,
            "give at most one of PathExact, PathPrefix and PathRegex",
        );
    }
    given
}

/// HTTP methods, each known and given once; case doesn't count, since normalization makes them upper case.
pub fn methods(methods: &[String], at: &Place<'_>, problems: &mut Problems) {
    let mut seen = BTreeSet::new();
    for (i, method) in methods.iter().enumerate() {
        let upper = method.to_ascii_uppercase();
        if !METHODS.contains(&upper.as_str()) {
            problems.error(
                &at.index(i),
                format!(
                    "{} is not an HTTP method; known are {}",
                    shown(&upper),
                    METHODS.join(", ")
                ),
            );
        } else if !seen.insert(upper.clone()) {
            problems.error(&at.index(i), format!("the method {upper} is given twice"));
        }
    }
}

/// The canonical form of methods.
pub fn upper_case(methods: &mut [String]) {
    for method in methods {
        method.make_ascii_uppercase();
    }
}

/// Whether a text is a DNS name: labels of letters, digits, `-` and `_`, joined by dots.
pub fn is_dns_name(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    !text.is_empty()
        && text.len() <= 253
        && text.split('.').all(|label| {
            !label.is_empty()
                && label.len() <= MAX_NAME
                && !label.starts_with('-')
                && label
                    .bytes()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_'))
        })
}

/// Whether a text is an IP address or a DNS name.
pub fn is_host(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok() || is_dns_name(text)
}

/// Whether a text is `host:port`, with IPv6 addresses in brackets.
pub fn is_host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let good_host = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.is_empty() || is_host(host),
    };
    good_host && port.parse::<u16>().is_ok_and(|p| p != 0)
}

/// Checks an `http://` or `https://` address.
pub fn http_url(text: &str, at: &Place<'_>, problems: &mut Problems) {
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    let good = rest.is_some_and(|rest| {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let authority = &rest[..end];
        let host = authority
            .rsplit_once('@')
            .map_or(authority, |(_, host)| host);
        let bare_v6 = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let good_host = !host.starts_with(':')
            && (is_host_port(host)
                || is_dns_name(host)
                || host.parse::<std::net::Ipv4Addr>().is_ok()
                || bare_v6.is_some_and(|h| h.parse::<std::net::Ipv6Addr>().is_ok()));
        good_host && !text.chars().any(|c| c.is_whitespace() || c.is_control())
    });
    if !good {
        problems.error(
            at,
            format!(
                "{} is not an http:// or https:// address with a host",
                shown(text)
            ),
        );
    }
}
