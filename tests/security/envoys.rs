//! Real Envoys that show a certificate and a token.

use std::path::Path;

use serde_json::Value;

use crate::pki::{DB, OPS, WEB, ask, folder, server};
use crate::program::{Server, until, write};
use crate::support::envoy::Envoy;
use crate::support::ports::free_port;

fn bootstrap(folder: &Path, server: &Server, token: &str, of: &str) -> Value {
    let admin = format!("127.0.0.1:{}", free_port());
    let command = [
        "envoy",
        "--proxy-id",
        of,
        "--bootstrap",
        "--admin-bind",
        &admin,
        "--json",
    ];
    let ended = ask(
        folder,
        server,
        "server-ca.pem",
        Some("client"),
        Some(token),
        &command,
    );
    assert_eq!(ended.code, 0, "{ended:?}");
    serde_json::from_str(&ended.out).unwrap()
}

/// The xDS streams of a proxy, as the operator sees them.
fn streams(folder: &Path, server: &Server, token: &str, of: &str) -> usize {
    let command = ["proxies", "--json"];
    let ended = ask(
        folder,
        server,
        "server-ca.pem",
        Some("client"),
        Some(token),
        &command,
    );
    let list: Value = serde_json::from_str(&ended.out).unwrap_or_default();
    let mut proxies = list.as_array().into_iter().flatten();
    let found = proxies.find(|proxy| proxy["ID"] == of);
    found.map_or(0, |proxy| proxy["Streams"].as_array().map_or(0, Vec::len))
}

#[test]
fn c2_an_envoy_is_served_by_the_bootstrap_that_is_printed_and_let_go_with_its_token() {
    let folder = folder();
    let server = server(folder.path(), &[]);
    let web = "web-sidecar-proxy";
    let own = bootstrap(folder.path(), &server, WEB, web);
    let envoy = Envoy::start(&own, "secured-web");
    envoy.wait_ready();
    until("listeners of web", || {
        (envoy.stat("listener_manager.total_listeners_active") >= 2).then_some(())
    });
    envoy.assert_nothing_rejected();

    // Another service's token: the stream is opened, and ended when it turns out whose the proxy is.
    let mut foreign = bootstrap(folder.path(), &server, WEB, web);
    replace_token(&mut foreign, WEB, DB);
    foreign["admin"]["address"]["socket_address"]["port_value"] = free_port().into();
    let stranger = Envoy::start(&foreign, "secured-stranger");
    until("the stranger is turned away", || {
        (stranger.stat("control_plane.connected_state") == 0
            && stranger.stat("cluster_manager.cds.update_failure") > 0)
            .then_some(())
    });
    assert_eq!(stranger.stat("listener_manager.total_listeners_active"), 0);
    drop(stranger);

    // The token goes: with the next change of the proxy the stream ends, and stays away.
    let left = format!("tokens = [{{ name = \"ops\" secret = \"{OPS}\" operator = true }}]");
    write(folder.path(), "tokens.hcl", &left);
    until("the token is unknown", || {
        let asked = ask(
            folder.path(),
            &server,
            "server-ca.pem",
            Some("client"),
            Some(WEB),
            &["proxies"],
        );
        asked.err.contains("ACL not found").then_some(())
    });
    assert_eq!(streams(folder.path(), &server, OPS, web), 1);
    let mesh = std::fs::read_to_string(folder.path().join("mesh/mesh.hcl")).unwrap();
    write(
        folder.path(),
        "mesh/mesh.hcl",
        &mesh.replace("21501", "21503"),
    );
    until("the stream has ended", || {
        (streams(folder.path(), &server, OPS, web) == 0).then_some(())
    });
    // The Envoy goes on with what it has.
    assert!(envoy.ready());
    assert_eq!(server.stop().0, 0);
}

fn replace_token(bootstrap: &mut Value, old: &str, new: &str) {
    let text = bootstrap.to_string();
    assert!(text.contains(old), "the token is in the bootstrap");
    *bootstrap = serde_json::from_str(&text.replace(old, new)).unwrap();
}
