//! Who may connect at all, told to the TLS handshake.
//!
//! Envoy's network filter for access rules looks at a connection when its first byte comes. A service whose application
//! speaks first would greet callers that it denies, and go on talking to those that never say anything. So the listener
//! of a TCP service also has its TLS handshake refuse them: a certificate must have one of the identities here.
//!
//! Names that may call are listed. "All but these" needs a pattern for the names that are none of these, and RE2 has no
//! negation; so it is written out along the tree of their letters: a name differs from all of `api` and `app` if it has
//! another first letter, or ends or goes on otherwise after `a`, after `ap`, or goes on after `api` or `app`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Decision, Rule};
use crate::xds::proto::{matcher, string_match};
use crate::xds::{proto, re2};

/// Letters that a name in an identity can have: printable ASCII but the slash.
const LETTER: &str = r"[\x21-\x2E0-\x7E]";

/// Letters of all denied names together. A pattern with more could be larger than Envoy takes.
const MOST_LETTERS: usize = 10_000;

/// The identities that may connect; empty if everybody may. `rules` are all rules, in order.
///
/// # Errors
/// Why the handshake can't tell; then only the filter decides.
pub(super) fn identities(
    rules: &[Rule<'_>],
    default_allow: bool,
    trust_domain: &str,
) -> Result<Vec<matcher::StringMatcher>, String> {
    let mut others = default_allow;
    let mut any = None;
    let mut named = BTreeMap::new();
    for rule in rules {
        let allow = matches!(rule.decision, Decision::Allow);
        if !rule.source.is_local() {
            return Err("an intention is about another partition or namespace".to_owned());
        }
        if rule.source.is_any() {
            others = allow;
            any = Some(&rule.source);
        } else {
            named.insert(rule.source.name, (allow, &rule.source));
        }
    }
    // Exceptions only, and only names that an identity can hold.
    named.retain(|name, (allow, _)| *allow != others && name.bytes().all(is_letter));
    let mut fitting = Vec::new();
    if !others {
        let sources = named.values();
        fitting.extend(sources.map(|(_, source)| pattern(source.pattern(trust_domain))));
    } else if named.is_empty() {
        match any {
            Some(any) if !default_allow => fitting.push(pattern(any.pattern(trust_domain))),
            _ => return Ok(Vec::new()),
        }
    } else {
        fitting.push(pattern(all_but(named.keys().copied())?));
    }
    if default_allow {
        // Intentions are about services. For others the default holds.
        let others = format!(
            "^spiffe://{}/(?:agent|gateway)/.+$",
            re2::escape(trust_domain)
        );
        fitting.push(pattern(others));
    }
    if fitting.is_empty() {
        fitting.push(nobody());
    }
    Ok(fitting)
}

/// Fits the services of all names but these. Certificates of other trust domains aren't accepted to begin with.
fn all_but<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Result<String, String> {
    let letters: usize = names.clone().map(str::len).sum();
    if letters > MOST_LETTERS {
        return Err(format!(
            "{} denied sources are too many for one pattern",
            names.count()
        ));
    }
    let mut tree = Names::default();
    names.for_each(|name| tree.add(name));
    let mut pattern = String::from("^spiffe://[!-~]+/svc/");
    tree.write_others(true, &mut pattern);
    pattern.push('$');
    Ok(pattern)
}

/// Fits no identity that is ever issued.
pub(super) fn nobody() -> matcher::StringMatcher {
    let name = "spiffe://nobody".to_owned();
    string_match(matcher::string_matcher::MatchPattern::Exact(name), false)
}

fn pattern(regex: String) -> matcher::StringMatcher {
    let regex = proto::regex(regex);
    string_match(
        matcher::string_matcher::MatchPattern::SafeRegex(regex),
        false,
    )
}

const fn is_letter(byte: u8) -> bool {
    matches!(byte, b'!'..=b'.' | b'0'..=b'~')
}

/// Names as a tree of their letters.
#[derive(Debug, Default)]
struct Names {
    ends: bool,
    next: BTreeMap<u8, Names>,
}

impl Names {
    fn add(&mut self, name: &str) {
        let mut at = self;
        for letter in name.bytes() {
            at = at.next.entry(letter).or_default();
        }
        at.ends = true;
    }

    /// A pattern of how a name can go on here so that it is none of these. A name isn't empty.
    fn write_others(&self, start: bool, into: &mut String) {
        if self.next.is_empty() {
            into.push_str(LETTER);
            into.push('+');
            return;
        }
        into.push_str("(?:");
        for (letter, next) in &self.next {
            into.push_str(&re2::escape(char::from(*letter).encode_utf8(&mut [0; 4])));
            next.write_others(false, into);
            into.push('|');
        }
        self.write_other_letters(into);
        into.push_str(LETTER);
        into.push_str("*)");
        if !start && !self.ends {
            into.push('?');
        }
    }

    /// A class of the letters that don't lead on in the tree.
    fn write_other_letters(&self, into: &mut String) {
        into.push('[');
        let mut from = None;
        for byte in b'!'..=0x7f {
            let other = is_letter(byte) && !self.next.contains_key(&byte);
            match (from, other) {
                (None, true) => from = Some(byte),
                (Some(first), false) => {
                    write_range(first, byte - 1, into);
                    from = None;
                }
                _ => {}
            }
        }
        into.push(']');
    }
}

fn write_range(first: u8, last: u8, into: &mut String) {
    write_letter(first, into);
    if last > first {
        into.push('-');
        write_letter(last, into);
    }
}

fn write_letter(byte: u8, into: &mut String) {
    // Writing to a string doesn't fail.
    let _ = if byte.is_ascii_alphanumeric() {
        write!(into, "{}", char::from(byte))
    } else {
        write!(into, "\\x{byte:02X}")
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn others(names: &[&str]) -> regex::Regex {
        let mut tree = Names::default();
        names.iter().for_each(|name| tree.add(name));
        let mut pattern = String::from("^");
        tree.write_others(true, &mut pattern);
        pattern.push('$');
        re2::check(&pattern).unwrap();
        regex::Regex::new(&pattern).unwrap()
    }

    #[test]
    fn all_names_but_these() {
        let denied = ["web", "web-2", "we", "api", "a", "x.y", "W"];
        let pattern = others(&denied);
        let letters = [
            "w", "e", "b", "-", "2", "a", "p", "i", "x", ".", "y", "W", "_",
        ];
        let mut names = vec![String::new()];
        for _ in 0..4 {
            let longer = names
                .iter()
                .flat_map(|name| letters.map(|letter| format!("{name}{letter}")));
            names = longer.collect();
            for name in &names {
                assert_eq!(
                    pattern.is_match(name),
                    !denied.contains(&name.as_str()),
                    "{name}"
                );
            }
        }
        for name in [
            "web-2", "web-22", "web-", "", "web/x", "x/web", "wéb", "a b",
        ] {
            let is_name = name.bytes().all(is_letter) && !name.is_empty();
            assert_eq!(
                pattern.is_match(name),
                is_name && !denied.contains(&name),
                "{name}"
            );
        }
    }
}
