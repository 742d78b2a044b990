//! Which rows of an answer a request wants: by tag, by node label, by filter expression.

use crate::filter::{AsField, Field, FieldType, Filter, Record};
use crate::model::{HealthCheck, Node, ServiceInstance};
use crate::source::{FilteredInstance, INSTANCE_FIELDS};
use crate::store::{InstanceRow, PeeredName, Reader};

use super::error::HttpError;
use super::params::Params;

/// The instances that a request for a service's name reads.
pub(super) type InstancesOf = for<'a> fn(&Reader<'a>, PeeredName) -> Vec<InstanceRow<'a>>;

/// The service's own.
pub(super) fn own<'a>(reader: &Reader<'a>, name: PeeredName) -> Vec<InstanceRow<'a>> {
    reader.instances(name)
}

/// Those that are dialled in its name within the mesh.
pub(super) fn connect<'a>(reader: &Reader<'a>, name: PeeredName) -> Vec<InstanceRow<'a>> {
    reader.connect_instances(name)
}

/// The part of an instance's fields under a name: what a filter over its nodes, services or checks alone can name.
fn part(name: &str) -> &'static FieldType {
    const NOTHING: &FieldType = &FieldType::Record(&[]);
    let FieldType::Record(fields) = &INSTANCE_FIELDS else {
        return NOTHING;
    };
    match fields.iter().find(|(of, _)| *of == name) {
        Some((_, FieldType::List(item))) => item,
        Some((_, part)) => part,
        None => NOTHING,
    }
}

/// Which nodes are wanted.
pub(super) struct NodeChoice {
    meta: Vec<(String, String)>,
    filter: Filter,
}

impl NodeChoice {
    pub fn of(params: &Params) -> Result<Self, HttpError> {
        Ok(Self {
            meta: params.node_meta()?,
            filter: params.filter(part("Node"))?,
        })
    }

    pub fn wants(&self, node: &Node) -> Result<bool, HttpError> {
        Ok(has_meta(node, &self.meta) && passes(&self.filter, node)?)
    }
}

fn has_meta(node: &Node, wanted: &[(String, String)]) -> bool {
    wanted
        .iter()
        .all(|(key, value)| node.meta.get(key) == Some(value))
}

fn passes(filter: &Filter, record: &dyn Record) -> Result<bool, HttpError> {
    filter
        .matches(record)
        .map_err(|error| HttpError::bad_request(format!("the filter can't be applied: {error}")))
}

/// A filter over services alone.
pub(super) struct ServiceChoice(Filter);

impl ServiceChoice {
    pub fn of(params: &Params) -> Result<Self, HttpError> {
        params.filter(part("Service")).map(Self)
    }

    pub fn wants(&self, service: &ServiceInstance) -> Result<bool, HttpError> {
        passes(&self.0, service)
    }
}

/// A filter over checks alone.
pub(super) struct CheckChoice {
    meta: Vec<(String, String)>,
    filter: Filter,
}

impl CheckChoice {
    pub fn of(params: &Params) -> Result<Self, HttpError> {
        Ok(Self {
            meta: params.node_meta()?,
            filter: params.filter(part("Checks"))?,
        })
    }

    /// Whether nodes have to be looked at.
    pub fn needs_nodes(&self) -> bool {
        !self.meta.is_empty()
    }

    pub fn wants_node(&self, node: &Node) -> bool {
        has_meta(node, &self.meta)
    }

    pub fn wants(&self, check: &HealthCheck) -> Result<bool, HttpError> {
        passes(&self.filter, check)
    }
}

/// Which instances are wanted.
pub(super) struct InstanceChoice {
    tags: Vec<String>,
    meta: Vec<(String, String)>,
    filter: Filter,
    form: Form,
}

/// How a filter names the fields of an instance.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `Service.Port`: as in a health answer.
    Health,
    /// `ServicePort`: as in a catalog answer.
    Catalog,
}

