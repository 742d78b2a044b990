//! Trust roots (store.md 4.1).

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serialize};
use smol_str::SmolStr;

/// The set of trust roots of the mesh, and which of them signs.
///
/// Order of `roots` is as stored: older ones first, the active one last after a rotation. All of them that have not
/// expired are trusted, active or not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CaRoots {
    /// [`CaRoot::id`] of the root that signs.
    #[serde(rename = "ActiveRootID")]
    pub active_root_id: SmolStr,
    /// `<cluster id>.consul`, lower-case; made at bootstrap and never changed by a rotation.
    pub trust_domain: SmolStr,
    /// The roots, without any private material.
    #[serde(default, deserialize_with = "null_as_default")]
    pub roots: Vec<CaRoot>,
}

/// One trust root, in Consul's public form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CaRoot {
    /// SHA-1 of the certificate's DER, hex bytes joined by `:`.
    #[serde(rename = "ID")]
    pub id: SmolStr,
    /// A name for people.
    #[serde(default)]
    pub name: String,
    /// The certificate's serial number, its lowest 64 bits if it is longer.
    #[serde(default)]
    pub serial_number: u64,
    /// SubjectKeyId of the certificate that signs leaves, in the form of [`CaRoot::id`].
    #[serde(rename = "SigningKeyID")]
    pub signing_key_id: SmolStr,
    /// The cluster id: the trust domain without its `.consul`.
    #[serde(default)]
    pub external_trust_domain: SmolStr,
    /// Start of validity.
    #[serde(with = "super::timestamp")]
    pub not_before: SystemTime,
    /// End of validity.
    #[serde(with = "super::timestamp")]
    pub not_after: SystemTime,
    /// The root certificate, PEM.
    pub root_cert: String,
    /// Certificates, PEM, that belong between a leaf and a root; the first is this root's key signed by its
    /// predecessor. They follow each leaf in its chain.
    #[serde(default, deserialize_with = "null_as_default")]
    pub intermediate_certs: Vec<String>,
    /// Whether this root signs. Exactly one does.
    #[serde(default)]
    pub active: bool,
    /// When the root stopped signing. Not part of the public form.
    #[serde(skip)]
    pub rotated_out_at: Option<SystemTime>,
    /// `ec` or `rsa`.
    #[serde(default)]
    pub private_key_type: SmolStr,
    /// Size of the root's key in bits.
    #[serde(default)]
    pub private_key_bits: u32,
    /// Store index at which the root was written first. Stamped by the store.
    #[serde(default)]
    pub create_index: u64,
    /// Row index: store index of the last change. Stamped by the store.
    #[serde(default)]
    pub modify_index: u64,
}

/// Why a set of roots can't be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaRootsError {
    /// No root signs, or more than one does.
    #[error(
        "a set of CA roots needs exactly one with Active = true, but {found} of {total} have it"
    )]
    ActiveCount {
        /// How many are active.
        found: usize,
        /// How many roots there are.
        total: usize,
    },
    /// `ActiveRootID` and the active root differ.
    #[error("ActiveRootID is {named:?}, but the active root is {active:?}: make them the same")]
    ActiveIdMismatch {
        /// The value of `ActiveRootID`.
        named: SmolStr,
        /// The id of the active root.
        active: SmolStr,
    },
    /// Two roots have the same id.
    #[error("two CA roots have the ID {id:?}: leave one of them out")]
    DuplicateId {
        /// The id that occurs twice.
        id: SmolStr,
    },
    /// The trust domain is missing or isn't lower-case.
    #[error("the trust domain {trust_domain:?} must be given, in lower-case letters")]
    TrustDomain {
        /// The value found.
        trust_domain: SmolStr,
    },
}

impl CaRoots {
    /// Checks what a write of roots must hold (store.md 4.1): exactly one active root, `ActiveRootID` naming it, ids
    /// unique, a lower-case trust domain.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn validate(&self) -> Result<(), CaRootsError> {
        let mut active = self.roots.iter().filter(|root| root.active);
        match (active.next(), active.count()) {
            (Some(root), 0) if root.id != self.active_root_id => {
                return Err(CaRootsError::ActiveIdMismatch {
                    named: self.active_root_id.clone(),
                    active: root.id.clone(),
                });
            }
            (Some(_), 0) => {}
            (first, more) => {
                return Err(CaRootsError::ActiveCount {
                    found: usize::from(first.is_some()) + more,
                    total: self.roots.len(),
                });
            }
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.roots.iter().find(|root| !seen.insert(&root.id)) {
            return Err(CaRootsError::DuplicateId {
                id: twice.id.clone(),
            });
        }
        let domain = &self.trust_domain;
        if domain.is_empty() || domain.chars().any(|c| c.is_uppercase()) {
            return Err(CaRootsError::TrustDomain {
                trust_domain: domain.clone(),
            });
        }
        Ok(())
    }

