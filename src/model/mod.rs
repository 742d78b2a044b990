//! model.

mod certificate;

pub(crate) use certificate::timestamp;
pub use certificate::{
    CaConfig, CaConfigError, CaRoot, CaRoots, CaRootsError, IssuedCert, LeafRequest,
    LeafRequestError, LeafRequestFields, LeafSubject, PrivateKey, SpiffeId, SpiffeIdError,
};
