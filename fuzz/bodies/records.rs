//! JSON documents, read as every kind of record.
//!
//! - Nothing panics; a refusal says why.
//! - An accepted record is normal: normalizing it again changes nothing, and it is still valid.
//! - Written as JSON and read again it is the same record.

use std::fmt::Debug;

use proxycfg::hcl::{self, Value};
use proxycfg::model::{
    self, AgentCheck, CatalogDeregistration, CatalogRegistration, ConfigEntry, Decode,
    EntryDeletion, HealthCheck, Node, ServiceDefinition, ServiceInstance, Transaction, Validate,
};

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let Ok(document) = hcl::parse_json(bytes) else {
        return;
    };
    let len = bytes.len();
    check::<ConfigEntry>(&document, len);
    check::<ServiceDefinition>(&document, len);
    check::<CatalogRegistration>(&document, len);
    check::<CatalogDeregistration>(&document, len);
    check::<AgentCheck>(&document, len);
    check::<HealthCheck>(&document, len);
    check::<ServiceInstance>(&document, len);
    check::<Node>(&document, len);
    check::<EntryDeletion>(&document, len);
    check::<Transaction>(&document, len);
}

fn check<T>(document: &Value, len: usize)
where
    T: Decode + Validate + serde::Serialize + Clone + PartialEq + Debug,
{
    let record = match model::read::<T>(document) {
        Ok((record, warnings)) => {
            assert!(warnings.is_ok());
            record
        }
        Err(problems) => {
            super::check_message(&problems.text(), len);
            return;
        }
    };
    let mut normal = record.clone();
    normal.normalize();
    assert_eq!(normal, record, "normalizing twice");
    let accepted = model::accept(record.clone());
    let accepted = accepted.unwrap_or_else(|e| panic!("normal but not valid: {}", e.text()));
    assert_eq!(accepted.0, record);
    let text = serde_json::to_vec(&record).unwrap();
    let shown = String::from_utf8_lossy(&text);
    let tree = hcl::parse_json(&text).unwrap_or_else(|e| panic!("{shown}: {e}"));
    let again = model::read::<T>(&tree).unwrap_or_else(|e| panic!("{shown}: {}", e.text()));
    assert_eq!(again.0, record, "{shown}");
}
