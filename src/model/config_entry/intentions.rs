//! `service-intentions` (store.md 3.6).

use std::collections::BTreeMap;

use crate::model::config_entry::EntryKind;
use crate::model::decode::{Place, Problems, record, words};
use crate::model::rules;
use crate::model::validate::Validate;

record! {
    /// Who may call a service.
    pub struct ServiceIntentions {
        /// Always `service-intentions`.
        kind: String = "Kind" always,
        /// The service called, or `*`.
        name: String = "Name" always,
        /// Callers, most precise first.
        sources: Vec<SourceIntention> = "Sources",
        /// Tokens that all callers need.
        jwt: Option<IntentionJwt> = "JWT",
        /// Free labels.
        meta: BTreeMap<String, String> = "Meta",
        /// Only `default`.
        namespace: String = "Namespace",
        /// Only `default`.
        partition: String = "Partition",
    }
    ignored ["CreateIndex", "ModifyIndex", "Hash"]
}

record! {
    /// One caller.
    pub struct SourceIntention {
        /// The calling service, or `*`.
        name: String = "Name" always,
        /// Whether it may call; not with permissions.
        action: IntentionAction = "Action",
        /// What it may call, for HTTP services; not with an action.
        permissions: Vec<IntentionPermission> = "Permissions",
        /// Computed from how exact source and destination are.
        precedence: u32 = "Precedence",
        /// Always `consul`.
        kind: String = "Type",
        /// For people.
        description: String = "Description",
        /// Peer that the caller is in.
        peer: String = "Peer",
        /// Enterprise only.
        sameness_group: String = "SamenessGroup",
        /// Only `default`.
        namespace: String = "Namespace",
        /// Only `default`.
        partition: String = "Partition",
    }
    ignored ["LegacyID", "LegacyMeta", "LegacyCreateTime", "LegacyUpdateTime"]
}

words! {
    /// What an intention decides.
    pub enum IntentionAction {
        /// Not given: the permissions decide.
        Unset = "",
        /// May call.
        Allow = "allow",
        /// May not call.
        Deny = "deny",
    }
}

record! {
    /// A rule about HTTP requests; the first that matches decides.
    pub struct IntentionPermission {
        /// Decision.
        action: IntentionAction = "Action",
        /// Requests.
        http: Option<IntentionHttpPermission> = "HTTP",
        /// Tokens needed.
        jwt: Option<IntentionJwt> = "JWT",
    }
}

record! {
    /// Conditions on an HTTP request, all of which must hold.
    pub struct IntentionHttpPermission {
        /// This path.
        path_exact: String = "PathExact",
        /// Paths with this prefix.
        path_prefix: String = "PathPrefix",
        /// Paths that match.
        path_regex: String = "PathRegex",
        /// Headers.
        header: Vec<IntentionHttpHeader> = "Header",
        /// Any of these methods.
        methods: Vec<String> = "Methods",
    }
}

record! {
    /// A condition on a header: exactly one matcher.
    pub struct IntentionHttpHeader {
        /// Header.
        name: String = "Name",
        /// Is there.
        present: bool = "Present",
        /// Has this value.
        exact: String = "Exact",
        /// Begins so.
        prefix: String = "Prefix",
        /// Ends so.
        suffix: String = "Suffix",
        /// Contains.
        contains: String = "Contains",
        /// Matches.
        regex: String = "Regex",
        /// The condition must not hold.
        invert: bool = "Invert",
        /// Without regard to case.
        ignore_case: bool = "IgnoreCase",
    }
}

record! {
    /// Tokens needed.
    pub struct IntentionJwt {
        /// Any of these.
        providers: Vec<IntentionJwtProvider> = "Providers",
    }
}

record! {
    /// A provider and claims.
    pub struct IntentionJwtProvider {
        /// The jwt-provider entry.
        name: String = "Name",
        /// Claims that must hold.
        verify_claims: Vec<IntentionJwtClaim> = "VerifyClaims",
    }
}

record! {
    /// A claim.
    pub struct IntentionJwtClaim {
        /// Path to it.
        path: Vec<String> = "Path",
        /// Its value.
        value: String = "Value",
    }
}

const MAX_DESCRIPTION: usize = 512;

