//! `proxycfg chain`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::client::{Client, ServerArgs};
use super::table::one_line;
use super::{Failure, print, print_json};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Name of the service.
    service: String,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let answer = client.get(&["discovery-chain", &args.service], &[])?;
    let chain = answer.json.get("Chain").unwrap_or(&answer.json);
    if args.server.json {
        return print_json(chain, true);
    }
    print(&tree(chain))
}

/// The chain from its start, a node a line, indented below what leads to it.
fn tree(chain: &Value) -> String {
    let mut lines = vec![format!(
        "{} ({})",
        text(chain, "ServiceName"),
        text(chain, "Protocol")
    )];
    let mut walk = Walk {
        chain,
        lines: &mut lines,
        path: BTreeSet::new(),
    };
    walk.node(&text(chain, "StartNode"), "", 1);
    lines.join("\n")
}

struct Walk<'a> {
    chain: &'a Value,
    lines: &'a mut Vec<String>,
    /// Names of the nodes above, so that no circle is walked for ever.
    path: BTreeSet<String>,
}

impl Walk<'_> {
    fn line(&mut self, depth: usize, line: &str) {
        let indent = "  ".repeat(depth);
        self.lines.push(format!("{indent}{}", one_line(line)));
    }

    fn node(&mut self, name: &str, label: &str, depth: usize) {
        let chain = self.chain;
        let Some(node) = chain["Nodes"].get(name) else {
            self.line(depth, &format!("{label}{name}: not in the chain"));
            return;
        };
        if !self.path.insert(name.to_owned()) {
            self.line(depth, &format!("{label}{name}: again"));
            return;
        }
        self.line(depth, &format!("{label}{name}"));
        for route in list(node, "Routes") {
            let label = format!("{} -> ", matches(&route["Definition"]["Match"]));
            self.node(&text(route, "NextNode"), &label, depth + 1);
        }
        for split in list(node, "Splits") {
            let label = format!("{}% -> ", split["Weight"]);
            self.node(&text(split, "NextNode"), &label, depth + 1);
        }
        let resolver = &node["Resolver"];
        if resolver.is_object() {
            self.target(&text(resolver, "Target"), "", depth + 1);
            for target in list(&resolver["Failover"], "Targets") {
                let target = target.as_str().unwrap_or_default();
                self.target(target, "failover: ", depth + 1);
            }
        }
        self.path.remove(name);
    }

    fn target(&mut self, id: &str, label: &str, depth: usize) {
        let target = &self.chain["Targets"][id];
        let filter = match target["Subset"]["Filter"].as_str() {
            None | Some("") => String::new(),
            Some(filter) => format!(" where {filter}"),
        };
        self.line(depth, &format!("{label}target {id}{filter}"));
    }
}

/// What a route matches, in short.
fn matches(given: &Value) -> String {
    let http = &given["HTTP"];
    let mut parts = Vec::new();
    for (key, form) in [
        ("PathExact", "path ="),
        ("PathPrefix", "path"),
        ("PathRegex", "path ~"),
    ] {
        match http[key].as_str() {
            None | Some("") => {}
            Some(path) if key == "PathPrefix" => parts.push(format!("{form} {path}*")),
            Some(path) => parts.push(format!("{form} {path}")),
        }
    }
    let methods: Vec<&str> = list(http, "Methods")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    if !methods.is_empty() {
        parts.push(methods.join("|"));
    }
    let names = |key: &str| -> Vec<String> {
        let list = list(http, key).iter();
        list.map(|one| text(one, "Name")).collect()
    };
    for (key, what) in [("Header", "header"), ("QueryParam", "query")] {
        parts.extend(names(key).iter().map(|name| format!("{what} {name}")));
    }
    if parts.is_empty() {
        "all".to_owned()
    } else {
        parts.join(", ")
    }
}

fn text(of: &Value, key: &str) -> String {
    of[key].as_str().unwrap_or_default().to_owned()
}

fn list<'v>(of: &'v Value, key: &str) -> &'v [Value] {
    of[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_chain_is_a_tree() {
        let chain = json!({
            "ServiceName": "web", "Protocol": "http", "StartNode": "router:web",
            "Nodes": {
                "router:web": {"Routes": [
                    {"Definition": {"Match": {"HTTP": {"PathPrefix": "/api", "Methods": ["GET", "PUT"]}}}, "NextNode": "splitter:api"},
                    {"NextNode": "resolver:web"},
                ]},
                "splitter:api": {"Splits": [{"Weight": 90.0, "NextNode": "resolver:api"}, {"Weight": 10.0, "NextNode": "gone"}]},
                "resolver:api": {"Resolver": {"Target": "v1.api", "Failover": {"Targets": ["api.dc2"]}}},
                "resolver:web": {"Resolver": {"Target": "web"}},
            },
            "Targets": {"v1.api": {"Subset": {"Filter": "Service.Meta.v == 1"}}},
        });
        let expected = "\
web (http)
  router:web
    path /api*, GET|PUT -> splitter:api
      90.0% -> resolver:api
        target v1.api where Service.Meta.v == 1
        failover: target api.dc2
      10.0% -> gone: not in the chain
    all -> resolver:web
      target web";
        assert_eq!(tree(&chain), expected);
    }
}
