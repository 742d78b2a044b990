//! Certificates as secrets (decision X1). A secret's bytes are the only place of a resource that holds a private key
//! (decision C1).

use super::names::{LEAF_SECRET, ROOTS_SECRET};
use super::proto::{core, tls};
use super::{BuildError, Problem};
use crate::model::{CaRoots, IssuedCert};

/// The proxy's own certificate chain and key.
///
/// # Errors
/// The certificate or the key isn't PEM: Envoy would refuse the secret.
pub(super) fn leaf(cert: &IssuedCert) -> Result<tls::Secret, BuildError> {
    if !is_pem(&cert.cert_pem, "CERTIFICATE") {
        return Err(BuildError::new("the leaf certificate is not PEM text"));
    }
    if !is_pem(cert.private_key.expose_pem(), "PRIVATE KEY") {
        return Err(BuildError::new(
            "the private key of the leaf certificate is not PEM text",
        ));
    }
    let certificate = tls::TlsCertificate {
        certificate_chain: inline(one_newline(&cert.cert_pem)),
        private_key: inline(one_newline(cert.private_key.expose_pem())),
        ..Default::default()
    };
    Ok(secret(
        LEAF_SECRET,
        tls::secret::Type::TlsCertificate(certificate),
    ))
}

/// The trust roots, in their stored order, each ending in a newline (must-hold 37). Roots that aren't PEM are left out and
/// told. Expired ones stay: Envoy accepts no chain that ends in them.
///
/// # Errors
/// No usable root is left.
pub(super) fn roots(roots: &CaRoots) -> Result<(tls::Secret, Vec<Problem>), BuildError> {
    let mut trusted = String::new();
    let mut problems = Vec::new();
    for root in &roots.roots {
        if is_pem(&root.root_cert, "CERTIFICATE") {
            trusted.push_str(&one_newline(&root.root_cert));
        } else {
            problems.push(Problem::new(
                ROOTS_SECRET,
                format!(
                    "CA root {} is left out: its RootCert is not PEM text",
                    root.id
                ),
            ));
        }
    }
    if trusted.is_empty() {
        return Err(BuildError::new(
            "there is no usable CA root: none is PEM text",
        ));
    }
    let context = tls::CertificateValidationContext {
        trusted_ca: inline(trusted),
        ..Default::default()
    };
    Ok((
        secret(ROOTS_SECRET, tls::secret::Type::ValidationContext(context)),
        problems,
    ))
}

fn secret(name: &str, kind: tls::secret::Type) -> tls::Secret {
    tls::Secret {
        name: name.to_owned(),
        r#type: Some(kind),
    }
}

fn inline(text: String) -> Option<core::DataSource> {
    Some(core::DataSource {
        specifier: Some(core::data_source::Specifier::InlineString(text)),
        ..Default::default()
    })
}

fn one_newline(pem: &str) -> String {
    format!("{}\n", pem.trim_end())
}

/// Whether there is a PEM block whose label ends in `label` (keys are labelled `EC PRIVATE KEY` and so on).
fn is_pem(text: &str, label: &str) -> bool {
    let ends = format!("{label}-----");
    let begins = |line: &&str| line.starts_with("-----BEGIN ") && line.ends_with(&ends);
    let mut lines = text.lines().map(str::trim_end);
    lines.find(begins).is_some()
        && lines.any(|line| line.starts_with("-----END ") && line.ends_with(&ends))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xds_37_both_roots_in_order_each_with_a_newline() {
        let root = |name: &str, end: &str| {
            format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----{end}")
        };
        let mut set: CaRoots = serde_json::from_value(serde_json::json!({
            "ActiveRootID": "b", "TrustDomain": "td.consul", "Roots": [],
        }))
        .unwrap();
        for (id, pem) in [
            ("a", root("AA", "")),
            ("x", "junk".into()),
            ("b", root("BB", "\n\n")),
        ] {
            set.roots.push(
                serde_json::from_value(serde_json::json!({
                    "ID": id, "SigningKeyID": "", "RootCert": pem,
                    "NotBefore": "2020-01-01T00:00:00Z", "NotAfter": "2030-01-01T00:00:00Z",
                }))
                .unwrap(),
            );
        }
        let (secret, problems) = roots(&set).unwrap();
        let Some(tls::secret::Type::ValidationContext(context)) = secret.r#type else {
            panic!()
        };
        let Some(core::data_source::Specifier::InlineString(text)) =
            context.trusted_ca.unwrap().specifier
        else {
            panic!()
        };
        assert_eq!(text, root("AA", "\n") + &root("BB", "\n"));
        assert_eq!(problems.len(), 1);
        set.roots.truncate(0);
        assert!(roots(&set).is_err());
    }

    #[test]
    fn pem_blocks_are_recognised() {
        assert!(is_pem(
            "-----BEGIN EC PRIVATE KEY-----\nAA\n-----END EC PRIVATE KEY-----",
            "PRIVATE KEY"
        ));
        assert!(!is_pem("-----BEGIN CERTIFICATE-----\nAA\n", "CERTIFICATE"));
        assert!(!is_pem("", "CERTIFICATE"));
    }
}
