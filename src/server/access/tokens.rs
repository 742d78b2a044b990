//! Tokens from a file.
//!
//! ```hcl
//! tokens = [
//!   { name = "web", secret = "f2d0...", watch = ["web"], read = ["db"] },
//!   { name = "ops", secret_sha256 = "9f86d0...", operator = true },
//! ]
//! anonymous { read = ["*"] }
//! ```
//!
//! Only hashes of the secrets are kept in memory. A presented token is hashed and compared with all of them in a time that
//! doesn't depend on how much of it is right, nor on which one it is.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use subtle::{Choice, ConstantTimeEq as _};

use super::grants::{Grants, Services};
use super::reloaded::Reloaded;
use super::{Authorizer, UnknownToken};
use crate::clock::Clock;
use crate::hcl;
use crate::model::{Place, Problems, Validate, read, record};

/// Secrets are at least this long, so that they can't be guessed.
const MIN_SECRET: usize = 16;

record! {
    /// The file.
    pub struct TokensDocument {
        /// All tokens.
        tokens: Vec<TokenRecord> = "Tokens",
        /// The rights of callers that present none.
        anonymous: Option<AnonymousRecord> = "Anonymous",
    }
}

record! {
    /// A token and its rights.
    pub struct TokenRecord {
        /// Its name, for messages.
        name: String = "Name",
        /// What callers present.
        secret: String = "Secret",
        /// Or the SHA-256 of that, in hexadecimal digits.
        secret_sha256: String = "SecretSHA256",
        /// Services to stand for.
        watch: Vec<String> = "Watch",
        /// Services to read.
        read: Vec<String> = "Read",
        /// Services to write.
        write: Vec<String> = "Write",
        /// Everything.
        operator: bool = "Operator",
    }
}

record! {
    /// The rights of callers without a token.
    pub struct AnonymousRecord {
        /// Services to stand for.
        watch: Vec<String> = "Watch",
        /// Services to read.
        read: Vec<String> = "Read",
        /// Services to write.
        write: Vec<String> = "Write",
    }
}

/// A file of tokens that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TokenFileError(String);

/// Authorizes by the tokens of a file, which is read again when it changes.
#[derive(Debug)]
pub struct TokenFile(Reloaded<Tokens>);

struct Tokens {
    known: Vec<(Hash, Arc<Grants>)>,
    anonymous: Option<Arc<Grants>>,
}

type Hash = [u8; 32];

impl TokenFile {
    /// Reads a file, and follows it.
    ///
    /// # Errors
    /// It can't be read, or something in it is wrong: every problem with its place.
    pub fn start(path: PathBuf, clock: Arc<dyn Clock>) -> Result<Self, TokenFileError> {
        warn_if_open(&path);
        let shown = path.display().to_string();
        let load = move |contents: &[Vec<u8>]| {
            let content = contents.first().map_or(&[][..], Vec::as_slice);
            Tokens::read(content, &shown)
        };
        Reloaded::start("the file of tokens", vec![path], clock, load)
            .map(Self)
            .map_err(TokenFileError)
    }
}

impl Authorizer for TokenFile {
    fn grants(&self, token: &str) -> Result<Arc<Grants>, UnknownToken> {
        self.0.get().grants(token)
    }
}

/// Whoever reads the file can do whatever its tokens can.
fn warn_if_open(path: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    // One that can't be looked at can't be read either, which is told then.
    let mode = std::fs::metadata(path).map_or(0, |found| found.permissions().mode());
    if mode & 0o077 != 0 {
        let path = path.display();
        tracing::warn!("{path}: others on this machine may read the tokens; chmod 600 {path}");
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("known", &self.known.len())
            .finish_non_exhaustive()
    }
}

