//! `proxycfg envoy`: the bootstrap of a registered proxy, printed or run.
//!
//! The server's agent is asked for the proxy's registration: its node name, the service that it stands for, and the
//! settings that concern the bootstrap alone (xds.md Part 2), those of `proxy-defaults` below its own.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::client::{Client, ServerArgs, read_file};
use super::{Failure, print_json};
use crate::server::ads::Protocol;
use crate::server::bootstrap::{BootstrapParams, XdsTls};

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["proxy_id", "sidecar_for"])))]
pub(super) struct Args {
    /// Id of the proxy's service instance.
    #[arg(long, value_name = "ID")]
    proxy_id: Option<String>,
    /// Id of the service whose sidecar it is.
    #[arg(long, value_name = "SERVICE_ID")]
    sidecar_for: Option<String>,
    /// Node of the proxy, if it is not registered with this server's agent.
    #[arg(long, value_name = "NODE", requires = "proxy_id")]
    node_name: Option<String>,
    /// Print the bootstrap instead of running Envoy.
    #[arg(long)]
    bootstrap: bool,
    /// Where Envoy's admin interface listens.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:19000")]
    admin_bind: SocketAddr,
    /// Where Envoy reaches the control plane: HOST:PORT. The host of --http-addr and the port that the server names unless given.
    #[arg(long, value_name = "ADDR")]
    xds_addr: Option<String>,
    /// In which form Envoy asks the control plane for its configuration.
    #[arg(long, value_enum, value_name = "FORM", default_value_t = XdsProtocol::Delta)]
    xds_protocol: XdsProtocol,
    /// The Envoy to run; the `envoy` on PATH unless given.
    #[arg(long, value_name = "FILE", default_value = "envoy")]
    envoy_binary: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
    /// Arguments for Envoy.
    #[arg(last = true, value_name = "ENVOY ARGS")]
    envoy_args: Vec<String>,
}

/// A form of xDS, as an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum XdsProtocol {
    /// Only what changed is sent (api_type DELTA_GRPC).
    Delta,
    /// State of the world: all clusters or listeners are sent whenever one changes (api_type GRPC).
    Sotw,
}

