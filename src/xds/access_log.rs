//! Access logs (xds.md 4.6).

use envoy_types::pb::envoy::extensions::access_loggers::{
    file::v3::FileAccessLog,
    stream::v3::{StderrAccessLog, StdoutAccessLog},
};
use envoy_types::pb::google::protobuf::Any;

use super::BuildError;
use super::encode::{Fields, structure};
use super::proto::accesslog;
use crate::model::AccessLogs;

/// The log entries of every listener of a proxy.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Loggers {
    /// Of a listener: connections that fit no filter chain.
    pub listener: Vec<accesslog::AccessLog>,
    /// Of its last filter: connections or requests.
    pub filter: Vec<accesslog::AccessLog>,
}

/// What is logged unless configured: name and Envoy's operator.
const DEFAULT_FIELDS: &[(&str, &str)] = &[
    ("start_time", "%START_TIME%"),
    ("route_name", "%ROUTE_NAME%"),
    ("method", "%REQ(:METHOD)%"),
    ("path", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"),
    ("protocol", "%PROTOCOL%"),
    ("response_code", "%RESPONSE_CODE%"),
    ("response_flags", "%RESPONSE_FLAGS%"),
    ("response_code_details", "%RESPONSE_CODE_DETAILS%"),
    (
        "connection_termination_details",
        "%CONNECTION_TERMINATION_DETAILS%",
    ),
    ("bytes_received", "%BYTES_RECEIVED%"),
    ("bytes_sent", "%BYTES_SENT%"),
    ("duration", "%DURATION%"),
    (
        "upstream_service_time",
        "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%",
    ),
    ("x_forwarded_for", "%REQ(X-FORWARDED-FOR)%"),
    ("user_agent", "%REQ(USER-AGENT)%"),
    ("request_id", "%REQ(X-REQUEST-ID)%"),
    ("authority", "%REQ(:AUTHORITY)%"),
    ("upstream_host", "%UPSTREAM_HOST%"),
    ("upstream_cluster", "%UPSTREAM_CLUSTER%"),
    ("upstream_local_address", "%UPSTREAM_LOCAL_ADDRESS%"),
    ("downstream_local_address", "%DOWNSTREAM_LOCAL_ADDRESS%"),
    ("downstream_remote_address", "%DOWNSTREAM_REMOTE_ADDRESS%"),
    ("requested_server_name", "%REQUESTED_SERVER_NAME%"),
    (
        "upstream_transport_failure_reason",
        "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
    ),
];

impl Loggers {
    /// The log entries of a proxy's listeners; none unless logging is on.
    ///
    /// # Errors
    /// A format or destination that Envoy would refuse. The caller goes on without logs and tells.
    pub(super) fn new(settings: &AccessLogs) -> Result<Self, BuildError> {
        if !settings.enabled {
            return Ok(Self::default());
        }
        let sink = sink(settings)?;
        let entry = |name: &str, filter| accesslog::AccessLog {
            name: name.to_owned(),
            filter,
            config_type: Some(accesslog::access_log::ConfigType::TypedConfig(sink.clone())),
        };
        let mut loggers = Self::default();
        if !settings.disable_listener_logs {
            // Only connections that fit no chain; the others are the filter's to log.
            let no_route = accesslog::ResponseFlagFilter {
                flags: vec!["NR".to_owned()],
            };
            let filter = accesslog::AccessLogFilter {
                filter_specifier: Some(
                    accesslog::access_log_filter::FilterSpecifier::ResponseFlagFilter(no_route),
                ),
            };
            loggers
                .listener
                .push(entry("Consul Listener Log", Some(filter)));
        }
        loggers
            .filter
            .push(entry("Consul Listener Filter Log", None));
        Ok(loggers)
    }
}

/// The configuration of one sink, encoded by hand because a JSON format is a map.
fn sink(settings: &AccessLogs) -> Result<Any, BuildError> {
    let format = format(settings)?;
    match settings.kind.as_str() {
        "" | "stdout" => Ok(Fields::default().bytes(1, &format).any::<StdoutAccessLog>()),
        "stderr" => Ok(Fields::default().bytes(1, &format).any::<StderrAccessLog>()),
        "file" if settings.path.is_empty() => Err(BuildError::new(
            "AccessLogs.Path is needed with Type \"file\"",
        )),
        "file" => Ok(Fields::default()
            .text(1, &settings.path)
            .bytes(5, &format)
            .any::<FileAccessLog>()),
        other => Err(BuildError::new(format!(
            "AccessLogs.Type {other:?} is not one of stdout, stderr, file"
        ))),
    }
}

/// An encoded `SubstitutionFormatString`.
fn format(settings: &AccessLogs) -> Result<Vec<u8>, BuildError> {
    const JSON_FORMAT: u32 = 2;
    const TEXT_FORMAT_SOURCE: u32 = 5;
    const INLINE_STRING: u32 = 3;

    let json = if !settings.json_format.is_empty() {
        let read: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&settings.json_format).map_err(|e| {
                BuildError::new(format!("AccessLogs.JSONFormat is not a JSON object: {e}"))
            })?;
        read
    } else if !settings.text_format.is_empty() {
        check_operators(&settings.text_format).map_err(|e| e.at("AccessLogs.TextFormat"))?;
        let text = format!("{}\n", settings.text_format.trim_end_matches('\n'));
        let source = Fields::default().text(INLINE_STRING, &text).done();
        return Ok(Fields::default().bytes(TEXT_FORMAT_SOURCE, &source).done());
    } else {
        DEFAULT_FIELDS
            .iter()
            .map(|(name, operator)| ((*name).to_owned(), (*operator).into()))
            .collect()
    };
    check_values(&json).map_err(|e| e.at("AccessLogs.JSONFormat"))?;
    Ok(Fields::default()
        .bytes(JSON_FORMAT, &structure(&json))
        .done())
}

