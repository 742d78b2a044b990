//! The filter language over instances: which fields a filter can name (store.md 4.10), and how they are read.

use crate::filter::{AsField, Field, FieldType, Filter, FilterError, Record};
use crate::model::{HealthCheck, Node, ServiceInstance, TaggedAddress, Upstream};
use crate::store::{InstanceRow, Row};

/// The fields of an instance that a filter can name.
pub static INSTANCE_FIELDS: FieldType = FieldType::Record(&[
    (
        "Node",
        FieldType::Record(&[
            ("ID", FieldType::String),
            ("Node", FieldType::String),
            ("Address", FieldType::String),
            ("Datacenter", FieldType::String),
            ("Partition", FieldType::String),
            ("PeerName", FieldType::String),
            ("Meta", FieldType::Map(&FieldType::String)),
            ("TaggedAddresses", FieldType::Map(&FieldType::String)),
        ]),
    ),
    (
        "Service",
        FieldType::Record(&[
            ("Kind", FieldType::String),
            ("ID", FieldType::String),
            ("Service", FieldType::String),
            ("Tags", FieldType::List(&FieldType::String)),
            ("Address", FieldType::String),
            ("Port", FieldType::Int),
            ("SocketPath", FieldType::String),
            ("Meta", FieldType::Map(&FieldType::String)),
            ("TaggedAddresses", FieldType::Map(&TAGGED_ADDRESS)),
            (
                "Weights",
                FieldType::Record(&[("Passing", FieldType::Int), ("Warning", FieldType::Int)]),
            ),
            ("EnableTagOverride", FieldType::Bool),
            ("Namespace", FieldType::String),
            ("Partition", FieldType::String),
            ("PeerName", FieldType::String),
            ("Connect", FieldType::Record(&[("Native", FieldType::Bool)])),
            (
                "Proxy",
                FieldType::Record(&[
                    ("Mode", FieldType::String),
                    ("DestinationServiceName", FieldType::String),
                    ("DestinationServiceID", FieldType::String),
                    ("LocalServiceAddress", FieldType::String),
                    ("LocalServicePort", FieldType::Int),
                    (
                        "MeshGateway",
                        FieldType::Record(&[("Mode", FieldType::String)]),
                    ),
                    ("Upstreams", FieldType::List(&UPSTREAM)),
                ]),
            ),
        ]),
    ),
    ("Checks", FieldType::List(&CHECK)),
]);

static TAGGED_ADDRESS: FieldType =
    FieldType::Record(&[("Address", FieldType::String), ("Port", FieldType::Int)]);

static UPSTREAM: FieldType = FieldType::Record(&[
    ("DestinationType", FieldType::String),
    ("DestinationName", FieldType::String),
    ("DestinationPeer", FieldType::String),
    ("Datacenter", FieldType::String),
    ("LocalBindAddress", FieldType::String),
    ("LocalBindPort", FieldType::Int),
    (
        "MeshGateway",
        FieldType::Record(&[("Mode", FieldType::String)]),
    ),
]);

static CHECK: FieldType = FieldType::Record(&[
    ("Node", FieldType::String),
    ("CheckID", FieldType::String),
    ("Name", FieldType::String),
    ("Status", FieldType::String),
    ("Notes", FieldType::String),
    ("Output", FieldType::String),
    ("ServiceID", FieldType::String),
    ("ServiceName", FieldType::String),
    ("ServiceTags", FieldType::List(&FieldType::String)),
    ("Type", FieldType::String),
]);

/// Reads a filter over instances; an empty text passes everything.
///
/// # Errors
/// The text isn't a filter, or names a field that instances don't have.
pub fn parse_instance_filter(text: &str) -> Result<Filter, FilterError> {
    Filter::parse_for(text, &INSTANCE_FIELDS)
}

/// An instance as a filter sees it.
pub struct FilteredInstance<'r, 'a>(pub &'r InstanceRow<'a>);

impl Record for FilteredInstance<'_, '_> {
    fn field(&self, name: &str) -> Option<Field<'_>> {
        Some(match name {
            "Node" => Field::Record(&*self.0.node.value),
            "Service" => Field::Record(&*self.0.service.value),
            "Checks" => Field::List(Box::new(
                self.0.checks.iter().map(|row| Field::Record(check(row))),
            )),
            _ => return None,
        })
    }
}

fn check<'c>(row: &'c &Row<HealthCheck>) -> &'c HealthCheck {
    &row.value
}

