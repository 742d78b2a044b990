//! Regular expressions as Envoy reads them: RE2.
//!
//! Envoy refuses a whole resource for one bad pattern, so that patterns of users are checked before they are sent. The
//! check is that the crate `regex`, which has RE2's syntax with some additions, takes the pattern, and that it uses none
//! of the additions that RE2 refuses.

use super::BuildError;

/// Most repetitions that RE2 takes in `{n,m}`.
const MOST_REPETITIONS: u32 = 1000;

/// Classes by name that RE2 knows, beside the general categories of one or two letters.
const NAMED_CLASSES: &[&str] = &[
    "Any",
    "Arabic",
    "Armenian",
    "Bengali",
    "Common",
    "Cyrillic",
    "Devanagari",
    "Ethiopic",
    "Georgian",
    "Greek",
    "Han",
    "Hangul",
    "Hebrew",
    "Hiragana",
    "Inherited",
    "Katakana",
    "Khmer",
    "Latin",
    "Mongolian",
    "Tamil",
    "Telugu",
    "Thai",
    "Tibetan",
];

/// Checks that RE2 takes a pattern.
///
/// # Errors
/// It doesn't; the text says why.
pub(super) fn check(pattern: &str) -> Result<(), BuildError> {
    let refuse = |why: &str| {
        Err(BuildError::new(format!(
            "{pattern:?} is not a regular expression that Envoy takes: {why}"
        )))
    };
    if let Err(error) = regex::Regex::new(pattern) {
        // The message shows the place over several lines; the last one says what is wrong.
        let text = error.to_string();
        return refuse(text.lines().last().unwrap_or(&text));
    }
    match addition(pattern) {
        Some(why) => refuse(&why),
        None => Ok(()),
    }
}

/// Escapes a literal. Only what has a meaning in RE2 is escaped, so that the usual names stay as they are.
pub(super) fn escape(literal: &str) -> String {
    let mut escaped = String::with_capacity(literal.len());
    for c in literal.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Something in a valid pattern that RE2 refuses.
fn addition(pattern: &str) -> Option<String> {
    let mut rest = pattern;
    let mut in_class = false;
    // Whether the last piece was a repetition operator.
    let mut repeated = false;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let mut taken = c.len_utf8();
        let mut repeats = false;
        match c {
            '\\' => {
                let next = after.chars().next()?;
                taken += next.len_utf8();
                if matches!(next, 'u' | 'U') {
                    return Some(format!("write \\x{{...}} instead of \\{next}"));
                }
                if matches!(next, 'p' | 'P')
                    && let Some(class) = after[1..].strip_prefix('{')
                {
                    let name = class.split('}').next().unwrap_or(class);
                    taken += name.len() + 2;
                    let name = name.trim_start_matches('^');
                    if name.len() > 2 && !NAMED_CLASSES.contains(&name) {
                        return Some(format!("it doesn't know the class {name:?}"));
                    }
                }
            }
            '[' if !in_class => {
                in_class = true;
                // A bracket that closes nothing yet stands for itself.
                for literal in ["^]", "]", "^"] {
                    if after.starts_with(literal) {
                        taken += literal.len();
                        break;
                    }
                }
            }
            ']' if in_class => in_class = false,
            _ if in_class => {}
            '(' => {
                if let Some(group) = after.strip_prefix('?') {
                    let flags = group.split([':', ')', '<']).next().unwrap_or_default();
                    if let Some(flag) = flags.chars().find(|f| !"imsUP-".contains(*f)) {
                        return Some(format!("it doesn't know the flag {flag:?}"));
                    }
                    taken += 1;
                }
            }
            '*' | '+' | '?' => repeats = true,
            '{' => {
                let inside = after.split('}').next().unwrap_or(after);
                let numbers: Vec<&str> = inside.split(',').map(str::trim).collect();
                if numbers
                    .iter()
                    .any(|n| n.parse::<u32>().is_ok_and(|n| n > MOST_REPETITIONS))
                {
                    return Some(format!("it repeats at most {MOST_REPETITIONS} times"));
                }
                taken += inside.len() + 1;
                repeats = true;
            }
            _ => {}
        }
        rest = rest.get(taken..)?;
        if repeats {
            if repeated {
                return Some("a repetition of a repetition needs parentheses".to_owned());
            }
            // `?` after a repetition makes it lazy.
            rest = rest.strip_prefix('?').unwrap_or(rest);
        }
        repeated = repeats;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_re2_are_taken() {
        for pattern in [
            "",
            "a.*b",
            "^/v[0-9]+/(foo|bar)?$",
            r"\d{1,3}\.\w+?",
            "(?i)get",
            "(?P<x>a)",
            "[]a]",
            "[^]a]",
            "[*+{?]",
            r"\p{L}\pN\p{Greek}",
            "a{2}?b",
            r"\x{41}",
            "(?:a*)*",
            r"a\*+",
            "(?s-i:a)",
        ] {
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
    }

    #[test]
    fn patterns_that_re2_refuses_are_refused() {
        for pattern in [
            "(",
            "a(?=b)",
            r"(a)\1",
            "*",
            "a**",
            "a{2}{3}",
            "a{1001}",
            "(?x)a",
            r"\u0041",
            r"\p{Alphabetic}",
            "[a",
        ] {
            let error = check(pattern).unwrap_err().to_string();
            assert!(error.contains("Envoy") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn e12_literals_are_escaped() {
        assert_eq!(escape("web-1_a"), "web-1_a");
        assert_eq!(escape("a.b*c|d"), r"a\.b\*c\|d");
        let hostile = r"x.*|[a]{2}^$(\d)+?";
        assert!(
            regex::Regex::new(&format!("^{}$", escape(hostile)))
                .unwrap()
                .is_match(hostile)
        );
    }
}
