//! What a sidecar is given, kind of resource by kind of resource, on the snapshots of `xds::fixtures`.

mod clusters;
mod public_listener;
mod routes;
mod upstream_listener;

use serde_json::{Value, json};

use crate::model::EndpointHealth::{Critical, Passing, Warning};
use crate::snapshot::Part;
use crate::xds::fixtures::*;
use crate::xds::{Generated, ResourceType};

const PUBLIC: &str = "public_listener:0.0.0.0:21000";

fn cluster_name(rest: &str) -> String {
    format!("{rest}.internal.{TD}")
}

fn public(fixture: &Fixture) -> Value {
    shown(&fixture.generate(), ResourceType::Listener, PUBLIC)
}

fn http_filters(listener: &Value) -> Vec<String> {
    let filters = last_filter(listener)["httpFilters"].as_array().unwrap();
    filters
        .iter()
        .map(|filter| {
            filter["name"]
                .as_str()
                .unwrap()
                .replace("envoy.filters.http.", "")
        })
        .collect()
}

fn checked(fixture: &Fixture) -> Generated {
    let generated = fixture.generate();
    assert_eq!(generated.problems, []);
    assert_consistent(&generated);
    generated
}

fn resolver_chain(
    service: &str,
    protocol: &str,
    resolver: Value,
    targets: &[Value],
) -> crate::model::chain::CompiledChain {
    chain(
        service,
        protocol,
        "resolver:x",
        json!({"resolver:x": resolver}),
        targets,
    )
}
