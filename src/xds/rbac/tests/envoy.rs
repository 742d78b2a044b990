//! A small reading of Envoy's filters, after its documentation.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use regex::Regex;
use serde_json::{Map, Value};

use crate::xds::proto::{matcher, rbac, route};
use crate::xds::rbac::AccessRules;
use matcher::string_matcher::MatchPattern;
use rbac::permission::Rule;
use rbac::principal::Identifier;

/// A request as the filter sees it.
#[derive(Debug, Clone, Default)]
pub(super) struct Request {
    /// The identity in the caller's certificate.
    pub caller: String,
    pub method: String,
    pub path: String,
    /// Lower-case names. Several values of one name come together, as in Envoy.
    pub headers: Vec<(String, String)>,
    /// The payloads of valid tokens by provider.
    pub tokens: BTreeMap<String, Value>,
}

impl Request {
    fn header(&self, name: &str) -> Option<String> {
        match name {
            ":method" => Some(self.method.clone()),
            ":path" => Some(self.path.clone()),
            _ => {
                let values = self.headers.iter().filter(|(of, _)| of == name);
                let values: Vec<_> = values.map(|(_, value)| value.as_str()).collect();
                (!values.is_empty()).then(|| values.join(","))
            }
        }
    }

    /// What the filter for tokens leaves behind for these rules: payloads of the providers that it knows.
    fn metadata(&self, rules: &AccessRules) -> Value {
        let known = self
            .tokens
            .iter()
            .filter(|(name, _)| rules.token_providers().contains_key(name.as_str()));
        let payloads: Map<String, Value> = known
            .map(|(name, payload)| (format!("jwt_payload_{name}"), payload.clone()))
            .collect();
        Value::Object(payloads)
    }
}

/// Whether the filter lets a request through.
pub(super) fn allows(rules: &AccessRules, request: &Request) -> bool {
    let seen = Seen {
        request,
        metadata: request.metadata(rules),
    };
    let fits = rules.policies.iter().any(|(_, policy)| {
        policy.principals.iter().any(|p| seen.principal(p))
            && policy.permissions.iter().any(|p| seen.permission(p))
    });
    fits == (rules.action == rbac::rbac::Action::Allow)
}

struct Seen<'a> {
    request: &'a Request,
    metadata: Value,
}

impl Seen<'_> {
    fn principal(&self, principal: &rbac::Principal) -> bool {
        match principal.identifier.as_ref().unwrap() {
            Identifier::Authenticated(one) => {
                fits_text(one.principal_name.as_ref().unwrap(), &self.request.caller)
            }
            Identifier::NotId(not) => !self.principal(not),
            Identifier::AndIds(set) => set.ids.iter().all(|p| self.principal(p)),
            Identifier::OrIds(set) => set.ids.iter().any(|p| self.principal(p)),
            Identifier::SourcedMetadata(sourced) => self.sourced(sourced),
            other => panic!("{other:?}"),
        }
    }

    fn permission(&self, permission: &rbac::Permission) -> bool {
        match permission.rule.as_ref().unwrap() {
            Rule::Any(_) => true,
            Rule::UrlPath(of) => {
                let Some(matcher::path_matcher::Rule::Path(text)) = &of.rule else {
                    panic!("{of:?}")
                };
                let path = self.request.path.split(['?', '#']).next().unwrap();
                fits_text(text, path)
            }
            Rule::Header(header) => self.header(header),
            Rule::NotRule(not) => !self.permission(not),
            Rule::AndRules(set) => set.rules.iter().all(|p| self.permission(p)),
            Rule::OrRules(set) => set.rules.iter().any(|p| self.permission(p)),
            Rule::SourcedMetadata(sourced) => self.sourced(sourced),
            other => panic!("{other:?}"),
        }
    }

    fn header(&self, of: &route::HeaderMatcher) -> bool {
        use route::header_matcher::HeaderMatchSpecifier::{PresentMatch, StringMatch};
        let value = self.request.header(&of.name.to_ascii_lowercase());
        match of.header_match_specifier.as_ref().unwrap() {
            PresentMatch(present) => (value.is_some() == *present) != of.invert_match,
            StringMatch(text) => {
                let empty = of.treat_missing_header_as_empty.then(String::new);
                // Without a value nothing fits, not even what is inverted.
                value
                    .or(empty)
                    .is_some_and(|value| fits_text(text, &value) != of.invert_match)
            }
            other => panic!("{other:?}"),
        }
    }

    fn sourced(&self, of: &rbac::SourcedMetadata) -> bool {
        assert_eq!(of.metadata_source, rbac::MetadataSource::Dynamic as i32);
        let of = of.metadata_matcher.as_ref().unwrap();
        assert!(!of.invert);
        assert_eq!(of.filter, "envoy.filters.http.jwt_authn");
        let mut value = Some(&self.metadata);
        for segment in &of.path {
            let Some(matcher::metadata_matcher::path_segment::Segment::Key(key)) = &segment.segment
            else {
                panic!("{segment:?}")
            };
            value = value.and_then(|value| value.get(key));
        }
        match of.value.as_ref().unwrap().match_pattern.as_ref().unwrap() {
            matcher::value_matcher::MatchPattern::PresentMatch(present) => {
                value.is_some() == *present
            }
            matcher::value_matcher::MatchPattern::StringMatch(text) => value
                .and_then(Value::as_str)
                .is_some_and(|value| fits_text(text, value)),
            other => panic!("{other:?}"),
        }
    }
}

pub(super) fn fits_text(of: &matcher::StringMatcher, text: &str) -> bool {
    let (case, text) = if of.ignore_case {
        (
            str::to_ascii_lowercase as fn(&str) -> String,
            text.to_ascii_lowercase(),
        )
    } else {
        (str::to_owned as fn(&str) -> String, text.to_owned())
    };
    match of.match_pattern.as_ref().unwrap() {
        MatchPattern::Exact(exact) => text == case(exact),
        MatchPattern::Prefix(prefix) => text.starts_with(&case(prefix)),
        MatchPattern::Suffix(suffix) => text.ends_with(&case(suffix)),
        MatchPattern::Contains(part) => text.contains(&case(part)),
        MatchPattern::SafeRegex(regex) => {
            assert!(!of.ignore_case, "has no effect on a regular expression");
            fits_regex(&regex.regex, &text)
        }
        other => panic!("{other:?}"),
    }
}

/// Whether the whole text fits.
pub(super) fn fits_regex(pattern: &str, text: &str) -> bool {
    thread_local! {
        static COMPILED: RefCell<HashMap<String, Regex>> = RefCell::default();
    }
    COMPILED.with_borrow_mut(|compiled| {
        compiled
            .entry(pattern.to_owned())
            .or_insert_with(|| Regex::new(&format!("^(?:{pattern})$")).unwrap())
            .is_match(text)
    })
}
