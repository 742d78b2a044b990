//! `proxycfg resources`.

use clap::ValueEnum;

use super::client::{Client, ServerArgs};
use super::{Failure, print_json};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Id of the proxy's service instance.
    id: String,
    /// Only resources of this type.
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<Kind>,
    /// Node that it is registered on; the server's own unless given.
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    Cluster,
    Endpoint,
    Listener,
    Route,
    Secret,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Endpoint => "endpoint",
            Self::Listener => "listener",
            Self::Route => "route",
            Self::Secret => "secret",
        }
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut query = Vec::new();
    query.extend(args.kind.map(|kind| ("type", kind.name())));
    query.extend(args.node.as_deref().map(|node| ("node", node)));
    let path = ["proxycfg", "resources", &args.id];
    let answer = Client::new(&args.server)?.get(&path, &query)?;
    print_json(&answer.json, args.server.json)
}
