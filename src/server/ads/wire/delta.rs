//! `DeltaDiscoveryRequest` and `DeltaDiscoveryResponse`.

use envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use prost::bytes::BufMut;

use super::{Wire, any_len, field_len, put_any, put_bytes, put_head};
use crate::server::ads::protocol::Protocol;
use crate::server::ads::request::AdsRequest;
use crate::server::ads::stream::AdsResponse;
use crate::xds::Resource;

/// Field numbers of `DeltaDiscoveryResponse`.
mod response {
    pub(super) const RESOURCES: u32 = 2;
    pub(super) const TYPE_URL: u32 = 4;
    pub(super) const NONCE: u32 = 5;
    pub(super) const REMOVED_RESOURCES: u32 = 6;
}

/// Field numbers of `Resource`.
mod resource {
    pub(super) const VERSION: u32 = 1;
    pub(super) const RESOURCE: u32 = 2;
    pub(super) const NAME: u32 = 3;
}

/// The delta form.
#[derive(Debug)]
pub(in crate::server::ads) struct Delta;

impl Wire for Delta {
    const PROTOCOL: Protocol = Protocol::Delta;

    const NODE: u32 = 1;

    type Request = DeltaDiscoveryRequest;

    fn read(request: &DeltaDiscoveryRequest) -> AdsRequest<'_> {
        request.into()
    }

    fn encoded_len(of: &AdsResponse) -> usize {
        let resources = of.resources.iter();
        let resources = resources.map(|item| field_len(response::RESOURCES, resource_len(item)));
        let removed = of.removed.iter();
        let removed = removed.map(|name| field_len(response::REMOVED_RESOURCES, name.len()));
        resources.sum::<usize>()
            + removed.sum::<usize>()
            + field_len(response::TYPE_URL, of.kind.url().len())
            + field_len(response::NONCE, of.nonce.len())
    }

    fn encode(of: &AdsResponse, buffer: &mut impl BufMut) {
        for item in &of.resources {
            put_head(response::RESOURCES, resource_len(item), buffer);
            put_bytes(resource::VERSION, item.version().as_bytes(), buffer);
            put_any(resource::RESOURCE, item, buffer);
            put_bytes(resource::NAME, item.name().as_bytes(), buffer);
        }
        put_bytes(response::TYPE_URL, of.kind.url().as_bytes(), buffer);
        put_bytes(response::NONCE, of.nonce.as_bytes(), buffer);
        for name in &of.removed {
            put_bytes(response::REMOVED_RESOURCES, name.as_bytes(), buffer);
        }
    }
}

fn resource_len(item: &Resource) -> usize {
    field_len(resource::VERSION, item.version().len())
        + field_len(resource::RESOURCE, any_len(item))
        + field_len(resource::NAME, item.name().len())
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryResponse;

    use prost::Message;

    use super::*;
    use crate::xds::ResourceType;

    #[test]
    fn a_written_response_reads_as_the_generated_message() {
        let item =
            |name: &str, len| Resource::new(ResourceType::Cluster, name, vec![7; len]).shared();
        let sent = AdsResponse {
            kind: ResourceType::Cluster,
            nonce: "0000002a".into(),
            resources: vec![item("a", 1), item("b", 300), item("ü", 20_000)],
            removed: vec!["x".into(), "y".into()],
        };
        let mut bytes = Vec::new();
        Delta::encode(&sent, &mut bytes);
        assert_eq!(bytes.len(), Delta::encoded_len(&sent));

        let read = DeltaDiscoveryResponse::decode(bytes.as_slice()).unwrap();
        assert_eq!(read.type_url, ResourceType::Cluster.url());
        assert_eq!(read.nonce, "0000002a");
        assert_eq!(read.removed_resources, ["x", "y"]);
        assert!(read.system_version_info.is_empty() && read.control_plane.is_none());
        assert_eq!(read.resources.len(), 3);
        for (read, sent) in read.resources.iter().zip(&sent.resources) {
            let any = read.resource.as_ref().unwrap();
            assert_eq!(read.name, *sent.name());
            assert_eq!(read.version, *sent.version());
            assert_eq!(any.type_url, ResourceType::Cluster.url());
            assert_eq!(any.value, sent.bytes().as_ref());
        }
        // A writer that agrees with the generated one byte for byte leaves no room for readers to differ.
        assert_eq!(read.encode_to_vec().len(), bytes.len());
    }

    #[test]
    fn an_empty_response_has_type_and_nonce() {
        let sent = AdsResponse {
            kind: ResourceType::Route,
            nonce: "00000001".into(),
            resources: Vec::new(),
            removed: Vec::new(),
        };
        let mut bytes = Vec::new();
        Delta::encode(&sent, &mut bytes);
        let read = DeltaDiscoveryResponse::decode(bytes.as_slice()).unwrap();
        assert_eq!(read.encode_to_vec(), bytes);
    }
}
