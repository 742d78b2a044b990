//! The CA configuration (store.md 4.2, "CA config"): Consul's JSON, defaults, validation.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{PrivateKey, duration_text};

const HOUR: Duration = Duration::from_secs(3600);
const MIN_LEAF_TTL: Duration = HOUR;
const MAX_LEAF_TTL: Duration = Duration::from_secs(8760 * 3600);
const MIN_INTERMEDIATE_TTL: Duration = Duration::from_secs(3 * 3600);
const MIN_TTL: Duration = Duration::from_secs(10);
const MAX_TTL: Duration = Duration::from_secs(1000 * 8760 * 3600);

/// The configuration of the embedded authority.
///
/// In JSON it has Consul's outer form `{"Provider", "Config": {...}, "ForceWithoutCrossSigning"}`; a private key is
/// read, but written as `<redacted>`. Durations are text such as `72h`, or nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct CaConfig {
    /// How long a leaf lives. 72 h; 1 h to 8760 h.
    pub leaf_cert_ttl: Duration,
    /// How long an intermediate (a cross-signed root) lives. 8760 h; at least 3 h and three leaf lifetimes.
    pub intermediate_cert_ttl: Duration,
    /// How long a root lives. 87600 h; not shorter than an intermediate.
    pub root_cert_ttl: Duration,
    /// Kind of the key of a generated root. Only `ec` can be generated.
    pub private_key_type: String,
    /// Size of the key of a generated root: 256 or 384.
    pub private_key_bits: u32,
    /// At most this many renewals per second; 0 means no limit. First issues aren't limited.
    pub csr_max_per_second: f64,
    /// At most this many signings at once, if there is no limit per second; 0 means no limit. Renewals run on one
    /// thread, so any value is kept.
    pub csr_max_concurrent: u32,
    /// Kept for Consul's clients: the authority doesn't rotate by itself.
    pub rotation_period: Duration,
    /// An own key for the root (PKCS #8, or SEC 1 for EC keys). Without an own certificate, a root is made for it.
    pub private_key: Option<PrivateKey>,
    /// An own root certificate, PEM. Needs `private_key`.
    pub root_cert: Option<String>,
    /// Don't check the limits of the lifetimes: for tests.
    pub skip_validate: bool,
    /// Rotate also if the old root can't sign the new one.
    pub force_without_cross_signing: bool,
}

/// All that is wrong with a CA configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the CA configuration is refused: {}", problems.join("; "))]
pub struct CaConfigError {
    /// One sentence per problem, each naming the field.
    pub problems: Vec<String>,
}

impl Default for CaConfig {
    fn default() -> Self {
        Self {
            leaf_cert_ttl: 72 * HOUR,
            intermediate_cert_ttl: 8760 * HOUR,
            root_cert_ttl: 87600 * HOUR,
            private_key_type: "ec".into(),
            private_key_bits: 256,
            csr_max_per_second: 50.0,
            csr_max_concurrent: 0,
            rotation_period: 2160 * HOUR,
            private_key: None,
            root_cert: None,
            skip_validate: false,
            force_without_cross_signing: false,
        }
    }
}

impl CaConfig {
    /// Checks the limits and what fits together.
    ///
    /// # Errors
    /// All problems at once.
    pub fn validate(&self) -> Result<(), CaConfigError> {
        let mut problems = Vec::new();
        self.check_lifetimes(&mut problems);
        let supported = match self.private_key_type.as_str() {
            "ec" => matches!(self.private_key_bits, 256 | 384),
            _ => false,
        };
        if self.private_key.is_none() && !supported {
            problems.push(format!(
                "PrivateKeyType {:?} with PrivateKeyBits {} can't be generated: use \"ec\" with 256 or 384, or give \
                 an own PrivateKey",
                self.private_key_type, self.private_key_bits
            ));
        }
        if !self.csr_max_per_second.is_finite() || self.csr_max_per_second < 0.0 {
            problems.push(format!(
                "CSRMaxPerSecond is {}: give a number that isn't negative, 0 for no limit",
                self.csr_max_per_second
            ));
        }
        if self.root_cert.is_some() && self.private_key.is_none() {
            problems.push("RootCert is given without its PrivateKey: give both".into());
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(CaConfigError { problems })
        }
    }

