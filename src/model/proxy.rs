//! The `Proxy` block of a sidecar or gateway (store.md 1.3).

use std::net::{IpAddr, SocketAddr};

use crate::model::decode::{Opaque, Place, Problems, record, words};
use crate::model::rules;

record! {
    /// How a proxy is set up (store.md 1.3).
    pub struct ProxyConfig {
        /// The service that a sidecar stands for.
        destination_service_name: String = "DestinationServiceName",
        /// The instance that a sidecar stands for.
        destination_service_id: String = "DestinationServiceID",
        /// Where the application listens; 127.0.0.1 unless given.
        local_service_address: String = "LocalServiceAddress",
        /// The application's port.
        local_service_port: u16 = "LocalServicePort",
        /// The application's unix socket, instead of address and port.
        local_service_socket_path: String = "LocalServiceSocketPath",
        /// How traffic reaches the proxy.
        mode: ProxyMode = "Mode",
        /// Settings of the transparent mode.
        transparent_proxy: TransparentProxy = "TransparentProxy",
        /// How traffic to other datacenters goes.
        mesh_gateway: MeshGateway = "MeshGateway",
        /// Plain paths for health checks and metrics.
        expose: Expose = "Expose",
        /// Access logs.
        access_logs: AccessLogs = "AccessLogs",
        /// Whether plain connections are accepted beside mutual TLS.
        mutual_tls_mode: MutualTlsMode = "MutualTLSMode",
        /// Extensions, from central configuration.
        envoy_extensions: Vec<EnvoyExtension> = "EnvoyExtensions",
        /// Free settings (xds.md 3.5).
        config: Opaque = "Config",
        /// What the application dials.
        upstreams: Vec<Upstream> = "Upstreams",
    }
    ignored ["PreparedQueryEndpoints"]
}

record! {
    /// Something that the application dials through its sidecar.
    pub struct Upstream {
        /// `service` (or empty) or `prepared_query`.
        destination_type: String = "DestinationType",
        /// Service or query.
        destination_name: String = "DestinationName",
        /// Namespace; only `default`.
        destination_namespace: String = "DestinationNamespace",
        /// Partition; only `default`.
        destination_partition: String = "DestinationPartition",
        /// Peer to reach it in.
        destination_peer: String = "DestinationPeer",
        /// Datacenter to reach it in.
        datacenter: String = "Datacenter",
        /// Address that the sidecar listens on for it; 127.0.0.1 unless given.
        local_bind_address: String = "LocalBindAddress",
        /// Port that the sidecar listens on for it.
        local_bind_port: u16 = "LocalBindPort",
        /// Unix socket instead of address and port.
        local_bind_socket_path: String = "LocalBindSocketPath",
        /// The socket's mode, octal.
        local_bind_socket_mode: String = "LocalBindSocketMode",
        /// Free settings (xds.md 3.5).
        config: Opaque = "Config",
        /// How traffic to another datacenter goes.
        mesh_gateway: MeshGateway = "MeshGateway",
        /// Set by the merge of central configuration, never by users.
        centrally_configured: bool = "CentrallyConfigured",
    }
    ignored ["IngressHosts"]
}

impl Eq for Upstream {}

impl std::hash::Hash for Upstream {
    /// By what tells the upstreams of a mesh apart, for the most part.
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.destination_name.hash(state);
        self.datacenter.hash(state);
        self.destination_peer.hash(state);
        self.local_bind_port.hash(state);
        self.local_bind_socket_path.hash(state);
        self.config.len().hash(state);
    }
}

impl Upstream {
    /// Whether it names a prepared query.
    #[must_use]
    pub fn is_prepared_query(&self) -> bool {
        self.destination_type == "prepared_query"
    }

    /// Whether the application dials it at a port or socket of its own.
    #[must_use]
    pub fn is_explicit(&self) -> bool {
        self.local_bind_port != 0 || !self.local_bind_socket_path.is_empty()
    }

    /// The address to listen on.
    #[must_use]
    pub fn bind_address(&self) -> &str {
        if self.local_bind_address.is_empty() {
            "127.0.0.1"
        } else {
            &self.local_bind_address
        }
    }
}

