//! Makes `descriptors.bin`: of all descriptors that the crate envoy-types ships, those of the messages that can occur in
//! resources, without comments and options. Those are more than ours: operators may write whole resources.
//!
//! The test fails if the file isn't what it should be: after an update of envoy-types or a change of [`ROOTS`]. Then
//! `PROXYCFG_WRITE_DESCRIPTORS=1 cargo test --lib xds::json::prune` writes it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

/// Messages that are kept, with everything that their fields name: all in packages that begin so, and these.
const PACKAGES: &[&str] = &[".envoy.config.", ".envoy.extensions."];
const ROOTS: &[&str] = &[
    ".google.protobuf.Any",
    ".google.protobuf.BoolValue",
    ".google.protobuf.Duration",
    ".google.protobuf.Empty",
    ".google.protobuf.StringValue",
    ".google.protobuf.Struct",
    ".google.protobuf.Timestamp",
    ".google.protobuf.UInt32Value",
    ".google.protobuf.UInt64Value",
];

#[test]
fn the_descriptors_are_those_of_envoy_types() {
    let all = FileDescriptorSet::decode(&*std::fs::read(shipped()).unwrap()).unwrap();
    let pruned = prune(all).encode_to_vec();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/xds/json/descriptors.bin");
    if std::env::var_os("PROXYCFG_WRITE_DESCRIPTORS").is_some() {
        std::fs::write(&path, &pruned).unwrap();
    }
    let same = std::fs::read(&path).unwrap() == pruned;
    assert!(
        same,
        "{} is out of date; PROXYCFG_WRITE_DESCRIPTORS=1 writes it anew",
        path.display()
    );
}

/// Where the crate's own descriptors are on this machine.
fn shipped() -> PathBuf {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let envoy_types = packages
        .iter()
        .find(|p| p["name"] == "envoy-types")
        .unwrap();
    PathBuf::from(envoy_types["manifest_path"].as_str().unwrap())
        .with_file_name("src/generated/types.bin")
}

fn prune(all: FileDescriptorSet) -> FileDescriptorSet {
    let mut references = BTreeMap::new();
    let mut files = BTreeMap::new();
    for file in &all.file {
        let scope = format!(".{}", file.package());
        for message in &file.message_type {
            collect(message, &scope, file.name(), &mut references, &mut files);
        }
        for top in &file.enum_type {
            files.insert(format!("{scope}.{}", top.name()), file.name().to_owned());
        }
    }
    let mut kept = BTreeSet::new();
    let mut open: Vec<String> = ROOTS.iter().map(|root| (*root).to_owned()).collect();
    let of_package = |name: &&String| PACKAGES.iter().any(|package| name.starts_with(package));
    open.extend(references.keys().filter(of_package).cloned());
    while let Some(name) = open.pop() {
        assert!(files.contains_key(&name) || name.contains('.'), "{name}");
        if kept.insert(name.clone()) {
            open.extend(references.get(&name).into_iter().flatten().cloned());
        }
    }
    let mut set = FileDescriptorSet::default();
    for mut file in all.file {
        let scope = format!(".{}", file.package());
        retain(&mut file.message_type, &scope, &kept);
        file.enum_type
            .retain(|top| kept.contains(&format!("{scope}.{}", top.name())));
        for top in &mut file.enum_type {
            strip_enum(top);
        }
        if file.message_type.is_empty() && file.enum_type.is_empty() {
            continue;
        }
        strip(&mut file, &files);
        set.file.push(file);
    }
    set
}

/// Notes which types each message names, and the file of each type.
fn collect(
    message: &DescriptorProto,
    scope: &str,
    file: &str,
    references: &mut BTreeMap<String, Vec<String>>,
    files: &mut BTreeMap<String, String>,
) {
    let name = format!("{scope}.{}", message.name());
    let types = message.field.iter().filter_map(|f| f.type_name.clone());
    references.entry(name.clone()).or_default().extend(types);
    files.insert(name.clone(), file.to_owned());
    for nested in &message.nested_type {
        collect(nested, &name, file, references, files);
    }
    for nested in &message.enum_type {
        files.insert(format!("{name}.{}", nested.name()), file.to_owned());
    }
}

fn retain(messages: &mut Vec<DescriptorProto>, scope: &str, kept: &BTreeSet<String>) {
    for message in messages.iter_mut() {
        let name = format!("{scope}.{}", message.name());
        retain(&mut message.nested_type, &name, kept);
        message
            .enum_type
            .retain(|nested| kept.contains(&format!("{name}.{}", nested.name())));
        for nested in &mut message.enum_type {
            strip_enum(nested);
        }
        for field in &mut message.field {
            // Whether a field is packed is the same as the default everywhere.
            field.options = None;
        }
        for oneof in &mut message.oneof_decl {
            oneof.options = None;
        }
        message.extension.clear();
        if let Some(options) = &mut message.options {
            let map_entry = options.map_entry;
            *options = prost_reflect::prost_types::MessageOptions {
                map_entry,
                ..Default::default()
            };
        }
        if !kept.contains(&name) {
            // Only a scope for what is nested in it.
            message.field.clear();
            message.oneof_decl.clear();
            message.reserved_range.clear();
            message.reserved_name.clear();
        }
    }
    messages.retain(|message| {
        kept.contains(&format!("{scope}.{}", message.name()))
            || !message.nested_type.is_empty()
            || !message.enum_type.is_empty()
    });
}

fn strip_enum(of: &mut prost_reflect::prost_types::EnumDescriptorProto) {
    // Two names of one number are an error without this.
    let alias = of.options.as_ref().and_then(|options| options.allow_alias);
    of.options = alias.map(|alias| prost_reflect::prost_types::EnumOptions {
        allow_alias: Some(alias),
        ..Default::default()
    });
    for value in &mut of.value {
        value.options = None;
    }
}

/// Leaves out what isn't needed to read messages, and imports only the files that are used.
fn strip(file: &mut FileDescriptorProto, files: &BTreeMap<String, String>) {
    let mut imports = BTreeSet::new();
    imported(&file.message_type, files, &mut imports);
    imports.remove(file.name());
    file.dependency = imports.into_iter().collect();
    file.public_dependency.clear();
    file.weak_dependency.clear();
    file.service.clear();
    file.extension.clear();
    file.options = None;
    file.source_code_info = None;
}

fn imported(
    messages: &[DescriptorProto],
    files: &BTreeMap<String, String>,
    imports: &mut BTreeSet<String>,
) {
    for message in messages {
        let types = message.field.iter().filter_map(|f| f.type_name.as_ref());
        imports.extend(types.map(|name| files[name].clone()));
        imported(&message.nested_type, files, imports);
    }
}
