//! What a person at a terminal is told.

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;

use super::options::{HTTP_PORT, Plan};
use crate::server::files::FileSet;

/// What a person at a terminal is told: what is served, where, and how to attach an Envoy.
pub(super) struct Banner(String);

impl Banner {
    pub fn new(plan: &Plan, set: &FileSet, http: SocketAddr, xds: SocketAddr) -> Self {
        let services: Vec<&str> = set.services().map(|s| s.record.name.as_str()).collect();
        let mut served = match services.as_slice() {
            [] => "no services yet; register some with --config or over the HTTP API".to_owned(),
            names if names.len() <= 6 => names.join(", "),
            names => format!("{}, ... ({} services)", names[..5].join(", "), names.len()),
        };
        match set.entries().count() {
            0 => {}
            1 => served.push_str("; 1 config entry"),
            n => served.push_str(&format!("; {n} config entries")),
        }
        let encrypted = plan.protection.tls_cert.is_some();
        let mut elsewhere = if encrypted {
            format!(" --http-addr https://{http} --ca-file CA.pem")
        } else if http.port() == HTTP_PORT && http.ip().is_loopback() {
            String::new()
        } else {
            format!(" --http-addr {http}")
        };
        if plan.protection.tls_client_ca.is_some() {
            elsewhere.push_str(" --client-cert CERT.pem --client-key KEY.pem");
        }
        if plan.protection.tokens.is_some() {
            elsewhere.push_str(" --token-file FILE");
        }
        let (scheme, secured) = if encrypted {
            ("https", " (TLS)")
        } else {
            ("http", "")
        };
        let definitions: Vec<_> = set.services().map(|s| &s.record).collect();
        let with_sidecar = definitions.iter().find(|d| d.sidecar().is_some());
        let proxy = definitions.iter().find(|d| d.kind.is_proxy());
        let attach = match (with_sidecar, proxy) {
            (Some(service), _) => format!("--sidecar-for {}", service.effective_id()),
            (None, Some(proxy)) => format!("--proxy-id {}", proxy.effective_id()),
            (None, None) => "--sidecar-for SERVICE_ID".to_owned(),
        };
        let kept = match &plan.data_dir {
            Some(folder) => format!("kept in        {}", folder.display()),
            None => "kept in memory: a restart makes a new trust domain".to_owned(),
        };
        Self(format!(
            "proxycfg {} on node {}, datacenter {}\n\
             \x20 serves         {served}\n\
             \x20 xDS            {xds}{secured}\n\
             \x20 HTTP API       {scheme}://{http}\n\
             \x20 attach Envoy   proxycfg envoy {attach}{elsewhere}\n\
             \x20 see proxies    proxycfg proxies{elsewhere}\n\
             \x20 {kept}\n\
             Ctrl-C stops it.",
            env!("CARGO_PKG_VERSION"),
            plan.node_name,
            plan.datacenter,
        ))
    }

    pub fn show(&self) {
        let mut out = std::io::stdout();
        if out.is_terminal() {
            // The log has said the same.
            let _ = writeln!(out, "{}", self.0);
        }
    }
}
