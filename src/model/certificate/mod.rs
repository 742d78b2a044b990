//! Records of the certificate authority: roots, issued leaf certificates, what a leaf is asked for, the CA
//! configuration and SPIFFE identities (store.md 4.1 and 4.2).
//!
//! The rule that shapes these types is that a private key never reaches a log, a snapshot's JSON or a `{:?}`:
//! [`PrivateKey`] has no `Serialize`, prints as `<redacted>`, and is wiped when dropped. Whoever must write a key (the
//! secret resource, the leaf endpoint, the durable store) asks for it by name, with [`PrivateKey::expose_pem`] or
//! [`IssuedCert::to_json_with_private_key`].

mod ca_config;
mod duration_text;
mod issued;
mod leaf_request;
mod private_key;
mod roots;
mod spiffe;
pub(crate) mod timestamp;

pub use ca_config::{CaConfig, CaConfigError};
pub use issued::IssuedCert;
pub use leaf_request::{LeafRequest, LeafRequestError, LeafRequestFields, LeafSubject};
pub use private_key::PrivateKey;
pub use roots::{CaRoot, CaRoots, CaRootsError};
pub use spiffe::{SpiffeId, SpiffeIdError};

/// The name of the partition and of the namespace that an omitted one stands for.
pub(crate) const DEFAULT_TENANCY: &str = "default";