impl From<XdsProtocol> for Protocol {
    fn from(option: XdsProtocol) -> Self {
        match option {
            XdsProtocol::Delta => Self::Delta,
            XdsProtocol::Sotw => Self::StateOfTheWorld,
        }
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let bootstrap = bootstrap(args)?;
    if args.bootstrap {
        return print_json(&bootstrap, args.server.json);
    }
    exec(args, &bootstrap)
}

fn bootstrap(args: &Args) -> Result<Value, Failure> {
    let client = Client::new(&args.server)?;
    let own = client.get(&["agent", "self"], &[])?.json;
    let (instance, node) = match &args.node_name {
        Some(node) => (on_node(&client, args, node)?, node.clone()),
        None => {
            let node = own["Config"]["NodeName"].as_str().unwrap_or_default();
            (local(&client, args)?, node.to_owned())
        }
    };
    let proxy_id = text(&instance, "ID");
    let (host, port) = xds_address(args, &client, &own)?;
    let proxy = &instance["Proxy"];
    let cluster = match text(proxy, "DestinationServiceName") {
        destination if destination.is_empty() => text(&instance, "Service"),
        destination => destination,
    };
    let mut params = BootstrapParams::new(proxy_id, cluster, host, port);
    params.node_name = Some(node).filter(|node| !node.is_empty());
    if let Some(datacenter) = own["Config"]["Datacenter"].as_str() {
        params.datacenter = datacenter.to_owned();
    }
    params.xds_protocol = args.xds_protocol.into();
    params.token = args.server.token()?.unwrap_or_default();
    params.xds_tls = xds_tls(args, &own)?;
    params.admin_address = args.admin_bind.ip().to_string();
    params.admin_port = args.admin_bind.port();
    params.config = settings(&client, proxy)?;
    params
        .build(&|name| std::env::var(name).ok())
        .map_err(|error| Failure::BadInput(error.to_string()))
}

/// The registration of a proxy of this server's agent.
fn local(client: &Client, args: &Args) -> Result<Value, Failure> {
    if let Some(id) = &args.proxy_id {
        return match client.try_get(&["agent", "service", id], &[])? {
            Ok(answer) => proxy_only(answer.json, id),
            Err(refusal) if refusal.status == 404 => Err(Failure::Failed(format!(
                "no service with the id {id:?} is registered with the agent at {}; see `proxycfg proxies`, or give \
                 --node-name if it is on another node",
                client.base()
            ))),
            Err(refusal) => Err(Failure::Failed(refusal.text)),
        };
    }
    let id = args.sidecar_for.as_deref().unwrap_or_default();
    let services = client.get(&["agent", "services"], &[])?.json;
    let all = services.as_object().into_iter().flat_map(Map::values);
    let mut sidecars = all.filter(|service| {
        text(service, "Kind") == "connect-proxy"
            && text(&service["Proxy"], "DestinationServiceID").eq_ignore_ascii_case(id)
    });
    match (sidecars.next(), sidecars.next()) {
        (Some(sidecar), None) => Ok(sidecar.clone()),
        (None, _) => Err(Failure::Failed(format!(
            "no sidecar is registered for the service id {id:?} with the agent at {}; register the service with a \
             connect.sidecar_service block",
            client.base()
        ))),
        (Some(one), Some(other)) => Err(Failure::Failed(format!(
            "several sidecars are registered for the service id {id:?} ({}, {}); choose one with --proxy-id",
            text(one, "ID"),
            text(other, "ID")
        ))),
    }
}

/// The registration of a proxy in the catalog.
fn on_node(client: &Client, args: &Args, node: &str) -> Result<Value, Failure> {
    let id = args.proxy_id.as_deref().unwrap_or_default();
    let answer = client.get(&["catalog", "node", node], &[])?.json;
    let services = answer["Services"].as_object();
    let mut all = services.into_iter().flat_map(Map::values);
    let found = all.find(|service| text(service, "ID").eq_ignore_ascii_case(id));
    match found {
        Some(service) => proxy_only(service.clone(), id),
        None => Err(Failure::Failed(format!(
            "no service with the id {id:?} is registered on the node {node:?} at {}; see `proxycfg proxies`",
            client.base()
        ))),
    }
}

fn proxy_only(instance: Value, id: &str) -> Result<Value, Failure> {
    match instance["Kind"].as_str() {
        None | Some("") => Err(Failure::Failed(format!(
            "{id:?} is a service, not a proxy; for its sidecar use --sidecar-for {id}"
        ))),
        Some(_) => Ok(instance),
    }
}

/// The proxy's settings over those of all proxies.
fn settings(client: &Client, proxy: &Value) -> Result<Map<String, Value>, Failure> {
    let mut settings = Map::new();
    match client.try_get(&["config", "proxy-defaults", "global"], &[])? {
        Ok(answer) => settings.extend(object(&answer.json["Config"])),
        Err(refusal) if refusal.status == 404 => {}
        Err(refusal) => return Err(Failure::Failed(refusal.text)),
    }
    settings.extend(object(&proxy["Config"]));
    Ok(settings)
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn xds_address(args: &Args, client: &Client, own: &Value) -> Result<(String, u16), Failure> {
    if let Some(address) = &args.xds_addr {
        let split = address.rsplit_once(':');
        let split = split.and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
        return split
            .ok_or_else(|| Failure::BadInput(format!("--xds-addr {address:?}: is not HOST:PORT")));
    }
    let port = |of: &str| own["xDS"]["Ports"][of].as_u64().filter(|port| *port != 0);
    match port("TLS")
        .or_else(|| port("Plaintext"))
        .and_then(|port| u16::try_from(port).ok())
    {
        Some(port) if port != 0 => Ok((client.host().to_owned(), port)),
        _ => Err(Failure::Failed(format!(
            "the server at {} doesn't say where it serves xDS; give --xds-addr",
            client.base()
        ))),
    }
}

/// How Envoy's connection to the control plane is secured: as the server says, with the files of this command.
fn xds_tls(args: &Args, own: &Value) -> Result<Option<XdsTls>, Failure> {
    let encrypted = own["xDS"]["Ports"]["TLS"]
        .as_u64()
        .is_some_and(|port| port != 0);
    if !encrypted {
        return Ok(None);
    }
    let server = &args.server;
    let Some(ca_file) = &server.ca_file else {
        return Err(Failure::BadInput(
            "xDS is encrypted on this server: give the certificates of its authorities with --ca-file".to_owned(),
        ));
    };
    let ca_pem = String::from_utf8(read_file(ca_file, "--ca-file")?)
        .map_err(|_| Failure::BadInput(format!("--ca-file {}: isn't PEM", ca_file.display())))?;
    let absolute = |path: &Path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        path.display().to_string()
    };
    let client_files = match (&server.client_cert, &server.client_key) {
        (Some(cert), Some(key)) => Some((absolute(cert), absolute(key))),
        _ => None,
    };
    Ok(Some(XdsTls {
        ca_pem,
        server_name: String::new(),
        client_files,
    }))
}

fn text(of: &Value, key: &str) -> String {
    of[key].as_str().unwrap_or_default().to_owned()
}

/// Becomes Envoy; returns only if that fails.
fn exec(args: &Args, bootstrap: &Value) -> Result<(), Failure> {
    use std::os::unix::process::CommandExt as _;
    let path = write_bootstrap(bootstrap)?;
    let mut command = std::process::Command::new(&args.envoy_binary);
    command.arg("--config-path").arg(&path);
    let given = |option: &str| args.envoy_args.iter().any(|arg| arg.contains(option));
    // Several Envoys on one machine share memory by this number.
    if !given("base-id") {
        command.arg("--use-dynamic-base-id");
    }
    // A change of access rules holds for new connections. By default Envoy lets HTTP connections from before go on for up
    // to ten minutes, and callers' proxies keep theirs; so they are told to close with the next answer.
    if !given("drain-strategy") {
        command.args(["--drain-strategy", "immediate"]);
    }
    let error = command.args(&args.envoy_args).exec();
    // Best effort: the failure below is what counts.
    let _ = std::fs::remove_file(&path);
    Err(Failure::Failed(format!(
        "can't run {}: {error}; install Envoy, give its path with --envoy-binary, or print the bootstrap with --bootstrap",
        args.envoy_binary.display()
    )))
}

/// Puts the bootstrap into a file that only this user can read: it may hold a token.
fn write_bootstrap(bootstrap: &Value) -> Result<PathBuf, Failure> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let name = format!(
        "proxycfg-envoy-{}-{}.json",
        std::process::id(),
        uuid::Uuid::new_v4().simple()
    );
    let path = std::env::temp_dir().join(name);
    let write = |path: &Path| -> std::io::Result<()> {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(bootstrap.to_string().as_bytes())
    };
    write(&path).map_err(|error| {
        Failure::Failed(format!(
            "can't write the bootstrap to {}: {error}",
            path.display()
        ))
    })?;
    Ok(path)
}
