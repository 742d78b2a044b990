mod errors;
mod properties;
mod spec;

use std::collections::BTreeMap;

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
