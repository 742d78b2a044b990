//! `DiscoveryRequest` and `DiscoveryResponse`.

use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use prost::bytes::BufMut;

use super::{Wire, any_len, field_len, put_any, put_bytes};
use crate::server::ads::protocol::Protocol;
use crate::server::ads::request::AdsRequest;
use crate::server::ads::stream::AdsResponse;
use crate::xds::version_of_all;

/// Field numbers of `DiscoveryResponse`.
mod response {
    pub(super) const VERSION_INFO: u32 = 1;
    pub(super) const RESOURCES: u32 = 2;
    pub(super) const TYPE_URL: u32 = 4;
    pub(super) const NONCE: u32 = 5;
}

/// Characters of a version.
const VERSION_LEN: usize = 64;

/// The form that says everything. The version of a response is the hash of what is in it.
#[derive(Debug)]
pub(in crate::server::ads) struct StateOfTheWorld;

impl Wire for StateOfTheWorld {
    const PROTOCOL: Protocol = Protocol::StateOfTheWorld;

    const NODE: u32 = 2;

    type Request = DiscoveryRequest;

    fn read(request: &DiscoveryRequest) -> AdsRequest<'_> {
        request.into()
    }

    fn encoded_len(of: &AdsResponse) -> usize {
        let resources = of.resources.iter();
        let resources = resources.map(|item| field_len(response::RESOURCES, any_len(item)));
        resources.sum::<usize>()
            + field_len(response::VERSION_INFO, VERSION_LEN)
            + field_len(response::TYPE_URL, of.kind.url().len())
            + field_len(response::NONCE, of.nonce.len())
    }

    fn encode(of: &AdsResponse, buffer: &mut impl BufMut) {
        let version = version_of_all(of.resources.iter().map(|item| &**item));
        put_bytes(response::VERSION_INFO, version.as_bytes(), buffer);
        for item in &of.resources {
            put_any(response::RESOURCES, item, buffer);
        }
        put_bytes(response::TYPE_URL, of.kind.url().as_bytes(), buffer);
        put_bytes(response::NONCE, of.nonce.as_bytes(), buffer);
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::discovery::v3::DiscoveryResponse;
    use prost::Message;

    use super::*;
    use crate::xds::{Resource, ResourceType};

    #[test]
    fn a_written_response_of_the_world_reads_as_the_generated_message() {
        let item =
            |name: &str, len| Resource::new(ResourceType::Cluster, name, vec![7; len]).shared();
        for resources in [
            vec![item("a", 1), item("b", 300), item("ü", 20_000)],
            Vec::new(),
        ] {
            let sent = AdsResponse {
                kind: ResourceType::Cluster,
                nonce: "0000002a".into(),
                resources,
                removed: vec!["x".into()],
            };
            let mut bytes = Vec::new();
            StateOfTheWorld::encode(&sent, &mut bytes);
            assert_eq!(bytes.len(), StateOfTheWorld::encoded_len(&sent));

            let read = DiscoveryResponse::decode(bytes.as_slice()).unwrap();
            assert_eq!(read.type_url, ResourceType::Cluster.url());
            assert_eq!(read.nonce, "0000002a");
            assert_eq!(read.version_info.len(), VERSION_LEN);
            assert!(!read.canary && read.control_plane.is_none());
            assert_eq!(read.resources.len(), sent.resources.len());
            for (any, sent) in read.resources.iter().zip(&sent.resources) {
                assert_eq!(any.type_url, ResourceType::Cluster.url());
                assert_eq!(any.value, sent.bytes().as_ref());
            }
            assert_eq!(read.encode_to_vec(), bytes);
        }
    }
}
