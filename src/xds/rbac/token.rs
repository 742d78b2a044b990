//! Tokens that rules ask for: what the filter of the module `jwt` must have found in a request (xds.md 4.4).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use smol_str::SmolStr;

use crate::model::{IntentionJwt, IntentionJwtProvider, JwtProvider, NameKey};
use crate::xds::jwt::{self, TokenProvider};
use crate::xds::proto::{matcher, rbac, string_match};
use matcher::metadata_matcher::PathSegment;
use triomphe::Arc;

/// A token that a request must carry: of any of these providers, with all that is asked of its payload.
#[derive(Debug, Clone)]
pub(super) struct Demand(Vec<Vec<matcher::MetadataMatcher>>);

/// The providers that rules name, each built when it is first named.
pub(super) struct Providers<'a> {
    known: &'a [Arc<JwtProvider>],
    /// By the name of the entry.
    used: BTreeMap<SmolStr, Result<TokenProvider, String>>,
}

impl<'a> Providers<'a> {
    pub(super) fn new(known: &'a [Arc<JwtProvider>]) -> Self {
        Self {
            known,
            used: BTreeMap::new(),
        }
    }

    /// The token that a rule asks for.
    ///
    /// # Errors
    /// Nobody could ever satisfy it.
    pub(super) fn demand(
        &mut self,
        jwt: &IntentionJwt,
        problems: &mut Vec<String>,
    ) -> Result<Demand, String> {
        if jwt.providers.is_empty() {
            return Err("its JWT names no provider".to_owned());
        }
        let mut any = Vec::with_capacity(jwt.providers.len());
        let mut reasons = Vec::new();
        for asked in &jwt.providers {
            match self.conditions(asked, problems) {
                Ok(all) => any.push(all),
                Err(why) => reasons.push(why),
            }
        }
        if any.is_empty() {
            return Err(reasons.join("; "));
        }
        // The other providers will do: without this one fewer tokens are good enough.
        problems.extend(reasons);
        Ok(Demand(any))
    }

    /// What must hold of a token's payload, and that there is one.
    fn conditions(
        &mut self,
        asked: &IntentionJwtProvider,
        problems: &mut Vec<String>,
    ) -> Result<Vec<matcher::MetadataMatcher>, String> {
        let key = NameKey::new(&asked.name);
        let entry = self
            .known
            .iter()
            .find(|known| NameKey::new(&known.name) == key)
            .ok_or_else(|| format!("there is no jwt-provider {:?}", asked.name))?;
        let name = SmolStr::from(&entry.name);
        let built = match self.used.entry(name.clone()) {
            Entry::Occupied(built) => built.into_mut(),
            Entry::Vacant(place) => {
                let about = |text: String| format!("jwt-provider {name}: {text}");
                problems.extend(jwt::unchecked(entry).map(about));
                place.insert(TokenProvider::new(entry).map_err(|e| about(e.to_string())))
            }
        };
        let provider = built.as_ref().map_err(Clone::clone)?;
        let payload = jwt::payload_key(&name);
        let of_payload = |path: &[&str], value: matcher::ValueMatcher| {
            let path = std::iter::once(payload.as_str()).chain(path.iter().copied());
            metadata(path, value)
        };
        let mut all = vec![if provider.issuer.is_empty() {
            of_payload(
                &[],
                of(matcher::value_matcher::MatchPattern::PresentMatch(true)),
            )
        } else {
            of_payload(&["iss"], exact(&provider.issuer))
        }];
        for claim in &asked.verify_claims {
            if claim.path.is_empty() || claim.path.iter().any(String::is_empty) {
                return Err(format!(
                    "a claim of provider {:?} has a path with empty names, or none",
                    asked.name
                ));
            }
            let path: Vec<&str> = claim.path.iter().map(String::as_str).collect();
            all.push(of_payload(&path, exact(&claim.value)));
        }
        Ok(all)
    }

    /// The providers that requests are to be searched for tokens of.
    pub(super) fn usable(self) -> BTreeMap<SmolStr, TokenProvider> {
        let used = self.used.into_iter();
        used.filter_map(|(name, built)| Some((name, built.ok()?)))
            .collect()
    }
}

impl Demand {
    /// Fits the callers of requests with such a token.
    pub(super) fn principal(&self) -> rbac::Principal {
        use rbac::principal::{Identifier, Set};
        let principal = |identifier| rbac::Principal {
            identifier: Some(identifier),
        };
        let sourced = |matcher: &matcher::MetadataMatcher| {
            principal(Identifier::SourcedMetadata(from_filters(matcher)))
        };
        let all = |matchers: &Vec<matcher::MetadataMatcher>| {
            single_or(matchers.iter().map(sourced).collect(), |ids| {
                principal(Identifier::AndIds(Set { ids }))
            })
        };
        single_or(self.0.iter().map(all).collect(), |ids| {
            principal(Identifier::OrIds(Set { ids }))
        })
    }

    /// Fits requests with such a token.
    pub(super) fn permission(&self) -> rbac::Permission {
        use rbac::permission::{Rule, Set};
        let permission = |rule| rbac::Permission { rule: Some(rule) };
        let sourced = |matcher: &matcher::MetadataMatcher| {
            permission(Rule::SourcedMetadata(from_filters(matcher)))
        };
        let all = |matchers: &Vec<matcher::MetadataMatcher>| {
            single_or(matchers.iter().map(sourced).collect(), |rules| {
                permission(Rule::AndRules(Set { rules }))
            })
        };
        single_or(self.0.iter().map(all).collect(), |rules| {
            permission(Rule::OrRules(Set { rules }))
        })
    }
}

/// The one item itself, else what holds them together.
fn single_or<T>(mut items: Vec<T>, together: impl FnOnce(Vec<T>) -> T) -> T {
    match (items.len(), items.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            items.extend(last);
            together(items)
        }
    }
}

fn from_filters(matcher: &matcher::MetadataMatcher) -> rbac::SourcedMetadata {
    rbac::SourcedMetadata {
        metadata_matcher: Some(matcher.clone()),
        metadata_source: rbac::MetadataSource::Dynamic as i32,
    }
}

fn metadata<'p>(
    path: impl Iterator<Item = &'p str>,
    value: matcher::ValueMatcher,
) -> matcher::MetadataMatcher {
    let segment = |name: &str| PathSegment {
        segment: Some(matcher::metadata_matcher::path_segment::Segment::Key(
            name.to_owned(),
        )),
    };
    matcher::MetadataMatcher {
        filter: jwt::FILTER.to_owned(),
        path: path.map(segment).collect(),
        value: Some(value),
        ..Default::default()
    }
}

fn exact(text: &str) -> matcher::ValueMatcher {
    let exact = matcher::string_matcher::MatchPattern::Exact(text.to_owned());
    of(matcher::value_matcher::MatchPattern::StringMatch(
        string_match(exact, false),
    ))
}

fn of(pattern: matcher::value_matcher::MatchPattern) -> matcher::ValueMatcher {
    matcher::ValueMatcher {
        match_pattern: Some(pattern),
    }
}