impl Record for Node {
    fn field(&self, name: &str) -> Option<Field<'_>> {
        Some(match name {
            "ID" => self.id.as_field(),
            "Node" => self.node.as_field(),
            "Address" => self.address.as_field(),
            "Datacenter" => self.datacenter.as_field(),
            "Partition" => Field::String(tenancy(&self.partition)),
            "PeerName" => self.peer_name.as_field(),
            "Meta" => Field::Map(&self.meta),
            "TaggedAddresses" => Field::Map(&self.tagged_addresses),
            _ => return None,
        })
    }
}

impl Record for ServiceInstance {
    fn field(&self, name: &str) -> Option<Field<'_>> {
        Some(match name {
            "Kind" => Field::String(self.kind.as_str()),
            "ID" => self.id.as_field(),
            "Service" => self.service.as_field(),
            "Tags" => self.tags.as_field(),
            "Address" => self.address.as_field(),
            "Port" => Field::Int(i64::from(self.port)),
            "SocketPath" => self.socket_path.as_field(),
            "Meta" => Field::Map(&self.meta),
            "TaggedAddresses" => Field::Map(&self.tagged_addresses),
            "Weights" => Field::Record(&self.weights),
            "EnableTagOverride" => Field::Bool(self.enable_tag_override),
            "Namespace" => Field::String(tenancy(&self.namespace)),
            "Partition" => Field::String(tenancy(&self.partition)),
            "PeerName" => self.peer_name.as_field(),
            "Connect" => Field::Record(&self.connect),
            "Proxy" => Field::Record(&self.proxy),
            _ => return None,
        })
    }
}

/// Records that lists and maps hold.
macro_rules! record_fields {
    ($($record:ty { $($name:literal => |$r:ident| $value:expr),* $(,)? })*) => {$(
        impl Record for $record {
            fn field(&self, name: &str) -> Option<Field<'_>> {
                match name {
                    $($name => { let $r = self; Some($value) })*
                    _ => None,
                }
            }
        }

        impl AsField for $record {
            fn as_field(&self) -> Field<'_> {
                Field::Record(self)
            }
        }
    )*};
}

record_fields! {
    TaggedAddress {
        "Address" => |r| r.address.as_field(),
        "Port" => |r| Field::Int(i64::from(r.port)),
    }
    crate::model::Weights {
        "Passing" => |r| Field::Int(r.passing),
        "Warning" => |r| Field::Int(r.warning),
    }
    crate::model::Connect {
        "Native" => |r| Field::Bool(r.native),
    }
    crate::model::MeshGateway {
        "Mode" => |r| Field::String(r.mode.as_str()),
    }
    crate::model::ProxyConfig {
        "Mode" => |r| Field::String(r.mode.as_str()),
        "DestinationServiceName" => |r| r.destination_service_name.as_field(),
        "DestinationServiceID" => |r| r.destination_service_id.as_field(),
        "LocalServiceAddress" => |r| r.local_service_address.as_field(),
        "LocalServicePort" => |r| Field::Int(i64::from(r.local_service_port)),
        "MeshGateway" => |r| Field::Record(&r.mesh_gateway),
        "Upstreams" => |r| r.upstreams.as_field(),
    }
    Upstream {
        "DestinationType" => |r| r.destination_type.as_field(),
        "DestinationName" => |r| r.destination_name.as_field(),
        "DestinationPeer" => |r| r.destination_peer.as_field(),
        "Datacenter" => |r| r.datacenter.as_field(),
        "LocalBindAddress" => |r| r.local_bind_address.as_field(),
        "LocalBindPort" => |r| Field::Int(i64::from(r.local_bind_port)),
        "MeshGateway" => |r| Field::Record(&r.mesh_gateway),
    }
    HealthCheck {
        "Node" => |r| r.node.as_field(),
        "CheckID" => |r| r.check_id.as_field(),
        "Name" => |r| r.name.as_field(),
        "Status" => |r| Field::String(r.status.as_str()),
        "Notes" => |r| r.notes.as_field(),
        "Output" => |r| r.output.as_field(),
        "ServiceID" => |r| r.service_id.as_field(),
        "ServiceName" => |r| r.service_name.as_field(),
        "ServiceTags" => |r| r.service_tags.as_field(),
        "Type" => |r| r.kind.as_field(),
    }
}

fn tenancy(name: &str) -> &str {
    if name.is_empty() { "default" } else { name }
}
