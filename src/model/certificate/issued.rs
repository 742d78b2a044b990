//! Leaf certificates as they are handed out (store.md 4.2).

use std::time::SystemTime;

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use smol_str::SmolStr;

use super::private_key::REDACTED;
use super::{PrivateKey, SpiffeId, timestamp};

/// A signed leaf certificate with its private key.
///
/// Its JSON is Consul's, except that `PrivateKeyPEM` reads `<redacted>`;
/// [`IssuedCert::to_json_with_private_key`] writes the key too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedCert {
    /// The serial number, hex bytes joined by `:`.
    pub serial_number: SmolStr,
    /// The chain, PEM: the leaf, then the active root's intermediates.
    pub cert_pem: String,
    /// The leaf's private key.
    pub private_key: PrivateKey,
    /// Whom the certificate identifies: a service, an agent, a mesh gateway or a server. Its URI is the SAN.
    pub identity: SpiffeId,
    /// Key id of the signer ([`super::CaRoot::signing_key_id`]): differs from the active root's after a rotation. Not
    /// part of the JSON.
    pub authority_key_id: SmolStr,
    /// Start of validity.
    pub valid_after: SystemTime,
    /// End of validity.
    pub valid_before: SystemTime,
    /// Index of the issue. Each issue takes a new one.
    pub create_index: u64,
    /// The same as `create_index`: a certificate never changes.
    pub modify_index: u64,
}

impl IssuedCert {
    /// Whether the certificate is valid at `now`.
    #[must_use]
    pub fn is_valid_at(&self, now: SystemTime) -> bool {
        self.valid_after <= now && now < self.valid_before
    }

    /// Consul's JSON with the private key: for the leaf endpoint, and nothing else.
    ///
    /// # Errors
    /// A time outside the years 0 to 9999.
    pub fn to_json_with_private_key(&self) -> serde_json::Result<serde_json::Value> {
        let mut json = serde_json::to_value(self)?;
        json["PrivateKeyPEM"] = self.private_key.expose_pem().into();
        Ok(json)
    }

    /// The field that names the identity and the one with its URI, and the name itself.
    fn identity_fields(&self) -> (Option<(&'static str, &str)>, &'static str) {
        match &self.identity {
            SpiffeId::Service { service, .. } => (Some(("Service", service)), "ServiceURI"),
            SpiffeId::Agent { agent, .. } => (Some(("Agent", agent)), "AgentURI"),
            SpiffeId::MeshGateway { .. } => (Some(("Kind", "mesh-gateway")), "KindURI"),
            SpiffeId::Server { .. } | SpiffeId::Signing { .. } => (None, "ServerURI"),
        }
    }
}

impl Serialize for IssuedCert {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Time(#[serde(with = "timestamp")] SystemTime);

        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("SerialNumber", &self.serial_number)?;
        map.serialize_entry("CertPEM", &self.cert_pem)?;
        map.serialize_entry("PrivateKeyPEM", REDACTED)?;
        let (name, uri_field) = self.identity_fields();
        if let Some((field, name)) = name {
            map.serialize_entry(field, name)?;
        }
        map.serialize_entry(uri_field, &self.identity.to_string())?;
        map.serialize_entry("ValidAfter", &Time(self.valid_after))?;
        map.serialize_entry("ValidBefore", &Time(self.valid_before))?;
        map.serialize_entry("CreateIndex", &self.create_index)?;
        map.serialize_entry("ModifyIndex", &self.modify_index)?;
        map.end()
    }
}

/// Reads Consul's form with the key, as a host or a remote server gives it.
impl<'de> Deserialize<'de> for IssuedCert {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire {
            #[serde(default)]
            serial_number: SmolStr,
            #[serde(rename = "CertPEM")]
            cert_pem: String,
            #[serde(rename = "PrivateKeyPEM")]
            private_key: PrivateKey,
            #[serde(rename = "ServiceURI")]
            service_uri: Option<String>,
            #[serde(rename = "AgentURI")]
            agent_uri: Option<String>,
            #[serde(rename = "KindURI")]
            kind_uri: Option<String>,
            #[serde(rename = "ServerURI")]
            server_uri: Option<String>,
            #[serde(with = "timestamp")]
            valid_after: SystemTime,
            #[serde(with = "timestamp")]
            valid_before: SystemTime,
            #[serde(default)]
            create_index: u64,
            #[serde(default)]
            modify_index: u64,
        }

