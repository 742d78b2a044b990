//! The inbound side of an HTTP service: which requests are let in, how long they may take, what is logged, and what is open
//! beside the mesh.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::member::Member;
use crate::support::apps::App;
use crate::support::http::{self, Client};
use crate::support::ports::free_port;
use crate::support::{DEADLINE, wait_until};
use crate::traffic::from_now_on;
use crate::world::Mesh;

fn status(client: &mut Client, path: &str) -> io::Result<String> {
    Ok(client.get(path, &[])?.status.to_string())
}

#[test]
fn permissions_allow_and_deny_by_path_method_and_header() {
    let mesh = Mesh::start_deny();
    mesh.protocol("api", "http");
    let api = Member::http("api", "api-1");
    let web = Member::tcp("web", "web-1").upstream("api");
    mesh.register(&api);
    mesh.register(&web);
    let envoys = [mesh.envoy(&api), mesh.envoy(&web)];
    let mut client = Client::new(&web.address_of("api"));
    from_now_on("403", || status(&mut client, "/"));

    let header = |path: &str, condition: Value| json!({"PathExact": path, "Header": [condition]});
    let conditions = [
        json!({"PathExact": "/exact"}),
        json!({"PathPrefix": "/prefix/"}),
        json!({"PathRegex": "/re/[0-9]+"}),
        json!({"PathExact": "/method", "Methods": ["GET", "DELETE"]}),
        json!({"Methods": ["PATCH"]}),
        header("/x-exact", json!({"Name": "X-A", "Exact": "yes"})),
        header("/x-present", json!({"Name": "x-a", "Present": true})),
        header(
            "/x-absent",
            json!({"Name": "x-a", "Present": true, "Invert": true}),
        ),
        header("/x-prefix", json!({"Name": "x-a", "Prefix": "pre"})),
        header("/x-suffix", json!({"Name": "x-a", "Suffix": "fix"})),
        header("/x-contains", json!({"Name": "x-a", "Contains": "ref"})),
        header("/x-regex", json!({"Name": "x-a", "Regex": "v[0-9]+"})),
        header(
            "/x-not",
            json!({"Name": "x-a", "Exact": "bad", "Invert": true}),
        ),
        header(
            "/x-case",
            json!({"Name": "x-a", "Exact": "YES", "IgnoreCase": true}),
        ),
        json!({"PathPrefix": "/two", "Header": [{"Name": "x-a", "Present": true}, {"Name": "x-b", "Exact": "b"}]}),
    ];
    let x = |value: &'static str| vec![("x-a", value)];
    // Whether one of the conditions holds of the request.
    let requests = [
        ("GET", "/exact", vec![], true),
        ("GET", "/exact?query=1", vec![], true),
        ("GET", "/exact/", vec![], false),
        ("GET", "/prefix/a", vec![], true),
        ("GET", "/prefix", vec![], false),
        ("GET", "/re/42", vec![], true),
        ("GET", "/re/42/", vec![], false),
        ("GET", "/method", vec![], true),
        ("DELETE", "/method", vec![], true),
        ("POST", "/method", vec![], false),
        ("PATCH", "/anything", vec![], true),
        ("GET", "/x-exact", x("yes"), true),
        ("GET", "/x-exact", x("Yes"), false),
        ("GET", "/x-exact", vec![], false),
        ("GET", "/x-present", x(""), true),
        ("GET", "/x-present", vec![], false),
        ("GET", "/x-absent", vec![], true),
        ("GET", "/x-absent", x("1"), false),
        ("GET", "/x-prefix", x("prefer"), true),
        ("GET", "/x-prefix", x("a pre"), false),
        ("GET", "/x-suffix", x("suffix"), true),
        ("GET", "/x-suffix", x("fixed"), false),
        ("GET", "/x-contains", x("prefer"), true),
        ("GET", "/x-contains", x("rf"), false),
        ("GET", "/x-regex", x("v12"), true),
        ("GET", "/x-regex", x("v12b"), false),
        ("GET", "/x-not", x("good"), true),
        ("GET", "/x-not", x("bad"), false),
        ("GET", "/x-case", x("yEs"), true),
        ("GET", "/x-case", x("yEss"), false),
        ("GET", "/two", vec![("x-a", "1"), ("x-b", "b")], true),
        ("GET", "/two", vec![("x-a", "1"), ("x-b", "c")], false),
        ("GET", "/two", x("1"), false),
    ];
    let permissions = |action: &str| {
        let of = |http: &Value| json!({"Action": action, "HTTP": http});
        conditions.iter().map(of).collect::<Vec<_>>()
    };
    let set = |permissions: Vec<Value>| {
        let sources = json!([{"Name": "web", "Permissions": permissions}]);
        mesh.entry(json!({"Kind": "service-intentions", "Name": "api", "Sources": sources}));
    };
    // Who isn't spoken of may not call: only what is allowed comes in.
    set(permissions("allow"));
    from_now_on("200", || status(&mut client, "/exact"));
    for (method, path, headers, fits) in &requests {
        let response = client.request(method, path, headers, "").unwrap();
        let expected = if *fits { 200 } else { 403 };
        assert_eq!(response.status, expected, "{method} {path} {headers:?}");
    }
    // Everything else is allowed.
    let mut all = permissions("deny");
    all.push(json!({"Action": "allow", "HTTP": {"PathPrefix": "/"}}));
    set(all);
    from_now_on("200", || status(&mut client, "/"));
    for (method, path, headers, fits) in &requests {
        let response = client.request(method, path, headers, "").unwrap();
        let expected = if *fits { 403 } else { 200 };
        assert_eq!(response.status, expected, "{method} {path} {headers:?}");
    }

    // A denied path can't be asked for in other words.
    let mut other_words = |expected: &str| {
        for path in [
            "/exact",
            "/./exact",
            "/a/../exact",
            "/%65xact",
            "/prefix/%2e/a",
        ] {
            assert_eq!(status(&mut client, path).unwrap(), "403", "{path}");
        }
        assert_eq!(status(&mut client, "//exact").unwrap(), expected);
    };
    // Which is another path as long as nobody says otherwise.
    other_words("200");
    let normalization = json!({
        "MergeSlashes": true, "PathWithEscapedSlashesAction": "REJECT_REQUEST", "HeadersWithUnderscoresAction": "REJECT_REQUEST",
    });
    mesh.entry(json!({
        "Kind": "mesh", "HTTP": {"Incoming": {"RequestNormalization": normalization}},
    }));
    let address = web.address_of("api");
    from_now_on("403", || status(&mut Client::new(&address), "//exact"));
    let mut client = Client::new(&address);
    assert_eq!(status(&mut client, "/public%2fpath").unwrap(), "400");
    let response = client.get("/public", &[("under_score", "1")]).unwrap();
    assert_eq!(response.status, 400);
    assert_eq!(status(&mut client, "/public").unwrap(), "200");
    mesh.assert_calm(&envoys.each_ref());
}