words! {
    /// How traffic reaches a proxy.
    pub enum ProxyMode {
        /// Not set here: taken from central configuration, else direct.
        Inherit = "",
        /// Redirected to the proxy by the host.
        Transparent = "transparent",
        /// Dialled at the proxy's ports.
        Direct = "direct",
    }
}

record! {
    /// Settings of the transparent mode.
    pub struct TransparentProxy {
        /// Port that redirected traffic arrives at; 15001 unless given.
        outbound_listener_port: u16 = "OutboundListenerPort",
        /// Whether instances may be dialled by their own addresses.
        dialed_directly: bool = "DialedDirectly",
    }
}

record! {
    /// How traffic to other datacenters goes.
    pub struct MeshGateway {
        /// The mode.
        mode: MeshGatewayMode = "Mode",
    }
}

words! {
    /// Through which gateways traffic to other datacenters goes.
    pub enum MeshGatewayMode {
        /// Not set here.
        Default = "",
        /// Directly to the instances.
        None = "none",
        /// Through the gateways of the proxy's own datacenter.
        Local = "local",
        /// Through the gateways of the other datacenter.
        Remote = "remote",
    }
}

words! {
    /// Whether plain connections are accepted beside mutual TLS.
    pub enum MutualTlsMode {
        /// Not set here: strict.
        Default = "",
        /// Mutual TLS only.
        Strict = "strict",
        /// Plain connections too.
        Permissive = "permissive",
    }
}

record! {
    /// Plain HTTP paths opened beside the mesh.
    pub struct Expose {
        /// Open the paths of the application's own HTTP and gRPC checks.
        checks: bool = "Checks",
        /// Paths to open.
        paths: Vec<ExposePath> = "Paths",
    }
}

record! {
    /// One plain HTTP path.
    pub struct ExposePath {
        /// Port that the proxy opens.
        listener_port: u16 = "ListenerPort",
        /// The path.
        path: String = "Path",
        /// The application's port.
        local_path_port: u16 = "LocalPathPort",
        /// `http` (default) or `http2`.
        protocol: String = "Protocol",
        /// Derived from a check.
        parsed_from_check: bool = "ParsedFromCheck",
    }
}

record! {
    /// Envoy access logs.
    pub struct AccessLogs {
        /// Whether to log at all.
        enabled: bool = "Enabled",
        /// Leave out connections that match no filter chain.
        disable_listener_logs: bool = "DisableListenerLogs",
        /// `file`, `stderr` or `stdout` (default).
        kind: String = "Type",
        /// File, for type `file`.
        path: String = "Path",
        /// Format as JSON text.
        json_format: String = "JSONFormat",
        /// Format as plain text.
        text_format: String = "TextFormat",
    }
}

record! {
    /// A configured extension; kept and handed on.
    pub struct EnvoyExtension {
        /// Name.
        name: String = "Name",
        /// Whether a failure to apply it is an error.
        required: bool = "Required",
        /// Arguments.
        arguments: Opaque = "Arguments",
        /// Consul versions it is for.
        consul_version: String = "ConsulVersion",
        /// Envoy versions it is for.
        envoy_version: String = "EnvoyVersion",
    }
}

impl ProxyConfig {
    /// What holds for the proxy block of a sidecar (store.md 1.2): `at` is the place of the block.
    pub(crate) fn validate_sidecar(&self, at: &Place<'_>, problems: &mut Problems) {
        let name = at.key("DestinationServiceName");
        if rules::is_blank(&self.destination_service_name) {
            problems.error(
                &name,
                "a proxy needs the name of the service that it stands for",
            );
        } else if self.destination_service_name == "*" {
            problems.error(&name, "a proxy stands for one service, not for \"*\"");
        } else {
            let destination = &self.destination_service_name;
            rules::mesh_name("service name", destination, &name, problems);
        }
        let upstreams = at.key("Upstreams");
        for (i, upstream) in self.upstreams.iter().enumerate() {
            let at = upstreams.index(i);
            upstream.validate(&at, problems);
            let before = &self.upstreams[..i];
            if let Some(twin) = before.iter().position(|u| u.key() == upstream.key()) {
                problems.error(
                    &at,
                    format!(
                        "leads to the same destination {} as upstream {twin}",
                        rules::shown(&upstream.destination_name)
                    ),
                );
            }
            if let Some(bind) = upstream.bind()
                && let Some(twin) = before.iter().position(|u| u.bind().as_ref() == Some(&bind))
            {
                problems.error(
                    &at,
                    format!(
                        "listens on {bind}, as does upstream {twin} ({})",
                        rules::shown(&before[twin].destination_name)
                    ),
                );
            }
        }
    }