/// How exact a pair of destination and source is: the higher decides first (store.md 4.12).
#[must_use]
pub fn precedence(destination: &str, source: &str) -> u32 {
    match (destination == "*", source == "*") {
        (false, false) => 9,
        (false, true) => 8,
        (true, false) => 6,
        (true, true) => 5,
    }
}

impl Validate for ServiceIntentions {
    /// store.md 3.6.
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        name_or_wildcard(&self.name, &at.key("Name"), problems);
        rules::meta(&self.meta, &at.key("Meta"), problems);
        if self.namespace == "*" && self.name != "*" {
            problems.error(
                &at.key("Name"),
                "an exact name can't stand under a wildcard namespace",
            );
        }
        if self.partition.contains('*') {
            problems.error(&at.key("Partition"), "a partition can't be a wildcard");
        }
        if let Some(jwt) = &self.jwt {
            jwt.validate(&at.key("JWT"), problems);
        }
        let sources = at.key("Sources");
        if self.sources.is_empty() {
            problems.error(&sources, "needs at least one source");
        }
        for (i, source) in self.sources.iter().enumerate() {
            let at = sources.index(i);
            source.validate(&self.name, &at, problems);
            let twin = self.sources[..i].iter().position(|s| {
                s.name.eq_ignore_ascii_case(&source.name)
                    && s.peer.eq_ignore_ascii_case(&source.peer)
                    && s.sameness_group == source.sameness_group
                    && s.namespace == source.namespace
                    && s.partition == source.partition
            });
            if let Some(twin) = twin {
                problems.error(
                    &at,
                    format!(
                        "the source {} is given twice, here and as source {twin}",
                        rules::shown(&source.name)
                    ),
                );
            }
        }
    }

    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        rules::only_default(&self.namespace, &self.partition, at, problems);
        let sources = at.key("Sources");
        for (i, source) in self.sources.iter().enumerate() {
            let at = sources.index(i);
            rules::only_default(&source.namespace, &source.partition, &at, problems);
            let given = !source.sameness_group.is_empty();
            rules::enterprise("SamenessGroup", given, &at, problems);
        }
    }

    fn normalize(&mut self) {
        self.kind = EntryKind::ServiceIntentions.to_string();
        rules::clear_default(&mut self.namespace);
        rules::clear_default(&mut self.partition);
        for source in &mut self.sources {
            "consul".clone_into(&mut source.kind);
            source.precedence = precedence(&self.name, &source.name);
            rules::clear_default(&mut source.namespace);
            rules::clear_default(&mut source.partition);
            if source.peer.is_empty() {
                if source.namespace.is_empty() {
                    source.namespace.clone_from(&self.namespace);
                }
                if source.partition.is_empty() {
                    source.partition.clone_from(&self.partition);
                }
            }
            for permission in &mut source.permissions {
                if let Some(http) = &mut permission.http {
                    rules::upper_case(&mut http.methods);
                }
            }
        }
        // Stable: sources of equal precedence keep the order of their author.
        self.sources
            .sort_by_key(|s| std::cmp::Reverse(s.precedence));
    }
}

impl SourceIntention {
    fn validate(&self, destination: &str, at: &Place<'_>, problems: &mut Problems) {
        name_or_wildcard(&self.name, &at.key("Name"), problems);
        for (key, text) in [
            ("Peer", &self.peer),
            ("SamenessGroup", &self.sameness_group),
        ] {
            if text.contains('*') {
                problems.error(&at.key(key), "can't be a wildcard");
            } else {
                rules::optional_mesh_name("peer name", text, &at.key(key), problems);
            }
        }
        let given = [
            ("Peer", &self.peer),
            ("SamenessGroup", &self.sameness_group),
            ("Partition", &self.partition),
        ];
        for (i, (key, text)) in given.iter().enumerate() {
            for (other, other_text) in &given[i + 1..] {
                if !text.is_empty() && !other_text.is_empty() {
                    problems.error(at, format!("{key} and {other} exclude each other"));
                }
            }
        }
        let length = self.description.chars().count();
        if length > MAX_DESCRIPTION {
            problems.error(
                &at.key("Description"),
                format!("has {length} characters; at most {MAX_DESCRIPTION} are allowed"),
            );
        }
        if !(self.kind.is_empty() || self.kind.eq_ignore_ascii_case("consul")) {
            problems.error(&at.key("Type"), "the only type is \"consul\"");
        }
        let decides = self.action != IntentionAction::Unset;
        match (decides, self.permissions.is_empty()) {
            (false, true) => problems.error(
                at,
                "needs an Action (\"allow\" or \"deny\"), or Permissions",
            ),
            (true, false) => problems.error(at, "Action and Permissions exclude each other"),
            _ => {}
        }
        let permissions = at.key("Permissions");
        if !self.permissions.is_empty() && destination == "*" {
            problems.error(
                &permissions,
                "permissions need one service as destination, not \"*\"",
            );
        }
        for (i, permission) in self.permissions.iter().enumerate() {
            permission.validate(&permissions.index(i), problems);
        }
    }
}