#[test]
fn a_service_limits_logs_and_exposes() {
    let mesh = Mesh::start_deny();
    mesh.entry(json!({
        "Kind": "service-defaults", "Name": "api", "Protocol": "http",
        "MaxInboundConnections": 1, "LocalRequestTimeoutMs": 3_000,
    }));
    mesh.intention("web", "api", "allow");
    let (own, other) = (free_port(), free_port());
    let health = App::http("health");
    let api = Member::http("api", "api-1");
    let paths = json!([
        {"Path": "/healthz", "ListenerPort": own, "LocalPathPort": api.app.port()},
        {"Path": "/metrics", "ListenerPort": other, "LocalPathPort": health.port()},
    ]);
    let api = api
        .proxy("Expose", json!({"Checks": true, "Paths": paths}))
        .check_at("/alive");
    let web = Member::tcp("web", "web-1").upstream("api");
    mesh.register(&api);
    mesh.register(&web);
    let envoys = [mesh.envoy(&api), mesh.envoy(&web)];
    let address = web.address_of("api");
    from_now_on("200", || status(&mut Client::new(&address), "/"));

    let listeners = envoys[0].listeners();
    let mut names = listeners["listener_statuses"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|listener| listener["name"].as_str());
    let of_check = names.find_map(|name| name.strip_prefix("exposed_path_alive:127.0.0.1:"));
    let of_check: u16 = of_check.unwrap().parse().unwrap();

    // Beside the mesh: without a certificate, these paths only, each at its port.
    for (port, path, app) in [
        (own, "/healthz", "api-1"),
        (other, "/metrics", "health"),
        (of_check, "/alive", "api-1"),
    ] {
        let address = format!("127.0.0.1:{port}");
        let response = http::get(&address, path).unwrap();
        assert_eq!(response.header("x-app"), Some(app), "{response:?}");
        for closed in ["/", "/healthz/x", &path[..path.len() - 1]] {
            assert_eq!(http::get(&address, closed).unwrap().status, 404, "{closed}");
        }
    }

    limits(&mesh, &api, &address);
    logs(&mesh, &address);
    mesh.assert_calm(&envoys.each_ref());
}

