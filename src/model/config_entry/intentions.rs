//! `service-intentions` (store.md 3.6).

use std::collections::BTreeMap;

use crate::model::decode::{record, words};

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
