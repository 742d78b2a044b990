//! Registrations, their expansion, and the JSON form of all records.

mod catalog;
mod checks;
mod documents;
mod records;
mod round_trip;
mod services;
mod sidecars;

use serde_json::Value as Json;

use crate::hcl::Value;
use crate::model::{Expanded, ServiceDefinition, SidecarPortRange, SidecarPorts};

fn read(json: &Json) -> Result<ServiceDefinition, String> {
    ServiceDefinition::read(&Value::from_json(json))
        .map(|(definition, _)| definition)
        .map_err(|problems| problems.text())
}

#[track_caller]
fn good(json: Json) -> ServiceDefinition {
    read(&json).unwrap_or_else(|problems| panic!("{json}: {problems}"))
}

#[track_caller]
fn bad(json: Json, texts: &[&str]) {
    match read(&json) {
        Ok(_) => panic!("{json} is accepted"),
        Err(problems) => {
            for text in texts {
                assert!(problems.contains(text), "{json}: no {text:?} in {problems}");
            }
        }
    }
}

/// Expands a definition where some ports are taken.
fn expand(json: Json, held: Option<u16>, taken: &[u16]) -> Result<Expanded, String> {
    let ports = SidecarPorts {
        range: SidecarPortRange::default(),
        held,
        taken: &|port| taken.contains(&port),
    };
    good(json)
        .expand("n1", &ports)
        .map_err(|problems| problems.text())
}
