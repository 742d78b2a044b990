//! Routers: which request lands where, and what happens to it on the way.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::member::Member;
use crate::support::http::{self, Client, Response};
use crate::support::{DEADLINE, wait_until};
use crate::traffic::from_now_on;
use crate::world::Mesh;

/// What stands in an application's answer to a request: who answered, and the path that it saw.
fn landing(response: &Response) -> (String, String) {
    let seen = response.json();
    let text = |key: &str| seen[key].as_str().unwrap().to_owned();
    (text("name"), text("path"))
}

/// The header that the application saw.
fn seen(response: &Response, header: &str) -> Option<String> {
    response.json()["headers"][header]
        .as_str()
        .map(str::to_owned)
}

fn router(service: &str, routes: Vec<Value>) -> Value {
    json!({"Kind": "service-router", "Name": service, "Routes": routes})
}

fn route(matches: Value, destination: Value) -> Value {
    json!({"Match": {"HTTP": matches}, "Destination": destination})
}

/// A caller `web` of an HTTP service `api`, and another one, `admin`. Each has one instance, whose id ends in `-1`.
struct World {
    mesh: Mesh,
    api: Member,
    admin: Member,
    web: Member,
    envoys: Vec<crate::support::envoy::Envoy>,
}

impl World {
    fn start() -> Self {
        let mesh = Mesh::start();
        for service in ["api", "admin"] {
            mesh.protocol(service, "http");
        }
        let api = Member::http("api", "api-1");
        let admin = Member::http("admin", "admin-1");
        let web = Member::tcp("web", "web-1").upstream("api");
        for member in [&api, &admin, &web] {
            mesh.register(member);
        }
        let envoys = [&api, &admin, &web].map(|member| mesh.envoy(member)).into();
        Self {
            mesh,
            api,
            admin,
            web,
            envoys,
        }
    }

    /// `address:port` of web's upstream.
    fn address(&self) -> String {
        self.web.address_of("api")
    }

    fn client(&self) -> Client {
        Client::new(&self.address())
    }

    /// Puts up a router, with one more route at its end that tells when it is in force.
    fn route(&self, generation: &str, mut routes: Vec<Value>) {
        let name = "x-generation";
        routes.push(route(
            json!({"PathExact": "/generation"}),
            json!({"ResponseHeaders": {"Set": {name: generation}}}),
        ));
        self.mesh.entry(router("api", routes));
        from_now_on(generation, || -> io::Result<String> {
            let response = http::get(&self.address(), "/generation")?;
            Ok(response.header(name).unwrap_or_default().to_owned())
        });
    }

    fn assert_calm(&self) {
        let envoys: Vec<_> = self.envoys.iter().collect();
        self.mesh.assert_calm(&envoys);
    }
}

/// Method, path, headers; who answers, and the path there.
type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a str, &'a str);

