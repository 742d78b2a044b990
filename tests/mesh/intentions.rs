//! Who may call whom.

use std::io::{self, BufRead, BufReader};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::member::Member;
use crate::support::apps::{http_name, tcp_name};
use crate::support::http;
use crate::support::{DEADLINE, wait_until};
use crate::traffic::{Traffic, from_now_on, refused_from_now_on};
use crate::world::Mesh;

#[test]
fn an_intention_cuts_and_restores_new_connections() {
    let mesh = Mesh::start();
    let db = Member::tcp("db", "db-1").upstream("web");
    let web = Member::tcp("web", "web-1").upstream("db");
    mesh.register(&db);
    mesh.register(&web);
    let (db_envoy, web_envoy) = (mesh.envoy(&db), mesh.envoy(&web));
    let to_db = || tcp_name(&web.address_of("db"));
    let to_web = db.address_of("web");
    from_now_on("web-1", || tcp_name(&to_web));
    // The other direction goes on all the time.
    let other = Traffic::start(move || tcp_name(&to_web));

    from_now_on("db-1", to_db);
    mesh.intention("web", "db", "deny");
    refused_from_now_on(to_db);
    mesh.intention("web", "db", "allow");
    from_now_on("db-1", to_db);
    mesh.intention("*", "db", "deny");
    refused_from_now_on(to_db);
    // A service's own name counts more than the wildcard.
    let sources = json!([{"Name": "*", "Action": "deny"}, {"Name": "web", "Action": "allow"}]);
    mesh.entry(json!({"Kind": "service-intentions", "Name": "db", "Sources": sources}));
    from_now_on("db-1", to_db);
    mesh.intention("other", "db", "deny");
    from_now_on("db-1", to_db);
    mesh.intention("web", "db", "deny");
    refused_from_now_on(to_db);
    mesh.delete_entry("service-intentions", "db");
    from_now_on("db-1", to_db);

    other.assert_always("web-1");
    mesh.assert_calm(&[&db_envoy, &web_envoy]);
}

#[test]
fn with_default_deny_only_who_is_named_may_call() {
    let mesh = Mesh::start_deny();
    let db = Member::tcp("db", "db-1");
    let web = Member::tcp("web", "web-1").upstream("db");
    mesh.register(&db);
    mesh.register(&web);
    let (db_envoy, web_envoy) = (mesh.envoy(&db), mesh.envoy(&web));
    let to_db = || tcp_name(&web.address_of("db"));

    refused_from_now_on(to_db);
    assert_eq!(db.app.served(), 0);
    mesh.intention("other", "db", "allow");
    refused_from_now_on(to_db);
    mesh.intention("web", "db", "allow");
    from_now_on("db-1", to_db);
    mesh.delete_entry("service-intentions", "db");
    refused_from_now_on(to_db);
    // An intention for all destinations counts too.
    mesh.intention("web", "*", "allow");
    from_now_on("db-1", to_db);
    mesh.assert_calm(&[&db_envoy, &web_envoy]);
}

/// The status of a request for a path.
fn status(address: &str, path: &str) -> io::Result<String> {
    let response = http::get(address, path)?;
    Ok(response.status.to_string())
}

fn exact(action: &str, path: &str) -> Value {
    json!({"Action": action, "HTTP": {"PathExact": path}})
}

fn prefix(action: &str, path: &str) -> Value {
    json!({"Action": action, "HTTP": {"PathPrefix": path}})
}

