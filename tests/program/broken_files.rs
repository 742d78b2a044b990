//! What is wrong with files is said with its place and what mends it, all of it at once, and ends with 2.

use serde_json::Value;

use super::broken_more::MORE;
use super::world::{folder, run};

/// A file, where its problem is, and words of the message, the mend among them.
pub type Case = (
    &'static str,
    &'static [u8],
    &'static str,
    &'static [&'static str],
);

#[rustfmt::skip]
const CASES: &[Case] = &[
    // Syntax.
    ("a.hcl", b"service {\n  name = \"web\"\n", "1:9", &["never closed", "add `}`"]),
    ("a.hcl", b"service {\n  name: \"web\"\n}\n", "2:7", &["`:`", "write `=`"]),
    ("a.hcl", b"service {\n  name = 'web'\n}\n", "2:10", &["double quotes"]),
    ("a.hcl", b"service {\n  name = \"web\n}\n", "2:14", &["line break", "close the string"]),
    ("a.hcl", b"service {\n  name = <<EOF\nweb\n}\n", "2:10", &["heredoc", "only `EOF`"]),
    ("a.hcl", b"node_name = \"a\"\nnode_name = \"b\"\n", "2:1", &["already set at 1:1", "remove one"]),
    ("a.json", b"{\"service\": {\"name\": \"web\" \"port\": 1}}", "1:28", &["write `,`"]),
    ("a.json", b"{\"service\": {\"name\": \"web\"}} x", "1:30", &["remove what follows"]),
    ("a.json", b"{\"service\": {\"name\": \"web\",}}", "1:28", &["remove the comma"]),
    ("a.json", b"[{\"Kind\": \"mesh\"}]", "1:1", &["an object, not a list", "\"services\""]),
    ("a.json", b"service { name = \"web\" }", "1:1", &["not a JSON value"]),
    ("a.json", b"{\"service\": {\"name\": \"a\",\n \"name\": \"b\"}}", "2:2", &["twice", "1:14", "remove one"]),
    // Nothing, or not text.
    ("a.hcl", b"", "1:1", &["empty", "or remove it"]),
    ("a.json", b" \n\t\n", "1:1", &["empty", "or remove it"]),
    ("a.hcl", b"service {\n  name = \"w\xff\"\n}\n", "2:12", &["not UTF-8", "save the text as UTF-8"]),
    ("a.hcl", b"\xef\xbb\xbfnode_name = \"a\"\n", "1:1", &["byte order mark", "without one"]),
    // Unknown keys.
    ("a.hcl", b"node_name = \"a\"\nservce {\n  name = \"web\"\n}\n", "2:1: servce", &["unknown key", "service?"]),
    ("a.hcl", b"service {\n  name = \"web\"\n  prot = 80\n}\n", "3:3: service.prot", &["unknown key", "Port?"]),
    ("a.hcl", b"service {\n  name = \"web\"\n  port = 1\n  connect {\n    sidecar_service {\n      proxi { }\n    }\n  }\n}\n",
     "6:7: service.Connect.SidecarService.proxi", &["Proxy?"]),
    ("a.hcl", b"name = \"web\"\n", "1:1: name", &["into a service block"]),
    ("a.hcl", b"qqqqqqqqqq = 1\n", "1:1: qqqqqqqqqq", &["unknown key; remove it"]),
    ("a.hcl", b"config_entries {\n  bootstrp = []\n}\n", "2:3: config_entries.bootstrp", &["bootstrap?"]),
    ("a.hcl", b"ports {\n  htp = 1\n}\n", "2:3: ports.htp", &["http?"]),
    ("a.hcl", b"Kind = \"service-defaults\"\nName = \"web\"\nProtocl = \"http\"\n", "3:1: Protocl", &["Protocol?"]),
    // Kinds.
    ("a.json", b"{\"Kind\": \"connect-proxy\", \"Name\": \"web-proxy\"}", "1:2: Kind", &["kind of service", "service block"]),
    ("a.hcl", b"Kind = \"service-defalts\"\nName = \"web\"\n", "1:1: Kind", &["is not one of", "\"service-defaults\""]),
    ("a.hcl", b"config_entries {\n  bootstrap = [\n    { Name = \"web\" }\n  ]\n}\n", "3:5: config_entries.bootstrap[0]", &["needs a Kind"]),
    // Wrong types.
    ("a.hcl", b"service {\n  name = \"web\"\n  port = \"eighty\"\n}\n", "3:3: service.Port", &["must be a whole number"]),
    ("a.hcl", b"service {\n  name = \"web\"\n  tags = \"a\"\n}\n", "3:3: service.Tags", &["must be a list"]),
    ("a.json", b"{\"service\": {\"name\": 7}}", "1:14: service.Name", &["must be a string"]),
    ("a.hcl", b"service = \"web\"\n", "1:1: service", &["must be an object"]),
    ("a.hcl", b"node_name = 7\n", "1:1: node_name", &["must be a string"]),
    ("a.hcl", b"config_entries = 7\n", "1:1: config_entries", &["must be an object"]),
    ("a.hcl", b"service {\n  name = \"web\"\n  connect {\n    sidecar_service {}\n    sidecar_service {}\n  }\n}\n",
     "4:5: service.Connect.SidecarService", &["one object", "given twice?"]),
    // Out of range.
    ("a.hcl", b"service {\n  name = \"web\"\n  port = 70000\n}\n", "3:3: service.Port", &["out of range (0 to 65535)"]),
    ("a.hcl", b"service {\n  name = \"web\"\n  port = -1\n}\n", "3:3: service.Port", &["out of range (0 to 65535)"]),
    ("a.hcl", b"ports {\n  http = -1\n}\n", "2:3: ports.http", &["from 1 to 65535"]),
    ("a.hcl", b"ports {\n  sidecar_min_port = 300\n  sidecar_max_port = 200\n}\n", "3:3: ports.sidecar_max_port", &["make the second the larger"]),
    ("a.hcl", b"default_intention_policy = \"alow\"\n", "1:1: default_intention_policy", &["\"allow\", \"deny\""]),
    ("a.hcl", b"service {\n  name = \"web\"\n  check {\n    tcp = \"127.0.0.1:1\"\n    interval = \"10 sec\"\n  }\n}\n",
     "5:5: service.Check.Interval", &["not a duration", "\"10s\""]),
    ("a.hcl", b"Kind = \"service-splitter\"\nName = \"web\"\nSplits = [{ Weight = 50 }, { Weight = 20, Service = \"b\" }]\n", "3:1: Splits", &["70", "100"]),
    ("a.hcl", b"Kind = \"service-router\"\nName = \"web\"\nRoutes = [\n  { Match { HTTP { PathRegex = \"(\" } } }\n]\n",
     "4:20: Routes[0].Match.HTTP.PathRegex", &["unclosed group"]),
    // Names.
    ("a.hcl", b"datacenter = \"dc one\"\n", "1:1: datacenter", &["letters, digits"]),
    ("a.hcl", b"node_name = \"\"\n", "1:1: node_name", &["must not be empty"]),
    ("a.hcl", b"service {\n  port = 80\n}\n", "1:1: service.Name", &["must not be empty"]),
    ("a.hcl", b"service {\n  name = \"a.b\"\n  connect { sidecar_service {} }\n}\n", "2:3: service.Name", &["letters, digits"]),
    ("a.hcl", b"service {\n  name = \"web\"\n  namespace = \"team\"\n}\n", "3:3: service.Namespace", &["enterprise only"]),
    ("a.hcl", b"services = [\n  { name = \"web\" },\n  { name = \"WEB\" }\n]\n", "3:3: services[1].ID", &["a.hcl:2:3", "an id of its own"]),
    ("a.hcl", b"services = [\n  { name = \"web\" connect { sidecar_service {} } },\n  { name = \"web-sidecar-proxy\" }\n]\n",
     "3:3: services[1].ID", &["a.hcl:2:3", "an id of its own"]),
    ("a.hcl", b"config_entries {\n  bootstrap { Kind = \"mesh\" }\n  bootstrap { Kind = \"mesh\" }\n}\n",
     "3:13: config_entries.bootstrap[1]", &["mesh/mesh", "a.hcl:2:13", "remove one"]),
    // Ports.
    ("a.hcl", b"service {\n  name = \"web\"\n  port = 1\n  connect { sidecar_service { proxy { upstreams = [\n    { destination_name = \"db\" }\n  ] } } }\n}\n",
     "5:5: service.Connect.SidecarService.Proxy.Upstreams[0]", &["exactly one of LocalBindPort"]),
    ("a.hcl", b"service {\n  name = \"web\"\n  port = 1\n  connect { sidecar_service { proxy { upstreams = [\n    { destination_name = \"db\" local_bind_port = 5000 },\n    { destination_name = \"cache\" local_bind_port = 5000 }\n  ] } } }\n}\n",
     "6:5: service.Connect.SidecarService.Proxy.Upstreams[1]", &["127.0.0.1:5000", "\"db\""]),
    // FC-036.
    ("a.hcl", b"service {\n  name = \"web\"\n  port = 1\n  connect { sidecar_service {\n    port = 20000\n    proxy { upstreams = [{ destination_name = \"db\" local_bind_port = 20000 }] }\n  } }\n}\n",
     "6:52: service.Connect.SidecarService.Proxy.Upstreams[0].LocalBindPort", &["\"db\"", "\"web-sidecar-proxy\"", "20000"]),
    // Checks.
    ("a.hcl", b"service {\n  name = \"web\"\n  check { name = \"x\" }\n}\n", "3:3: service.Check", &["exactly one of HTTP"]),
    ("a.hcl", b"service {\n  name = \"web\"\n  check {\n    args = [\"/bin/true\"]\n    interval = \"1s\"\n  }\n}\n", "4:5: service.Check.Args", &["not run here", "use HTTP"]),
    ("a.hcl", b"service {\n  name = \"web\"\n  check {\n    tcp = \"127.0.0.1:1\"\n  }\n}\n", "3:3: service.Check.Interval", &["needs an interval", "\"10s\""]),
    ("a.hcl", b"check {\n  name = \"c\"\n  service_id = \"web\"\n  ttl = \"10s\"\n}\n", "3:3: check.ServiceID", &["\"web\"", "define the service"]),
    ("a.hcl", b"check {\n  ttl = \"10s\"\n}\n", "1:1: check.Name", &["needs a name or an id"]),
    ("a.hcl", b"checks = [\n  { name = \"c\" ttl = \"10s\" },\n  { name = \"c\" ttl = \"20s\" }\n]\n", "3:3: checks[1].CheckID", &["a.hcl:2:3", "an id of its own"]),
    // Entries that need others.
    ("a.hcl", b"Kind = \"service-router\"\nName = \"web\"\nRoutes = [{ Match { HTTP { PathPrefix = \"/\" } } }]\n", "1:1", &["\"web\"", "set protocol http"]),
    ("a.hcl", b"Kind = \"service-intentions\"\nName = \"web\"\nJWT { Providers = [{ Name = \"okta\" }] }\nSources = [{ Name = \"a\" Action = \"allow\" }]\n",
     "1:1", &["jwt-provider \"okta\"", "write it first"]),
];

