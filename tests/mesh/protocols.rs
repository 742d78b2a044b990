//! Protocols of services.

use serde_json::{Value, json};

use crate::member::Member;
use crate::support::apps::{http_name, tcp_name};
use crate::support::{DEADLINE, http, http2};
use crate::traffic::{Traffic, from_now_on};
use crate::world::Mesh;

#[test]
fn http2_and_grpc_services_are_called() {
    let mesh = Mesh::start();
    let two = Member::http2("two", "two-1");
    let rpc = Member::http2("rpc", "rpc-1");
    let web = Member::tcp("web", "web-1").upstream("two").upstream("rpc");
    mesh.protocol("two", "http2");
    mesh.protocol("rpc", "grpc");
    for member in [&two, &rpc, &web] {
        mesh.register(member);
    }
    let envoys = [mesh.envoy(&two), mesh.envoy(&rpc), mesh.envoy(&web)];
    let (to_two, to_rpc) = (web.address_of("two"), web.address_of("rpc"));

    // Callers may speak either version; the way to the application is HTTP/2 in any case.
    from_now_on("two-1", || http_name(&to_two));
    let response = http2::request(&to_two, "POST", "/path?a=b", &[("x-a", "1")], b"hello").unwrap();
    assert_eq!(response.status, 200, "{response:?}");
    let seen: Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!(
        (&seen["method"], &seen["path"], &seen["body"]),
        (&json!("POST"), &json!("/path?a=b"), &json!("hello"))
    );
    assert_eq!(seen["headers"]["x-a"], "1");
    let stats = envoys[2].stats("cluster.*two.*upstream_cx_http2_total$");
    assert!(stats.values().any(|count| *count > 0), "{stats:?}");

    let call = |method: &str, headers: &[(&str, &str)]| -> std::io::Result<(String, String)> {
        let response = http2::call(&to_rpc, method, headers, "hello")?;
        let status = response.header("grpc-status").unwrap_or("none").to_owned();
        let seen: Value = serde_json::from_str(&response.body).unwrap_or_default();
        let method = seen["path"].as_str().unwrap_or_default().to_owned();
        Ok((status, method))
    };
    let ok = |method: &str| ("0".to_owned(), method.to_owned());
    let status = |method: &str| Ok(call(method, &[])?.0);
    from_now_on("0", || status("/shop.Cart/Add"));
    assert_eq!(call("/shop.Cart/Add", &[]).unwrap(), ok("/shop.Cart/Add"));
    // Both sides count calls by service and method.
    for envoy in &envoys[1..] {
        let stats = envoy.stats("grpc.shop.Cart.Add.success$");
        assert!(stats.values().any(|count| *count > 0), "{stats:?}");
    }
    assert_eq!(
        call("/shop.Cart/Add", &[("x-fail-first", "before=1")])
            .unwrap()
            .0,
        "14"
    );

    // Routes and permissions of calls.
    let retry = json!({"NumRetries": 2, "RetryOn": ["unavailable"], "ResponseHeaders": {"Set": {"x-route": "cart"}}});
    mesh.entry(json!({
        "Kind": "service-router", "Name": "rpc",
        "Routes": [{"Match": {"HTTP": {"PathPrefix": "/shop.Cart/"}}, "Destination": retry}],
    }));
    from_now_on("cart", || {
        let response = http2::call(&to_rpc, "/shop.Cart/Get", &[], "")?;
        Ok(response.header("x-route").unwrap_or_default().to_owned())
    });
    let fails_twice = [("x-fail-first", "again=2")];
    assert_eq!(
        call("/shop.Cart/Add", &fails_twice).unwrap(),
        ok("/shop.Cart/Add")
    );
    let fails_twice = [("x-fail-first", "other=2")];
    assert_eq!(call("/shop.Stock/Add", &fails_twice).unwrap().0, "14");
    let permissions = json!([
        {"Action": "deny", "HTTP": {"PathPrefix": "/shop.Cart/"}}, {"Action": "allow", "HTTP": {"PathPrefix": "/"}},
    ]);
    mesh.entry(json!({
        "Kind": "service-intentions", "Name": "rpc", "Sources": [{"Name": "web", "Permissions": permissions}],
    }));
    // Permission denied, in the words of gRPC.
    from_now_on("7", || status("/shop.Cart/Add"));
    assert_eq!(call("/shop.Stock/Add", &[]).unwrap(), ok("/shop.Stock/Add"));
    mesh.assert_calm(&envoys.each_ref());
}

#[test]
fn a_protocol_changes_while_other_traffic_goes_on() {
    let mesh = Mesh::start();
    let api = Member::http("api", "api-1");
    let db = Member::tcp("db", "db-1");
    let web = Member::tcp("web", "web-1").upstream("api").upstream("db");
    for member in [&api, &db, &web] {
        mesh.register(member);
    }
    let envoys = [mesh.envoy(&api), mesh.envoy(&db), mesh.envoy(&web)];
    let (to_api, to_db) = (web.address_of("api"), web.address_of("db"));
    from_now_on("api-1", || http_name(&to_api));
    from_now_on("db-1", || tcp_name(&to_db));
    let other = Traffic::start(move || tcp_name(&to_db));
    // Sees nothing of the proxies while they pass bytes on.
    let sees_caller = || -> std::io::Result<String> {
        let seen = http::get(&to_api, "/")?.json();
        let caller = seen["headers"]["x-forwarded-client-cert"].is_string();
        Ok(caller.to_string())
    };
    from_now_on("false", sees_caller);
    mesh.protocol("api", "http");
    // If web's sidecar were asked before api's has changed over, it would keep its HTTP connection to the old filter
    // chain, which passes bytes on until Envoy's drain time is over.
    envoys[0].wait_until("api's listener has changed over", DEADLINE, |envoy| {
        let modified = envoy.stat("listener_manager.listener_modified");
        if modified == 1 {
            Ok(())
        } else {
            Err(format!("modified {modified} times"))
        }
    });
    from_now_on("true", sees_caller);
    mesh.entry(json!({"Kind": "service-defaults", "Name": "api", "Protocol": "tcp"}));
    from_now_on("false", sees_caller);
    other.assert_always("db-1");
    mesh.assert_calm(&envoys.each_ref());
}
