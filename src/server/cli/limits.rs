//! The options of `proxycfg serve` that limit what it takes on.

use crate::server::Limits;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitArgs {
    /// How many control-plane servers share the Envoys. This one then serves its share of the proxies in the catalog and a
    /// tenth more, not counting those of its own agent; streams beyond end with ResourceExhausted, so that their Envoys try
    /// another server. Without it there is no such limit.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    servers: Option<u32>,
    /// Most bytes of an HTTP request's body; 4 MiB unless given. Larger ones are refused with 413.
    #[arg(long, value_name = "BYTES", value_parser = at_least_one)]
    max_http_body: Option<usize>,
    /// Most HTTP requests at a time, waiting reads included; 10,000 unless given. More are refused with 429.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one)]
    max_http_requests: Option<usize>,
    /// HTTP requests taken each second on average, ten times as many at once; 0, the default, is any. More are refused with
    /// 429.
    #[arg(long, value_name = "RATE")]
    max_http_request_rate: Option<u32>,
    /// The same for requests that may write (PUT, POST, DELETE).
    #[arg(long, value_name = "RATE")]
    max_http_write_rate: Option<u32>,
    /// Most bytes of an xDS request; 16 MiB unless given. A larger one ends its stream with OutOfRange.
    #[arg(long, value_name = "BYTES", value_parser = at_least_one)]
    max_xds_request: Option<usize>,
    /// xDS requests taken each second on one stream on average, ten times as many at once; 1,000 unless given, 0 is any.
    /// More end the stream with ResourceExhausted.
    #[arg(long, value_name = "RATE")]
    max_xds_request_rate: Option<u32>,
    /// Most names that one stream may subscribe to, for each type of resource; 100,000 unless given. More end the stream
    /// with ResourceExhausted.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one)]
    max_xds_names: Option<usize>,
    /// Most xDS streams at a time; 10,000 unless given. More are refused with ResourceExhausted.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one)]
    max_xds_streams: Option<usize>,
    /// Most xDS streams at a time on one connection; 100 unless given. More wait until others end.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    max_xds_streams_per_connection: Option<u32>,
    /// New xDS streams taken each second on average, ten times as many at once; 0, the default, is any. More are refused
    /// with ResourceExhausted.
    #[arg(long, value_name = "RATE")]
    max_xds_stream_rate: Option<u32>,
}

impl From<LimitArgs> for Limits {
    fn from(args: LimitArgs) -> Self {
        Self {
            servers: args.servers.and_then(|servers| servers.try_into().ok()),
            http_body: args.max_http_body,
            http_requests: args.max_http_requests,
            http_request_rate: args.max_http_request_rate,
            http_write_rate: args.max_http_write_rate,
            xds_request: args.max_xds_request,
            xds_request_rate: args.max_xds_request_rate,
            xds_names: args.max_xds_names,
            xds_streams: args.max_xds_streams,
            xds_streams_per_connection: args.max_xds_streams_per_connection,
            xds_stream_rate: args.max_xds_stream_rate,
        }
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}; give a whole number")),
    }
}
