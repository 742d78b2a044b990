//! `proxycfg proxies`.

use serde_json::Value;

use super::client::{Client, ServerArgs};
use super::table::{one_line, table};
use super::{Failure, print, print_json};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let answer = Client::new(&args.server)?.get(&["proxycfg", "proxies"], &[])?;
    if args.server.json {
        return print_json(&answer.json, true);
    }
    print(&show(&answer.json))
}

fn show(list: &Value) -> String {
    let proxies = list.as_array().map(Vec::as_slice).unwrap_or_default();
    if proxies.is_empty() {
        return "No proxy is registered, and no Envoy asks for one.".to_owned();
    }
    let rows: Vec<Vec<String>> = proxies.iter().map(row).collect();
    let mut text = table(
        &[
            "ID", "NODE", "KIND", "SOURCE", "READY", "INDEX", "WATCHERS", "XDS",
        ],
        &rows,
    );
    for proxy in proxies {
        for note in notes(proxy) {
            text.push_str(&format!("\n{}: {}", word(proxy, "ID"), one_line(&note)));
        }
    }
    text
}

fn row(proxy: &Value) -> Vec<String> {
    let waiting = texts(proxy, "WaitingFor");
    let ready = if proxy["Ready"] == true {
        "yes".to_owned()
    } else if waiting.is_empty() {
        "no".to_owned()
    } else {
        format!("waits for {}", waiting.join(", "))
    };
    let streams = items(proxy, "Streams").iter().map(stream);
    let streams: Vec<String> = streams.collect();
    vec![
        word(proxy, "ID"),
        word(proxy, "Node"),
        word(proxy, "Kind"),
        word(proxy, "Source"),
        ready,
        proxy["Index"].to_string(),
        proxy["Watchers"].to_string(),
        if streams.is_empty() {
            "-".to_owned()
        } else {
            streams.join("; ")
        },
    ]
}

/// An Envoy, the form of its stream if it isn't delta, and the store index of what it has acknowledged of all types.
fn stream(stream: &Value) -> String {
    let envoy = match stream["EnvoyVersion"].as_str() {
        None | Some("") => "connected".to_owned(),
        Some(version) => format!("Envoy {version}"),
    };
    let envoy = match stream["Protocol"].as_str() {
        None | Some("" | "delta") => envoy,
        Some(form) => format!("{envoy} ({form})"),
    };
    let acked = items(stream, "Types").iter();
    match acked.filter_map(|of| of["AckedIndex"].as_u64()).min() {
        None | Some(0) => envoy,
        Some(index) => format!("{envoy} acked {index}"),
    }
}

/// What is wrong with a proxy, or with what its Envoys think of it.
fn notes(proxy: &Value) -> Vec<String> {
    let mut notes = texts(proxy, "Errors");
    for stream in items(proxy, "Streams") {
        for of in items(stream, "Types") {
            let kind = word(of, "Type");
            let refused = items(of, "Quarantined").iter();
            let before = notes.len();
            notes.extend(refused.map(|one| {
                format!(
                    "Envoy refuses {kind} {}: {}",
                    word(one, "Name"),
                    word(one, "Reason")
                )
            }));
            if let Some(reason) = of["LastRefusal"].as_str()
                && !reason.is_empty()
                && notes.len() == before
            {
                notes.push(format!("Envoy refused a {kind}: {reason}"));
            }
        }
    }
    notes
}

fn word(of: &Value, key: &str) -> String {
    match of[key].as_str() {
        None | Some("") => "-".to_owned(),
        Some(text) => text.to_owned(),
    }
}

fn items<'v>(of: &'v Value, key: &str) -> &'v [Value] {
    of[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn texts(of: &Value, key: &str) -> Vec<String> {
    let texts = items(of, key).iter().filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_shows_state_streams_and_refusals() {
        let list = json!([
            {"ID": "web-sidecar-proxy", "Node": "n1", "Kind": "connect-proxy", "Source": "local", "Ready": true,
             "WaitingFor": [], "Errors": [], "Index": 12, "Watchers": 1,
             "Streams": [{"EnvoyVersion": "1.33.0", "Protocol": "delta", "Types": [
                {"Type": "cluster", "AckedIndex": 12, "LastRefusal": "", "Quarantined": []},
                {"Type": "listener", "AckedIndex": 9, "LastRefusal": "bad", "Quarantined": [{"Name": "public_listener", "Reason": "bad"}]},
             ]}, {"EnvoyVersion": "1.34.1", "Protocol": "sotw", "Types": []}]},
            {"ID": "ghost", "Node": "n1", "Kind": "", "Source": "", "Ready": false,
             "WaitingFor": ["registration"], "Errors": [], "Index": 0, "Watchers": 1, "Streams": []},
        ]);
        let expected = "\
ID                 NODE  KIND           SOURCE  READY                   INDEX  WATCHERS  XDS
web-sidecar-proxy  n1    connect-proxy  local   yes                     12     1         Envoy 1.33.0 acked 9; Envoy 1.34.1 (sotw)
ghost              n1    -              -       waits for registration  0      1         -
web-sidecar-proxy: Envoy refuses listener public_listener: bad";
        assert_eq!(show(&list), expected);
    }

    #[test]
    fn no_proxies_are_said_so() {
        assert!(show(&json!([])).starts_with("No proxy is registered"));
    }
}