impl Tokens {
    fn read(content: &[u8], shown: &str) -> Result<Self, String> {
        let lines = |problems: Vec<(hcl::Pos, String)>| {
            let line = |(pos, text): &(hcl::Pos, String)| {
                format!("{shown}:{}:{}: {text}", pos.line, pos.column)
            };
            problems.iter().map(line).collect::<Vec<_>>().join("\n")
        };
        let document = hcl::parse(content)
            .map_err(|errors| lines(errors.iter().map(|e| (e.pos, e.message.clone())).collect()))?;
        let (document, _) = read::<TokensDocument>(&document).map_err(|problems| {
            let placed =
                |p: &crate::model::Problem| (p.pos.unwrap_or(hcl::Pos::START), p.to_string());
            lines(problems.errors.iter().map(placed).collect())
        })?;
        Ok(Self {
            known: document
                .tokens
                .iter()
                .filter_map(TokenRecord::known)
                .collect(),
            anonymous: document.anonymous.map(|a| Arc::new(a.grants())),
        })
    }

    fn grants(&self, token: &str) -> Result<Arc<Grants>, UnknownToken> {
        if token.is_empty() {
            return self.anonymous.clone().ok_or(UnknownToken);
        }
        let presented = sha256(token.as_bytes());
        let mut found = None;
        for (hash, grants) in &self.known {
            // All of them, always.
            let same: Choice = hash.ct_eq(&presented);
            if bool::from(same) {
                found = Some(grants);
            }
        }
        found.cloned().ok_or(UnknownToken)
    }
}

fn sha256(bytes: &[u8]) -> Hash {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let mut hash = Hash::default();
    hash.copy_from_slice(digest.as_ref());
    hash
}

fn parse_hash(text: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    let digits = text.as_bytes();
    if digits.len() != hash.len() * 2 {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(hash)
}

impl TokenRecord {
    /// What the secret hashes to; none if it is given wrongly.
    fn hash(&self) -> Option<Hash> {
        if self.secret.is_empty() {
            parse_hash(&self.secret_sha256)
        } else {
            Some(sha256(self.secret.as_bytes()))
        }
    }

    fn known(&self) -> Option<(Hash, Arc<Grants>)> {
        let grants = Grants {
            name: self.name.as_str().into(),
            watch: services(&self.watch),
            read: services(&self.read),
            write: services(&self.write),
            operator: self.operator,
        };
        Some((self.hash()?, Arc::new(grants)))
    }
}

impl AnonymousRecord {
    fn grants(&self) -> Grants {
        Grants {
            watch: services(&self.watch),
            read: services(&self.read),
            write: services(&self.write),
            ..Grants::default()
        }
    }
}

fn services(patterns: &[String]) -> Services {
    Services::new(patterns.iter().map(String::as_str))
}

fn check_services(lists: [(&str, &[String]); 3], at: &Place<'_>, problems: &mut Problems) {
    for (key, patterns) in lists {
        let list = at.key(key);
        for (i, pattern) in patterns.iter().enumerate() {
            let name = pattern.strip_suffix('*').unwrap_or(pattern);
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            if pattern.is_empty() || !name.chars().all(plain) {
                problems.error(
                    &list.index(i),
                    format!(
                        "{pattern:?} names no service; write a name, the beginning of names and a \"*\", or \"*\""
                    ),
                );
            }
        }
    }
}

impl Validate for TokensDocument {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        let tokens = at.key("Tokens");
        for (i, token) in self.tokens.iter().enumerate() {
            let at = tokens.index(i);
            token.validate(&at, problems);
            let before = &self.tokens[..i];
            if let Some(twin) = before.iter().position(|t| t.name == token.name) {
                problems.error(&at.key("Name"), format!("is the name of token {twin} too"));
            }
            if token.hash().is_some()
                && let Some(twin) = before.iter().position(|t| t.hash() == token.hash())
            {
                problems.error(
                    &at,
                    format!("has the secret of token {twin}; give each its own"),
                );
            }
        }
        if let Some(anonymous) = &self.anonymous {
            let lists = [
                ("Watch", &*anonymous.watch),
                ("Read", &*anonymous.read),
                ("Write", &*anonymous.write),
            ];
            check_services(lists, &at.key("Anonymous"), problems);
        }
    }
}