/// One connection, which has its hands full; its request may only take so long.
fn limits(mesh: &Mesh, api: &Member, address: &str) {
    let held = {
        let mut client = Client::new(address);
        std::thread::spawn(move || client.get("/", &[("x-hold", "")]).unwrap().status)
    };
    wait_until("one waits", DEADLINE, || match api.app.held() {
        1 => Ok(()),
        held => Err(format!("{held} wait")),
    });
    assert_eq!(status(&mut Client::new(address), "/").unwrap(), "503");
    assert_eq!(held.join().unwrap(), 504);
    api.app.release();
    mesh.protocol("api", "http");
    from_now_on("200", || status(&mut Client::new(address), "/"));
}

fn logs(mesh: &Mesh, address: &str) {
    let file = |name: &str| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{name}-{}.log", std::process::id()));
        if path.exists() {
            std::fs::remove_file(&path).unwrap();
        }
        path
    };
    let set = |mut logs: Value, path: &PathBuf| {
        logs["Enabled"] = json!(true);
        logs["Type"] = json!("file");
        logs["Path"] = json!(path);
        mesh.entry(json!({"Kind": "proxy-defaults", "Name": "global", "AccessLogs": logs}));
    };
    // The same request is asked until it is in the log: what was asked before the log was there isn't.
    let logged = |path: &PathBuf, request: &str, fits: &dyn Fn(&str) -> bool| {
        wait_until(&format!("{request} in the log"), DEADLINE, || {
            let answer = Client::new(address).get(request, &[]);
            answer.map_err(|error| error.to_string())?;
            let text = std::fs::read_to_string(path).unwrap_or_default();
            if text.lines().any(fits) {
                Ok(())
            } else {
                Err(text)
            }
        });
    };
    let json_log = file("access-json");
    set(json!({}), &json_log);
    // The last line may not be there as a whole yet.
    let line = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_default();
    logged(&json_log, "/logged?a=b", &|text| {
        let line = line(text);
        line["path"] == "/logged?a=b"
            && line["method"] == "GET"
            && line["response_code"] == 200
            && line["upstream_cluster"] == "local_app"
    });
    mesh.intention("web", "api", "deny");
    logged(&json_log, "/denied", &|text| {
        let line = line(text);
        line["path"] == "/denied"
            && line["response_code"] == 403
            && line["response_code_details"]
                .as_str()
                .is_some_and(|details| details.starts_with("rbac_access_denied"))
    });
    let text_log = file("access-text");
    set(
        json!({"TextFormat": "%REQ(:PATH)% was %RESPONSE_CODE%"}),
        &text_log,
    );
    logged(&text_log, "/text", &|line| line == "/text was 403");
}