    fn check_lifetimes(&self, problems: &mut Vec<String>) {
        let text = duration_text::format;
        let lifetimes = [
            ("LeafCertTTL", self.leaf_cert_ttl),
            ("IntermediateCertTTL", self.intermediate_cert_ttl),
            ("RootCertTTL", self.root_cert_ttl),
        ];
        for (field, ttl) in lifetimes {
            // Held without validation too. Certificates start a minute early, so a shorter one would be past 90 % of
            // its life, and so due for renewal, as soon as it is signed; and no certificate can name the year 10000.
            if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
                problems.push(format!(
                    "{field} is {}: it must lie within {} and {}",
                    text(ttl),
                    text(MIN_TTL),
                    text(MAX_TTL)
                ));
            }
        }
        if self.skip_validate || !problems.is_empty() {
            return;
        }
        let (leaf, intermediate) = (self.leaf_cert_ttl, self.intermediate_cert_ttl);
        if !(MIN_LEAF_TTL..=MAX_LEAF_TTL).contains(&leaf) {
            problems.push(format!(
                "LeafCertTTL is {}: it must lie within 1h and 8760h",
                text(leaf)
            ));
        }
        if intermediate < MIN_INTERMEDIATE_TTL {
            problems.push(format!(
                "IntermediateCertTTL is {}: it must be at least 3h",
                text(intermediate)
            ));
        }
        if intermediate < leaf.saturating_mul(3) {
            problems.push(format!(
                "IntermediateCertTTL is {}: it must be at least three times LeafCertTTL ({})",
                text(intermediate),
                text(leaf)
            ));
        }
        if self.root_cert_ttl < intermediate {
            problems.push(format!(
                "RootCertTTL is {}: it must not be less than IntermediateCertTTL ({})",
                text(self.root_cert_ttl),
                text(intermediate)
            ));
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct OuterIn {
    #[serde(alias = "provider")]
    provider: Option<String>,
    #[serde(alias = "config")]
    config: Option<InnerIn>,
    #[serde(alias = "force_without_cross_signing", default)]
    force_without_cross_signing: bool,
    // Written by Consul, of no meaning when they come back.
    #[serde(alias = "state", rename = "State")]
    _state: Option<de::IgnoredAny>,
    #[serde(rename = "CreateIndex")]
    _create_index: Option<u64>,
    #[serde(rename = "ModifyIndex")]
    _modify_index: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct InnerIn {
    #[serde(rename = "LeafCertTTL", alias = "leaf_cert_ttl")]
    leaf_cert_ttl: Option<Ttl>,
    #[serde(rename = "IntermediateCertTTL", alias = "intermediate_cert_ttl")]
    intermediate_cert_ttl: Option<Ttl>,
    #[serde(rename = "RootCertTTL", alias = "root_cert_ttl")]
    root_cert_ttl: Option<Ttl>,
    #[serde(alias = "private_key_type")]
    private_key_type: Option<String>,
    #[serde(alias = "private_key_bits")]
    private_key_bits: Option<u32>,
    #[serde(rename = "CSRMaxPerSecond", alias = "csr_max_per_second")]
    csr_max_per_second: Option<f64>,
    #[serde(rename = "CSRMaxConcurrent", alias = "csr_max_concurrent")]
    csr_max_concurrent: Option<u32>,
    #[serde(alias = "rotation_period")]
    rotation_period: Option<Ttl>,
    #[serde(alias = "private_key")]
    private_key: Option<PrivateKey>,
    #[serde(alias = "root_cert")]
    root_cert: Option<String>,
    #[serde(alias = "skip_validate")]
    skip_validate: Option<bool>,
}

#[derive(Serialize, Deserialize)]
struct Ttl(#[serde(with = "duration_text")] Duration);

impl<'de> Deserialize<'de> for CaConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let outer = OuterIn::deserialize(deserializer)?;
        if let Some(provider) = &outer.provider
            && !matches!(provider.as_str(), "consul" | "")
        {
            return Err(de::Error::custom(format!(
                "CA provider {provider:?} isn't supported: use \"consul\", the embedded authority"
            )));
        }
        let inner = outer.config.unwrap_or_default();
        let default = Self::default();
        let ttl = |given: Option<Ttl>, default| given.map_or(default, |ttl| ttl.0);
        Ok(Self {
            leaf_cert_ttl: ttl(inner.leaf_cert_ttl, default.leaf_cert_ttl),
            intermediate_cert_ttl: ttl(inner.intermediate_cert_ttl, default.intermediate_cert_ttl),
            root_cert_ttl: ttl(inner.root_cert_ttl, default.root_cert_ttl),
            private_key_type: inner.private_key_type.unwrap_or(default.private_key_type),
            private_key_bits: inner.private_key_bits.unwrap_or(default.private_key_bits),
            csr_max_per_second: inner
                .csr_max_per_second
                .unwrap_or(default.csr_max_per_second),
            csr_max_concurrent: inner
                .csr_max_concurrent
                .unwrap_or(default.csr_max_concurrent),
            rotation_period: ttl(inner.rotation_period, default.rotation_period),
            private_key: inner.private_key.filter(|key| !key.is_empty()),
            root_cert: inner.root_cert.filter(|pem| !pem.is_empty()),
            skip_validate: inner.skip_validate.unwrap_or(default.skip_validate),
            force_without_cross_signing: outer.force_without_cross_signing,
        })
    }
}

impl Serialize for CaConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Outer<'a> {
            provider: &'static str,
            config: Inner<'a>,
            force_without_cross_signing: bool,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Inner<'a> {
            #[serde(rename = "LeafCertTTL")]
            leaf_cert_ttl: Ttl,
            #[serde(rename = "IntermediateCertTTL")]
            intermediate_cert_ttl: Ttl,
            #[serde(rename = "RootCertTTL")]
            root_cert_ttl: Ttl,
            private_key_type: &'a str,
            private_key_bits: u32,
            #[serde(rename = "CSRMaxPerSecond")]
            csr_max_per_second: f64,
            #[serde(rename = "CSRMaxConcurrent")]
            csr_max_concurrent: u32,
            rotation_period: Ttl,
            #[serde(skip_serializing_if = "Option::is_none")]
            private_key: Option<&'static str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            root_cert: Option<&'a str>,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            skip_validate: bool,
        }

