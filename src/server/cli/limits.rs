//! The options of `proxycfg serve` that limit what it takes on.

use std::time::Duration;

use crate::hcl::MAX_SIZE;
use crate::model::GoDuration;
use crate::server::Limits;
use crate::server::files::FileLimits;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct FileLimitArgs {
    /// Most bytes of a configuration file; 16 MiB unless given, and never more. A larger one is an error of the file.
    #[arg(long, value_name = "BYTES", value_parser = file_size)]
    max_config_file: Option<usize>,
    /// Most bytes of all configuration files together; 256 MiB unless given. More are an error.
    #[arg(long, value_name = "BYTES", value_parser = at_least_one)]
    max_config_total: Option<usize>,
}

impl FileLimitArgs {
    pub fn limits(&self) -> FileLimits {
        let limits = Limits {
            config_file: self.max_config_file,
            config_total: self.max_config_total,
            ..Limits::default()
        };
        limits.files()
    }
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitArgs {
    #[command(flatten)]
    files: FileLimitArgs,
    /// How many control-plane servers share the Envoys. This one then serves its share of the proxies in the catalog and a
    /// tenth more, not counting those of its own agent; streams beyond end with ResourceExhausted, so that their Envoys try
    /// another server. Without it there is no such limit.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    servers: Option<u32>,
    /// Most bytes of an HTTP request's body; 4 MiB unless given. Larger ones are refused with 413.
    #[arg(long, value_name = "BYTES", value_parser = at_least_one)]
    max_http_body: Option<usize>,
    /// Most bytes of the bodies of all HTTP requests at a time; 64 MiB unless given. Those beyond are refused with 429.
    #[arg(long, value_name = "BYTES", value_parser = at_least_one)]
    max_http_bodies: Option<usize>,
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
    /// Most HTTP connections at a time; 11,000 unless given. A new one takes the place of the one that has been without a
    /// request for longest; if all have requests it is refused with 503.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one)]
    max_http_connections: Option<usize>,
    /// How many bytes of the head of an HTTP request, its headers included, may have come before it is complete; 64 KiB
    /// unless given, at least 8,192. Larger heads are refused with 431.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(8192..))]
    max_http_header: Option<u32>,
    /// How long the head of an HTTP request may take to arrive, and a new connection to send one; 30s unless given. The
    /// connection is then closed.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    http_header_timeout: Option<Duration>,
    /// How long the body of an HTTP request may take to arrive; 30s unless given. It is then refused with 408.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    http_body_timeout: Option<Duration>,
    /// How long an HTTP connection may be without a request, and a client may read nothing of its answer; 5m unless given.
    /// The connection is then closed.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    http_idle_timeout: Option<Duration>,
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
    /// Most xDS connections at a time; 10,000 unless given. A new one takes the place of the one that has been without a
    /// stream for longest; if all have streams it is closed at once.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one)]
    max_xds_connections: Option<usize>,
    /// How long an xDS connection may be without a stream; 1m unless given. It is then closed.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    xds_idle_timeout: Option<Duration>,
    /// How often a silent xDS connection is asked whether it is still there (an HTTP/2 ping); 30s unless given.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    xds_keepalive: Option<Duration>,
    /// How long it may take to answer; 20s unless given. It is then closed, and its streams end.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    xds_keepalive_timeout: Option<Duration>,
}

impl From<LimitArgs> for Limits {
    fn from(args: LimitArgs) -> Self {
        Self {
            servers: args.servers.and_then(|servers| servers.try_into().ok()),
            config_file: args.files.max_config_file,
            config_total: args.files.max_config_total,
            http_body: args.max_http_body,
            http_bodies: args.max_http_bodies,
            http_requests: args.max_http_requests,
            http_request_rate: args.max_http_request_rate,
            http_write_rate: args.max_http_write_rate,
            http_connections: args.max_http_connections,
            http_header: args.max_http_header.and_then(|bytes| bytes.try_into().ok()),
            http_header_timeout: args.http_header_timeout,
            http_body_timeout: args.http_body_timeout,
            http_idle_timeout: args.http_idle_timeout,
            xds_request: args.max_xds_request,
            xds_request_rate: args.max_xds_request_rate,
            xds_names: args.max_xds_names,
            xds_streams: args.max_xds_streams,
            xds_streams_per_connection: args.max_xds_streams_per_connection,
            xds_stream_rate: args.max_xds_stream_rate,
            xds_connections: args.max_xds_connections,
            xds_idle_timeout: args.xds_idle_timeout,
            xds_keepalive: args.xds_keepalive,
            xds_keepalive_timeout: args.xds_keepalive_timeout,
        }
    }
}

fn file_size(text: &str) -> Result<usize, String> {
    match at_least_one(text)? {
        size if size > MAX_SIZE => Err(format!("no more than {MAX_SIZE} bytes can be read")),
        size => Ok(size),
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}; give a whole number")),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    match GoDuration::parse(text) {
        Some(given) if given.0 > 0 => Ok(given.to_std()),
        Some(_) => Err("it must be more than nothing".to_owned()),
        None => Err("give a number with its unit, such as 30s, 1m30s or 500ms".to_owned()),
    }
}
