//! How messages of both forms are read from and written to the wire.
//!
//! Responses are written by hand, field by field, straight from the shared resources into the transport's buffer: the
//! bytes of a resource are copied once for each stream and never kept in between (decision X7). The generated message
//! types would need a copy of their own.
//!
//! Envoys describe themselves in every request, with a list of all that they are built of. Only the first description of a
//! stream is read; later ones are passed over, since nobody asks for them and they would cost more than all else.

mod delta;
mod state_of_the_world;

use std::fmt;
use std::marker::PhantomData;

use prost::bytes::{Buf, BufMut};
use prost::encoding::{
    DecodeContext, WireType, decode_key, encode_key, encode_varint, encoded_len_varint, key_len,
    skip_field,
};
use prost::{DecodeError, Message};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::protocol::Protocol;
use super::request::AdsRequest;
use super::stream::AdsResponse;
use crate::xds::Resource;

pub(super) use delta::Delta;
pub(super) use state_of_the_world::StateOfTheWorld;

/// The messages of one form.
pub(super) trait Wire: fmt::Debug + Send + Sync + 'static {
    /// Which form.
    const PROTOCOL: Protocol;

    /// The field of a request in which the client describes itself.
    const NODE: u32;

    /// Its requests.
    type Request: Message + Default + 'static;

    /// What a request says.
    fn read(request: &Self::Request) -> AdsRequest<'_>;

    /// Bytes of a response.
    fn encoded_len(response: &AdsResponse) -> usize;

    /// Writes a response.
    fn encode(response: &AdsResponse, buffer: &mut impl BufMut);
}

/// Bytes that a stream's buffer begins with, for either direction; most messages are smaller.
const BUFFER: usize = 1024;

/// Bytes of responses that are given to the transport at a time.
const AT_A_TIME: usize = 32 * 1024;

/// Reads requests and writes responses of a form; one for each stream and direction.
#[derive(Debug)]
pub(super) struct AdsCodec<W> {
    form: PhantomData<W>,
    /// Whether the client has described itself.
    described: bool,
}

impl<W> AdsCodec<W> {
    pub(super) fn new() -> Self {
        Self {
            form: PhantomData,
            described: false,
        }
    }
}

impl<W: Wire> AdsCodec<W> {
    fn read(&mut self, buffer: &mut impl Buf) -> Result<W::Request, DecodeError> {
        let mut request = W::Request::default();
        let mut described = self.described;
        while buffer.has_remaining() {
            let (field, wire_type) = decode_key(buffer)?;
            let context = DecodeContext::default();
            if field == W::NODE && self.described {
                skip_field(wire_type, field, buffer, context)?;
            } else {
                described |= field == W::NODE;
                request.merge_field(field, wire_type, buffer, context)?;
            }
        }
        self.described = described;
        Ok(request)
    }
}

impl<W: Wire> Codec for AdsCodec<W> {
    type Encode = AdsResponse;
    type Decode = W::Request;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::new()
    }

    fn decoder(&mut self) -> Self {
        Self::new()
    }
}

impl<W: Wire> Encoder for AdsCodec<W> {
    type Item = AdsResponse;
    type Error = Status;

    fn encode(&mut self, item: AdsResponse, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(W::encoded_len(&item));
        W::encode(&item, buffer);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, AT_A_TIME)
    }
}

impl<W: Wire> Decoder for AdsCodec<W> {
    type Item = W::Request;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        self.read(buffer)
            .map(Some)
            .map_err(|error| Status::invalid_argument(format!("malformed request: {error}")))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, AT_A_TIME)
    }
}

/// Field numbers of `Any`.
mod any {
    pub(super) const TYPE_URL: u32 = 1;
    pub(super) const VALUE: u32 = 2;
}

fn any_len(item: &Resource) -> usize {
    field_len(any::TYPE_URL, item.kind().url().len()) + field_len(any::VALUE, item.bytes().len())
}

/// Writes a resource as an `Any` in this field.
fn put_any(field: u32, item: &Resource, buffer: &mut impl BufMut) {
    put_head(field, any_len(item), buffer);
    put_bytes(any::TYPE_URL, item.kind().url().as_bytes(), buffer);
    put_bytes(any::VALUE, item.bytes(), buffer);
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
    use envoy_types::pb::envoy::config::core::v3::Node;
    use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};

    use super::*;

    fn node(id: &str) -> Option<Node> {
        Some(Node {
            id: id.to_owned(),
            cluster: "web".to_owned(),
            ..Node::default()
        })
    }

    #[test]
    fn the_first_description_of_a_client_is_read_and_no_other() {
        let mut codec = AdsCodec::<Delta>::new();
        let mut request = DeltaDiscoveryRequest {
            type_url: "t".to_owned(),
            resource_names_subscribe: vec!["a".to_owned()],
            initial_resource_versions: [("a".to_owned(), "1".to_owned())].into(),
            ..DeltaDiscoveryRequest::default()
        };
        let read = |codec: &mut AdsCodec<Delta>, of: &DeltaDiscoveryRequest| {
            codec.read(&mut of.encode_to_vec().as_slice()).unwrap()
        };
        // It may come late.
        assert_eq!(read(&mut codec, &request), request);
        request.node = node("web-1");
        assert_eq!(read(&mut codec, &request), request);
        let sent = request.clone();
        request.node = None;
        assert_eq!(read(&mut codec, &sent), request);

        let mut codec = AdsCodec::<StateOfTheWorld>::new();
        let request = DiscoveryRequest {
            node: node("web-1"),
            version_info: "7".to_owned(),
            ..DiscoveryRequest::default()
        };
        let bytes = request.encode_to_vec();
        assert_eq!(codec.read(&mut bytes.as_slice()).unwrap(), request);
        let again = codec.read(&mut bytes.as_slice()).unwrap();
        assert_eq!((again.node, again.version_info.as_str()), (None, "7"));
    }

    #[test]
    fn a_request_that_ends_in_the_middle_of_a_description_is_malformed() {
        let mut codec = AdsCodec::<Delta>::new();
        let request = DeltaDiscoveryRequest {
            node: node("web-1"),
            ..DeltaDiscoveryRequest::default()
        };
        let bytes = request.encode_to_vec();
        assert!(codec.read(&mut &bytes[..bytes.len() - 1]).is_err());
        assert!(codec.read(&mut bytes.as_slice()).unwrap().node.is_some());
        assert!(codec.read(&mut &bytes[..bytes.len() - 1]).is_err());
    }
}
