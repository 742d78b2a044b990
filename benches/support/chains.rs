//! Configuration entries that chains are compiled from, and how long that takes; for the benches of chains.

use std::hint::black_box;
use std::time::{Duration, Instant};

use proxycfg::chain::{ChainRequest, EntrySet, compile};
use proxycfg::hcl::Value;
use proxycfg::model::{
    ConfigEntry, ServiceDefaults, ServiceResolver, ServiceSplitter, decode_document,
};
use serde_json::json;
use triomphe::Arc;

/// The entry of a JSON form.
pub fn entry(json: serde_json::Value) -> ConfigEntry {
    let read = decode_document::<ConfigEntry>(&Value::from_json(&json));
    read.unwrap_or_else(|problems| panic!("{}", problems.text()))
        .0
}

/// A splitter whose legs lead to as many services, each to a subset of its own, and change headers on the way.
pub fn splitter(name: &str, to: impl Iterator<Item = String>, subset: &str) -> serde_json::Value {
    let services: Vec<String> = to.collect();
    // Hundredths of a percent, as evenly as they go.
    let (share, rest) = (10_000 / services.len(), 10_000 % services.len());
    let splits = services.iter().enumerate().map(|(n, service)| {
        let hundredths = share + usize::from(n < rest);
        json!({
            "Weight": hundredths as f64 / 100.0, "Service": service, "ServiceSubset": subset,
            "RequestHeaders": {"Set": {"x-leg": service}},
        })
    });
    json!({"Kind": "service-splitter", "Name": name, "Splits": splits.collect::<Vec<_>>()})
}

/// A resolver with a subset.
pub fn resolver(name: &str) -> serde_json::Value {
    json!({
        "Kind": "service-resolver", "Name": name, "ConnectTimeout": "3s",
        "Subsets": {"v1": {"Filter": "Service.Meta.version == v1"}},
    })
}

/// What the compiler looks entries up in.
pub fn set(entries: impl IntoIterator<Item = serde_json::Value>) -> EntrySet {
    let mut set = EntrySet::default();
    for json in entries {
        match entry(json) {
            ConfigEntry::ServiceSplitter(splitter) => {
                set.add_splitter(Arc::<ServiceSplitter>::new(splitter));
            }
            ConfigEntry::ServiceResolver(resolver) => {
                set.add_resolver(Arc::<ServiceResolver>::new(resolver));
            }
            ConfigEntry::ServiceDefaults(defaults) => {
                set.add_service_defaults(Arc::<ServiceDefaults>::new(defaults));
            }
            other => panic!("{other:?}"),
        }
    }
    set
}

/// Defaults that make a service speak HTTP.
pub fn defaults(name: &str) -> serde_json::Value {
    json!({"Kind": "service-defaults", "Name": name, "Protocol": "http"})
}

/// The median time to compile the chain of `api`, which must have so many targets.
pub fn median(entries: &EntrySet, targets: usize, rounds: usize) -> Duration {
    let request = ChainRequest::new("api", "dc1", "trust.consul");
    let mut times: Vec<Duration> = (0..rounds)
        .map(|_| {
            let begin = Instant::now();
            let chain = compile(black_box(&request), black_box(entries)).expect("it compiles");
            let took = begin.elapsed();
            assert_eq!(chain.targets.len(), targets);
            took
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// The entries of a chain of `api` that splits to so many services.
pub fn flat(splits: usize) -> EntrySet {
    let names = || (0..splits).map(|n| format!("s{n}"));
    let mut entries = vec![splitter("api", names(), "v1"), defaults("api")];
    entries.extend(names().flat_map(|name| [resolver(&name), defaults(&name)]));
    set(entries)
}
