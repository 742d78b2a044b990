//! Documents of every record in which each key has a value that isn't its default. They are read, not valid.

use serde_json::{Value as Json, json};

pub(super) fn expose() -> Json {
    json!({"Checks": true, "Paths": [{"ListenerPort": 1, "Path": "/m", "LocalPathPort": 2, "Protocol": "http2", "ParsedFromCheck": true}]})
}

pub(super) fn access_logs() -> Json {
    json!({"Enabled": true, "DisableListenerLogs": true, "Type": "file", "Path": "/x", "JSONFormat": "{}", "TextFormat": "x"})
}

pub(super) fn extensions() -> Json {
    json!([{"Name": "e", "Required": true, "Arguments": {"a_B": [1, null, {"c": 2.5}]}, "ConsulVersion": "1", "EnvoyVersion": "2"}])
}

pub(super) fn proxy() -> Json {
    json!({
        "DestinationServiceName": "web", "DestinationServiceID": "web1", "LocalServiceAddress": "127.0.0.1", "LocalServicePort": 80,
        "LocalServiceSocketPath": "/s", "Mode": "transparent", "TransparentProxy": {"OutboundListenerPort": 15002, "DialedDirectly": true},
        "MeshGateway": {"Mode": "local"}, "Expose": expose(), "AccessLogs": access_logs(), "MutualTLSMode": "permissive",
        "EnvoyExtensions": extensions(), "Config": {"bind_Port": 5, "Null": null, "deep": {"A_b": [true]}},
        "Upstreams": [{"DestinationType": "prepared_query", "DestinationName": "db", "DestinationNamespace": "n", "DestinationPartition": "p",
            "DestinationPeer": "c", "Datacenter": "dc2", "LocalBindAddress": "127.0.0.2", "LocalBindPort": 9000, "LocalBindSocketPath": "/u",
            "LocalBindSocketMode": "0600", "Config": {"protocol": "http"}, "MeshGateway": {"Mode": "remote"}, "CentrallyConfigured": true}]
    })
}

pub(super) fn instance() -> Json {
    json!({
        "Kind": "connect-proxy", "ID": "p1", "Service": "p", "Tags": ["a"], "Meta": {"k_K": "v"}, "Port": 1, "Address": "10.0.0.1", "SocketPath": "/s",
        "TaggedAddresses": {"lan_ipv4": {"Address": "1.2.3.4", "Port": 5}}, "Weights": {"Passing": 3, "Warning": 2}, "EnableTagOverride": true,
        "Proxy": proxy(), "Connect": {"Native": true}, "Locality": {"Region": "r", "Zone": "z"}, "PeerName": "c", "Namespace": "n", "Partition": "p"
    })
}

pub(super) fn check_definition() -> Json {
    json!({
        "HTTP": "http://a", "Header": {"X-a_B": ["1", "2"]}, "Method": "POST", "Body": "b", "TCP": "a:1", "UDP": "a:2", "GRPC": "a:3", "GRPCUseTLS": true,
        "H2PING": "a:4", "Interval": "10s", "Timeout": "1m30s", "TTL": "250ms", "DeregisterCriticalServiceAfter": "1h0m0s", "AliasNode": "n2",
        "AliasService": "db", "TLSServerName": "s", "TLSSkipVerify": true
    })
}

pub(super) fn health_check() -> Json {
    json!({
        "Node": "n1", "CheckID": "c", "Name": "n", "Status": "warning", "Notes": "x", "Output": "y", "ServiceID": "web1", "ServiceName": "web", "ServiceTags": ["a"],
        "Type": "http", "ExposedPort": 5, "Interval": "10s", "Timeout": "1s", "PeerName": "p", "Definition": check_definition(), "Namespace": "n", "Partition": "p"
    })
}

pub(super) fn agent_check() -> Json {
    let mut check = json!({
        "CheckID": "c", "ID": "i", "Name": "n", "Notes": "x", "Status": "passing", "ServiceID": "web1", "ScriptArgs": ["a"], "Args": ["b"],
        "DockerContainerID": "d", "OSService": "o", "Namespace": "n", "Partition": "p"
    });
    let how = check_definition();
    check
        .as_object_mut()
        .unwrap()
        .extend(how.as_object().unwrap().clone());
    check
}

pub(super) fn definition() -> Json {
    json!({
        "Kind": "mesh-gateway", "ID": "i", "Name": "n", "Tags": ["a"], "Meta": {"k_K": "v"}, "Port": 1, "Address": "10.0.0.1", "SocketPath": "/s",
        "TaggedAddresses": {"wan": {"Address": "1.2.3.4", "Port": 5}}, "Weights": {"Passing": 3, "Warning": 0}, "EnableTagOverride": true, "Proxy": proxy(),
        "Connect": {"Native": true, "SidecarService": {"Name": "s", "Check": agent_check()}}, "Locality": {"Region": "r", "Zone": "z"},
        "Check": agent_check(), "Checks": [agent_check()], "Token": "t", "Namespace": "n", "Partition": "p"
    })
}

