//! The query of a request, and what holds for all of them: the datacenter, tenancy, waiting.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Query};
use axum::http::HeaderMap;
use axum::http::request::Parts;

use super::HttpState;
use super::answer::Writer;
use super::error::HttpError;
use crate::filter::{FieldType, Filter};
use crate::model::GoDuration;
use crate::server::access::{Access, Grants};
use crate::store::PeeredName;

/// Keys under which a namespace or partition can be given, and the header that says the same.
const TENANCY: [(&str, &str); 3] = [
    ("ns", "x-consul-namespace"),
    ("partition", "x-consul-partition"),
    ("ap", "x-consul-partition"),
];

/// The query of a request. Extracting it refuses other datacenters, namespaces and partitions.
#[derive(Debug, Clone, Default)]
pub(super) struct Params {
    pairs: Vec<(String, String)>,
    grants: Arc<Grants>,
}

impl FromRequestParts<Arc<HttpState>> for Params {
    type Rejection = HttpError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<HttpState>,
    ) -> Result<Self, HttpError> {
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)
            .map_err(|error| HttpError::bad_request(format!("bad query: {error}")))?;
        // Put there by `access::check`, which every request passes; without it nothing is granted.
        let grants = parts.extensions.get::<Arc<Grants>>();
        let grants = grants.cloned().unwrap_or_default();
        let params = Self { pairs, grants };
        params.check(&parts.headers, state)?;
        Ok(params)
    }
}

impl Params {
    fn check(&self, headers: &HeaderMap, state: &HttpState) -> Result<(), HttpError> {
        if let Some(datacenter) = self.text("dc") {
            state.check_datacenter(datacenter)?;
        }
        for (key, header) in TENANCY {
            let of_header = headers
                .get(header)
                .map(|value| String::from_utf8_lossy(value.as_bytes()));
            for given in self.text(key).into_iter().chain(of_header.as_deref()) {
                if !(given.is_empty() || given.eq_ignore_ascii_case("default")) {
                    return Err(HttpError::bad_request(format!(
                        "invalid query parameter {key:?} ({given:?}): namespaces and partitions other than \"default\" \
                         are enterprise only; leave it out"
                    )));
                }
            }
        }
        if self.text("sg").is_some_and(|group| !group.is_empty()) {
            return Err(HttpError::bad_request(
                "invalid query parameter \"sg\": sameness groups are enterprise only; leave it out",
            ));
        }
        Ok(())
    }

    /// Insists on a right of the caller.
    pub fn require(&self, access: Access<'_>) -> Result<(), HttpError> {
        Ok(self.grants.require(access)?)
    }

    /// Whether the caller has a right.
    pub fn may(&self, access: Access<'_>) -> bool {
        self.grants.allows(access)
    }

    /// The rights of the caller.
    pub fn grants(&self) -> &Arc<Grants> {
        &self.grants
    }

    /// The first value of a key; an empty one counts as not given.
    pub fn text(&self, key: &str) -> Option<&str> {
        let mut values = self.pairs.iter().filter(|(k, _)| k == key).map(|(_, v)| v);
        values.find(|v| !v.is_empty()).map(String::as_str)
    }

    /// `name` of the peer that the request asks about, by default the own cluster.
    pub fn peered(&self, name: &str) -> PeeredName {
        PeeredName::new(self.text("peer").unwrap_or_default(), name)
    }

    /// All values of a key that aren't empty.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let values = self.pairs.iter().filter(move |(k, _)| k == key);
        values.map(|(_, v)| v.as_str()).filter(|v| !v.is_empty())
    }

    /// A switch: on if its key is there, unless the value says otherwise.
    pub fn flag(&self, key: &str) -> Result<bool, HttpError> {
        let Some((_, value)) = self.pairs.iter().find(|(k, _)| k == key) else {
            return Ok(false);
        };
        match value.to_ascii_lowercase().as_str() {
            "" | "true" | "1" | "t" => Ok(true),
            "false" | "0" | "f" => Ok(false),
            _ => Err(HttpError::bad_request(format!(
                "invalid query parameter {key:?}: {value:?} is neither true nor false"
            ))),
        }
    }

    /// A whole number.
    pub fn number(&self, key: &str) -> Result<Option<u64>, HttpError> {
        let parse = |value: &str| {
            value.parse().map_err(|_| {
                HttpError::bad_request(format!(
                    "invalid query parameter {key:?}: {value:?} is not a whole number from 0"
                ))
            })
        };
        self.text(key).map(parse).transpose()
    }

    /// How the answer is to be written.
    pub fn writer(&self) -> Writer {
        Writer {
            pretty: self.pairs.iter().any(|(k, _)| k == "pretty"),
        }
    }

    /// From which index on an answer is wanted, and how long to wait for it (store.md 2.4).
    pub fn blocking(&self, state: &HttpState) -> Result<Blocking, HttpError> {
        let config = state.config();
        let given = match self.text("wait") {
            None => None,
            Some(text) => match GoDuration::parse(text).filter(|wait| wait.0 >= 0) {
                Some(wait) => Some(wait.to_std()),
                None => {
                    return Err(HttpError::bad_request(format!(
                        "invalid query parameter \"wait\": {text:?} is not a time such as \"30s\" or \"5m\""
                    )));
                }
            },
        };
        // As Consul has it, no time at all means the default.
        let wait = given
            .filter(|wait| !wait.is_zero())
            .unwrap_or(config.default_wait)
            .min(config.max_wait);
        Ok(Blocking {
            index: self.number("index")?.unwrap_or(0),
            wait: wait + state.jitter(wait / 16),
        })
    }

    /// The filter expression, which names fields of `fields`.
    pub fn filter(&self, fields: &FieldType) -> Result<Filter, HttpError> {
        let text = self.text("filter").unwrap_or_default();
        Filter::parse_for(text, fields).map_err(|error| {
            HttpError::bad_request(format!("invalid query parameter \"filter\": {error}"))
        })
    }

    /// Refuses keys that would change the answer of another endpoint, rather than answering as if they weren't there.
    pub fn without(&self, keys: &[&str]) -> Result<(), HttpError> {
        match keys.iter().find(|key| self.text(key).is_some()) {
            None => Ok(()),
            Some(key) => Err(HttpError::bad_request(format!(
                "the query parameter {key:?} is not supported here; leave it out"
            ))),
        }
    }

    /// The pairs that a node's labels must have.
    pub fn node_meta(&self) -> Result<Vec<(String, String)>, HttpError> {
        self.all("node-meta")
            .map(|pair| match pair.split_once(':') {
                Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
                None => Err(HttpError::bad_request(format!(
                    "invalid query parameter \"node-meta\": write {pair:?} as KEY:VALUE"
                ))),
            })
            .collect()
    }
}

/// What a blocking read asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocking {
    /// An answer with an index above this; 0 is any answer, at once.
    pub index: u64,
    /// How long to wait for it.
    pub wait: Duration,
}