#[test]
fn every_problem_names_place_and_mend() {
    assert!(CASES.len() + MORE.len() >= 140);
    for (name, content, place, words) in CASES.iter().chain(MORE) {
        let there = folder(&[]);
        std::fs::write(there.path().join(name), content).unwrap();
        let ended = run(there.path(), &["validate", name]);
        let shown = String::from_utf8_lossy(content);
        assert_eq!(ended.code, 2, "{shown}\n{}", ended.err);
        assert_eq!(ended.out, "", "{shown}");
        let lines: Vec<&str> = ended.err.lines().collect();
        let [line] = lines.as_slice() else {
            panic!("not one problem: {shown}\n{}", ended.err);
        };
        assert!(
            line.starts_with(&format!("{name}:{place}: ")),
            "{shown}\n{line}"
        );
        for word in *words {
            assert!(line.contains(word), "{word}\n{shown}\n{line}");
        }
    }
}

#[test]
fn serve_refuses_with_the_same_words() {
    for (name, content, ..) in CASES.iter().chain(MORE).step_by(12) {
        let there = folder(&[]);
        std::fs::write(there.path().join(name), content).unwrap();
        let validated = run(there.path(), &["validate", name]);
        let served = run(there.path(), &["serve", "--config", name]);
        assert_eq!((served.code, served.err), (2, validated.err));
    }
}

