//! The rules of config entries, and the vectors of discovery-chain.md 16.

mod common_rules;
mod intentions;
mod single_kinds;
mod vectors;

use serde_json::Value as Json;

use crate::hcl::Value;
use crate::model::config_entry::ConfigEntry;
use crate::model::decode::{Decode, Place, Problems};

fn entry(json: &Json) -> Result<ConfigEntry, Problems> {
    let mut problems = Problems::default();
    let entry = ConfigEntry::decode(&Value::from_json(json), &Place::ROOT, &mut problems);
    entry.filter(|_| problems.is_ok()).ok_or(problems)
}

fn read(json: &Json) -> Result<ConfigEntry, String> {
    ConfigEntry::read(&Value::from_json(json))
        .map(|(entry, _)| entry)
        .map_err(|problems| problems.text())
}

/// Reads an entry that must be good.
#[track_caller]
fn good(json: Json) -> ConfigEntry {
    read(&json).unwrap_or_else(|problems| panic!("{json}: {problems}"))
}

/// Reads an entry that must be refused, with these texts among the problems.
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