        let wire = Wire::deserialize(deserializer)?;
        let uris = [
            wire.service_uri,
            wire.agent_uri,
            wire.kind_uri,
            wire.server_uri,
        ];
        let mut uris = uris.into_iter().flatten().filter(|uri| !uri.is_empty());
        let (Some(uri), None) = (uris.next(), uris.next()) else {
            return Err(de::Error::custom(
                "a leaf certificate needs exactly one of ServiceURI, AgentURI, KindURI, ServerURI",
            ));
        };
        Ok(Self {
            serial_number: wire.serial_number,
            cert_pem: wire.cert_pem,
            private_key: wire.private_key,
            identity: uri.parse().map_err(de::Error::custom)?,
            authority_key_id: SmolStr::default(),
            valid_after: wire.valid_after,
            valid_before: wire.valid_before,
            create_index: wire.create_index,
            modify_index: wire.modify_index,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn cert(identity: &str) -> IssuedCert {
        IssuedCert {
            serial_number: "0a:01".into(),
            cert_pem: "CHAIN".into(),
            private_key: PrivateKey::from_pem("TOP-SECRET"),
            identity: identity.parse().unwrap(),
            authority_key_id: SmolStr::default(),
            valid_after: UNIX_EPOCH,
            valid_before: UNIX_EPOCH + Duration::from_secs(60),
            create_index: 5,
            modify_index: 5,
        }
    }

    #[test]
    fn json_is_consuls_with_the_key_redacted() {
        let leaf = cert("spiffe://c.consul/ns/default/dc/dc1/svc/web");
        let json = serde_json::to_value(&leaf).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "SerialNumber": "0a:01", "CertPEM": "CHAIN", "PrivateKeyPEM": "<redacted>",
                "Service": "web", "ServiceURI": "spiffe://c.consul/ns/default/dc/dc1/svc/web",
                "ValidAfter": "1970-01-01T00:00:00Z", "ValidBefore": "1970-01-01T00:01:00Z",
                "CreateIndex": 5, "ModifyIndex": 5,
            })
        );
        assert!(serde_json::from_value::<IssuedCert>(json).is_err());

        let full = leaf.to_json_with_private_key().unwrap();
        assert_eq!(full["PrivateKeyPEM"], "TOP-SECRET");
        assert_eq!(serde_json::from_value::<IssuedCert>(full).unwrap(), leaf);
    }

    #[test]
    fn each_identity_has_its_fields() {
        for (uri, name, uri_field) in [
            (
                "spiffe://c.consul/agent/client/dc/dc1/id/n1",
                Some(("Agent", "n1")),
                "AgentURI",
            ),
            (
                "spiffe://c.consul/gateway/mesh/dc/dc1",
                Some(("Kind", "mesh-gateway")),
                "KindURI",
            ),
            ("spiffe://c.consul/agent/server/dc/dc1", None, "ServerURI"),
        ] {
            let json = serde_json::to_value(cert(uri)).unwrap();
            assert_eq!(json[uri_field], uri);
            if let Some((field, value)) = name {
                assert_eq!(json[field], value);
            }
            assert!(json.get("Service").is_none());
        }
    }

    #[test]
    fn c1_debug_shows_no_key() {
        let text = format!("{:?}", cert("spiffe://c.consul/agent/server/dc/dc1"));
        assert!(
            text.contains("<redacted>") && !text.contains("SECRET"),
            "{text}"
        );
    }

    #[test]
    fn validity_is_half_open() {
        let leaf = cert("spiffe://c.consul/agent/server/dc/dc1");
        let valid = |seconds| leaf.is_valid_at(UNIX_EPOCH + Duration::from_secs(seconds));
        assert!(valid(0) && valid(59) && !valid(60));
        assert!(!leaf.is_valid_at(UNIX_EPOCH - Duration::from_secs(1)));
    }
}
