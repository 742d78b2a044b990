//! The `Proxy` block of a sidecar or gateway (store.md 1.3).

use crate::model::decode::{Opaque, record, words};

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