#[test]
fn fc_069_the_first_permission_that_matches_decides() {
    let mesh = Mesh::start_deny();
    mesh.protocol("one", "http");
    let one = Member::http("one", "one-1");
    let curl = Member::tcp("curl", "curl-1").upstream("one");
    let other = Member::tcp("other", "other-1").upstream("one");
    for member in [&one, &curl, &other] {
        mesh.register(member);
    }
    let envoys = [mesh.envoy(&one), mesh.envoy(&curl), mesh.envoy(&other)];
    let (curl, other) = (curl.address_of("one"), other.address_of("one"));
    from_now_on("403", || status(&curl, "/"));

    let permissions = [
        exact("deny", "/health"),
        prefix("allow", "/"),
        exact("allow", "/health/v1"),
    ];
    let rules = |permissions: &[Value]| {
        let sources = json!([{"Name": "curl", "Permissions": permissions}]);
        json!({"Kind": "service-intentions", "Name": "one", "Sources": sources})
    };
    mesh.entry(rules(&permissions));
    from_now_on("200", || status(&curl, "/"));
    for (path, expected) in [
        ("/health", "403"),
        ("/health/v1", "200"),
        ("/health?a=b", "403"),
        ("/x", "200"),
    ] {
        assert_eq!(status(&curl, path).unwrap(), expected, "{path}");
    }
    for path in ["/", "/health", "/health/v1"] {
        assert_eq!(status(&other, path).unwrap(), "403", "{path}");
    }

    let [deny, allow, more] = permissions;
    mesh.entry(rules(&[allow, deny, more]));
    from_now_on("200", || status(&curl, "/health"));
    assert_eq!(status(&other, "/").unwrap(), "403");

    // The same path in other words isn't another path.
    mesh.entry(rules(&[prefix("deny", "/admin"), prefix("allow", "/")]));
    from_now_on("403", || status(&curl, "/admin/x"));
    for path in ["/./admin/x", "/x/../admin", "/%61dmin"] {
        let status = status(&curl, path).unwrap();
        assert!(status == "403" || status == "400", "{path}: {status}");
    }
    assert_eq!(status(&curl, "/public").unwrap(), "200");
    let methods = json!({"Action": "allow", "HTTP": {"PathPrefix": "/", "Methods": ["GET"], "Header": [{"Name": "x-key", "Exact": "a"}]}});
    mesh.entry(rules(&[methods]));
    from_now_on("403", || status(&curl, "/public"));
    let with_key = |method| {
        let response = http::request(&curl, method, "/public", &[("X-Key", "a")], "").unwrap();
        response.status
    };
    wait_until("allowed with its header", DEADLINE, || {
        match with_key("GET") {
            200 => Ok(()),
            status => Err(status.to_string()),
        }
    });
    assert_eq!(with_key("PUT"), 403);
    mesh.assert_calm(&envoys.each_ref());
}

#[test]
fn permissions_on_a_tcp_proxy_deny() {
    let mesh = Mesh::start();
    mesh.protocol("one", "http");
    // The instance's own setting counts more than the service's. There are no paths in TCP, so nothing may pass.
    let one = Member::http("one", "one-1").config(json!({"protocol": "tcp"}));
    let curl = Member::tcp("curl", "curl-1").upstream("one");
    mesh.register(&one);
    mesh.register(&curl);
    let sources = json!([{"Name": "curl", "Permissions": [prefix("allow", "/")]}]);
    mesh.entry(json!({"Kind": "service-intentions", "Name": "one", "Sources": sources}));
    let envoys = [mesh.envoy(&one), mesh.envoy(&curl)];
    let ask = || http_name(&curl.address_of("one"));
    refused_from_now_on(ask);
    mesh.delete_entry("service-intentions", "one");
    from_now_on("one-1", ask);
    mesh.assert_calm(&envoys.each_ref());
}

/// What a client hears that never says anything itself.
fn listen(address: &str) -> io::Result<String> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let mut heard = String::new();
    BufReader::new(stream).read_line(&mut heard)?;
    if heard.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(heard.trim_end().to_owned())
}

#[test]
fn a_denied_caller_hears_nothing_and_reaches_nobody() {
    let mesh = Mesh::start_deny();
    let db = Member::tcp("db", "db-1");
    let web = Member::tcp("web", "web-1").upstream("db");
    let webb = Member::tcp("webb", "webb-1").upstream("db");
    for member in [&db, &web, &webb] {
        mesh.register(member);
    }
    let envoys = [mesh.plain_envoy(&db), mesh.envoy(&web), mesh.envoy(&webb)];
    let (web, webb) = (web.address_of("db"), webb.address_of("db"));
    // The application is the first to speak, so it must not be reached to begin with.
    refused_from_now_on(|| listen(&web));
    assert_eq!(db.app.served(), 0);
    mesh.intention("web", "db", "allow");
    from_now_on("db-1", || listen(&web));
    let denied = |caller: &str| {
        refused_from_now_on(|| listen(caller));
        let served = db.app.served();
        refused_from_now_on(|| listen(caller));
        assert_eq!(db.app.served(), served);
    };
    denied(&webb);
    // Everybody may call but for some.
    let sources = json!([{"Name": "*", "Action": "allow"}, {"Name": "web", "Action": "deny"}]);
    mesh.entry(json!({"Kind": "service-intentions", "Name": "db", "Sources": sources}));
    from_now_on("db-1", || listen(&webb));
    denied(&web);
    // Many others, with long names.
    let deny = |name: String| json!({"Name": name, "Action": "deny"});
    let mut sources = vec![
        json!({"Name": "*", "Action": "allow"}),
        deny("webb".to_owned()),
    ];
    sources.extend(('a'..='z').map(|letter| deny(format!("{letter}{}", "_-9aZ".repeat(12)))));
    sources.extend((0..50).map(|n| deny(format!("service-number-{n}-of-many"))));
    mesh.entry(json!({"Kind": "service-intentions", "Name": "db", "Sources": sources}));
    from_now_on("db-1", || listen(&web));
    denied(&webb);
    mesh.assert_calm(&envoys.each_ref());
}