#[test]
fn a_router_chooses_by_path_header_query_and_method() {
    let world = World::start();
    let to_admin = || json!({"Service": "admin"});
    let rewritten = |to: &str| json!({"Service": "admin", "PrefixRewrite": to});
    let header = |path: &str, condition: Value| {
        route(
            json!({"PathPrefix": path, "Header": [condition]}),
            to_admin(),
        )
    };
    let query = |condition: Value| {
        route(
            json!({"PathPrefix": "/query", "QueryParam": [condition]}),
            to_admin(),
        )
    };
    let routes = vec![
        route(json!({"PathExact": "/exact"}), to_admin()),
        route(json!({"PathPrefix": "/prefix/mine"}), json!({})),
        route(json!({"PathPrefix": "/prefix/"}), to_admin()),
        route(json!({"PathRegex": "/re/[0-9]+(/x)?"}), to_admin()),
        route(
            json!({"PathExact": "/Any-Case", "CaseInsensitive": true}),
            to_admin(),
        ),
        route(
            json!({"PathRegex": "/RE-case/[a-c]", "CaseInsensitive": true}),
            to_admin(),
        ),
        route(json!({"PathPrefix": "/old/"}), rewritten("/new/v1/")),
        route(json!({"PathExact": "/old-page"}), rewritten("/page")),
        // What is put in place of the prefix is taken as it is.
        route(json!({"PathPrefix": "/literal"}), rewritten("/")),
        header("/header", json!({"Name": "x-exact", "Exact": "yes"})),
        header("/header", json!({"Name": "x-present", "Present": true})),
        header("/header", json!({"Name": "x-prefix", "Prefix": "pre"})),
        header("/header", json!({"Name": "x-suffix", "Suffix": "fix"})),
        header("/header", json!({"Name": "x-regex", "Regex": "[a-f0-9]+"})),
        header(
            "/invert",
            json!({"Name": "x-not", "Exact": "me", "Invert": true}),
        ),
        header(
            "/absent",
            json!({"Name": "x-not", "Present": true, "Invert": true}),
        ),
        query(json!({"Name": "exact", "Exact": "1"})),
        query(json!({"Name": "present", "Present": true})),
        query(json!({"Name": "regex", "Regex": "v[0-9]+"})),
        route(
            json!({"PathPrefix": "/method", "Methods": ["put", "DELETE"]}),
            to_admin(),
        ),
        // All conditions of a route must hold.
        route(
            json!({
                "PathPrefix": "/all", "Methods": ["POST"], "QueryParam": [{"Name": "q", "Exact": "1"}],
                "Header": [{"Name": "x-a", "Exact": "1"}, {"Name": "x-b", "Present": true}],
            }),
            to_admin(),
        ),
    ];
    world.route("paths", routes);
    let both: &[(&str, &str)] = &[("x-a", "1"), ("x-b", "")];
    let cases: &[Case<'_>] = &[
        ("GET", "/", &[], "api-1", "/"),
        ("GET", "/exact", &[], "admin-1", "/exact"),
        ("GET", "/exact?a=b", &[], "admin-1", "/exact?a=b"),
        ("GET", "/exact/more", &[], "api-1", "/exact/more"),
        // The first route that matches decides.
        ("GET", "/prefix/mine/a", &[], "api-1", "/prefix/mine/a"),
        ("GET", "/prefix/other", &[], "admin-1", "/prefix/other"),
        ("GET", "/prefix", &[], "api-1", "/prefix"),
        ("GET", "/re/12", &[], "admin-1", "/re/12"),
        ("GET", "/re/12/x?y=z", &[], "admin-1", "/re/12/x?y=z"),
        // The whole path has to match.
        ("GET", "/re/12/y", &[], "api-1", "/re/12/y"),
        ("GET", "/re/a", &[], "api-1", "/re/a"),
        ("GET", "/aNY-cASE", &[], "admin-1", "/aNY-cASE"),
        ("GET", "/re-CASE/B", &[], "admin-1", "/re-CASE/B"),
        ("GET", "/re-CASE/D", &[], "api-1", "/re-CASE/D"),
        ("GET", "/old/a/b?c=d", &[], "admin-1", "/new/v1/a/b?c=d"),
        ("GET", "/old-page", &[], "admin-1", "/page"),
        ("GET", "/literal", &[], "admin-1", "/"),
        ("GET", "/literal/a", &[], "admin-1", "//a"),
        ("GET", "/literally", &[], "admin-1", "/ly"),
        ("GET", "/header", &[], "api-1", "/header"),
        (
            "GET",
            "/header",
            &[("X-Exact", "yes")],
            "admin-1",
            "/header",
        ),
        ("GET", "/header", &[("x-exact", "yes!")], "api-1", "/header"),
        (
            "GET",
            "/header",
            &[("x-present", "any")],
            "admin-1",
            "/header",
        ),
        (
            "GET",
            "/header",
            &[("x-prefix", "prefer")],
            "admin-1",
            "/header",
        ),
        (
            "GET",
            "/header",
            &[("x-prefix", "a-pre")],
            "api-1",
            "/header",
        ),
        (
            "GET",
            "/header",
            &[("x-suffix", "prefix")],
            "admin-1",
            "/header",
        ),
        (
            "GET",
            "/header",
            &[("x-suffix", "fixed")],
            "api-1",
            "/header",
        ),
        (
            "GET",
            "/header",
            &[("x-regex", "c0ffee")],
            "admin-1",
            "/header",
        ),
        (
            "GET",
            "/header",
            &[("x-regex", "c0ffee-")],
            "api-1",
            "/header",
        ),
        ("GET", "/invert", &[("x-not", "you")], "admin-1", "/invert"),
        ("GET", "/invert", &[("x-not", "me")], "api-1", "/invert"),
        ("GET", "/absent", &[], "admin-1", "/absent"),
        ("GET", "/absent", &[("x-not", "")], "api-1", "/absent"),
        ("GET", "/query", &[], "api-1", "/query"),
        (
            "GET",
            "/query?exact=1&b=2",
            &[],
            "admin-1",
            "/query?exact=1&b=2",
        ),
        ("GET", "/query?exact=2", &[], "api-1", "/query?exact=2"),
        ("GET", "/query?present", &[], "admin-1", "/query?present"),
        (
            "GET",
            "/query?regex=v12",
            &[],
            "admin-1",
            "/query?regex=v12",
        ),
        (
            "GET",
            "/query?regex=v12x",
            &[],
            "api-1",
            "/query?regex=v12x",
        ),
        ("GET", "/method", &[], "api-1", "/method"),
        ("PUT", "/method", &[], "admin-1", "/method"),
        ("DELETE", "/method", &[], "admin-1", "/method"),
        ("POST", "/method", &[], "api-1", "/method"),
        ("POST", "/all?q=1", both, "admin-1", "/all?q=1"),
        ("GET", "/all?q=1", both, "api-1", "/all?q=1"),
        ("POST", "/all?q=2", both, "api-1", "/all?q=2"),
        ("POST", "/all?q=1", &both[..1], "api-1", "/all?q=1"),
    ];
    let mut client = world.client();
    for (method, path, headers, name, there) in cases {
        let response = client.request(method, path, headers, "").unwrap();
        assert_eq!(
            landing(&response),
            ((*name).to_owned(), (*there).to_owned()),
            "{method} {path} {headers:?}"
        );
    }

    // The other way round, while requests go on: the order of the routes is kept.
    let exact = route(json!({"PathExact": "/x"}), json!({}));
    let prefix = route(json!({"PathPrefix": "/x"}), to_admin());
    world.route("exact first", vec![exact.clone(), prefix.clone()]);
    assert_eq!(landing(&client.get("/x", &[]).unwrap()).0, "api-1");
    assert_eq!(landing(&client.get("/xy", &[]).unwrap()).0, "admin-1");
    world.route("prefix first", vec![prefix, exact]);
    assert_eq!(landing(&client.get("/x", &[]).unwrap()).0, "admin-1");
    world.mesh.delete_entry("service-router", "api");
    from_now_on("api-1", || {
        Ok(landing(&http::get(&world.address(), "/x")?).0)
    });
    world.assert_calm();
}