impl InstanceChoice {
    pub fn of(params: &Params, form: Form) -> Result<Self, HttpError> {
        let fields = match form {
            Form::Health => &INSTANCE_FIELDS,
            Form::Catalog => &CATALOG_FIELDS,
        };
        Ok(Self {
            tags: params.all("tag").map(str::to_owned).collect(),
            meta: params.node_meta()?,
            filter: params.filter(fields)?,
            form,
        })
    }

    /// The wanted ones of `rows`, in their order.
    pub fn among<'r, 'a>(
        &self,
        rows: &'r [InstanceRow<'a>],
    ) -> Result<impl Iterator<Item = &'r InstanceRow<'a>> + use<'r, 'a>, HttpError> {
        let mut wanted = Vec::new();
        for row in rows {
            if self.wants(row)? {
                wanted.push(row);
            }
        }
        Ok(wanted.into_iter())
    }

    fn wants(&self, row: &InstanceRow<'_>) -> Result<bool, HttpError> {
        let tagged = self.tags.iter().all(|tag| {
            let mut tags = row.service.tags.iter();
            tags.any(|has| has.eq_ignore_ascii_case(tag))
        });
        if !tagged || !has_meta(row.node, &self.meta) {
            return Ok(false);
        }
        match self.form {
            Form::Health => passes(&self.filter, &FilteredInstance(row)),
            Form::Catalog => passes(&self.filter, &CatalogRow(row)),
        }
    }
}

static TAGGED_ADDRESS: FieldType =
    FieldType::Record(&[("Address", FieldType::String), ("Port", FieldType::Int)]);

static CATALOG_FIELDS: FieldType = FieldType::Record(&[
    ("ID", FieldType::String),
    ("Node", FieldType::String),
    ("Address", FieldType::String),
    ("Datacenter", FieldType::String),
    ("TaggedAddresses", FieldType::Map(&FieldType::String)),
    ("NodeMeta", FieldType::Map(&FieldType::String)),
    ("ServiceKind", FieldType::String),
    ("ServiceID", FieldType::String),
    ("ServiceName", FieldType::String),
    ("ServiceTags", FieldType::List(&FieldType::String)),
    ("ServiceAddress", FieldType::String),
    ("ServiceTaggedAddresses", FieldType::Map(&TAGGED_ADDRESS)),
    (
        "ServiceWeights",
        FieldType::Record(&[("Passing", FieldType::Int), ("Warning", FieldType::Int)]),
    ),
    ("ServiceMeta", FieldType::Map(&FieldType::String)),
    ("ServicePort", FieldType::Int),
    ("ServiceEnableTagOverride", FieldType::Bool),
    (
        "ServiceProxy",
        FieldType::Record(&[
            ("DestinationServiceName", FieldType::String),
            ("DestinationServiceID", FieldType::String),
            ("LocalServiceAddress", FieldType::String),
            ("LocalServicePort", FieldType::Int),
        ]),
    ),
    (
        "ServiceConnect",
        FieldType::Record(&[("Native", FieldType::Bool)]),
    ),
]);

/// An instance with the field names of a catalog answer.
struct CatalogRow<'r, 'a>(&'r InstanceRow<'a>);

impl Record for CatalogRow<'_, '_> {
    fn field(&self, name: &str) -> Option<Field<'_>> {
        let (node, service) = (&*self.0.node.value, &*self.0.service.value);
        Some(match name {
            "ID" => node.id.as_field(),
            "Node" => node.node.as_field(),
            "Address" => node.address.as_field(),
            "Datacenter" => node.datacenter.as_field(),
            "TaggedAddresses" => Field::Map(&node.tagged_addresses),
            "NodeMeta" => Field::Map(&node.meta),
            // The rest are the fields of a service, behind a prefix.
            _ => {
                let name = match name.strip_prefix("Service")? {
                    "Name" => "Service",
                    name => name,
                };
                return service.field(name);
            }
        })
    }
}
