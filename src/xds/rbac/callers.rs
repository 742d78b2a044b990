//! Who may connect at all, told to the TLS handshake.
//!
//! Envoy's network filter for access rules looks at a connection when its first byte comes. A service whose application
//! speaks first would greet callers that it denies, and go on talking to those that never say anything. So the listener
//! of a TCP service also has its TLS handshake refuse them: a certificate must have one of the identities here.
//!
//! Names that may call are listed. "All but these" needs patterns for the names that are none of these, and RE2 has no
//! negation; so it is written out along the tree of their letters. A name differs from both `api` and `app` if it has
//! another first letter, or ends or goes on otherwise after `a` or after `ap`, or goes on after `api` or `app`: each of
//! these is a *way* to be another name. Ways are put together into as few patterns as there can be, since an Envoy whose
//! bootstrap doesn't say otherwise refuses patterns of more than a hundred instructions.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Decision, Rule};
use crate::xds::proto::{matcher, string_match};
use crate::xds::{proto, re2};

/// A letter that a name in an identity can have: printable ASCII but the slash.
const LETTER: &str = r"[\x21-\x2E0-\x7E]";

/// Letters of all denied names together: each of them may make a way.
const MOST_LETTERS: usize = 10_000;

/// Instructions of a pattern, as estimated here: somewhat more than RE2 needs.
const MOST_INSTRUCTIONS: usize = 98;

/// Instructions of what is the same in each pattern.
const FRAME_INSTRUCTIONS: usize = 14;

/// Ranges of letters in one way.
const MOST_RANGES: usize = 8;

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
        let allow = matches!(rule.decision, Decision::Allow(_));
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
        let patterns = all_but(named.keys().copied(), trust_domain)?;
        fitting.extend(patterns.into_iter().map(pattern));
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

/// Patterns that together fit the services of all names but these.
fn all_but<'a>(
    names: impl Iterator<Item = &'a str> + Clone,
    trust_domain: &str,
) -> Result<Vec<String>, String> {
    let letters: usize = names.clone().map(str::len).sum();
    if letters > MOST_LETTERS {
        return Err(format!("{} denied sources are too many", names.count()));
    }
    let mut tree = Names::default();
    names.for_each(|name| tree.add(name));
    let mut ways = Vec::new();
    tree.ways(&mut String::new(), &mut ways);
    let groups = grouped(&ways).into_iter();
    // A literal at the start costs no instruction.
    let domain = re2::escape(trust_domain);
    Ok(groups
        .map(|group| format!("^spiffe://{domain}/ns/default/dc/{LETTER}+/svc/(?:{group})$"))
        .collect())
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

    /// The ways to be another name, `prefix` being the letters up to here.
    fn ways(&self, prefix: &mut String, ways: &mut Vec<Way>) {
        if !self.ends && !prefix.is_empty() {
            ways.push(Way::new(prefix, String::new(), 1));
        }
        let quantifier = if self.next.is_empty() { '+' } else { '*' };
        for ranges in self.other_letters().chunks(MOST_RANGES) {
            let mut rest = String::new();
            if quantifier == '*' {
                rest.push('[');
                ranges
                    .iter()
                    .for_each(|range| write_range(*range, &mut rest));
                rest.push(']');
            }
            rest.push_str(LETTER);
            rest.push(quantifier);
            ways.push(Way::new(prefix, rest, 2 * ranges.len() + 5));
        }
        for (letter, next) in &self.next {
            prefix.push(char::from(*letter));
            next.ways(prefix, ways);
            prefix.pop();
        }
    }

    /// Ranges of the letters that don't lead on in the tree.
    fn other_letters(&self) -> Vec<(u8, u8)> {
        let mut ranges: Vec<(u8, u8)> = Vec::new();
        for byte in b'!'..=b'~' {
            if !is_letter(byte) || self.next.contains_key(&byte) {
                continue;
            }
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == byte => *last = byte,
                _ => ranges.push((byte, byte)),
            }
        }
        ranges
    }
}

/// One way to be another name.
#[derive(Debug)]
struct Way {
    prefix: String,
    rest: String,
    /// Instructions of the rest.
    cost: usize,
}

impl Way {
    fn new(prefix: &str, rest: String, cost: usize) -> Self {
        Self {
            prefix: prefix.to_owned(),
            rest,
            cost,
        }
    }
}

/// Alternatives of as many ways as fit into a pattern. RE2 writes the letters that neighbours begin with only once.
fn grouped(ways: &[Way]) -> Vec<String> {
    let mut groups: Vec<String> = Vec::new();
    let mut instructions = 0;
    let mut before = "";
    for way in ways {
        let shared = before
            .bytes()
            .zip(way.prefix.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        let more = way.prefix.len() - shared + way.cost + 1;
        let text = re2::escape(&way.prefix) + &way.rest;
        match groups.last_mut() {
            Some(group) if instructions + more <= MOST_INSTRUCTIONS => {
                instructions += more;
                group.push('|');
                group.push_str(&text);
            }
            _ => {
                instructions = FRAME_INSTRUCTIONS + way.prefix.len() + way.cost + 1;
                groups.push(text);
            }
        }
        before = &way.prefix;
    }
    groups
}

fn write_range((first, last): (u8, u8), into: &mut String) {
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

    /// Whether one of the patterns fits a name.
    fn others(names: &[&str]) -> impl Fn(&str) -> bool {
        let patterns = all_but(names.iter().copied(), "td.consul").unwrap();
        patterns.iter().for_each(|one| re2::check(one).unwrap());
        let patterns = regex::RegexSet::new(patterns).unwrap();
        move |name| patterns.is_match(&format!("spiffe://td.consul/ns/default/dc/dc1/svc/{name}"))
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
                assert_eq!(pattern(name), !denied.contains(&name.as_str()), "{name}");
            }
        }
        for name in [
            "web-2", "web-22", "web-", "", "web/x", "x/web", "wéb", "a b",
        ] {
            let is_name = name.bytes().all(is_letter) && !name.is_empty();
            assert_eq!(pattern(name), is_name && !denied.contains(&name), "{name}");
        }
    }

    #[test]
    fn patterns_are_few_and_small() {
        let count = |names: &[String]| {
            all_but(names.iter().map(String::as_str), "td")
                .unwrap()
                .len()
        };
        let counts = [
            count(&["web".into()]),
            count(&["web".into(), "api".into(), "db".into()]),
        ];
        assert_eq!(counts, [1, 2]);
        let longest = ["x".repeat(63), format!("{}y", "x".repeat(62))];
        assert!(count(&longest) < 64, "{}", count(&longest));
        for pattern in all_but(longest.iter().map(String::as_str), "td").unwrap() {
            assert!(pattern.len() < 1000, "{pattern}");
        }
    }
}
