//! The messages of delta ADS as a simulated client needs them: requests written field by field, responses looked at in
//! place. What a cluster or listener refers to is read with the generated types, once for each content.

use std::collections::HashMap;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::core::v3::{Node, TransportSocket};
use envoy_types::pb::envoy::config::listener::v3::{Filter, Listener};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::common_tls_context::ValidationContextType;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CommonTlsContext, DownstreamTlsContext, UpstreamTlsContext,
};
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use envoy_types::pb::envoy::config::listener::v3::filter::ConfigType as FilterConfig;
use envoy_types::pb::google::protobuf::value::Kind as ValueKind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use parking_lot::Mutex;
use prost::Message as _;
use prost::bytes::{BufMut as _, Bytes, BytesMut};
use proxycfg::xds::ResourceType as Kind;
use smol_str::SmolStr;
use std::sync::Arc;

/// Begins the changing part of the address of the instance that is changed: `fd00::c0de:HIGH:LOW`.
const MARK: &[u8] = b"c0de:";

/// The address that stands for a change.
pub fn marked(change: u64) -> String {
    format!("fd00::c0de:{:x}:{:x}", change >> 16, change & 0xffff)
}

/// The change that an endpoint assignment holds.
pub fn mark_in(assignment: &[u8]) -> Option<u64> {
    let at = assignment.windows(MARK.len()).position(|w| w == MARK)?;
    let text = assignment.get(at + MARK.len()..)?;
    let mut parts = text.splitn(3, |byte| !byte.is_ascii_hexdigit());
    let mut number = || {
        let digits = std::str::from_utf8(parts.next()?).ok()?;
        u64::from_str_radix(digits, 16).ok()
    };
    Some(number()? << 16 | number()?)
}

/// A field of a message: its number and its bytes. Only fields with a length; others are passed over.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.0.is_empty() {
            let key = varint(&mut self.0)?;
            match key & 7 {
                0 => drop(varint(&mut self.0)?),
                1 => self.0 = self.0.get(8..)?,
                5 => self.0 = self.0.get(4..)?,
                2 => {
                    let len = usize::try_from(varint(&mut self.0)?).ok()?;
                    let (value, rest) = self.0.split_at_checked(len)?;
                    self.0 = rest;
                    return Some((key >> 3, value));
                }
                _ => return None,
            }
        }
        None
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// A resource in a response.
#[derive(Debug, Clone, Copy, Default)]
pub struct Item<'a> {
    pub name: &'a str,
    pub version: &'a str,
    pub value: &'a [u8],
}

/// A response.
#[derive(Debug)]
pub struct Response<'a> {
    pub kind: Kind,
    pub nonce: &'a str,
    bytes: &'a [u8],
}

impl<'a> Response<'a> {
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let (mut url, mut nonce) = ("", "");
        for (field, value) in Fields(bytes) {
            match field {
                4 => url = text(value),
                5 => nonce = text(value),
                _ => {}
            }
        }
        let kind = Kind::from_url(url).ok_or_else(|| format!("a response of type {url:?}"))?;
        Ok(Self { kind, nonce, bytes })
    }

    pub fn items(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        Fields(self.bytes)
            .filter(|(field, _)| *field == 2)
            .map(|(_, bytes)| {
                let mut item = Item::default();
                for (field, value) in Fields(bytes) {
                    match field {
                        1 => item.version = text(value),
                        2 => {
                            let mut any = Fields(value).filter(|(field, _)| *field == 2);
                            item.value = any.next().map_or(&[][..], |(_, value)| value);
                        }
                        3 => item.name = text(value),
                        _ => {}
                    }
                }
                item
            })
    }
}

/// The field `node` of every request of a client, as Envoy fills it.
pub fn node(id: &str, on: &str) -> Bytes {
    let text = |text: &str| Value {
        kind: Some(ValueKind::StringValue(text.to_owned())),
    };
    let fields = [("node_name", on)];
    let node = Node {
        id: id.to_owned(),
        cluster: "web".to_owned(),
        user_agent_name: "envoy".to_owned(),
        metadata: Some(Struct {
            fields: fields
                .map(|(key, value)| (key.to_owned(), text(value)))
                .into(),
        }),
        ..Node::default()
    };
    let mut field = BytesMut::new();
    prost::encoding::message::encode(1, &node, &mut field);
    field.freeze()
}

