//! Who an intention is about, and how Envoy recognises them: by the identity in the client's certificate.

use crate::model::Intention;
use crate::xds::proto::{matcher, rbac, regex, string_match};
use crate::xds::re2;

/// The callers that an intention is about. `*` stands for any name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Source<'a> {
    pub partition: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

const ANY: &str = "*";
const DEFAULT: &str = "default";

impl<'a> Source<'a> {
    pub(super) fn of(intention: &'a Intention) -> Self {
        let or_default = |name: &'a str| if name.is_empty() { DEFAULT } else { name };
        Self {
            partition: or_default(&intention.source_partition),
            namespace: or_default(&intention.source_ns),
            name: &intention.source_name,
        }
    }

    /// Whether every caller of `other` is one of these.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.partition == other.partition
            && (self.namespace == ANY || self.namespace == other.namespace)
            && (self.name == ANY || self.name == other.name)
    }

    /// Whether a caller can be one of both.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let meet = |a: &str, b: &str| a == ANY || b == ANY || a == b;
        self.partition == other.partition
            && meet(self.namespace, other.namespace)
            && meet(self.name, other.name)
    }

    /// Whether it is about the one partition and namespace that there is.
    pub(super) fn is_local(&self) -> bool {
        self.partition == DEFAULT && self.namespace == DEFAULT
    }

    /// Whether it is about callers of any name.
    pub(super) fn is_any(&self) -> bool {
        self.name == ANY
    }

    fn wildcards(&self) -> usize {
        usize::from(self.namespace == ANY) + usize::from(self.name == ANY)
    }

    /// The identities of these callers, in any datacenter (xds.md 4.4; decision E12: literals are escaped).
    pub(super) fn pattern(&self, trust_domain: &str) -> String {
        let segment = |name: &str| {
            if name == ANY {
                "[^/]+".to_owned()
            } else {
                re2::escape(name)
            }
        };
        let partition = match self.partition {
            DEFAULT => String::new(),
            partition => format!("/ap/{}", re2::escape(partition)),
        };
        format!(
            "^spiffe://{}{partition}/ns/{}/dc/[^/]+/svc/{}$",
            re2::escape(trust_domain),
            segment(self.namespace),
            segment(self.name)
        )
    }
}

/// Leaves out sources that another one covers, and puts those with the fewest wildcards first. The order is kept
/// otherwise.
pub(super) fn without_covered(mut sources: Vec<Source<'_>>) -> Vec<Source<'_>> {
    let all = sources.clone();
    sources.retain(|source| {
        !all.iter()
            .any(|other| other != source && other.covers(source))
    });
    sources.sort_by_key(Source::wildcards);
    sources
}

/// Fits the callers of `source` that are in none of `except`.
pub(super) fn principal(
    source: &Source<'_>,
    except: &[Source<'_>],
    trust_domain: &str,
) -> rbac::Principal {
    let own = authenticated(source, trust_domain);
    if except.is_empty() {
        return own;
    }
    let not = except.iter().map(|source| {
        of(rbac::principal::Identifier::NotId(Box::new(authenticated(
            source,
            trust_domain,
        ))))
    });
    let ids = std::iter::once(own).chain(not).collect();
    of(rbac::principal::Identifier::AndIds(rbac::principal::Set {
        ids,
    }))
}

fn authenticated(source: &Source<'_>, trust_domain: &str) -> rbac::Principal {
    let pattern =
        matcher::string_matcher::MatchPattern::SafeRegex(regex(source.pattern(trust_domain)));
    of(rbac::principal::Identifier::Authenticated(
        rbac::principal::Authenticated {
            principal_name: Some(string_match(pattern, false)),
        },
    ))
}

fn of(identifier: rbac::principal::Identifier) -> rbac::Principal {
    rbac::Principal {
        identifier: Some(identifier),
    }
}
