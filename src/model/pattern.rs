//! Regular expressions as Envoy takes them: the syntax of RE2 (decisions R4).
//!
//! The parser at hand is that of the `regex` crate, a descendant of RE2 with a few differences. The pattern is first
//! rewritten so that what only RE2 reads (braces that aren't counts, `\Q..\E`, `\C`, unescaped brackets inside a class)
//! is read the same way; then parsed; then the tree is searched for what only the `regex` crate reads.

use regex_syntax::ast::{self, Ast};

/// RE2 refuses larger counts.
const MAX_COUNT: u32 = 1000;

/// RE2 and Envoy would take more; a longer one is surely a mistake, and costs time at each proxy.
const MAX_LENGTH: usize = 16 * 1024;

/// Checks that RE2 compiles a pattern.
///
/// # Errors
/// What is wrong, in words.
pub fn check(pattern: &str) -> Result<(), String> {
    if pattern.len() > MAX_LENGTH {
        return Err(format!("it is longer than {MAX_LENGTH} bytes"));
    }
    let pattern = translate(pattern);
    let tree = ast::parse::ParserBuilder::new()
        .nest_limit(200)
        .build()
        .parse(&pattern)
        .map_err(|e| e.kind().to_string())?;
    ast::visit(&tree, Differences)?;
    regex::Regex::new(&pattern).map_err(|e| match e {
        regex::Error::CompiledTooBig(_) => "it is too large".to_owned(),
        other => last_line(&other.to_string()),
    })?;
    Ok(())
}

fn last_line(text: &str) -> String {
    let line = text.lines().last().unwrap_or(text);
    line.trim_start_matches("error: ").to_owned()
}

/// Rewrites what RE2 reads and the parser doesn't.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern;
    let mut in_class = false;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        match c {
            '\\' if !in_class && after.starts_with('Q') => {
                let quoted = &after[1..];
                let (text, tail) = quoted.split_once("\\E").unwrap_or((quoted, ""));
                out.push_str(&regex::escape(text));
                rest = tail;
                continue;
            }
            '\\' if !in_class && after.starts_with('C') => {
                out.push_str("(?s:.)");
                rest = &after[1..];
                continue;
            }
            '\\' => {
                out.push(c);
                if let Some(escaped) = after.chars().next() {
                    out.push(escaped);
                    rest = &after[escaped.len_utf8()..];
                    continue;
                }
            }
            '{' if !in_class && !begins_count(after) => out.push_str("\\{"),
            '[' if in_class && !after.starts_with(':') => out.push_str("\\["),
            '[' if in_class => {
                // A named class such as [:alpha:].
                let end = after.find(":]").map_or(0, |i| i + 2);
                out.push(c);
                out.push_str(&after[..end]);
                rest = &after[end..];
                continue;
            }
            '[' => {
                in_class = true;
                out.push(c);
                rest = after;
                for first in ["^", "]"] {
                    if let Some(tail) = rest.strip_prefix(first) {
                        out.push_str(if first == "]" { "\\]" } else { first });
                        rest = tail;
                    }
                }
                continue;
            }
            ']' if in_class => {
                in_class = false;
                out.push(c);
            }
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
        rest = after;
    }
    out
}

/// Whether what follows a brace makes it a count: `3}`, `3,}`, `3,5}`.
fn begins_count(after: &str) -> bool {
    let Some((inside, _)) = after.split_once('}') else {
        return false;
    };
    let number = |s: &str| !s.is_empty() && s.bytes().all(|c| c.is_ascii_digit());
    match inside.split_once(',') {
        Some((low, high)) => number(low) && (high.is_empty() || number(high)),
        None => number(inside),
    }
}

/// Finds what the parser reads and RE2 doesn't.
struct Differences;

impl ast::Visitor for Differences {
    type Output = ();
    type Err = String;

    fn finish(self) -> Result<(), String> {
        Ok(())
    }

    fn visit_pre(&mut self, tree: &Ast) -> Result<(), String> {
        match tree {
            Ast::Repetition(r) => {
                if matches!(*r.ast, Ast::Repetition(_)) {
                    return Err("a repetition of a repetition needs parentheses".to_owned());
                }
                let most = match &r.op.kind {
                    ast::RepetitionKind::Range(
                        ast::RepetitionRange::Exactly(n)
                        | ast::RepetitionRange::AtLeast(n)
                        | ast::RepetitionRange::Bounded(_, n),
                    ) => *n,
                    _ => 0,
                };
                if most > MAX_COUNT {
                    return Err(format!("a count must be at most {MAX_COUNT}"));
                }
            }
            Ast::Flags(f) => flags(&f.flags)?,
            Ast::Group(g) => {
                if let ast::GroupKind::NonCapturing(f) = &g.kind {
                    flags(f)?;
                }
            }
            Ast::Literal(l) => literal(l)?,
            Ast::ClassUnicode(c) => unicode_class(c)?,
            _ => {}
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ast::ClassSetItem) -> Result<(), String> {
        match item {
            ast::ClassSetItem::Literal(l) => literal(l),
            ast::ClassSetItem::Range(r) => literal(&r.start).and_then(|()| literal(&r.end)),
            ast::ClassSetItem::Unicode(c) => unicode_class(c),
            _ => Ok(()),
        }
    }
}

fn flags(flags: &ast::Flags) -> Result<(), String> {
    for item in &flags.items {
        if let ast::FlagsItemKind::Flag(
            flag @ (ast::Flag::IgnoreWhitespace | ast::Flag::Unicode | ast::Flag::CRLF),
        ) = &item.kind
        {
            return Err(format!("the flag {flag:?} is not known; i, m, s and U are"));
        }
    }
    Ok(())
}

fn literal(literal: &ast::Literal) -> Result<(), String> {
    use ast::HexLiteralKind::{UnicodeLong, UnicodeShort};
    match &literal.kind {
        ast::LiteralKind::HexFixed(UnicodeShort | UnicodeLong)
        | ast::LiteralKind::HexBrace(UnicodeShort | UnicodeLong) => {
            Err("\\u is not known; write \\x{...}".to_owned())
        }
        _ => Ok(()),
    }
}

fn unicode_class(class: &ast::ClassUnicode) -> Result<(), String> {
    match class.kind {
        ast::ClassUnicodeKind::NamedValue { .. } => {
            Err("a class such as \\p{name=value} is not known; write \\p{value}".to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r4_patterns_that_re2_takes() {
        for good in [
            "",
            "a",
            "/v[0-9]+/.*",
            "^(?i)x|y$",
            "(?P<name>a)",
            "/users/{id}",
            "a{2,3}",
            "a{,5}",
            "x{",
            "[[a]",
            "[]a]",
            "[^]a]",
            "[[:alpha:]_]",
            "[a&&b]",
            r"\Qa.b(c\E+",
            r"\C",
            r"\pL\d\.",
            "a{1000}",
            "a*?",
            r"\x{41}",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn fc_059_patterns_that_re2_refuses() {
        for bad in [
            "*.foo.bar",
            "a(b",
            "(?=x)",
            "(?!x)",
            "(?<=x)y",
            "\\",
            r"(a)\1",
            "a**",
            "a{1001}",
            "[b-a]",
            "(?x)a b",
            r"\u0041",
            r"\p{gc=Lu}",
            "((a{1000}){1000}){1000}",
            "[a",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
        let deep = "(".repeat(5000) + &")".repeat(5000);
        assert!(check(&deep).is_err());
        assert!(check(&"a".repeat(20_000)).is_err());
    }
}