#[test]
fn all_problems_of_all_files_come_together_and_sorted() {
    let there = folder(&[
        (
            "c/b.hcl",
            "service {\n  name = \"web\"\n  port = 70000\n  tags = 1\n}\nservce { }\n",
        ),
        ("c/a.hcl", "datacenter = \"dc1\"\nKind2 = 1\n"),
        ("c/c.json", "{\"datacenter\": \"dc2\"}"),
        ("c/d.hcl", "node_name = \n"),
    ]);
    std::os::unix::fs::symlink("nowhere", there.path().join("c/e.hcl")).unwrap();
    let ended = run(there.path(), &["validate", "c"]);
    assert_eq!(ended.code, 2);
    let places: Vec<String> = ended
        .err
        .lines()
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(
        places,
        [
            "c/a.hcl:2:1:",
            "c/b.hcl:3:3:",
            "c/b.hcl:4:3:",
            "c/b.hcl:6:1:",
            "c/c.json:1:2:",
            "c/d.hcl:2:1:",
            "c/e.hcl:"
        ],
        "{}",
        ended.err
    );
    let differs = "c/c.json:1:2: datacenter: \"dc2\" differs from \"dc1\" in c/a.hcl:1:1; make them the same or remove one";
    assert!(ended.err.contains(differs), "{}", ended.err);
}