#[test]
fn a_route_changes_headers_waits_only_so_long_and_tries_again() {
    let mut world = World::start();
    headers(&world);
    timeouts(&world);
    retries(&world);
    upgrades(&world);
    retries_of_connections(&mut world);
    world.assert_calm();
}

fn headers(world: &World) {
    world.route(
        "headers",
        vec![route(
            json!({"PathPrefix": "/headers"}),
            json!({
                "RequestHeaders": {
                    "Add": {"x-added": "more", "x-from": "%DOWNSTREAM_LOCAL_PORT%"}, "Set": {"x-set": "mesh"}, "Remove": ["x-removed"],
                },
                "ResponseHeaders": {"Add": {"x-added": "more"}, "Set": {"x-set": "mesh"}, "Remove": ["x-app"]},
            }),
        )],
    );
    let mut client = world.client();
    let sent = [("x-added", "one"), ("x-set", "mine"), ("x-removed", "here")];
    let response = client.get("/headers", &sent).unwrap();
    assert_eq!(response.status, 200);
    // Further values of a header follow the first; the application keeps the last line.
    assert_eq!(seen(&response, "x-added").as_deref(), Some("more"));
    assert_eq!(seen(&response, "x-set").as_deref(), Some("mesh"));
    assert_eq!(seen(&response, "x-removed"), None);
    let port = world.address().rsplit_once(':').unwrap().1.to_owned();
    assert_eq!(seen(&response, "x-from"), Some(port));
    assert_eq!(response.header("x-app"), None);

    let values = |response: &Response, name: &str| -> Vec<String> {
        let of = response.headers.iter().filter(|(key, _)| key == name);
        of.map(|(_, value)| value.clone()).collect()
    };
    let answered = client.get("/headers", &[("x-answer", "x-added=one")]);
    assert_eq!(values(&answered.unwrap(), "x-added"), ["one", "more"]);
    let answered = client.get("/headers", &[("x-answer", "x-set=mine")]);
    assert_eq!(values(&answered.unwrap(), "x-set"), ["mesh"]);
    // Elsewhere nothing changes.
    let response = client.get("/", &sent).unwrap();
    assert_eq!(seen(&response, "x-removed").as_deref(), Some("here"));
    assert_eq!(seen(&response, "x-set").as_deref(), Some("mine"));
    assert_eq!(response.header("x-app"), Some("api-1"));
}