fn check_values(members: &serde_json::Map<String, serde_json::Value>) -> Result<(), BuildError> {
    use serde_json::Value;
    fn check(value: &Value) -> Result<(), BuildError> {
        match value {
            Value::String(text) => check_operators(text),
            Value::Object(members) => check_values(members),
            Value::Array(items) => items.iter().try_for_each(check),
            Value::Number(_) => Ok(()),
            Value::Null | Value::Bool(_) => Err(BuildError::new(format!(
                "{value} is not text, a number, an object or a list"
            ))),
        }
    }
    members.values().try_for_each(check)
}

/// Checks the form of Envoy's `%OPERATOR%`s; which operators there are is Envoy's to know.
fn check_operators(text: &str) -> Result<(), BuildError> {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('%') {
        if let Some(after) = after.strip_prefix('%') {
            rest = after;
            continue;
        }
        let name = after
            .split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'))
            .next()
            .unwrap_or_default();
        let mut tail = &after[name.len()..];
        if let Some(arguments) = tail.strip_prefix('(') {
            tail = arguments.split_once(')').map_or("", |(_, tail)| tail);
        }
        if let Some(length) = tail.strip_prefix(':') {
            tail = length.trim_start_matches(|c: char| c.is_ascii_digit());
        }
        let Some(next) = tail.strip_prefix('%').filter(|_| !name.is_empty()) else {
            let shown: String = after.chars().take(20).collect();
            return Err(BuildError::new(format!(
                "\"%{shown}\" is not an operator like %START_TIME% or %REQ(NAME):10%; write %% for a percent sign"
            )));
        };
        rest = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3::substitution_format_string::Format;
    use envoy_types::pb::envoy::extensions::access_loggers::{file, stream};
    use prost::Message;

    use super::*;

    fn settings() -> AccessLogs {
        AccessLogs {
            enabled: true,
            ..Default::default()
        }
    }

    fn config(log: &accesslog::AccessLog) -> &Any {
        let Some(accesslog::access_log::ConfigType::TypedConfig(any)) = &log.config_type else {
            panic!()
        };
        any
    }

    #[test]
    fn xds_58_without_listener_logs_only_the_filter_logs() {
        assert_eq!(Loggers::new(&AccessLogs::default()), Ok(Loggers::default()));
        let both = Loggers::new(&settings()).unwrap();
        assert_eq!((both.listener.len(), both.filter.len()), (1, 1));
        assert!(both.listener[0].filter.is_some() && both.filter[0].filter.is_none());
        let one = Loggers::new(&AccessLogs {
            disable_listener_logs: true,
            ..settings()
        })
        .unwrap();
        assert_eq!((one.listener.len(), one.filter.len()), (0, 1));
    }

    #[test]
    fn xds_4_6_the_sink_and_its_format() {
        let loggers = Loggers::new(&settings()).unwrap();
        let any = config(&loggers.filter[0]);
        assert!(any.type_url.ends_with(".StdoutAccessLog"));
        let read = StdoutAccessLog::decode(&*any.value).unwrap();
        let Some(stream::v3::stdout_access_log::AccessLogFormat::LogFormat(format)) =
            read.access_log_format
        else {
            panic!()
        };
        let Some(Format::JsonFormat(fields)) = format.format else {
            panic!()
        };
        assert_eq!(fields.fields.len(), DEFAULT_FIELDS.len());

        let text = AccessLogs {
            kind: "file".into(),
            path: "/var/log/a".into(),
            text_format: "%PROTOCOL%".into(),
            ..settings()
        };
        let loggers = Loggers::new(&text).unwrap();
        let read = FileAccessLog::decode(&*config(&loggers.filter[0]).value).unwrap();
        assert_eq!(read.path, "/var/log/a");
        let Some(file::v3::file_access_log::AccessLogFormat::LogFormat(format)) =
            read.access_log_format
        else {
            panic!()
        };
        let Some(Format::TextFormatSource(source)) = format.format else {
            panic!()
        };
        let envoy_types::pb::envoy::config::core::v3::data_source::Specifier::InlineString(text) =
            source.specifier.unwrap()
        else {
            panic!()
        };
        assert_eq!(text, "%PROTOCOL%\n");
    }

    #[test]
    fn xds_4_6_bad_settings_are_errors() {
        for bad in [
            AccessLogs {
                kind: "syslog".into(),
                ..settings()
            },
            AccessLogs {
                kind: "file".into(),
                ..settings()
            },
            AccessLogs {
                json_format: "[]".into(),
                ..settings()
            },
            AccessLogs {
                json_format: r#"{"a": true}"#.into(),
                ..settings()
            },
            AccessLogs {
                json_format: r#"{"a": "%protocol%"}"#.into(),
                ..settings()
            },
            AccessLogs {
                text_format: "50%".into(),
                ..settings()
            },
            AccessLogs {
                text_format: "%REQ(x".into(),
                ..settings()
            },
        ] {
            assert!(Loggers::new(&bad).is_err(), "{bad:?}");
        }
        let fine = AccessLogs {
            text_format: "%REQ(A?B):10% %% %START_TIME(%s.%3f)%".into(),
            ..settings()
        };
        assert!(Loggers::new(&fine).is_ok());
    }
}
