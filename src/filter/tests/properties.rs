use proptest::prelude::*;

use super::*;

/// An expression over conditions whose truth is known.
#[derive(Debug, Clone)]
enum Known {
    Leaf(bool),
    Not(Box<Known>),
    And(Vec<Known>),
    Or(Vec<Known>),
}

impl Known {
    fn truth(&self) -> bool {
        match self {
            Self::Leaf(truth) => *truth,
            Self::Not(inner) => !inner.truth(),
            Self::And(parts) => parts.iter().all(Self::truth),
            Self::Or(parts) => parts.iter().any(Self::truth),
        }
    }

    /// Printed with parentheses only where the precedence (1 or, 2 and, 3 not) asks for them.
    fn print(&self, outer: u8) -> String {
        let join = |parts: &[Self], word, own| {
            let parts: Vec<_> = parts.iter().map(|part| part.print(own)).collect();
            parts.join(word)
        };
        let (own, text) = match self {
            Self::Leaf(truth) => (
                4,
                format!("Service.Port {} 8080", if *truth { "==" } else { "!=" }),
            ),
            Self::Not(inner) => (3, format!("not {}", inner.print(3))),
            Self::And(parts) => (2, join(parts, " and ", 3)),
            Self::Or(parts) => (1, join(parts, " or ", 2)),
        };
        if own < outer {
            format!("({text})")
        } else {
            text
        }
    }
}

fn any_known() -> impl Strategy<Value = Known> {
    any::<bool>()
        .prop_map(Known::Leaf)
        .prop_recursive(5, 24, 3, |inner| {
            prop_oneof![
                inner.clone().prop_map(|known| Known::Not(Box::new(known))),
                prop::collection::vec(inner.clone(), 1..4).prop_map(Known::And),
                prop::collection::vec(inner, 1..4).prop_map(Known::Or),
            ]
        })
}

proptest! {
    #[test]
    fn printed_expressions_keep_their_truth(known in any_known()) {
        let text = known.print(0);
        prop_assert_eq!(holds(&text, &sample()), known.truth(), "{}", text);
    }

    #[test]
    fn any_string_can_be_compared(string in any::<String>()) {
        let quoted = format!("\"{}\"", string.replace('\\', "\\\\").replace('"', "\\\""));
        let record = named([("a", text(&string))]);
        let key = named([("m", map(&[(&string, "x")]))]);
        for (filter, record) in [
            (format!("a == {quoted}"), &record),
            (format!("{quoted} in a"), &record),
            (format!("m[{quoted}] == x"), &key),
        ] {
            prop_assert!(Filter::parse(&filter).unwrap().matches(record).unwrap(), "{}", filter);
        }
    }

    #[test]
    fn random_text_never_panics(text in any::<String>()) {
        let _ = Filter::parse(&text);
    }

    #[test]
    fn a_checked_filter_never_fails_on_random_tokens(
        tokens in prop::collection::vec(
            prop::sample::select(vec![
                "Service", ".", "Port", "Service.Port", "Service.Tags", "Service.Meta.x", "Checks.Status", "==", "!=", "in", "not",
                "and", "or", "is", "empty", "contains", "matches", "(", ")", "[", "]", "\"", "`", "\"x\"", "\\", "1", "-", "true", "é",
            ]),
            0..14,
        ),
        glue in prop::sample::select(vec!["", " "]),
    ) {
        if let Ok(filter) = Filter::parse_for(&tokens.join(glue), &INSTANCE) {
            prop_assert!(filter.matches(&sample()).is_ok());
        }
    }
}
