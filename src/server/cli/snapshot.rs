//! `proxycfg snapshot`.

use std::time::Duration;

use super::client::{Client, ServerArgs};
use super::{Failure, print_json};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Id of the proxy's service instance.
    id: String,
    /// Node that it is registered on; the server's own unless given.
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Only the part at this JSON pointer, such as /Roots.
    #[arg(long, value_name = "POINTER")]
    pointer: Option<String>,
    /// Stay, and print again whenever it changes.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// How long the server is asked to wait for a change.
const WAIT: Duration = Duration::from_secs(60);

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(pointer) = &args.pointer
        && !pointer.is_empty()
        && !pointer.starts_with('/')
    {
        return Err(Failure::BadInput(format!(
            "--pointer {pointer:?}: a JSON pointer begins with '/', such as /Roots"
        )));
    }
    let client = Client::new(&args.server)?;
    let path = ["proxycfg", "snapshot", &args.id];
    let mut query = Vec::new();
    query.extend(args.node.as_deref().map(|node| ("node", node)));
    query.extend(args.pointer.as_deref().map(|p| ("pointer", p)));
    if !args.watch {
        let answer = client.get(&path, &query)?;
        return print_json(&answer.json, args.server.json);
    }
    // No content has the empty hash, so the first answer comes as soon as there is a snapshot.
    let mut hash = String::new();
    let wait = format!("{}s", WAIT.as_secs());
    loop {
        let mut query = query.clone();
        query.extend([("hash", hash.as_str()), ("wait", &wait)]);
        match client.get_within(&path, &query, WAIT * 2)? {
            // Registered, but without a snapshot yet: the server has waited.
            Err(refusal) if refusal.status == 404 && refusal.text.contains("no snapshot yet") => {}
            Err(refusal) => return Err(Failure::Failed(refusal.text)),
            Ok(answer) => {
                let new = answer.hash.unwrap_or_default();
                if new != hash {
                    print_json(&answer.json, args.server.json)?;
                    hash = new;
                }
            }
        }
    }
}
