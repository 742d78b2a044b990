//! What is refused, when, and in which words.

use super::*;

#[test]
fn syntax_errors_name_the_column() {
    for (filter, expected) in [
        (
            "Service.Port",
            "column 13: found the end of the filter where an operator is wanted",
        ),
        (
            "Service.Port = 1",
            "column 14: found a single `=`: write `==`",
        ),
        (
            "Service.Port > 1",
            "column 14: found `>` where an operator is wanted",
        ),
        (
            "Service.Port == 1 AND",
            "column 19: found `AND` after a complete expression",
        ),
        (
            "Service.Port == 1 && a",
            "column 19: found `&` after a complete expression",
        ),
        (
            "Service.Port == 1 and",
            "column 22: found the end of the filter where a selector or a value",
        ),
        ("(Service.Port == 1", "column 1: this `(` is never closed"),
        (
            "(Service.Port == 1 x)",
            "column 20: found `x` in parentheses",
        ),
        (
            "Service.Port == 1)",
            "column 18: there is no `(` for this `)`",
        ),
        (
            "()",
            "column 2: found `)` where a selector or a value is wanted",
        ),
        ("Service.Meta.v is v1", "column 19: found `v1` after `is`"),
        (
            "Service.Meta.v not empty",
            "column 20: found `empty` after `not`",
        ),
        (
            "Service.Meta.v == \"v1",
            "column 19: this string is never closed",
        ),
        (
            "Service.Meta.v == `v1",
            "column 19: this back quote is never closed",
        ),
        ("Service.Meta.é == \"\\q\"", "column 20: not an escape"),
        ("Service.Meta.v == \"\\xe9\"", "column 20: not an escape"),
        ("Service.Meta.v == \"\\ud800\"", "column 20: not an escape"),
        (
            "Service.Meta.v == 1.2.3",
            "column 19: `1.2.3` is not a decimal number: put quotes",
        ),
        (
            "Service.Meta.v == 01",
            "column 19: `01` is not a decimal number",
        ),
        (
            "Service.Meta.v == 1a",
            "column 19: `1a` is not a decimal number",
        ),
        (
            "Service.Meta.v == -",
            "column 19: `-` is not a decimal number",
        ),
        (
            "Service.Meta.v == Service.Meta[\"a\"]",
            "column 19: an indexed field where a value is wanted",
        ),
        (
            "Service..Port == 1",
            "column 1: a name is missing next to a `.`",
        ),
        (
            "Service.Port. == 1",
            "column 1: a name is missing next to a `.`",
        ),
        ("Service.Meta[a] == 1", "column 14: found `a` in an index"),
        (
            "Service.Meta[\"a\" == 1",
            "column 17: found ` ` in an index",
        ),
        (
            "Service.Meta[\"a\"]. == 1",
            "column 19: a name is missing next to a `.`",
        ),
        (
            "1 == Service.Port",
            "column 1: a number where a field is wanted",
        ),
        (
            "\"Service/Port\" == 1",
            "column 1: a string where a field is wanted",
        ),
        (
            "Service.Service in \"web\"",
            "column 20: a string where a field is wanted",
        ),
        (
            "Service.Service matches \"(\"",
            "column 25: the pattern `(` is not a regular expression: unclosed group",
        ),
        (
            "Service.Service matches `\\w{9999}`",
            "column 25: the pattern `\\w{9999}` is not a regular expression: ",
        ),
        (
            "any Service.Tags as t { t == a }",
            "column 5: found `Service.Tags` where an operator",
        ),
    ] {
        let error = Filter::parse(filter).unwrap_err();
        assert!(matches!(error, FilterError::Syntax { .. }), "{filter}");
        let error = error.to_string();
        assert!(
            error.starts_with(&format!("filter, {expected}")),
            "{filter}: {error}"
        );
    }
}

