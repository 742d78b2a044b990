//! A root that signs: making one, loading one, signing another root with it.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
    SignatureAlgorithm,
};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use smol_str::SmolStr;
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::asn1_rs::Tag;
use x509_parser::extensions::ParsedExtension;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer;
use x509_parser::x509::X509Name;
use zeroize::Zeroize;

use super::CaError;
use crate::model::{CaConfig, CaRoot, PrivateKey, SpiffeId, timestamp};

/// Certificates start this much before they are signed, for peers whose clocks are behind.
pub(super) const BACKDATING: Duration = Duration::from_secs(60);

/// Who the roots are for.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    pub(super) id: SmolStr,
    pub(super) trust_domain: SmolStr,
}

/// The active root with its key.
pub(super) struct SigningRoot {
    /// The public record. Active, without intermediates until a rotation gives it some.
    pub(super) record: CaRoot,
    key: KeyPair,
    /// Subject, key id and usages: what is needed to sign with it and to have it signed by another root.
    params: CertificateParams,
    /// DER of the subject, to check that another encoder writes the same.
    subject_der: Vec<u8>,
    /// Whether the root's path length lets it sign another authority.
    signs_authorities: bool,
}

impl Drop for SigningRoot {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl SigningRoot {
    /// The root that `config` asks for: an own one, one for an own key, or a generated one.
    pub(super) fn from_config(
        config: &CaConfig,
        cluster: &Cluster,
        now: SystemTime,
        serial: u64,
    ) -> Result<Self, CaError> {
        let own_key = config.private_key.as_ref().map(parse_key).transpose()?;
        match (own_key, &config.root_cert) {
            (Some(key), Some(pem)) => {
                let root = Self::load(pem, key, cluster)?;
                root.refuse_if_expired(now)?;
                Ok(root)
            }
            (Some(key), None) => Self::self_signed(key, config, cluster, now, serial),
            (None, _) => {
                let algorithm = match config.private_key_bits {
                    384 => &rcgen::PKCS_ECDSA_P384_SHA384,
                    _ => &rcgen::PKCS_ECDSA_P256_SHA256,
                };
                let key = KeyPair::generate_for(algorithm)
                    .map_err(CaError::crypto("making a root's key"))?;
                Self::self_signed(key, config, cluster, now, serial)
            }
        }
    }

    fn self_signed(
        key: KeyPair,
        config: &CaConfig,
        cluster: &Cluster,
        now: SystemTime,
        serial: u64,
    ) -> Result<Self, CaError> {
        let mut params = CertificateParams::default();
        let key_id = params.key_identifier(&key);
        // Every root has a name of its own, so that a verifier which looks issuers up by name finds one candidate.
        let short_id: String = key_id.iter().take(4).map(|b| format!("{b:02x}")).collect();
        let name = format!("pri-{short_id}.ca.{}", cluster.trust_domain);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_identifier_method = KeyIdMethod::PreSpecified(key_id);
        (params.not_before, params.not_after) = validity(now, config.root_cert_ttl, None)?;
        params.serial_number = Some(serial_number(serial));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        params.use_authority_key_identifier_extension = true;
        params.subject_alt_names = vec![uri_san(&signing_id(cluster))?];
        let certificate = params
            .self_signed(&key)
            .map_err(CaError::crypto("signing a new root"))?;
        Self::load(&certificate.pem(), key, cluster)
    }