        Outer {
            provider: "consul",
            config: Inner {
                leaf_cert_ttl: Ttl(self.leaf_cert_ttl),
                intermediate_cert_ttl: Ttl(self.intermediate_cert_ttl),
                root_cert_ttl: Ttl(self.root_cert_ttl),
                private_key_type: &self.private_key_type,
                private_key_bits: self.private_key_bits,
                csr_max_per_second: self.csr_max_per_second,
                csr_max_concurrent: self.csr_max_concurrent,
                rotation_period: Ttl(self.rotation_period),
                private_key: self
                    .private_key
                    .as_ref()
                    .map(|_| super::private_key::REDACTED),
                root_cert: self.root_cert.as_deref(),
                skip_validate: self.skip_validate,
            },
            force_without_cross_signing: self.force_without_cross_signing,
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(config: &CaConfig) -> Vec<String> {
        config
            .validate()
            .map_or_else(|error| error.problems, |()| vec![])
    }

    #[test]
    fn store_132_lifetimes_out_of_bounds_are_refused() {
        let config = |leaf, intermediate, root| CaConfig {
            leaf_cert_ttl: leaf,
            intermediate_cert_ttl: intermediate,
            root_cert_ttl: root,
            ..CaConfig::default()
        };
        assert_eq!(problems(&CaConfig::default()), Vec::<String>::new());
        for (refused, field) in [
            (config(HOUR / 2, 8760 * HOUR, 87600 * HOUR), "LeafCertTTL"),
            (
                config(8761 * HOUR, 87600 * HOUR, 87600 * HOUR),
                "LeafCertTTL",
            ),
            (
                config(2 * HOUR, 5 * HOUR, 87600 * HOUR),
                "IntermediateCertTTL",
            ),
            (config(72 * HOUR, 8760 * HOUR, 8759 * HOUR), "RootCertTTL"),
            (config(72 * HOUR, 8760 * HOUR, Duration::MAX), "RootCertTTL"),
        ] {
            let found = problems(&refused);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(field), "{found:?}");
        }
    }

    #[test]
    fn all_problems_are_named_at_once() {
        let config = CaConfig {
            leaf_cert_ttl: HOUR / 2,
            intermediate_cert_ttl: HOUR,
            root_cert_ttl: HOUR / 2,
            private_key_type: "rsa".into(),
            csr_max_per_second: -1.0,
            root_cert: Some("PEM".into()),
            ..CaConfig::default()
        };
        // Leaf too short; intermediate below 3h, below 3 leaves; root below intermediate; kind of key; rate; own key.
        assert_eq!(problems(&config).len(), 7, "{:?}", problems(&config));
    }

    #[test]
    fn skip_validate_still_refuses_what_no_certificate_can_say() {
        let short = CaConfig {
            leaf_cert_ttl: Duration::from_secs(20),
            skip_validate: true,
            ..CaConfig::default()
        };
        assert_eq!(short.validate(), Ok(()));
        let zero = CaConfig {
            leaf_cert_ttl: Duration::ZERO,
            ..short
        };
        assert!(zero.validate().is_err());
    }

    #[test]
    fn json_reads_consuls_forms() {
        let read: CaConfig = serde_json::from_value(serde_json::json!({
            "Provider": "consul",
            "Config": {"LeafCertTTL": "1h", "csr_max_per_second": 100, "IntermediateCertTTL": 36_000_000_000_000_u64},
            "State": {"a": 1}, "CreateIndex": 3,
        }))
        .unwrap();
        let expected = CaConfig {
            leaf_cert_ttl: HOUR,
            intermediate_cert_ttl: 10 * HOUR,
            csr_max_per_second: 100.0,
            ..CaConfig::default()
        };
        assert_eq!(read, expected);
        let written = serde_json::to_value(&expected).unwrap();
        assert_eq!(written["Config"]["LeafCertTTL"], "1h");
        assert_eq!(
            serde_json::from_value::<CaConfig>(written).unwrap(),
            expected
        );
        for refused in [
            serde_json::json!({"Provider": "vault"}),
            serde_json::json!({"Config": {"LeafTTL": "1h"}}),
            serde_json::json!({"Config": {"LeafCertTTL": "soon"}}),
        ] {
            assert!(serde_json::from_value::<CaConfig>(refused).is_err());
        }
    }

    #[test]
    fn c1_an_own_key_is_never_written() {
        let config = CaConfig {
            private_key: Some(PrivateKey::from_pem("TOP-SECRET")),
            ..CaConfig::default()
        };
        let texts = [
            format!("{config:?}"),
            serde_json::to_string(&config).unwrap(),
        ];
        for text in texts {
            assert!(
                text.contains("<redacted>") && !text.contains("SECRET"),
                "{text}"
            );
        }
    }
}
