//! A private key that doesn't leak by accident.

use std::fmt;

use serde::{Deserialize, Deserializer, de};
use zeroize::Zeroize;

/// What stands in the place of a private key in every text form.
pub(crate) const REDACTED: &str = "<redacted>";

/// A private key in PEM form.
///
/// It deliberately has no `Serialize` and no `Display`, its `Debug` prints `<redacted>`, and its memory is wiped on
/// drop. [`PrivateKey::expose_pem`] is the only way to the text.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey {
    pem: String,
}

impl PrivateKey {
    /// Takes over the PEM text of a private key. The text isn't checked here; the CA checks keys that it signs with.
    #[must_use]
    pub fn from_pem(pem: impl Into<String>) -> Self {
        Self { pem: pem.into() }
    }

    /// The PEM text. Allowed destinations: the secret resource's bytes, the leaf endpoint, the durable CA state.
    #[must_use]
    pub fn expose_pem(&self) -> &str {
        &self.pem
    }

    /// Whether there is no key at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pem.is_empty()
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl Drop for PrivateKey {
    fn drop(&mut self) {
        self.pem.zeroize();
    }
}

impl<'de> Deserialize<'de> for PrivateKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pem = String::deserialize(deserializer)?;
        if pem == REDACTED {
            return Err(de::Error::custom(
                "the private key was redacted where this text was written; give the key itself",
            ));
        }
        Ok(Self { pem })
    }
}