    /// The root of a certificate and its key: an own one, or one from saved state. Whether it has expired isn't
    /// checked.
    pub(super) fn load(pem: &str, key: KeyPair, cluster: &Cluster) -> Result<Self, CaError> {
        let refuse = |reason: String| CaError::OwnRoot { reason };
        let der = pem_to_der(pem, "CERTIFICATE").map_err(refuse)?;
        let certificate = parse_certificate(&der).map_err(refuse)?;
        let tbs = &certificate.tbs_certificate;
        if tbs.subject_pki.subject_public_key.data.as_ref() != key.der_bytes() {
            return Err(refuse(
                "RootCert is the certificate of another key than PrivateKey".into(),
            ));
        }
        let constraints = tbs
            .basic_constraints()
            .map_err(|problem| refuse(format!("its basic constraints are broken: {problem}")))?
            .map(|extension| extension.value);
        let Some(constraints) = constraints.filter(|constraints| constraints.ca) else {
            return Err(refuse("RootCert isn't marked as an authority (CA)".into()));
        };
        let usage = tbs
            .key_usage()
            .map_err(|problem| refuse(format!("its key usage is broken: {problem}")))?;
        if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
            return Err(refuse(
                "the key usage of RootCert doesn't allow signing certificates".into(),
            ));
        }
        let key_id = certificate
            .iter_extensions()
            .find_map(|extension| match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
                _ => None,
            })
            .ok_or_else(|| refuse("RootCert has no subject key identifier".into()))?;

        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name(tbs.subject()).ok_or_else(|| {
            refuse("the subject of RootCert has parts that can't be reproduced".into())
        })?;
        params.key_identifier_method = KeyIdMethod::PreSpecified(key_id.clone());
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        params.use_authority_key_identifier_extension = true;
        params.is_ca = IsCa::Ca(match constraints.path_len_constraint {
            Some(length) => BasicConstraints::Constrained(u8::try_from(length).unwrap_or(u8::MAX)),
            None => BasicConstraints::Unconstrained,
        });
        params.subject_alt_names = vec![uri_san(&signing_id(cluster))?];

        let (key_type, key_bits) = key_kind(&key, tbs.subject_pki.subject_public_key.data.len());
        let record = CaRoot {
            id: root_id(&der),
            name: "Proxycfg CA Root Cert".into(),
            serial_number: lowest_64_bits(tbs.raw_serial()),
            signing_key_id: hex_id(&key_id),
            external_trust_domain: cluster.id.clone(),
            not_before: certificate_time(tbs.validity().not_before.timestamp())?,
            not_after: certificate_time(tbs.validity().not_after.timestamp())?,
            root_cert: with_final_line_break(pem),
            intermediate_certs: Vec::new(),
            active: true,
            rotated_out_at: None,
            private_key_type: key_type,
            private_key_bits: key_bits,
            create_index: 0,
            modify_index: 0,
        };
        let root = Self {
            record,
            key,
            params,
            subject_der: tbs.subject().as_raw().to_vec(),
            signs_authorities: constraints.path_len_constraint != Some(0),
        };
        root.check_issuer_name()?;
        Ok(root)
    }

    /// A trial signature: verifiers compare names byte by byte, so what this root signs must repeat its subject
    /// exactly.
    fn check_issuer_name(&self) -> Result<(), CaError> {
        let trial = self.sign(&CertificateParams::default(), &self.key)?;
        let parsed =
            parse_certificate(trial.der()).map_err(|reason| CaError::OwnRoot { reason })?;
        if parsed.issuer().as_raw() == self.subject_der {
            return Ok(());
        }
        Err(CaError::OwnRoot {
            reason: "the subject of RootCert has parts that can't be reproduced, such as two of one kind".into(),
        })
    }

    /// Signs `params` for a public key.
    pub(super) fn sign(
        &self,
        params: &CertificateParams,
        public_key: &impl PublicKeyData,
    ) -> Result<rcgen::Certificate, CaError> {
        let issuer = Issuer::from_params(&self.params, &self.key);
        params
            .signed_by(public_key, &issuer)
            .map_err(CaError::crypto("signing a certificate"))
    }

    /// The certificate, PEM, that lets a peer which trusts only `self` accept what `newer` signs. It lives for `ttl`,
    /// and not beyond either root.
    ///
    /// # Errors
    /// The reason why this root can't do it.
    pub(super) fn cross_sign(
        &self,
        newer: &Self,
        now: SystemTime,
        ttl: Duration,
        serial: u64,
    ) -> Result<String, String> {
        if !self.signs_authorities {
            return Err("its path length constraint is 0".into());
        }
        let end = self.record.not_after.min(newer.record.not_after);
        let mut params = newer.params.clone();
        (params.not_before, params.not_after) =
            validity(now, ttl, Some(end)).map_err(|error| error.to_string())?;
        params.serial_number = Some(serial_number(serial));
        let certificate = self
            .sign(&params, &newer.key)
            .map_err(|error| error.to_string())?;
        let parsed = parse_certificate(certificate.der())?;
        if parsed.subject().as_raw() != newer.subject_der {
            return Err("the subject of the new root can't be reproduced".into());
        }
        Ok(certificate.pem())
    }

    /// The signing check of store.md 4.2: an expired root signs nothing.
    pub(super) fn refuse_if_expired(&self, now: SystemTime) -> Result<(), CaError> {
        if now < self.record.not_after {
            return Ok(());
        }
        Err(CaError::RootExpired {
            id: self.record.id.clone(),
            not_after: timestamp::to_text(self.record.not_after).unwrap_or_default(),
        })
    }

    /// The key, for saved state.
    pub(super) fn private_key(&self) -> PrivateKey {
        PrivateKey::from_pem(self.key.serialize_pem())
    }
}

