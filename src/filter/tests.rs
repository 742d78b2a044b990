use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const UPSTREAM: FieldType = FieldType::Record(&[
    ("DestinationName", FieldType::String),
    ("LocalBindPort", FieldType::Int),
]);
const SERVICE: FieldType = FieldType::Record(&[
    ("Service", FieldType::String),
    ("Tags", FieldType::List(&FieldType::String)),
    ("Ports", FieldType::List(&FieldType::Int)),
    ("Port", FieldType::Int),
    ("Weight", FieldType::Float),
    ("Meta", FieldType::Map(&FieldType::String)),
    ("EnableTagOverride", FieldType::Bool),
    ("Locality", FieldType::String),
    (
        "Proxy",
        FieldType::Record(&[("Upstreams", FieldType::List(&UPSTREAM))]),
    ),
]);
static INSTANCE: FieldType = FieldType::Record(&[
    (
        "Node",
        FieldType::Record(&[
            ("Node", FieldType::String),
            ("Meta", FieldType::Map(&FieldType::String)),
        ]),
    ),
    ("Service", SERVICE),
    (
        "Checks",
        FieldType::List(&FieldType::Record(&[
            ("CheckID", FieldType::String),
            ("Status", FieldType::String),
        ])),
    ),
]);

/// A record of named fields.
#[derive(Default)]
struct Named(BTreeMap<&'static str, Value>);

enum Value {
    Text(String),
    Int(i64),
    Float(f64),
    Bool(bool),
    Texts(Vec<String>),
    Ints(Vec<i64>),
    Map(BTreeMap<String, String>),
    Record(Named),
    Records(Vec<Named>),
    Unset(Option<String>),
}

impl Record for Named {
    fn field(&self, name: &str) -> Option<Field<'_>> {
        Some(match self.0.get(name)? {
            Value::Text(text) => text.as_field(),
            Value::Int(number) => number.as_field(),
            Value::Float(number) => number.as_field(),
            Value::Bool(truth) => truth.as_field(),
            Value::Texts(texts) => texts.as_field(),
            Value::Ints(numbers) => numbers.as_field(),
            Value::Map(map) => map.as_field(),
            Value::Record(record) => record.as_field(),
            Value::Records(records) => records.as_field(),
            Value::Unset(unset) => unset.as_field(),
        })
    }
}

impl AsField for Named {
    fn as_field(&self) -> Field<'_> {
        Field::Record(self)
    }
}