pub(super) fn registration() -> Json {
    json!({
        "ID": "u", "Node": "n1", "Address": "10.0.0.1", "Datacenter": "dc1", "TaggedAddresses": {"wan_ipv4": "1.2.3.4"}, "NodeMeta": {"k_K": "v"},
        "Locality": {"Region": "r", "Zone": "z"}, "Service": instance(), "Check": health_check(), "Checks": [health_check()], "SkipNodeUpdate": true,
        "PeerName": "c", "Partition": "p"
    })
}

pub(super) fn deregistration() -> Json {
    json!({"Node": "n1", "ServiceID": "s", "CheckID": "c", "Datacenter": "dc1", "PeerName": "p", "Namespace": "n", "Partition": "p"})
}

pub(super) fn modifiers() -> Json {
    json!({"Add": {"x-A_b": "1"}, "Set": {"y": "2"}, "Remove": ["z"]})
}

pub(super) fn common(kind: &str, mut entry: Json) -> Json {
    let rest = json!({"Kind": kind, "Meta": {"k_K": "v"}, "Namespace": "n", "Partition": "p"});
    entry
        .as_object_mut()
        .unwrap()
        .extend(rest.as_object().unwrap().clone());
    if kind != "mesh" {
        entry["Name"] = json!("web");
    }
    entry
}

pub(super) fn proxy_defaults() -> Json {
    common(
        "proxy-defaults",
        json!({
            "Config": {"protocol": "http", "Some_Key": {"a": null}}, "Mode": "direct", "TransparentProxy": {"OutboundListenerPort": 1, "DialedDirectly": true},
            "MutualTLSMode": "strict", "MeshGateway": {"Mode": "none"}, "Expose": expose(), "AccessLogs": access_logs(), "EnvoyExtensions": extensions(),
            "FailoverPolicy": {"Mode": "sequential", "Regions": ["r"]}, "PrioritizeByLocality": {"Mode": "failover"}
        }),
    )
}

pub(super) fn upstream_defaults() -> Json {
    json!({
        "Name": "db", "Peer": "c", "Namespace": "n", "Partition": "p", "EnvoyListenerJSON": "{}", "EnvoyClusterJSON": "{ }", "Protocol": "grpc", "ConnectTimeoutMs": 5,
        "Limits": {"MaxConnections": 0, "MaxPendingRequests": 1, "MaxConcurrentRequests": 2},
        "PassiveHealthCheck": {"Interval": "1s", "MaxFailures": 3, "EnforcingConsecutive5xx": 0, "MaxEjectionPercent": 50, "BaseEjectionTime": "30s"},
        "MeshGateway": {"Mode": "local"}, "BalanceOutboundConnections": "exact_balance"
    })
}

pub(super) fn service_defaults() -> Json {
    common(
        "service-defaults",
        json!({
            "Protocol": "http2", "Mode": "transparent", "TransparentProxy": {"OutboundListenerPort": 1, "DialedDirectly": true}, "MutualTLSMode": "strict",
            "MeshGateway": {"Mode": "none"}, "Expose": expose(), "ExternalSNI": "a.b", "UpstreamConfig": {"Defaults": upstream_defaults(), "Overrides": [upstream_defaults()]},
            "Destination": {"Addresses": ["a.b"], "Port": 443}, "MaxInboundConnections": 1, "LocalConnectTimeoutMs": 2, "LocalRequestTimeoutMs": 3,
            "BalanceInboundConnections": "exact_balance", "EnvoyExtensions": extensions(),
            "RateLimits": {"InstanceLevel": {"RequestsPerSecond": 1, "RequestsMaxBurst": 2,
                "Routes": [{"PathExact": "/a", "PathPrefix": "/b", "PathRegex": "c", "RequestsPerSecond": 3, "RequestsMaxBurst": 4}]}}
        }),
    )
}

pub(super) fn router() -> Json {
    common(
        "service-router",
        json!({"Routes": [{
            "Match": {"HTTP": {"PathExact": "/a", "PathPrefix": "/b", "PathRegex": "c", "CaseInsensitive": true,
                "Header": [{"Name": "x", "Present": true, "Exact": "a", "Prefix": "b", "Suffix": "c", "Regex": "d", "Invert": true}],
                "QueryParam": [{"Name": "q", "Present": true, "Exact": "a", "Regex": "b"}], "Methods": ["GET"]}},
            "Destination": {"Service": "a", "ServiceSubset": "v1", "Namespace": "n", "Partition": "p", "PrefixRewrite": "/", "RequestTimeout": "33s", "IdleTimeout": "1m30s",
                "NumRetries": 3, "RetryOnConnectFailure": true, "RetryOn": ["5xx"], "RetryOnStatusCodes": [429], "RequestHeaders": modifiers(), "ResponseHeaders": modifiers()}
        }]}),
    )
}

