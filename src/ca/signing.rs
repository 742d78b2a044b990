//! Signing leaves: what a request may ask for, and the certificate it gets (store.md 4.2).

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose,
    PublicKeyData, SanType, SubjectPublicKeyInfo,
};
use smol_str::SmolStr;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use super::CaError;
use super::root::{
    Cluster, SigningRoot, certificate_time, hex_id, parse_certificate, pem_to_der, serial_number,
    uri_san, validity,
};
use crate::model::{CaRoot, SpiffeId};

/// A leaf certificate signed for somebody else's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedLeaf {
    /// The serial number, hex bytes joined by `:`.
    pub serial_number: SmolStr,
    /// The chain, PEM: the leaf, then the active root's intermediates.
    pub cert_pem: String,
    /// Whom the certificate identifies.
    pub identity: SpiffeId,
    /// [`CaRoot::signing_key_id`] of the signer.
    pub authority_key_id: SmolStr,
    /// Start of validity.
    pub valid_after: SystemTime,
    /// End of validity.
    pub valid_before: SystemTime,
    /// Index of the issue.
    pub index: u64,
}

/// What goes into a leaf.
#[derive(Debug)]
pub(super) struct LeafContent {
    pub(super) identity: SpiffeId,
    pub(super) dns_names: Vec<SmolStr>,
    pub(super) ip_addresses: Vec<IpAddr>,
}

impl LeafContent {
    /// Reads a certificate request (PEM), verifies its signature and applies the signing checks: exactly one URI, no
    /// e-mail address, an identity that this authority may sign.
    pub(super) fn from_request(
        pem: &str,
        cluster: &Cluster,
        datacenter: &SmolStr,
    ) -> Result<(Self, SubjectPublicKeyInfo), CaError> {
        let refuse = |reason: String| CaError::Request { reason };
        let der = pem_to_der(pem, "CERTIFICATE REQUEST")
            .or_else(|_| pem_to_der(pem, "NEW CERTIFICATE REQUEST"))
            .map_err(refuse)?;
        let (rest, request) = X509CertificationRequest::from_der(&der)
            .map_err(|problem| refuse(format!("it can't be read: {problem}")))?;
        if !rest.is_empty() {
            return Err(refuse("bytes follow it".into()));
        }
        request
            .verify_signature()
            .map_err(|problem| refuse(format!("its signature is wrong: {problem}")))?;
        let public_key =
            SubjectPublicKeyInfo::from_der(request.certification_request_info.subject_pki.raw)
                .map_err(|problem| refuse(format!("its key can't be certified: {problem}")))?;

        let mut uris = Vec::new();
        let mut dns_names = Vec::new();
        let mut ip_addresses = Vec::new();
        for extension in request.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(names) = extension else {
                // Usages and constraints are the authority's to set.
                continue;
            };
            for name in &names.general_names {
                match name {
                    GeneralName::URI(uri) => uris.push(*uri),
                    GeneralName::DNSName(name) => dns_names.push(SmolStr::from(*name)),
                    GeneralName::IPAddress(bytes) => ip_addresses.push(
                        ip_address(bytes)
                            .ok_or_else(|| refuse("an IP address has a wrong length".into()))?,
                    ),
                    GeneralName::RFC822Name(address) => {
                        return Err(refuse(format!(
                            "it names the e-mail address {address:?}: leave e-mail addresses out"
                        )));
                    }
                    other => {
                        return Err(refuse(format!(
                            "it names {other}: only a URI, DNS names and IP addresses are certified"
                        )));
                    }
                }
            }
        }
        let [uri] = uris.as_slice() else {
            return Err(refuse(format!(
                "it names {} URIs: exactly one SPIFFE URI is needed",
                uris.len()
            )));
        };
        let identity = uri
            .parse()
            .map_err(|problem: crate::model::SpiffeIdError| refuse(problem.to_string()))?;
        let content = Self {
            identity: check_identity(identity, cluster, datacenter)?,
            dns_names,
            ip_addresses,
        };
        Ok((content, public_key))
    }
}

/// Whether this authority may certify `identity`; an agent's trust domain is replaced by ours.
pub(super) fn check_identity(
    mut identity: SpiffeId,
    cluster: &Cluster,
    datacenter: &SmolStr,
) -> Result<SpiffeId, CaError> {
    let refuse = |reason: String| Err(CaError::Request { reason });
    if let SpiffeId::Agent { trust_domain, .. } = &mut identity {
        *trust_domain = cluster.trust_domain.clone();
    }
    let Some(asked) = identity.datacenter() else {
        return refuse(format!(
            "{identity} is an authority: only services, agents, mesh gateways and servers are certified"
        ));
    };
    if asked != datacenter {
        return refuse(format!(
            "{identity} belongs to datacenter {asked:?}: this authority signs for {datacenter:?}"
        ));
    }
    let own = &cluster.trust_domain;
    if !identity.trust_domain().eq_ignore_ascii_case(own) {
        return refuse(format!(
            "{identity} belongs to another trust domain: this authority signs for {own}"
        ));
    }
    Ok(identity)
}

/// Signs a leaf: after the check that the root hasn't expired, with the usages and the chain of store.md 4.2.
pub(super) fn sign_leaf(
    root: &SigningRoot,
    content: LeafContent,
    public_key: &impl PublicKeyData,
    now: SystemTime,
    ttl: Duration,
    serial: u64,
) -> Result<SignedLeaf, CaError> {
    root.refuse_if_expired(now)?;
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = validity(now, ttl, None)?;
    params.serial_number = Some(serial_number(serial));
    // An empty subject makes the alternative names critical.
    params.distinguished_name = DistinguishedName::new();
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::DataEncipherment,
        KeyUsagePurpose::KeyAgreement,
    ];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    params.subject_alt_names = alternative_names(&content)?;
    let valid_after = certificate_time(params.not_before.unix_timestamp())?;
    let valid_before = certificate_time(params.not_after.unix_timestamp())?;
    let mut cert_pem = root.sign(&params, public_key)?.pem();
    for intermediate in unexpired(&root.record, now) {
        cert_pem.push_str(intermediate);
    }
    Ok(SignedLeaf {
        serial_number: hex_id(&serial_number(serial).to_bytes()),
        cert_pem,
        identity: content.identity,
        authority_key_id: root.record.signing_key_id.clone(),
        valid_after,
        valid_before,
        index: serial,
    })
}

fn alternative_names(content: &LeafContent) -> Result<Vec<SanType>, CaError> {
    let mut names = vec![uri_san(&content.identity)?];
    for name in &content.dns_names {
        let text = name.as_str().try_into().map_err(|_| CaError::Request {
            reason: format!("the DNS name {name:?} isn't plain ASCII"),
        })?;
        names.push(SanType::DnsName(text));
    }
    names.extend(content.ip_addresses.iter().copied().map(SanType::IpAddress));
    Ok(names)
}

/// The intermediates of a root that can still be part of a valid chain.
pub(super) fn unexpired(root: &CaRoot, now: SystemTime) -> impl Iterator<Item = &String> {
    root.intermediate_certs.iter().filter(move |pem| {
        let end = pem_to_der(pem, "CERTIFICATE")
            .and_then(|der| Ok(parse_certificate(&der)?.validity().not_after.timestamp()));
        end.ok()
            .and_then(|end| certificate_time(end).ok())
            .is_some_and(|end| now < end)
    })
}

fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}