#[test]
fn mistakes_against_the_fields_are_found_by_check_and_by_matches() {
    for (filter, expected) in [
        (
            "Service.Port == abc",
            "column 1: `Service.Port` is a whole number, and `abc` isn't one",
        ),
        (
            "Service.Port == 8080.0",
            "column 1: `Service.Port` is a whole number, and `8080.0` isn't one",
        ),
        (
            "Service.Port == \"0x+1\"",
            "column 1: `Service.Port` is a whole number",
        ),
        (
            "Service.Weight == nan",
            "column 1: `Service.Weight` is a number, and `nan` isn't one",
        ),
        (
            "Service.EnableTagOverride == yes",
            "column 1: `Service.EnableTagOverride` is a boolean",
        ),
        (
            "Service.Port is empty",
            "column 1: `Service.Port` is a whole number: `is empty` works on",
        ),
        (
            "Service.Port not matches 1",
            "column 1: `Service.Port` is a whole number: `not matches` works on",
        ),
        (
            "8 in Service.Port",
            "column 6: `Service.Port` is a whole number: `in` works on",
        ),
        (
            "Service.Tags == canary",
            "column 1: `Service.Tags` is a list: `==` works on",
        ),
        (
            "Service.Tags matches can",
            "column 1: `Service.Tags` is a list: `matches` works on strings",
        ),
        (
            "Service.Meta != x",
            "column 1: `Service.Meta` is a map: `!=` works on",
        ),
        (
            "Service == x",
            "column 1: `Service` is a record: `==` works on",
        ),
        (
            "Service.Proxy is empty",
            "column 1: `Service.Proxy` is a record: `is empty` works on",
        ),
        (
            "x in Service.Ports",
            "column 6: `Service.Ports` is a whole number, and `x` isn't one",
        ),
        ("Checks == x", "column 1: `Checks` is a list"),
        ("x not in Checks", "column 10: `Checks` is a list of"),
        (
            "service.Port == 1",
            "column 1: unknown field `service` in `service.Port`",
        ),
        (
            "Service.Port.x == 1",
            "column 1: unknown field `x` in `Service.Port.x`",
        ),
        (
            "Service.Meta.version.x == 1",
            "column 1: unknown field `x` in `Service.Meta.version.x`",
        ),
        (
            "Service.Tags.x == 1",
            "column 1: unknown field `x` in `Service.Tags.x`",
        ),
        (
            "Checks.0.Status == x",
            "column 1: unknown field `0` in `Checks.0.Status`",
        ),
        (
            "\"/Service/~0~1\" == x",
            "column 1: unknown field `~/` in `\"/Service/~0~1\"`",
        ),
    ] {
        let expected = format!("filter, {expected}");
        let checked = refusal(filter);
        assert!(checked.starts_with(&expected), "{filter}: {checked}");

        // Without the check the same mistake shows at the first record, in the same place.
        let filter = Filter::parse(filter).unwrap();
        let (checked, matched) = (
            filter.check(&INSTANCE).unwrap_err(),
            filter.matches(&sample()).unwrap_err(),
        );
        assert_eq!(
            std::mem::discriminant(&checked),
            std::mem::discriminant(&matched)
        );
        let place = |error: &FilterError| error.to_string().split_once(": ").unwrap().0.to_owned();
        assert_eq!(place(&checked), place(&matched));
    }
    // The part that isn't reached fails the check only.
    let hidden = Filter::parse("Service.Port == 1 and Service.Nope == 1").unwrap();
    assert!(!hidden.matches(&sample()).unwrap());
    assert!(hidden.check(&INSTANCE).is_err());
}

#[test]
fn limits_are_errors() {
    let nested = |n: usize| format!("{}a == b{}", "(".repeat(n), ")".repeat(n));
    assert!(Filter::parse(&nested(MAX_DEPTH)).is_ok());
    let error = Filter::parse(&nested(MAX_DEPTH + 1))
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "filter, column 65: more than 64 parentheses inside each other: flatten the expression"
    );
    assert!(Filter::parse(&nested(8000)).is_err());
    assert!(Filter::parse(&format!("{}a == b", "not ".repeat(4000))).is_ok());

    let chain = |n: usize, part: &str| vec![part; n].join(" or ");
    let long = Filter::parse(&chain(1600, "a == b")).unwrap();
    assert!(!long.matches(&named([("a", text("c"))])).unwrap());
    assert!(Filter::parse(&chain(1700, "a == b")).is_err());

    assert!(Filter::parse(&chain(MAX_PATTERNS, "a matches b")).is_ok());
    let error = Filter::parse(&chain(MAX_PATTERNS + 1, "a matches b")).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("more than 32 patterns: join them with `|` inside one")
    );
}

#[test]
fn no_message_holds_a_raw_control_character() {
    let text = "Service.ID matches \"(\u{1b}[2J\"";
    let problem = Filter::parse(text).unwrap_err().to_string();
    assert!(problem.contains("(\\u{1b}[2J"), "{problem:?}");
}