fn named<const N: usize>(fields: [(&'static str, Value); N]) -> Named {
    Named(fields.into())
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn map(entries: &[(&str, &str)]) -> Value {
    Value::Map(
        entries
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
    )
}

fn instance(node: &str, tags: &[&str], meta: &[(&str, &str)], statuses: &[&str]) -> Named {
    let upstream = |name, port| {
        named([
            ("DestinationName", text(name)),
            ("LocalBindPort", Value::Int(port)),
        ])
    };
    let upstreams = Value::Records(vec![upstream("db", 1), upstream("cache", 2)]);
    let checks = statuses
        .iter()
        .map(|status| named([("CheckID", text("c")), ("Status", text(status))]))
        .collect();
    named([
        (
            "Node",
            Value::Record(named([("Node", text(node)), ("Meta", map(&[]))])),
        ),
        (
            "Service",
            Value::Record(named([
                ("Service", text("web")),
                (
                    "Tags",
                    Value::Texts(tags.iter().map(|&tag| tag.to_owned()).collect()),
                ),
                ("Ports", Value::Ints(vec![80, 443])),
                ("Port", Value::Int(8080)),
                ("Weight", Value::Float(1.5)),
                ("Meta", map(meta)),
                ("EnableTagOverride", Value::Bool(true)),
                ("Locality", Value::Unset(None)),
                ("Proxy", Value::Record(named([("Upstreams", upstreams)]))),
            ])),
        ),
        ("Checks", Value::Records(checks)),
    ])
}

fn sample() -> Named {
    instance(
        "n1",
        &["canary", "v1"],
        &[
            ("version", "v1"),
            ("a.b", "x"),
            ("c/d", "y"),
            ("empty", ""),
            ("n", "1"),
            ("not", "z"),
        ],
        &["passing", "critical"],
    )
}

fn holds(filter: &str, record: &Named) -> bool {
    let parsed = Filter::parse_for(filter, &INSTANCE).unwrap_or_else(|e| panic!("{filter}: {e}"));
    parsed
        .matches(record)
        .unwrap_or_else(|e| panic!("{filter}: {e}"))
}

/// The error of parsing, or of checking.
fn refusal(filter: &str) -> String {
    match Filter::parse_for(filter, &INSTANCE) {
        Ok(_) => panic!("{filter} was accepted"),
        Err(error) => error.to_string(),
    }
}

fn versions() -> [Named; 3] {
    [&[("version", "v1")][..], &[("version", "v2")], &[]].map(|meta| instance("n", &[], meta, &[]))
}

#[test]
fn store_28_equal_on_a_map_key() {
    assert_eq!(
        versions().map(|record| holds("Service.Meta.version == \"v2\"", &record)),
        [false, true, false]
    );
}

#[test]
fn store_29_not_equal_on_a_map_key_includes_records_without_it() {
    assert_eq!(
        versions().map(|record| holds("Service.Meta.version != \"v1\"", &record)),
        [false, true, true]
    );
}

#[test]
fn store_30_membership_and_not() {
    let filter = "\"canary\" in Service.Tags and not (Node.Node == \"n1\")";
    assert!(holds(filter, &instance("n2", &["a", "canary"], &[], &[])));
    assert!(!holds(filter, &instance("n1", &["canary"], &[], &[])));
    assert!(!holds(
        filter,
        &instance("n2", &["can", "canary2"], &[], &[])
    ));
}

#[test]
fn store_31_numbers_unknown_fields_and_parse_errors() {
    assert!(holds("Service.Port == 8080", &sample()));
    assert!(!holds("Service.Port == 8081", &sample()));
    assert_eq!(
        refusal("Service.Nope == 1"),
        "filter, column 1: unknown field `Nope` in `Service.Nope`: there are Service, Tags, Ports, Port, Weight, Meta, \
         EnableTagOverride, Locality, Proxy"
    );
    let unchecked = Filter::parse("Service.Nope == 1").unwrap();
    assert!(matches!(
        unchecked.matches(&sample()),
        Err(FilterError::UnknownField { column: 1, name, .. }) if name == "Nope"
    ));
    assert_eq!(
        Filter::parse("Service.Meta.a ==").unwrap_err().to_string(),
        "filter, column 18: found the end of the filter where a value is wanted"
    );
}

#[test]
fn store_32_any_check_decides() {
    let filter = "Checks.Status == \"critical\"";
    assert!(holds(filter, &sample()));
    assert!(!holds(
        filter,
        &instance("n", &[], &[], &["passing", "warning"])
    ));
    assert!(!holds(filter, &instance("n", &[], &[], &[])));
}

#[test]
fn every_operator_on_every_type() {
    let record = sample();
    for filter in [
        // Strings.
        "Service.Service == web",
        "Service.Service != db",
        "Service.Meta.empty is empty",
        "Service.Service is not empty",
        "\"eb\" in Service.Service",
        "Service.Service contains eb",
        "Service.Service not contains x",
        "x not in Service.Service",
        "Service.Service matches `^w.b$`",
        "Service.Service matches e",
        "Service.Service not matches \"^e\"",
        // Numbers and booleans, converted from any form of the literal.
        "Service.Port == \"8080\"",
        "Service.Port == \"0x1f90\"",
        "Service.Port == \"017620\"",
        "Service.Port == \"+8080\"",
        "Service.Port != -1",
        "Service.Weight == 1.5",
        "Service.Weight == \"1.50\"",
        "Service.Weight != 1",
        "Service.EnableTagOverride == true",
        "Service.EnableTagOverride == \"1\"",
        "Service.EnableTagOverride == T",
        "Service.EnableTagOverride != false",
        // Lists: membership, not substrings.
        "canary in Service.Tags",
        "can not in Service.Tags",
        "Service.Tags contains canary",
        "Service.Tags not contains can",
        "Service.Tags is not empty",
        "80 in Service.Ports",
        "Service.Ports not contains 81",
        // Maps: keys.
        "version in Service.Meta",
        "Service.Meta contains \"a.b\"",
        "v1 not in Service.Meta",
        "Service.Meta is not empty",
        "Node.Meta is empty",
        // Lists of records: any of them.
        "Checks is not empty",
        "Checks.Status == passing",
        "Checks.Status != passing",
        "not Checks.Status == warning",
        "Checks.Status matches crit",
        "crit in Checks.Status",
        "Service.Proxy.Upstreams.DestinationName == cache",
        "Service.Proxy.Upstreams.LocalBindPort == 2",
    ] {
        assert!(holds(filter, &record), "{filter}");
        assert!(!holds(&format!("not {filter}"), &record), "not {filter}");
    }
    assert!(holds("Checks is empty", &instance("n", &[], &[], &[])));
    assert!(!holds(
        "Checks.Status != passing",
        &instance("n", &[], &[], &[])
    ));
}

#[test]
fn a_missing_map_key_or_value() {
    let record = sample();
    for field in ["Service.Meta.nope", "Service.Locality"] {
        for (condition, expected) in [
            (format!("{field} == x"), false),
            (format!("{field} == \"\""), false),
            (format!("{field} != x"), true),
            (format!("x in {field}"), false),
            (format!("x not in {field}"), true),
            (format!("{field} contains x"), false),
            (format!("{field} not contains x"), true),
            (format!("{field} matches `.*`"), false),
            (format!("{field} not matches `.*`"), true),
            (format!("{field} is empty"), true),
            (format!("{field} is not empty"), false),
        ] {
            assert_eq!(holds(&condition, &record), expected, "{condition}");
        }
    }
}

#[test]
fn selectors_and_literals_in_every_form() {
    let record = sample();
    for filter in [
        "Service.Meta.version==v1",
        " \t\r\nService.Meta.version \n == \t v1 ",
        "Service.Meta[\"version\"] == v1",
        "Service.Meta[`a.b`] == x",
        "Service[\"Meta\"].version == v1",
        "Service[\"Meta\"][\"a.b\"] == x",
        "\"/Service/Meta/a.b\" == x",
        "\"/Service/Meta/c~1d\" == y",
        "`/Service/Meta/version` == v1",
        "canary in \"/Service/Tags\"",
        "\"/canary\" not in \"/Service/Tags\"",
        "Service.Meta.version == `v1`",
        "Service.Meta.version == \"\\x76\\u0031\"",
        "Service.Meta.version != \"a\\\"b\\\\\\n\\r\\t\\U0001F600\"",
        "Service.Meta.version != 1.2",
        "Service.Meta.version != v1.2-rc/3_x",
        "Service.Meta.n == 1",
        "Service.Meta.n != -1",
        "Service.Meta.version matches \"\\\\w\"",
        "Service.Meta.not == z",
        "Service.Meta.version != not",
        "Service.Meta.version != and",
        "\"not\" in Service.Meta",
    ] {
        assert!(holds(filter, &record), "{filter}");
    }
}

#[test]
fn precedence_is_not_and_or() {
    let record = sample();
    let (yes, no) = ("Service.Port == 8080", "Service.Port == 1");
    for (filter, expected) in [
        (format!("{yes} or {no} and {no}"), true),
        (format!("({yes} or {no}) and {no}"), false),
        (format!("{no} and {no} or {yes}"), true),
        (format!("not {yes} or {yes}"), true),
        (format!("not ({yes} or {yes})"), false),
        (format!("not {no} and {yes}"), true),
        (format!("not not {yes}"), true),
        (format!("not not not {yes}"), false),
        (format!("not({no})and({yes})"), true),
        (format!("{yes} and not {no} or {no}"), true),
    ] {
        assert_eq!(holds(&filter, &record), expected, "{filter}");
    }
}

#[test]
fn the_empty_filter_is_passed_by_everything() {
    for text in ["", " \t\n"] {
        let filter = Filter::parse_for(text, &INSTANCE).unwrap();
        assert!(filter.is_empty());
        assert!(filter.matches(&Named::default()).unwrap());
    }
    assert_eq!(Filter::default(), Filter::parse("").unwrap());
    assert!(!Filter::parse("a == b").unwrap().is_empty());
}

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
fn filters_are_values() {
    fn shared<T: Clone + Send + Sync + fmt::Debug + 'static>(_: &T) {}
    let filter: Filter = "Service.Port == 1".parse().unwrap();
    shared(&filter);
    assert_eq!(filter, filter.clone());
    assert_ne!(filter, Filter::parse("Service.Port  == 1").unwrap());
    assert_eq!(filter.to_string(), filter.text());
    assert_eq!(format!("{filter:?}"), "Filter(\"Service.Port == 1\")");
    assert!(filter < Filter::parse("Service.Port == 2").unwrap());
    let set = std::collections::HashSet::from([filter.clone(), filter]);
    assert_eq!(set.len(), 1);
}

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