#[test]
fn clashes_between_files_name_both() {
    let there = folder(&[
        (
            "c/a.hcl",
            "service {\n  name = \"web\"\n}\nconfig_entries {\n  bootstrap { Kind = \"service-defaults\" Name = \"web\" }\n}\n",
        ),
        (
            "c/b.hcl",
            "service {\n  name = \"web\"\n}\nnode_name = \"n1\"\n",
        ),
        ("c/c.hcl", "Kind = \"service-defaults\"\nName = \"Web\"\n"),
        ("c/d.json", "{\"node_name\": \"n2\"}"),
    ]);
    let ended = run(there.path(), &["validate", "c"]);
    assert_eq!(
        ended.err,
        "c/b.hcl:1:1: service.ID: the service id \"web\" is defined in c/a.hcl:1:1 too; give each service an id of its own\n\
         c/c.hcl:1:1: the config entry service-defaults/web is defined in c/a.hcl:5:3 too; remove one\n\
         c/d.json:1:2: node_name: \"n2\" differs from \"n1\" in c/b.hcl:4:1; make them the same or remove one\n"
    );
}

#[test]
fn what_is_fine_is_counted_and_what_is_odd_is_warned_of() {
    let there = folder(&[
        (
            "c/a.hcl",
            "server = true\nretry_join = [\"x\"]\nservice {\n  name = \"web\"\n  connect { sidecar_service { port = 20000 } }\n}\n",
        ),
        (
            "c/b.hcl",
            "server = true\nservice {\n  name = \"db\"\n  connect { sidecar_service { port = 20000 } }\n}\n",
        ),
        ("c/c.hcl", "# all of it is commented out\n"),
        ("c/d/ignored.hcl", "not read"),
        ("c/.hidden.hcl", "not read"),
        ("c/e.hcl~", "not read"),
        ("c/README", "not read"),
    ]);
    let ended = run(there.path(), &["validate", "c"]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert_eq!(
        ended.out,
        "3 files: 2 services (and 2 sidecars), 0 config entries\n"
    );
    // FC-037 is a warning; a key without effect is warned of once, however many files have it.
    assert_eq!(
        ended.err,
        "warning: c/a.hcl:1:1: server: has no effect here\n\
         warning: c/a.hcl:2:1: retry_join: has no effect here\n\
         warning: c/b.hcl:4:3: service.Connect.SidecarService.Port: \"db-sidecar-proxy\" has port 20000 as \
         \"web-sidecar-proxy\" in c/a.hcl:3:1 has; both can listen only in separate network namespaces\n\
         warning: c/c.hcl: the file defines nothing that is used here\n\
         warning: c/d: a folder inside a folder is not read; give it a --config of its own or remove it\n"
    );
}

#[test]
fn problems_as_json() {
    let there = folder(&[
        ("a.hcl", "service {\n  name = \"web\"\n  prot = 80\n}\n"),
        ("b.hcl", "server = true\n"),
    ]);
    let ended = run(there.path(), &["validate", "--json", "a.hcl"]);
    assert_eq!(ended.code, 2);
    let json: Value = serde_json::from_str(&ended.out).unwrap();
    let problem = &json["Errors"][0];
    assert_eq!(problem["Path"], "a.hcl");
    assert_eq!(
        (&problem["Line"], &problem["Column"]),
        (&3.into(), &3.into())
    );
    assert_eq!(problem["Key"], "service.prot");

    let ended = run(there.path(), &["validate", "--json", "b.hcl"]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    let json: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(json["Errors"], Value::Array(Vec::new()));
    assert_eq!(json["Warnings"][0]["Key"], "server");
}

#[test]
fn a_file_that_is_named_twice_is_read_once() {
    let there = folder(&[("c/a.hcl", "service {\n  name = \"web\"\n}\n")]);
    let ended = run(there.path(), &["validate", "c", "c/a.hcl", "./c"]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert_eq!(ended.out, "1 file: 1 service, 0 config entries\n");
}