fn signing_id(cluster: &Cluster) -> SpiffeId {
    let host = cluster.trust_domain.as_str();
    let (cluster_id, domain) = host.split_once('.').unwrap_or((host, ""));
    SpiffeId::Signing {
        cluster_id: cluster_id.into(),
        domain: domain.into(),
    }
}

/// The start and end of a certificate signed now that lives for `ttl`, at most until `end`.
pub(super) fn validity(
    now: SystemTime,
    ttl: Duration,
    end: Option<SystemTime>,
) -> Result<(OffsetDateTime, OffsetDateTime), CaError> {
    let outside = || CaError::Validity {
        lifetime: ttl.as_secs(),
    };
    let start = now.checked_sub(BACKDATING).ok_or_else(outside)?;
    let natural_end = now.checked_add(ttl).ok_or_else(outside)?;
    let end = end.map_or(natural_end, |end| end.min(natural_end));
    let start = timestamp::to_calendar(start).ok_or_else(outside)?;
    let end = timestamp::to_calendar(end).ok_or_else(outside)?;
    Ok((start, end))
}

/// A serial number in its shortest big-endian form.
pub(super) fn serial_number(serial: u64) -> SerialNumber {
    let bytes = serial.to_be_bytes();
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    SerialNumber::from_slice(&bytes[zeros.min(bytes.len() - 1)..])
}

/// A URI as subject alternative name.
pub(super) fn uri_san(id: &SpiffeId) -> Result<SanType, CaError> {
    let uri = id.to_string();
    let text = uri
        .try_into()
        .map_err(CaError::crypto("writing a SPIFFE URI"))?;
    Ok(SanType::URI(text))
}

/// SHA-1 of a certificate's DER, as roots are named (store.md 4.1).
pub(super) fn root_id(der: &[u8]) -> SmolStr {
    hex_id(digest(&SHA1_FOR_LEGACY_USE_ONLY, der).as_ref())
}

/// Hex bytes joined by `:`.
pub(super) fn hex_id(bytes: &[u8]) -> SmolStr {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    hex.join(":").into()
}

/// The bytes of the first PEM block, which must have `label`.
pub(super) fn pem_to_der(pem: &str, label: &str) -> Result<Vec<u8>, String> {
    let (_, block) = parse_x509_pem(pem.as_bytes())
        .map_err(|problem| format!("it is no PEM text: {problem}"))?;
    if block.label == label {
        Ok(block.contents)
    } else {
        Err(format!(
            "expected PEM of a {label}, found a {}",
            block.label
        ))
    }
}

/// One certificate in DER.
pub(super) fn parse_certificate(der: &[u8]) -> Result<X509Certificate<'_>, String> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err("bytes follow the certificate".into()),
        Err(problem) => Err(format!("it is no certificate: {problem}")),
    }
}

/// A time of a certificate.
pub(super) fn certificate_time(unix_seconds: i64) -> Result<SystemTime, CaError> {
    timestamp::from_unix_seconds(unix_seconds).ok_or_else(|| CaError::OwnRoot {
        reason: "its validity lies outside the system's times".into(),
    })
}

