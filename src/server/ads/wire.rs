//! How messages of both forms are read from and written to the wire.
//!
//! Responses are written by hand, field by field, straight from the shared resources into the transport's buffer: the
//! bytes of a resource are copied once for each stream and never kept in between (decision X7). The generated message
//! types would need a copy of their own.

mod delta;
mod state_of_the_world;

use std::fmt;
use std::marker::PhantomData;

use prost::Message;
use prost::bytes::BufMut;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

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

    /// Its requests.
    type Request: Message + Default + 'static;

    /// What a request says.
    fn read(request: &Self::Request) -> AdsRequest<'_>;

    /// Bytes of a response.
    fn encoded_len(response: &AdsResponse) -> usize;

    /// Writes a response.
    fn encode(response: &AdsResponse, buffer: &mut impl BufMut);
}

/// Reads requests and writes responses of a form.
#[derive(Debug)]
pub(super) struct AdsCodec<W>(PhantomData<W>);

impl<W> AdsCodec<W> {
    pub(super) fn new() -> Self {
        Self(PhantomData)
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
}

impl<W: Wire> Decoder for AdsCodec<W> {
    type Item = W::Request;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        W::Request::decode(buffer)
            .map(Some)
            .map_err(|error| Status::invalid_argument(format!("malformed request: {error}")))
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