    /// What holds for the proxy block of a gateway (store.md 1.2): nothing of a sidecar's.
    pub(crate) fn validate_gateway(&self, at: &Place<'_>, problems: &mut Problems) {
        for (key, given) in [
            (
                "DestinationServiceName",
                !self.destination_service_name.is_empty(),
            ),
            (
                "DestinationServiceID",
                !self.destination_service_id.is_empty(),
            ),
            (
                "LocalServiceAddress",
                !self.local_service_address.is_empty(),
            ),
            ("LocalServicePort", self.local_service_port != 0),
            (
                "LocalServiceSocketPath",
                !self.local_service_socket_path.is_empty(),
            ),
            ("Upstreams", !self.upstreams.is_empty()),
        ] {
            if given {
                problems.error(&at.key(key), format!("a gateway has no {key}"));
            }
        }
    }

    /// What holds for the proxy block of any kind.
    pub(crate) fn validate_common(&self, at: &Place<'_>, problems: &mut Problems) {
        self.expose.validate(&at.key("Expose"), problems);
        self.access_logs.validate(&at.key("AccessLogs"), problems);
        EnvoyExtension::validate_all(&self.envoy_extensions, &at.key("EnvoyExtensions"), problems);
    }

    pub(crate) fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        let upstreams = at.key("Upstreams");
        for (i, upstream) in self.upstreams.iter().enumerate() {
            let at = upstreams.index(i);
            for (key, value) in [
                ("DestinationNamespace", &upstream.destination_namespace),
                ("DestinationPartition", &upstream.destination_partition),
            ] {
                rules::default_tenancy(key, value, &at, problems);
            }
        }
    }

    pub(crate) fn normalize(&mut self) {
        self.expose.normalize();
        for upstream in &mut self.upstreams {
            rules::clear_default(&mut upstream.destination_namespace);
            rules::clear_default(&mut upstream.destination_partition);
        }
    }
}

impl Upstream {
    fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        let types = ["", "service", "prepared_query"];
        rules::one_of(
            &self.destination_type,
            &types,
            &at.key("DestinationType"),
            problems,
        );
        let name = at.key("DestinationName");
        if rules::is_blank(&self.destination_name) {
            problems.error(&name, "an upstream needs a DestinationName");
        } else if self.destination_name == "*" {
            if !self.centrally_configured {
                problems.error(
                    &name,
                    "\"*\" is no destination; defaults of all upstreams belong into service-defaults",
                );
            }
        } else {
            rules::mesh_name("destination name", &self.destination_name, &name, problems);
        }
        for (key, text) in [
            ("DestinationPeer", &self.destination_peer),
            ("Datacenter", &self.datacenter),
        ] {
            rules::optional_mesh_name(key, text, &at.key(key), problems);
        }
        if !self.destination_peer.is_empty() && !self.datacenter.is_empty() {
            problems.error(at, "DestinationPeer and Datacenter exclude each other");
        }
        let has_port = self.local_bind_port != 0;
        let has_socket = !self.local_bind_socket_path.is_empty();
        if !self.centrally_configured && has_port == has_socket {
            problems.error(
                at,
                "an upstream needs exactly one of LocalBindPort and LocalBindSocketPath",
            );
        }
        if !self.local_bind_address.is_empty() && self.local_bind_address.parse::<IpAddr>().is_err()
        {
            problems.error(
                &at.key("LocalBindAddress"),
                format!(
                    "{} is not an IP address",
                    rules::shown(&self.local_bind_address)
                ),
            );
        }
        let mode = &self.local_bind_socket_mode;
        let good_mode = u32::from_str_radix(mode, 8).is_ok_and(|m| m <= 0o777);
        if !mode.is_empty() && !good_mode {
            problems.error(
                &at.key("LocalBindSocketMode"),
                format!(
                    "{} is not a file mode in octal, such as \"0600\"",
                    rules::shown(mode)
                ),
            );
        }
    }

    /// What makes two upstreams the same destination. Namespace and partition count as written (store.md 1.2).
    fn key(&self) -> (bool, &str, &str, &str, String, &str) {
        (
            self.is_prepared_query(),
            &self.destination_partition,
            &self.destination_namespace,
            &self.destination_peer,
            self.destination_name.to_ascii_lowercase(),
            &self.datacenter,
        )
    }

    /// Where it listens, if it was given a place to listen.
    fn bind(&self) -> Option<String> {
        if self.centrally_configured {
            return None;
        }
        if !self.local_bind_socket_path.is_empty() {
            return Some(self.local_bind_socket_path.clone());
        }
        let port = Some(self.local_bind_port).filter(|p| *p != 0)?;
        Some(match self.bind_address().parse() {
            Ok(ip) => SocketAddr::new(ip, port).to_string(),
            Err(_) => format!("{}:{port}", self.bind_address()),
        })
    }
}