impl IntentionPermission {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        if self.action == IntentionAction::Unset {
            problems.error(
                &at.key("Action"),
                "a permission needs an Action, \"allow\" or \"deny\"",
            );
        }
        match &self.http {
            None => problems.error(&at.key("HTTP"), "a permission needs an HTTP block"),
            Some(http) => http.validate(&at.key("HTTP"), problems),
        }
        if let Some(jwt) = &self.jwt {
            jwt.validate(&at.key("JWT"), problems);
        }
    }
}

impl IntentionHttpPermission {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        if *self == Self::default() {
            problems.error(
                at,
                "is empty; give a path form, Header or Methods (PathPrefix \"/\" is all paths)",
            );
        }
        rules::paths(
            &self.path_exact,
            &self.path_prefix,
            &self.path_regex,
            at,
            problems,
        );
        let headers = at.key("Header");
        for (i, header) in self.header.iter().enumerate() {
            header.validate(&headers.index(i), problems);
        }
        rules::methods(&self.methods, &at.key("Methods"), problems);
    }
}

impl IntentionHttpHeader {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        if rules::is_blank(&self.name) {
            problems.error(&at.key("Name"), "a header match needs a Name");
        }
        let texts = [
            &self.exact,
            &self.prefix,
            &self.suffix,
            &self.contains,
            &self.regex,
        ];
        let given = usize::from(self.present) + texts.iter().filter(|t| !t.is_empty()).count();
        if given != 1 {
            problems.error(
                at,
                "a header match needs exactly one of Present, Exact, Prefix, Suffix, Contains and Regex",
            );
        }
        if self.ignore_case && (self.present || !self.regex.is_empty()) {
            problems.warning(&at.key("IgnoreCase"), "has no effect with Present or Regex");
        }
        rules::regex(&self.regex, &at.key("Regex"), problems);
    }
}

impl IntentionJwt {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        let providers = at.key("Providers");
        for (i, provider) in self.providers.iter().enumerate() {
            let at = providers.index(i);
            if rules::is_blank(&provider.name) {
                problems.error(&at.key("Name"), "a provider needs a Name");
            }
            let claims = at.key("VerifyClaims");
            for (i, claim) in provider.verify_claims.iter().enumerate() {
                if claim.path.is_empty() || claim.path.iter().any(String::is_empty) {
                    problems.error(
                        &claims.index(i).key("Path"),
                        "a claim needs a path of names that aren't empty",
                    );
                }
            }
        }
    }

    /// Names of the jwt-provider entries that it needs; the store checks that they exist (store.md 3.6).
    pub fn provider_names(&self) -> impl Iterator<Item = &str> {
        self.providers.iter().map(|p| p.name.as_str())
    }
}

impl ServiceIntentions {
    /// Names of all jwt-provider entries that the entry and its permissions need.
    pub fn provider_names(&self) -> impl Iterator<Item = &str> {
        let permissions = self.sources.iter().flat_map(|s| &s.permissions);
        self.jwt
            .iter()
            .chain(permissions.filter_map(|p| p.jwt.as_ref()))
            .flat_map(IntentionJwt::provider_names)
    }

    /// Whether a source has rules about requests, which need a destination that speaks HTTP.
    #[must_use]
    pub fn has_permissions(&self) -> bool {
        self.sources.iter().any(|s| !s.permissions.is_empty())
    }
}

fn name_or_wildcard(name: &str, at: &Place<'_>, problems: &mut Problems) {
    if name == "*" {
        return;
    }
    if name.contains('*') {
        problems.error(
            at,
            format!(
                "{}: a wildcard is \"*\" alone, not mixed with other characters",
                rules::shown(name)
            ),
        );
    } else {
        rules::mesh_name("service name", name, at, problems);
    }
}
