//! Files that are made to exhaust: huge, deeply nested, repeated without end, multiplying. A server that is given them
//! says what is wrong at once, keeps its last good state, and grows by no more than a bounded amount.

use serde_json::Value;

use super::world::{Server, folder, height, until, write};

/// What the server may take at its height, in KiB: a text of the largest size that is read, its tree and its problems.
const MOST_MEMORY: u64 = 1_500_000;

const NESTED: usize = 1_000_000;

/// Ending, content, and words of the message.
fn cases() -> Vec<(&'static str, String, &'static str)> {
    let route = |pattern: &str| {
        format!(
            "Kind = \"service-router\"\nName = \"w\"\nRoutes = [{{ Match {{ HTTP {{ PathRegex = \"{pattern}\" }} }} }}]\n"
        )
    };
    let ring: String = (0..200)
        .map(|n| {
            let next = (n + 1) % 200;
            format!("{{ Kind = \"service-resolver\" Name = \"s{n}\" Redirect {{ Service = \"s{next}\" }} }},\n")
        })
        .collect();
    // Each level doubles what is below.
    let doubled: String = (0..30)
        .flat_map(|n| [("s", n), ("t", n)])
        .map(|(name, n)| {
            let next = n + 1;
            format!(
                "{{ Kind = \"service-splitter\" Name = \"{name}{n}\" Splits = \
                 [{{ Weight = 50 Service = \"s{next}\" }}, {{ Weight = 50 Service = \"t{next}\" }}] }},\n"
            )
        })
        .collect();
    let http = "{ Kind = \"proxy-defaults\" Name = \"global\" Config { protocol = \"http\" } },\n";
    let filter = "(".repeat(100_000);
    let resolver = "Kind = \"service-resolver\"\nName = \"w\"\n";
    vec![
        ("json", "[".repeat(NESTED), "flatten it"),
        ("json", "{\"a\":".repeat(NESTED), "flatten it"),
        ("hcl", format!("a = {}", "[".repeat(NESTED)), "flatten it"),
        ("hcl", "a {".repeat(NESTED), "flatten it"),
        ("hcl", format!("#{}", "x".repeat(17 << 20)), "split it"),
        ("json", " ".repeat(17 << 20), "split it"),
        (
            "json",
            format!("{{\"a\": \"{}", "x".repeat(15 << 20)),
            "never closed",
        ),
        (
            "hcl",
            "qqqqqqqqqqq = 1\n".repeat(500_000),
            "remove one of the two",
        ),
        (
            "hcl",
            "service { prt = 1 }\n".repeat(100_000),
            "mend what is named before",
        ),
        (
            "hcl",
            format!("{resolver}Subsets {{ v1 {{ Filter = \"{filter}\" }} }}\n"),
            "shorten it",
        ),
        ("hcl", route("((((a{100}){100}){100}){100})"), "too large"),
        (
            "hcl",
            route(&format!("{}{}", "(".repeat(5_000), ")".repeat(5_000))),
            "nested parentheses",
        ),
        (
            "hcl",
            format!("config_entries {{ bootstrap = [\n{ring}] }}\n"),
            "circular resolver redirect",
        ),
        (
            "hcl",
            format!("config_entries {{ bootstrap = [\n{http}{doubled}] }}\n"),
            "nest fewer splitters",
        ),
    ]
}

#[test]
fn what_is_made_to_exhaust_is_refused_and_the_last_good_state_stays() {
    let good = "service {\n  name = \"web\"\n  port = 80\n}\n";
    let there = folder(&[("c/web.hcl", good)]);
    let server = Server::start(there.path(), &["--config", "c"]);
    let before = server.store_index();
    for (n, (ending, content, words)) in cases().into_iter().enumerate() {
        let name = format!("c/x{n}.{ending}");
        write(there.path(), &name, &content);
        until(words, || {
            let log = server.whole_log();
            (log.contains(&name) && log.contains(words)).then_some(())
        });
        std::fs::remove_file(there.path().join(&name)).unwrap();
    }
    server.logged("the last good state stays");
    let web = server.get("/v1/agent/service/web").unwrap();
    assert_eq!(web["Port"], Value::from(80));
    assert_eq!(server.store_index(), before, "nothing was written");
    let most = height(server.pid());
    assert!(most < MOST_MEMORY, "{most} KiB");
    assert_eq!(server.stop().0, 0);
}
