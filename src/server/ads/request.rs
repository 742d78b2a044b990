//! What a request says, in either form.

use std::collections::HashMap;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};

/// A request as the streams read it: borrowed from the message of either form.
#[derive(Debug, Clone, Copy)]
pub struct AdsRequest<'a> {
    /// The type that it is about.
    pub type_url: &'a str,
    /// Who asks; counts in the first request of a stream.
    pub node: Option<&'a Node>,
    /// Which resources it names.
    pub names: Names<'a>,
    /// State of the world: the version of the last response that the client accepted, also on an earlier stream; empty for
    /// none.
    pub version: &'a str,
    /// The nonce of a response; empty for none.
    pub nonce: &'a str,
    /// Why that response is refused, if it is.
    pub error: Option<&'a str>,
}

/// The resources that a request names.
#[derive(Debug, Clone, Copy)]
pub enum Names<'a> {
    /// Delta: what is asked for from now on, or no more.
    Changes {
        /// Names that are asked for.
        subscribe: &'a [String],
        /// Names that are not asked for any more.
        unsubscribe: &'a [String],
        /// What a reconnecting client holds: versions by name. Counts in the first request of a type.
        held: &'a HashMap<String, String>,
    },
    /// State of the world: all that is asked for.
    All(&'a [String]),
}

impl<'a> From<&'a DeltaDiscoveryRequest> for AdsRequest<'a> {
    fn from(request: &'a DeltaDiscoveryRequest) -> Self {
        Self {
            type_url: &request.type_url,
            node: request.node.as_ref(),
            names: Names::Changes {
                subscribe: &request.resource_names_subscribe,
                unsubscribe: &request.resource_names_unsubscribe,
                held: &request.initial_resource_versions,
            },
            version: "",
            nonce: &request.response_nonce,
            error: request
                .error_detail
                .as_ref()
                .map(|error| error.message.as_str()),
        }
    }
}

impl<'a> From<&'a DiscoveryRequest> for AdsRequest<'a> {
    fn from(request: &'a DiscoveryRequest) -> Self {
        Self {
            type_url: &request.type_url,
            node: request.node.as_ref(),
            names: Names::All(&request.resource_names),
            version: &request.version_info,
            nonce: &request.response_nonce,
            error: request
                .error_detail
                .as_ref()
                .map(|error| error.message.as_str()),
        }
    }
}
