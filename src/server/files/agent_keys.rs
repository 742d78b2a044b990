//! The keys of Consul's agent configuration, in three classes: used here; known to Consul but without effect here, which
//! a warning says once; unknown, which is an error.

use crate::model::decode::same_key;

/// Keys at the top of a file that are used.
pub(super) const USED: &[&str] = &[
    "service",
    "services",
    "check",
    "checks",
    "config_entries",
    "node_name",
    "datacenter",
    "ports",
    "default_intention_policy",
];

/// Keys of `ports` that are used.
pub(super) const USED_PORTS: &[&str] = &["http", "grpc", "sidecar_min_port", "sidecar_max_port"];

/// Keys of `ports` that have no effect.
pub(super) const IDLE_PORTS: &[&str] = &[
    "dns",
    "https",
    "grpc_tls",
    "serf_lan",
    "serf_wan",
    "server",
    "expose_min_port",
    "expose_max_port",
];

/// Keys at the top of a file that have no effect.
pub(super) const IDLE: &[&str] = &[
    "acl",
    "acl_agent_master_token",
    "acl_agent_token",
    "acl_datacenter",
    "acl_default_policy",
    "acl_down_policy",
    "acl_enable_key_list_policy",
    "acl_enforce_version_8",
    "acl_master_token",
    "acl_replication_token",
    "acl_token",
    "acl_ttl",
    "addresses",
    "advertise_addr",
    "advertise_addr_ipv4",
    "advertise_addr_ipv6",
    "advertise_addr_wan",
    "advertise_addr_wan_ipv4",
    "advertise_addr_wan_ipv6",
    "advertise_reconnect_timeout",
    "alt_domain",
    "audit",
    "auto_config",
    "auto_encrypt",
    "auto_reload_config",
    "autopilot",
    "bind_addr",
    "bootstrap",
    "bootstrap_expect",
    "ca_file",
    "ca_path",
    "cache",
    "cert_file",
    "check_output_max_size",
    "check_update_interval",
    "client_addr",
    "cloud",
    "connect",
    "data_dir",
    "default_query_time",
    "disable_anonymous_signature",
    "disable_coordinates",
    "disable_host_node_id",
    "disable_http_unprintable_char_filter",
    "disable_keyring_file",
    "disable_remote_exec",
    "disable_update_check",
    "discard_check_output",
    "discovery_max_stale",
    "dns_config",
    "domain",
    "enable_acl_replication",
    "enable_agent_tls_for_checks",
    "enable_central_service_config",
    "enable_debug",
    "enable_local_script_checks",
    "enable_script_checks",
    "enable_syslog",
    "encrypt",
    "encrypt_verify_incoming",
    "encrypt_verify_outgoing",
    "experiments",
    "gossip_lan",
    "gossip_wan",
    "http_config",
    "key_file",
    "leave_on_terminate",
    "license_path",
    "limits",
    "locality",
    "log_file",
    "log_json",
    "log_level",
    "log_rotate_bytes",
    "log_rotate_duration",
    "log_rotate_max_files",
    "max_query_time",
    "node_id",
    "node_meta",
    "non_voting_server",
    "partition",
    "peering",
    "performance",
    "pid_file",
    "primary_datacenter",
    "primary_gateways",
    "primary_gateways_interval",
    "protocol",
    "raft_boltdb",
    "raft_logstore",
    "raft_protocol",
    "raft_snapshot_interval",
    "raft_snapshot_threshold",
    "raft_trailing_logs",
    "read_replica",
    "reconnect_timeout",
    "reconnect_timeout_wan",
    "recursors",
    "rejoin_after_leave",
    "reporting",
    "retry_interval",
    "retry_interval_wan",
    "retry_join",
    "retry_join_wan",
    "retry_max",
    "retry_max_wan",
    "rpc",
    "segment",
    "segments",
    "serf_allowed_cidrs_lan",
    "serf_allowed_cidrs_wan",
    "serf_lan",
    "serf_wan",
    "server",
    "server_name",
    "server_rejoin_age_max",
    "session_ttl_min",
    "skip_leave_on_interrupt",
    "start_join",
    "start_join_wan",
    "sync_coordinate_interval_min",
    "sync_coordinate_rate_target",
    "syslog_facility",
    "telemetry",
    "tls",
    "tls_cipher_suites",
    "tls_min_version",
    "tls_prefer_server_cipher_suites",
    "translate_wan_addrs",
    "ui",
    "ui_config",
    "ui_content_path",
    "ui_dir",
    "unix_sockets",
    "use_streaming_backend",
    "verify_incoming",
    "verify_incoming_https",
    "verify_incoming_rpc",
    "verify_outgoing",
    "verify_server_hostname",
    "watches",
    "xds",
];

/// What to say of a key without effect. Where its author may rely on it for safety, what to do instead.
pub(super) fn idle_message(key: &str) -> String {
    let is = |names: &[&str]| names.iter().any(|name| same_key(key, name));
    let instead = if is(&["acl", "acl_default_policy"]) {
        ": the flag --tokens names the file of tokens; to deny by default, set default_intention_policy = \"deny\""
    } else if is(&["addresses", "client_addr", "bind_addr"]) {
        ": the flags --http-addr and --xds-addr say where to listen"
    } else if is(&["log_level", "log_json"]) {
        ": there are flags of these names"
    } else if is(&["limits", "performance", "rpc"]) {
        ": flags say what is taken on, see `proxycfg serve --help` under Limits"
    } else if is(&["data_dir"]) {
        ": the flag --data-dir says where records are kept"
    } else if key.to_ascii_lowercase().starts_with("tls")
        || is(&[
            "verify_incoming",
            "encrypt",
            "ca_file",
            "cert_file",
            "key_file",
        ])
    {
        ": the flags --tls-cert, --tls-key and --tls-client-ca say how connections are encrypted"
    } else {
        ""
    };
    format!("has no effect here{instead}")
}
