//! Resources as JSON for people (`proxycfg resources`): protobuf's JSON form with Envoy's names, nested `Any`s opened,
//! private keys redacted (decision C1).
//!
//! The generated types can't write JSON. So the bytes are read with Envoy's own descriptors, of which the file
//! `descriptors.bin` holds those that resources can need (see `prune.rs`).

#[cfg(test)]
mod prune;

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::{Value, json};

use super::{Resource, ResourceSet, ResourceType};
use crate::model::has_secret_web_keys;

/// Why a resource can't be shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {kind} {name:?} can't be shown as JSON: {reason}")]
pub struct JsonError {
    kind: ResourceType,
    name: String,
    reason: String,
}

static POOL: LazyLock<Result<DescriptorPool, String>> = LazyLock::new(|| {
    DescriptorPool::decode(&include_bytes!("descriptors.bin")[..]).map_err(|e| e.to_string())
});

/// The descriptors of Envoy's messages.
///
/// # Errors
/// They can't be read.
pub(super) fn pool() -> Result<&'static DescriptorPool, String> {
    POOL.as_ref().map_err(Clone::clone)
}

/// What stands in the place of a secret.
const REDACTED: &str = "<redacted>";

/// Members that hold secret material, in any message that Envoy has.
const SECRET_MEMBERS: &[&str] = &[
    "privateKey",
    "privateKeyProvider",
    "password",
    "pkcs12",
    "sessionTicketKeys",
    "genericSecret",
    "ticketKeys",
];

/// A resource as JSON. Private keys read `"<redacted>"`.
///
/// # Errors
/// The bytes aren't a message of the resource's type, or hold a type that has no descriptor here.
pub fn resource_to_json(resource: &Resource) -> Result<Value, JsonError> {
    let mut json = read(resource).map_err(|reason| JsonError {
        kind: resource.kind(),
        name: resource.name().to_string(),
        reason,
    })?;
    redact(&mut json);
    Ok(json)
}

impl ResourceSet {
    /// The resources of one type, or of all, sorted by type and name: objects with `Type`, `Name`, `Version` and
    /// `Resource`. One that can't be shown has `Error` instead of `Resource`.
    #[must_use]
    pub fn to_json(&self, only: Option<ResourceType>) -> Value {
        let types = ResourceType::ALL
            .into_iter()
            .filter(|kind| only.is_none_or(|only| only == *kind));
        let resources = types.flat_map(|kind| self.of(kind)).map(|resource| {
            let mut shown = json!({
                "Type": resource.kind().name(), "Name": resource.name(), "Version": resource.version(),
            });
            match resource_to_json(resource) {
                Ok(json) => shown["Resource"] = json,
                Err(error) => shown["Error"] = error.reason.into(),
            }
            shown
        });
        resources.collect()
    }
}

fn read(resource: &Resource) -> Result<Value, String> {
    let pool = pool()?;
    let url = resource.kind().url();
    let name = url.rsplit('/').next().unwrap_or(url);
    let descriptor = pool
        .get_message_by_name(name)
        .ok_or_else(|| format!("{name} has no descriptor"))?;
    let message =
        DynamicMessage::decode(descriptor, resource.bytes().clone()).map_err(|e| e.to_string())?;
    message
        .serialize_with_options(serde_json::value::Serializer, &SerializeOptions::new())
        .map_err(|e| e.to_string())
}

fn redact(json: &mut Value) {
    match json {
        Value::Object(members) => {
            for (name, value) in members {
                let secret = SECRET_MEMBERS.contains(&name.as_str())
                    || (name == "inlineString" && value.as_str().is_some_and(has_secret_web_keys));
                if secret {
                    *value = REDACTED.into();
                } else {
                    redact(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::xds::proto::{core, tls};

    #[test]
    fn c1_a_key_set_with_secret_keys_is_not_shown() {
        let mut shown =
            json!({"localJwks": {"inlineString": r#"{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}"#}});
        redact(&mut shown);
        assert_eq!(shown, json!({"localJwks": {"inlineString": REDACTED}}));
        let public = json!({"inlineString": r#"{"keys":[{"kty":"EC","x":"1","y":"2"}]}"#});
        let mut shown = public.clone();
        redact(&mut shown);
        assert_eq!(shown, public);
    }

    #[test]
    fn c1_a_private_key_is_never_shown() {
        let inline = |text: &str| {
            Some(core::DataSource {
                specifier: Some(core::data_source::Specifier::InlineString(text.into())),
                ..Default::default()
            })
        };
        let certificate = tls::TlsCertificate {
            certificate_chain: inline("CHAIN"),
            private_key: inline("TOP-SECRET"),
            ..Default::default()
        };
        let secret = tls::Secret {
            name: "leaf".into(),
            r#type: Some(tls::secret::Type::TlsCertificate(certificate)),
        };
        let set = ResourceSet::builder(1)
            .with(Resource::new(
                ResourceType::Secret,
                "leaf",
                secret.encode_to_vec(),
            ))
            .with(Resource::new(ResourceType::Cluster, "bad", vec![0xff]))
            .build();
        let json = set.to_json(None);
        assert!(!json.to_string().contains("TOP-SECRET"));
        assert_eq!(
            json[0]["Resource"],
            json!({"name": "leaf", "tlsCertificate": {
                "certificateChain": {"inlineString": "CHAIN"}, "privateKey": "<redacted>",
            }})
        );
        assert!(json[1]["Error"].is_string());
        assert_eq!(
            set.to_json(Some(ResourceType::Cluster))
                .as_array()
                .map(Vec::len),
            Some(1)
        );
    }
}
