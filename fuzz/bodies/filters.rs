//! Filter expressions: parsed, checked against the fields of instances, and applied to some.
//!
//! - Nothing panics; a refusal names a column of the text.
//! - A filter that passes the check can be applied to every instance.
//! - `not (e)` is the opposite of `e`; `(e)`, `(e) and (e)` and `(e) or (e)` are the same as it.

use std::sync::OnceLock;

use proxycfg::filter::{Filter, FilterError, MAX_DEPTH, MAX_LENGTH, MAX_PATTERNS};
use proxycfg::model::{self, CatalogRegistration};
use proxycfg::source::{FilteredInstance, INSTANCE_FIELDS, parse_instance_filter};
use proxycfg::store::{AllowAll, MemoryBackend, Store, Transaction};
use serde_json::json;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let filter = match Filter::parse(text) {
        Ok(filter) => filter,
        Err(problem) => return check_problem(text, &problem),
    };
    assert_eq!(filter.text(), text);
    assert_eq!(filter.is_empty(), text.trim().is_empty());
    let checked = filter.check(&INSTANCE_FIELDS);
    assert_eq!(parse_instance_filter(text).is_ok(), checked.is_ok());
    if let Err(problem) = &checked {
        check_problem(text, problem);
    }
    let snapshot = store().snapshot();
    let reader = snapshot.reader();
    for service in ["web", "db"] {
        for row in reader.instances(service) {
            let record = FilteredInstance(&row);
            let matches = filter.matches(&record);
            if checked.is_err() {
                continue;
            }
            let matches = matches.unwrap_or_else(|e| panic!("a checked filter: {e}"));
            for (around, expected) in around(text, matches) {
                // A limit may be passed only now.
                if let Ok(filter) = parse_instance_filter(&around) {
                    assert_eq!(filter.matches(&record), Ok(expected), "{around}");
                } else {
                    let short = around.len() <= MAX_LENGTH;
                    let few = text.matches("matches").count() * 2 <= MAX_PATTERNS;
                    let flat = text.matches('(').count() + 2 <= MAX_DEPTH;
                    let flat = flat && text.matches("not").count() + 2 <= MAX_DEPTH;
                    assert!(!(short && few && flat), "refused: {around}");
                }
            }
        }
    }
}

fn around(text: &str, matches: bool) -> Vec<(String, bool)> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    vec![
        (format!("({text})"), matches),
        (format!("not ({text})"), !matches),
        (format!("({text}) and ({text})"), matches),
        (format!("({text}) or not ({text})"), true),
    ]
}

fn check_problem(text: &str, problem: &FilterError) {
    let (FilterError::Syntax { column, .. }
    | FilterError::UnknownField { column, .. }
    | FilterError::Type { column, .. }) = problem;
    assert!(
        *column >= 1 && *column <= text.chars().count() + 1,
        "{problem}"
    );
    super::check_message(&problem.to_string(), text.len());
}

/// Three instances, which differ in every field.
fn store() -> &'static Store {
    static STORE: OnceLock<Store> = OnceLock::new();
    STORE.get_or_init(|| {
        let store = Store::new(Box::new(MemoryBackend), std::sync::Arc::new(AllowAll)).unwrap();
        for document in [
            json!({"Node": "n1", "Address": "10.0.0.1", "NodeMeta": {"zone": "a"}, "TaggedAddresses": {"lan": "10.1.0.1"},
                "Service": {"ID": "web-1", "Service": "web", "Port": 80, "Tags": ["v1", "canary"], "Meta": {"version": "1", "a b": "x"},
                    "Weights": {"Passing": 3, "Warning": 1}, "TaggedAddresses": {"wan": {"Address": "1.2.3.4", "Port": 5}}},
                "Checks": [{"CheckID": "alive", "Name": "alive", "Status": "passing", "ServiceID": "web-1", "Output": "fine"}]}),
            json!({"Node": "n2", "Address": "10.0.0.2", "Service": {"ID": "web-2", "Service": "web", "SocketPath": "/run/web",
                "EnableTagOverride": true, "Connect": {"Native": true}}, "Check": {"CheckID": "node", "Name": "node", "Status": "critical"}}),
            json!({"Node": "n2", "Address": "10.0.0.2", "Service": {"Kind": "connect-proxy", "ID": "db-proxy", "Service": "db",
                "Port": 1, "Proxy": {"DestinationServiceName": "db", "LocalServicePort": 2, "Upstreams": [
                    {"DestinationName": "web", "LocalBindPort": 9000, "MeshGateway": {"Mode": "local"}}]}}}),
        ] {
            let value = proxycfg::hcl::Value::from_json(&document);
            let read = model::read::<CatalogRegistration>(&value);
            let (registration, _) = read.unwrap_or_else(|e| panic!("{}", e.text()));
            store.apply(Transaction::of(registration.into())).unwrap();
        }
        store
    })
}