impl Validate for TokenRecord {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        if self.name.trim().is_empty() {
            problems.error(&at.key("Name"), "a token needs a name, for messages");
        }
        match (self.secret.is_empty(), self.secret_sha256.is_empty()) {
            (true, true) => problems.error(at, "a token needs a Secret or a SecretSHA256"),
            (false, false) => problems.error(at, "give Secret or SecretSHA256, not both"),
            (false, true) if self.secret.len() < MIN_SECRET => problems.error(
                &at.key("Secret"),
                format!(
                    "is too short to be safe: use at least {MIN_SECRET} characters, such as a UUID"
                ),
            ),
            (true, false) if parse_hash(&self.secret_sha256).is_none() => problems.error(
                &at.key("SecretSHA256"),
                "must be the 64 hexadecimal digits of a SHA-256",
            ),
            _ => {}
        }
        if !self.operator && self.watch.is_empty() && self.read.is_empty() && self.write.is_empty()
        {
            problems.warning(
                at,
                "the token allows nothing; give Watch, Read, Write or Operator",
            );
        }
        let lists = [
            ("Watch", &*self.watch),
            ("Read", &*self.read),
            ("Write", &*self.write),
        ];
        check_services(lists, at, problems);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Access;
    use super::*;

    fn read(text: &str) -> Result<Tokens, String> {
        Tokens::read(text.as_bytes(), "tokens.hcl")
    }

    #[test]
    fn c2_a_token_has_the_rights_of_its_record() {
        let tokens = read(
            "tokens = [\n\
             { name = \"web\" secret = \"0123456789abcdef\" watch = [\"web\"] read = [\"db\"] },\n\
             { name = \"ops\" secret_sha256 = \"9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08\" operator = true },\n\
             ]\n",
        )
        .unwrap();
        let web = tokens.grants("0123456789abcdef").unwrap();
        assert!(web.allows(Access::Watch("web")) && web.allows(Access::Read("db")));
        assert!(!web.allows(Access::Watch("db")));
        // The SHA-256 of "test".
        assert!(tokens.grants("test").unwrap().allows(Access::Operator));
        for wrong in [
            "",
            "0123456789abcde",
            "0123456789abcdeF",
            "0123456789abcdef ",
            "x",
        ] {
            assert_eq!(tokens.grants(wrong).unwrap_err(), UnknownToken, "{wrong:?}");
        }
        assert!(!format!("{tokens:?}").contains("0123456789"));
        let open = read("anonymous { read = [\"*\"] }").unwrap();
        assert!(open.grants("").unwrap().allows(Access::ReadAll));
        assert_eq!(open.grants("something").unwrap_err(), UnknownToken);
    }

    #[test]
    fn c2_a_bad_file_names_every_place_and_the_mend() {
        for (text, wanted) in [
            (
                "tokens = [\n{ secret = \"0123456789abcdef\" operator = true }\n]",
                "tokens.hcl:2:1: Tokens[0].Name: a token needs a name",
            ),
            (
                "tokens = [{ name = \"a\" operator = true }]",
                "needs a Secret or a SecretSHA256",
            ),
            (
                "tokens = [{ name = \"a\" secret = \"short\" operator = true }]",
                "is too short to be safe",
            ),
            (
                "tokens = [{ name = \"a\" secret_sha256 = \"zz\" operator = true }]",
                "64 hexadecimal digits",
            ),
            (
                "tokens = [{ name = \"a\" secret = \"0123456789abcdef\" read = [\"a b\"] }]",
                "names no service",
            ),
            (
                "tokens = [{ name = \"a\" secret = \"0123456789abcdef\" reed = [\"a\"] }]",
                "did you mean Read?",
            ),
            (
                "tokens = [{ name = \"a\" secret = \"0123456789abcdef\" operator = true }, { name = \"b\" secret = \"0123456789abcdef\" operator = true }]",
                "has the secret of token 0",
            ),
            (
                "anonymous { operator = true }",
                "Anonymous.operator: unknown key",
            ),
            ("tokens = ", "tokens.hcl:1:"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
            assert!(!error.contains("0123456789abcdef"), "no secret in {error}");
        }
    }
}