impl Expose {
    /// store.md 1.2, the row `Expose.Paths[]`.
    pub(crate) fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        let paths = at.key("Paths");
        for (i, path) in self.paths.iter().enumerate() {
            let at = paths.index(i);
            if rules::is_blank(&path.path) {
                problems.error(&at.key("Path"), "an exposed path must not be empty");
            } else if !path.path.starts_with('/') {
                problems.error(
                    &at.key("Path"),
                    format!("{} must begin with '/'", rules::shown(&path.path)),
                );
            }
            if path.listener_port == 0 {
                problems.error(
                    &at.key("ListenerPort"),
                    "an exposed path needs a ListenerPort from 1 to 65535",
                );
            }
            rules::one_of(
                &path.protocol.to_ascii_lowercase(),
                &["", "http", "http2"],
                &at.key("Protocol"),
                problems,
            );
            let before = &self.paths[..i];
            if before.iter().any(|p| p.path == path.path) {
                problems.error(
                    &at.key("Path"),
                    format!("the path {} is exposed twice", rules::shown(&path.path)),
                );
            }
            if path.listener_port != 0
                && before.iter().any(|p| p.listener_port == path.listener_port)
            {
                problems.error(
                    &at.key("ListenerPort"),
                    format!("the port {} is used twice", path.listener_port),
                );
            }
        }
    }

    pub(crate) fn normalize(&mut self) {
        for path in &mut self.paths {
            path.protocol.make_ascii_lowercase();
            if path.protocol.is_empty() {
                "http".clone_into(&mut path.protocol);
            }
        }
    }
}

impl AccessLogs {
    /// store.md 1.3, the last line.
    pub(crate) fn validate(&self, at: &Place<'_>, problems: &mut Problems) {
        let types = ["", "file", "stderr", "stdout"];
        rules::one_of(&self.kind, &types, &at.key("Type"), problems);
        if self.kind == "file" && self.path.is_empty() {
            problems.error(&at.key("Path"), "the type \"file\" needs a Path");
        }
        if self.kind != "file" && !self.path.is_empty() {
            problems.error(&at.key("Path"), "a Path only goes with the type \"file\"");
        }
        if !self.json_format.is_empty() {
            if !self.text_format.is_empty() {
                problems.error(at, "JSONFormat and TextFormat exclude each other");
            }
            if let Err(why) = serde_json::from_str::<Opaque>(&self.json_format) {
                problems.error(
                    &at.key("JSONFormat"),
                    format!("is not a JSON object: {why}"),
                );
            }
        }
    }
}

impl EnvoyExtension {
    pub(crate) fn validate_all(all: &[Self], at: &Place<'_>, problems: &mut Problems) {
        for (i, extension) in all.iter().enumerate() {
            if rules::is_blank(&extension.name) {
                problems.error(&at.index(i).key("Name"), "an extension needs a Name");
            }
        }
    }
}
