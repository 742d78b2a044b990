//! What to serve: the options, the files' settings and the defaults, in this order.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use smol_str::SmolStr;

use super::error::ServeError;
use super::listen::Protection;
use crate::model::SidecarPortRange;
use crate::server::files::{FileSet, check_node_name};
use crate::server::limits::Limits;

/// Consul's port for its HTTP API.
pub(super) const HTTP_PORT: u16 = 8500;

/// Consul's port for xDS.
const XDS_PORT: u16 = 8502;

/// What to serve, and where. What is `None` is taken from the files, else from the default.
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {
    /// Files and folders.
    pub config: Vec<PathBuf>,
    /// Name of this agent's node; default is the machine's name.
    pub node_name: Option<String>,
    /// Datacenter; default `dc1`.
    pub datacenter: Option<String>,
    /// Where the HTTP API listens; default 127.0.0.1:8500.
    pub http_addr: Option<SocketAddr>,
    /// Where xDS listens; default 127.0.0.1:8502.
    pub xds_addr: Option<SocketAddr>,
    /// What holds for callers that no intention speaks of; default true.
    pub intention_default_allow: Option<bool>,
    /// How the ports are protected (decision C2).
    pub protection: Protection,
    /// What the server takes on.
    pub limits: Limits,
    /// Where records and the certificate authority are kept; default in memory only.
    pub data_dir: Option<PathBuf>,
}

/// The options with the files' settings and the defaults filled in.
pub(super) struct Plan {
    pub config: Vec<PathBuf>,
    pub node_name: SmolStr,
    pub datacenter: SmolStr,
    pub http_addr: SocketAddr,
    pub xds_addr: SocketAddr,
    pub intention_default_allow: bool,
    pub sidecar_ports: SidecarPortRange,
    pub limits: Limits,
    pub data_dir: Option<PathBuf>,
    pub protection: Protection,
}

impl Plan {
    pub fn new(options: ServeOptions, set: &FileSet) -> Result<Self, ServeError> {
        let files = &set.settings;
        let node_name = options
            .node_name
            .or_else(|| files.node_name.as_ref().map(|s| s.value.clone()));
        let node_name = match node_name {
            Some(name) => name,
            None => machine_name()?,
        };
        let datacenter = options
            .datacenter
            .or_else(|| files.datacenter.as_ref().map(|s| s.value.clone()))
            .unwrap_or_else(|| "dc1".to_owned());
        let address = |given: Option<SocketAddr>, port: Option<u16>, default: u16| {
            let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
            given.unwrap_or_else(|| SocketAddr::new(local, port.unwrap_or(default)))
        };
        let http_port = files.http_port.as_ref().map(|s| s.value);
        let xds_port = files.xds_port.as_ref().map(|s| s.value);
        let http_addr = address(options.http_addr, http_port, HTTP_PORT);
        let xds_addr = address(options.xds_addr, xds_port, XDS_PORT);
        options.protection.check(http_addr, "--http-addr")?;
        options.protection.check(xds_addr, "--xds-addr")?;
        if http_addr == xds_addr && http_addr.port() != 0 {
            return Err(ServeError::BadInput(format!(
                "--http-addr and --xds-addr are both {http_addr}; give each a port of its own"
            )));
        }
        Ok(Self {
            config: options.config,
            node_name: node_name.into(),
            datacenter: datacenter.into(),
            http_addr,
            xds_addr,
            intention_default_allow: options
                .intention_default_allow
                .or_else(|| files.intention_default_allow.as_ref().map(|s| s.value))
                .unwrap_or(true),
            sidecar_ports: files.sidecar_ports(),
            limits: options.limits,
            data_dir: options.data_dir,
            protection: options.protection,
        })
    }
}

fn machine_name() -> Result<String, ServeError> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_default();
    let name = name.trim();
    match check_node_name(name) {
        Ok(()) => Ok(name.to_owned()),
        Err(why) => Err(ServeError::BadInput(format!(
            "the machine's name {name:?} can't be the node's name ({why}); give --node-name"
        ))),
    }
}