pub(super) fn splitter() -> Json {
    common(
        "service-splitter",
        json!({"Splits": [{"Weight": 62.5, "Service": "a", "ServiceSubset": "v1", "Namespace": "n", "Partition": "p",
        "RequestHeaders": modifiers(), "ResponseHeaders": modifiers()}]}),
    )
}

pub(super) fn resolver() -> Json {
    common(
        "service-resolver",
        json!({
            "DefaultSubset": "v1", "Subsets": {"v_1": {"Filter": "a == b", "OnlyPassing": true}},
            "Redirect": {"Service": "a", "ServiceSubset": "v", "Namespace": "n", "Partition": "p", "Datacenter": "dc2", "Peer": "c", "SamenessGroup": "g"},
            "Failover": {"*": {"Service": "a", "ServiceSubset": "v", "Namespace": "n", "Datacenters": ["dc2"],
                "Targets": [{"Service": "a", "ServiceSubset": "v", "Partition": "p", "Namespace": "n", "Datacenter": "dc2", "Peer": "c"}],
                "Policy": {"Mode": "sequential", "Regions": ["r"]}, "SamenessGroup": "g"}},
            "ConnectTimeout": "5s", "RequestTimeout": "-1s", "PrioritizeByLocality": {"Mode": "none"},
            "LoadBalancer": {"Policy": "ring_hash", "RingHashConfig": {"MinimumRingSize": 1, "MaximumRingSize": 4_294_967_297_u64}, "LeastRequestConfig": {"ChoiceCount": 2},
                "HashPolicies": [{"Field": "cookie", "FieldValue": "c", "CookieConfig": {"Session": true, "TTL": "1s", "Path": "/"}, "SourceIP": true, "Terminal": true}]}
        }),
    )
}

pub(super) fn jwt() -> Json {
    json!({"Providers": [{"Name": "okta", "VerifyClaims": [{"Path": ["a"], "Value": "b"}]}]})
}

pub(super) fn intentions() -> Json {
    common(
        "service-intentions",
        json!({"JWT": jwt(), "Sources": [{
            "Name": "web", "Action": "allow", "Precedence": 9, "Type": "consul", "Description": "d", "Peer": "c", "SamenessGroup": "g", "Namespace": "n", "Partition": "p",
            "Permissions": [{"Action": "deny", "JWT": jwt(), "HTTP": {"PathExact": "/a", "PathPrefix": "/b", "PathRegex": "c", "Methods": ["GET"],
                "Header": [{"Name": "x", "Present": true, "Exact": "a", "Prefix": "b", "Suffix": "c", "Contains": "d", "Regex": "e", "Invert": true, "IgnoreCase": true}]}}]
        }]}),
    )
}

pub(super) fn mesh() -> Json {
    let tls =
        json!({"TLSMinVersion": "TLSv1_2", "TLSMaxVersion": "TLSv1_3", "CipherSuites": ["x"]});
    common(
        "mesh",
        json!({
            "TransparentProxy": {"MeshDestinationsOnly": true}, "AllowEnablingPermissiveMutualTLS": true, "ValidateClusters": true, "TLS": {"Incoming": tls, "Outgoing": tls},
            "HTTP": {"SanitizeXForwardedClientCert": true, "Incoming": {"RequestNormalization": {"InsecureDisablePathNormalization": true, "MergeSlashes": true,
                "PathWithEscapedSlashesAction": "KEEP_UNCHANGED", "HeadersWithUnderscoresAction": "ALLOW"}}},
            "Peering": {"PeerThroughMeshGateways": true}
        }),
    )
}

pub(super) fn jwt_provider() -> Json {
    common(
        "jwt-provider",
        json!({
            "JSONWebKeySet": {"Local": {"JWKS": "e30=", "Filename": "f"}, "Remote": {"URI": "https://a", "RequestTimeoutMs": 1, "CacheDuration": "5m0s", "FetchAsynchronously": true,
                "RetryPolicy": {"NumRetries": 1, "RetryPolicyBackOff": {"BaseInterval": "1s", "MaxInterval": "2s"}},
                "JWKSCluster": {"DiscoveryType": "STATIC", "ConnectTimeout": "1s", "TLSCertificates": {"CaCertificateProviderInstance": {"InstanceName": "i", "CertificateName": "c"},
                    "TrustedCA": {"Filename": "f", "EnvironmentVariable": "E", "InlineString": "s", "InlineBytes": "e30="}}}}},
            "Issuer": "i", "Audiences": ["a"], "Locations": [{"Header": {"Name": "h", "ValuePrefix": "Bearer ", "Forward": true}, "QueryParam": {"Name": "q"}, "Cookie": {"Name": "c"}}],
            "Forwarding": {"HeaderName": "h", "PadForwardPayloadHeader": true}, "ClockSkewSeconds": 5, "CacheConfig": {"Size": 7}
        }),
    )
}

pub(super) fn entries() -> [Json; 8] {
    [
        proxy_defaults(),
        service_defaults(),
        router(),
        splitter(),
        resolver(),
        intentions(),
        mesh(),
        jwt_provider(),
    ]
}
