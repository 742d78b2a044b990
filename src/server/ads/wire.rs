//! How messages are read from and written to the wire.
//!
//! Responses are written by hand, field by field, straight from the shared resources into the transport's buffer: the
//! bytes of a resource are copied once for each stream and never kept in between (decision X7). The generated message
//! types would need a copy of their own.

use envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use prost::Message;
use prost::bytes::BufMut;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::delta::DeltaResponse;
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

/// Field numbers of `Any`.
mod any {
    pub(super) const TYPE_URL: u32 = 1;
    pub(super) const VALUE: u32 = 2;
}

/// Reads delta requests, writes delta responses.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DeltaCodec;

impl Codec for DeltaCodec {
    type Encode = DeltaResponse;
    type Decode = DeltaDiscoveryRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for DeltaCodec {
    type Item = DeltaResponse;
    type Error = Status;

    fn encode(&mut self, item: DeltaResponse, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.encoded_len());
        item.encode_to(buffer);
        Ok(())
    }
}

impl Decoder for DeltaCodec {
    type Item = DeltaDiscoveryRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        DeltaDiscoveryRequest::decode(buffer)
            .map(Some)
            .map_err(|error| Status::invalid_argument(format!("malformed request: {error}")))
    }
}

impl DeltaResponse {
    /// Bytes of the encoded message.
    pub(super) fn encoded_len(&self) -> usize {
        let resources = self
            .resources
            .iter()
            .map(|item| field_len(response::RESOURCES, resource_len(item)));
        let removed = self
            .removed
            .iter()
            .map(|name| field_len(response::REMOVED_RESOURCES, name.len()));
        resources.sum::<usize>()
            + removed.sum::<usize>()
            + field_len(response::TYPE_URL, self.kind.url().len())
            + field_len(response::NONCE, self.nonce.len())
    }

    /// Writes the message as a `envoy.service.discovery.v3.DeltaDiscoveryResponse`.
    pub(super) fn encode_to(&self, buffer: &mut impl BufMut) {
        for item in &self.resources {
            put_head(response::RESOURCES, resource_len(item), buffer);
            put_bytes(resource::VERSION, item.version().as_bytes(), buffer);
            put_head(resource::RESOURCE, any_len(item), buffer);
            put_bytes(any::TYPE_URL, item.kind().url().as_bytes(), buffer);
            put_bytes(any::VALUE, item.bytes(), buffer);
            put_bytes(resource::NAME, item.name().as_bytes(), buffer);
        }
        put_bytes(response::TYPE_URL, self.kind.url().as_bytes(), buffer);
        put_bytes(response::NONCE, self.nonce.as_bytes(), buffer);
        for name in &self.removed {
            put_bytes(response::REMOVED_RESOURCES, name.as_bytes(), buffer);
        }
    }
}

fn resource_len(item: &Resource) -> usize {
    field_len(resource::VERSION, item.version().len())
        + field_len(resource::RESOURCE, any_len(item))
        + field_len(resource::NAME, item.name().len())
}

fn any_len(item: &Resource) -> usize {
    field_len(any::TYPE_URL, item.kind().url().len()) + field_len(any::VALUE, item.bytes().len())
}

fn field_len(field: u32, len: usize) -> usize {
    key_len(field) + encoded_len_varint(len as u64) + len
}

fn put_head(field: u32, len: usize, buffer: &mut impl BufMut) {
    encode_key(field, WireType::LengthDelimited, buffer);
    encode_varint(len as u64, buffer);
}

fn put_bytes(field: u32, bytes: &[u8], buffer: &mut impl BufMut) {
    put_head(field, bytes.len(), buffer);
    buffer.put_slice(bytes);
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryResponse;

    use super::*;
    use crate::xds::ResourceType;

    #[test]
    fn a_written_response_reads_as_the_generated_message() {
        let item =
            |name: &str, len| Resource::new(ResourceType::Cluster, name, vec![7; len]).shared();
        let sent = DeltaResponse {
            kind: ResourceType::Cluster,
            nonce: "0000002a".into(),
            resources: vec![item("a", 1), item("b", 300), item("ü", 20_000)],
            removed: vec!["x".into(), "y".into()],
        };
        let mut bytes = Vec::new();
        sent.encode_to(&mut bytes);
        assert_eq!(bytes.len(), sent.encoded_len());

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
        let sent = DeltaResponse {
            kind: ResourceType::Route,
            nonce: "00000001".into(),
            resources: Vec::new(),
            removed: Vec::new(),
        };
        let mut bytes = Vec::new();
        sent.encode_to(&mut bytes);
        let read = DeltaDiscoveryResponse::decode(bytes.as_slice()).unwrap();
        assert_eq!(read.encode_to_vec(), bytes);
    }
}