    /// The root that signs; none if the set breaks the rules of [`CaRoots::validate`] or is empty.
    #[must_use]
    pub fn active(&self) -> Option<&CaRoot> {
        self.roots.iter().find(|root| root.active)
    }

    /// The roots that are trusted at `now`: all that haven't expired, in stored order.
    pub fn trusted_at(&self, now: SystemTime) -> impl Iterator<Item = &CaRoot> {
        self.roots.iter().filter(move |root| now < root.not_after)
    }
}

/// Consul writes an empty list as `null`.
fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn root(id: &str, active: bool) -> CaRoot {
        CaRoot {
            id: id.into(),
            name: "root".into(),
            serial_number: 7,
            signing_key_id: "aa:bb".into(),
            external_trust_domain: "c1".into(),
            not_before: UNIX_EPOCH,
            not_after: UNIX_EPOCH + Duration::from_secs(100),
            root_cert: "PEM".into(),
            intermediate_certs: vec![],
            active,
            rotated_out_at: None,
            private_key_type: "ec".into(),
            private_key_bits: 256,
            create_index: 8,
            modify_index: 9,
        }
    }

    fn set(roots: Vec<CaRoot>) -> CaRoots {
        CaRoots {
            active_root_id: "a".into(),
            trust_domain: "c1.consul".into(),
            roots,
        }
    }

    #[test]
    fn store_129_zero_or_two_active_roots_are_refused() {
        assert_eq!(set(vec![root("a", true)]).validate(), Ok(()));
        assert_eq!(
            set(vec![root("b", false), root("a", true)]).validate(),
            Ok(())
        );
        for (roots, found) in [
            (vec![], 0),
            (vec![root("a", false)], 0),
            (vec![root("a", true), root("b", true)], 2),
        ] {
            let total = roots.len();
            assert_eq!(
                set(roots).validate(),
                Err(CaRootsError::ActiveCount { found, total })
            );
        }
    }

    #[test]
    fn a_set_that_contradicts_itself_is_refused() {
        assert!(matches!(
            set(vec![root("b", true)]).validate(),
            Err(CaRootsError::ActiveIdMismatch { .. })
        ));
        assert!(matches!(
            set(vec![root("a", true), root("a", false)]).validate(),
            Err(CaRootsError::DuplicateId { .. })
        ));
        let mut upper = set(vec![root("a", true)]);
        upper.trust_domain = "C1.consul".into();
        assert!(matches!(
            upper.validate(),
            Err(CaRootsError::TrustDomain { .. })
        ));
    }

    #[test]
    fn json_has_consuls_names_and_reads_back() {
        let roots = set(vec![root("a", true)]);
        let json = serde_json::to_value(&roots).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "ActiveRootID": "a",
                "TrustDomain": "c1.consul",
                "Roots": [{
                    "ID": "a", "Name": "root", "SerialNumber": 7, "SigningKeyID": "aa:bb",
                    "ExternalTrustDomain": "c1", "NotBefore": "1970-01-01T00:00:00Z",
                    "NotAfter": "1970-01-01T00:01:40Z", "RootCert": "PEM", "IntermediateCerts": [],
                    "Active": true, "PrivateKeyType": "ec", "PrivateKeyBits": 256,
                    "CreateIndex": 8, "ModifyIndex": 9,
                }],
            })
        );
        assert_eq!(serde_json::from_value::<CaRoots>(json).unwrap(), roots);
    }

    #[test]
    fn null_lists_read_as_empty() {
        let read: CaRoots = serde_json::from_value(serde_json::json!({
            "ActiveRootID": "", "TrustDomain": "", "Roots": null,
        }))
        .unwrap();
        assert!(read.roots.is_empty());
    }

    #[test]
    fn expired_roots_are_not_trusted() {
        let mut old = root("b", false);
        old.not_after = UNIX_EPOCH + Duration::from_secs(50);
        let roots = set(vec![old, root("a", true)]);
        let ids = |seconds| {
            roots
                .trusted_at(UNIX_EPOCH + Duration::from_secs(seconds))
                .map(|root| root.id.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(49), ["b", "a"]);
        assert_eq!(ids(50), ["a"]);
        assert!(ids(100).is_empty());
    }
}