/// A request as a gRPC message.
pub fn request(node: &[u8], kind: Kind, subscribe: &[SmolStr], nonce: &str) -> Bytes {
    let field = |len: usize| 1 + prost::encoding::encoded_len_varint(len as u64) + len;
    let names = subscribe.iter().map(|name| field(name.len()));
    let mut len = node.len() + field(kind.url().len()) + names.sum::<usize>();
    if !nonce.is_empty() {
        len += field(nonce.len());
    }
    let mut out = BytesMut::with_capacity(5 + len);
    out.put_u8(0);
    out.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    out.put_slice(node);
    let mut put = |number: u8, text: &str| {
        out.put_u8(number << 3 | 2);
        prost::encoding::encode_varint(text.len() as u64, &mut out);
        out.put_slice(text.as_bytes());
    };
    put(2, kind.url());
    for name in subscribe {
        put(3, name);
    }
    if !nonce.is_empty() {
        put(6, nonce);
    }
    out.freeze()
}

/// What a cluster or listener needs beside itself.
#[derive(Debug, Default)]
pub struct Refers(pub Vec<(Kind, SmolStr)>);

/// What contents refer to, read once for all clients.
#[derive(Debug, Default)]
pub struct References(Mutex<HashMap<(Kind, SmolStr, SmolStr), Arc<Refers>>>);

impl References {
    pub fn of(&self, kind: Kind, item: &Item<'_>) -> Result<Arc<Refers>, String> {
        let key = (kind, SmolStr::new(item.name), SmolStr::new(item.version));
        if let Some(known) = self.0.lock().get(&key) {
            return Ok(known.clone());
        }
        let mut refers = Refers::default();
        let broken = |error| format!("{kind} {}: {error}", item.name);
        match kind {
            Kind::Cluster => refers.cluster(&Cluster::decode(item.value).map_err(broken)?),
            Kind::Listener => refers.listener(&Listener::decode(item.value).map_err(broken)?),
            _ => {}
        }
        let refers = Arc::new(refers);
        self.0.lock().insert(key, refers.clone());
        Ok(refers)
    }
}

impl Refers {
    fn add(&mut self, kind: Kind, name: &str) {
        self.0.push((kind, SmolStr::new(name)));
    }

    fn cluster(&mut self, cluster: &Cluster) {
        let eds = ClusterDiscoveryType::Type(DiscoveryType::Eds.into());
        if cluster.cluster_discovery_type == Some(eds) {
            let config = cluster.eds_cluster_config.as_ref();
            let name = config.map_or("", |config| &config.service_name);
            self.add(
                Kind::Endpoint,
                if name.is_empty() { &cluster.name } else { name },
            );
        }
        let sockets = cluster.transport_socket_matches.iter();
        let sockets = sockets.filter_map(|of| of.transport_socket.as_ref());
        for socket in cluster.transport_socket.iter().chain(sockets) {
            self.tls(socket, |bytes| {
                UpstreamTlsContext::decode(bytes).ok()?.common_tls_context
            });
        }
    }

    fn listener(&mut self, listener: &Listener) {
        let chains = listener.filter_chains.iter();
        for chain in chains.chain(&listener.default_filter_chain) {
            if let Some(socket) = &chain.transport_socket {
                self.tls(socket, |bytes| {
                    DownstreamTlsContext::decode(bytes).ok()?.common_tls_context
                });
            }
            for filter in &chain.filters {
                self.filter(filter);
            }
        }
    }

    fn filter(&mut self, filter: &Filter) {
        let Some(FilterConfig::TypedConfig(any)) = &filter.config_type else {
            return;
        };
        if any.type_url.ends_with(".HttpConnectionManager")
            && let Ok(http) = HttpConnectionManager::decode(any.value.as_slice())
            && let Some(RouteSpecifier::Rds(rds)) = http.route_specifier
        {
            self.add(Kind::Route, &rds.route_config_name);
        }
    }

    fn tls(&mut self, socket: &TransportSocket, read: impl Fn(&[u8]) -> Option<CommonTlsContext>) {
        let Some(ConfigType::TypedConfig(any)) = &socket.config_type else {
            return;
        };
        let Some(common) = read(&any.value) else {
            return;
        };
        for secret in &common.tls_certificate_sds_secret_configs {
            self.add(Kind::Secret, &secret.name);
        }
        match &common.validation_context_type {
            Some(ValidationContextType::ValidationContextSdsSecretConfig(secret)) => {
                self.add(Kind::Secret, &secret.name);
            }
            Some(ValidationContextType::CombinedValidationContext(combined)) => {
                if let Some(secret) = &combined.validation_context_sds_secret_config {
                    self.add(Kind::Secret, &secret.name);
                }
            }
            _ => {}
        }
    }
}
