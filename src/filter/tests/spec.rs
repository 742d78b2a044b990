//! What filters mean (store.md 4.10, tests 28 to 32).

use super::*;

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