/// Reads a private key: PKCS #8, or SEC 1 for EC keys.
pub(super) fn parse_key(key: &PrivateKey) -> Result<KeyPair, CaError> {
    let refuse = |reason: String| CaError::OwnRoot { reason };
    let (_, block) = parse_x509_pem(key.expose_pem().as_bytes())
        .map_err(|problem| refuse(format!("PrivateKey is no PEM text: {problem}")))?;
    let mut candidates = match block.label.as_str() {
        "PRIVATE KEY" => vec![block.contents],
        "EC PRIVATE KEY" => {
            let mut sec1 = block.contents;
            let wrapped = EC_CURVES
                .iter()
                .map(|curve| pkcs8_of_sec1(curve, &sec1))
                .collect();
            sec1.zeroize();
            wrapped
        }
        other => {
            return Err(refuse(format!(
                "PrivateKey is a {other:?}: give PKCS #8 (\"PRIVATE KEY\") or, for EC, \"EC PRIVATE KEY\""
            )));
        }
    };
    let mut problem = String::new();
    let mut found = None;
    for candidate in &mut candidates {
        if found.is_none() {
            match KeyPair::try_from(candidate.as_slice()) {
                Ok(key) => found = Some(key),
                Err(error) => problem = error.to_string(),
            }
        }
        candidate.zeroize();
    }
    found.ok_or_else(|| refuse(format!("PrivateKey can't be read: {problem}")))
}

/// DER of the algorithm identifiers of EC keys on P-256 and P-384.
const EC_CURVES: [&[u8]; 2] = [
    &[
        0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
        0x48, 0xce, 0x3d, 0x03, 0x01, 0x07,
    ],
    &[
        0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81,
        0x04, 0x00, 0x22,
    ],
];

/// PKCS #8 around an EC key in SEC 1 form (RFC 5208): version 0, the curve, the key as octets.
fn pkcs8_of_sec1(curve: &[u8], sec1: &[u8]) -> Vec<u8> {
    let mut body = vec![0x02, 0x01, 0x00];
    body.extend_from_slice(curve);
    push_der(&mut body, 0x04, sec1);
    let mut whole = Vec::with_capacity(body.len() + 4);
    push_der(&mut whole, 0x30, &body);
    body.zeroize();
    whole
}

/// Appends one DER element; `content` is at most 65535 bytes long, which no EC key reaches.
fn push_der(to: &mut Vec<u8>, tag: u8, content: &[u8]) {
    to.push(tag);
    let [.., high, low] = content.len().to_be_bytes();
    match (high, low) {
        (0, 0..=0x7f) => to.push(low),
        (0, _) => to.extend([0x81, low]),
        _ => to.extend([0x82, high, low]),
    }
    to.extend_from_slice(content);
}

fn key_kind(key: &KeyPair, public_key_bytes: usize) -> (SmolStr, u32) {
    let is = |algorithm: &SignatureAlgorithm| key.is_compatible(algorithm);
    if is(&rcgen::PKCS_ECDSA_P256_SHA256) {
        (SmolStr::new_static("ec"), 256)
    } else if is(&rcgen::PKCS_ECDSA_P384_SHA384) {
        (SmolStr::new_static("ec"), 384)
    } else if is(&rcgen::PKCS_ED25519) {
        (SmolStr::new_static("ed25519"), 256)
    } else {
        // The modulus, in whole bytes, is all of an RSA public key but a few dozen bytes of frame and exponent.
        let modulus = public_key_bytes / 64 * 64;
        (
            SmolStr::new_static("rsa"),
            u32::try_from(modulus * 8).unwrap_or_default(),
        )
    }
}

fn lowest_64_bits(serial: &[u8]) -> u64 {
    let start = serial.len().saturating_sub(8);
    serial[start..]
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn with_final_line_break(pem: &str) -> String {
    format!("{}\n", pem.trim())
}

/// The same name in the form that the signing library writes; none if it has parts that the library can't write.
fn distinguished_name(name: &X509Name<'_>) -> Option<DistinguishedName> {
    let mut written = DistinguishedName::new();
    for part in name.iter_rdn() {
        let mut attributes = part.iter();
        let (Some(attribute), None) = (attributes.next(), attributes.next()) else {
            return None;
        };
        let oid: Vec<u64> = attribute.attr_type().iter()?.collect();
        let value = attribute.attr_value();
        let text = || std::str::from_utf8(value.data).ok();
        let value = match value.header.tag() {
            Tag::Utf8String => DnValue::Utf8String(text()?.into()),
            Tag::PrintableString => DnValue::PrintableString(text()?.try_into().ok()?),
            Tag::Ia5String => DnValue::Ia5String(text()?.try_into().ok()?),
            Tag::T61String => DnValue::TeletexString(text()?.try_into().ok()?),
            _ => return None,
        };
        written.push(DnType::from_oid(&oid), value);
    }
    Some(written)
}