fn timeouts(world: &World) {
    world.route(
        "timeouts",
        vec![
            route(
                json!({"PathPrefix": "/request"}),
                json!({"RequestTimeout": "100ms"}),
            ),
            route(
                json!({"PathPrefix": "/idle"}),
                json!({"Service": "admin", "RequestTimeout": "1h", "IdleTimeout": "100ms"}),
            ),
        ],
    );
    let mut client = world.client();
    let held_header = [("x-hold", "")];
    let response = client.get("/request", &held_header).unwrap();
    assert_eq!(response.status, 504, "{response:?}");
    let response = client.get("/idle", &held_header).unwrap();
    assert!(matches!(response.status, 408 | 504), "{response:?}");
    for app in [&world.api.app, &world.admin.app] {
        app.release();
    }

    // The resolver's own timeout holds where no route says otherwise, and only there.
    world
        .mesh
        .entry(json!({"Kind": "service-resolver", "Name": "api", "RequestTimeout": "100ms"}));
    world.route(
        "resolver's timeout",
        vec![route(
            json!({"PathPrefix": "/patient"}),
            json!({"RequestTimeout": "1h"}),
        )],
    );
    wait_until("nobody waits", DEADLINE, || held(&world.api, 0));
    let patient = {
        let mut client = world.client();
        std::thread::spawn(move || client.get("/patient", &[("x-hold", "")]).unwrap().status)
    };
    wait_until("the patient one waits", DEADLINE, || held(&world.api, 1));
    assert_eq!(client.get("/", &held_header).unwrap().status, 504);
    world.api.app.release();
    assert_eq!(patient.join().unwrap(), 200);
    world.mesh.delete_entry("service-resolver", "api");
}

/// Whether so many requests wait for an application's answer.
fn held(member: &Member, count: usize) -> Result<(), String> {
    match member.app.held() {
        held if held == count => Ok(()),
        held => Err(format!("{held} wait")),
    }
}

fn retries(world: &World) {
    world.route(
        "retries",
        vec![
            route(
                json!({"PathPrefix": "/status"}),
                json!({"NumRetries": 2, "RetryOnStatusCodes": [503]}),
            ),
            route(
                json!({"PathPrefix": "/condition"}),
                json!({"NumRetries": 2, "RetryOn": ["5xx"]}),
            ),
            route(
                json!({"PathPrefix": "/other"}),
                json!({"NumRetries": 2, "RetryOnStatusCodes": [500]}),
            ),
        ],
    );
    let mut client = world.client();
    for (path, failures, status, tries) in [
        ("/status", 0, 200, 1),
        ("/status", 2, 200, 3),
        ("/status", 3, 503, 3),
        ("/condition", 2, 200, 3),
        ("/other", 1, 503, 1),
        ("/", 1, 503, 1),
    ] {
        let before = world.api.app.served();
        let rule = format!("{path}{failures}={failures}");
        let response = client.get(path, &[("x-fail-first", &rule)]).unwrap();
        assert_eq!(response.status, status, "{path} {failures}");
        assert_eq!(world.api.app.served() - before, tries, "{path} {failures}");
    }
}

/// A websocket passes both proxies.
fn upgrades(world: &World) {
    let mut stream = TcpStream::connect(world.address()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let lines = [
        "GET /chat HTTP/1.1",
        "Host: api",
        "Connection: Upgrade",
        "Upgrade: websocket",
    ];
    let head = format!("{}\r\n\r\n", lines.join("\r\n"));
    stream.write_all(head.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 101 "), "{line}");
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).unwrap();
    }
    stream.write_all(b"ping\n").unwrap();
    line.clear();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "ping\n");
}

/// An instance that nobody listens for is passed over.
fn retries_of_connections(world: &mut World) {
    world.route(
        "connections",
        vec![route(
            json!({"PathPrefix": "/again"}),
            json!({"NumRetries": 3, "RetryOnConnectFailure": true}),
        )],
    );
    // Without an Envoy.
    let dead = Member::http("api", "api-2");
    world.mesh.register(&dead);
    let mut client = world.client();
    wait_until("requests fail", DEADLINE, || {
        let response = client
            .get("/once", &[])
            .map_err(|error| error.to_string())?;
        if response.status == 503 {
            Ok(())
        } else {
            Err(response.status.to_string())
        }
    });
    for _ in 0..20 {
        let response = client.get("/again", &[]).unwrap();
        assert_eq!(response.status, 200, "{response:?}");
    }
    world.mesh.deregister(&dead);
}
