//! Checks as their owners write them.

use serde_json::{Value as Json, json};

use super::{bad, expand, good};
use crate::hcl::Value;
use crate::model::{AgentCheck, CheckStatus};

#[test]
fn r1_checks_of_a_service() {
    let check = |check: Json| json!({"Name": "web", "Port": 80, "Check": check});
    for one in [
        json!({"HTTP": "http://127.0.0.1:80/health", "Interval": "10s"}),
        json!({"HTTP": "https://[::1]/", "Interval": "1s", "Timeout": "500ms"}),
        json!({"TCP": "127.0.0.1:80", "Interval": "10s"}),
        json!({"GRPC": "127.0.0.1:80/web", "Interval": "10s"}),
        json!({"TTL": "30s"}),
        json!({"AliasService": "db"}),
        json!({"AliasNode": "n2"}),
    ] {
        good(check(one));
    }
    bad(check(json!({})), &["Check: a check needs exactly one of"]);
    bad(
        check(json!({"HTTP": "http://a", "TCP": "a:1", "Interval": "1s"})),
        &["Check: a check needs exactly one of"],
    );
    bad(
        check(json!({"HTTP": "http://a"})),
        &["Check.Interval: a check of type http needs an interval"],
    );
    bad(
        check(json!({"HTTP": "ftp://a", "Interval": "1s"})),
        &["Check.HTTP: "],
    );
    bad(
        check(json!({"TCP": "a", "Interval": "1s"})),
        &["Check.TCP: "],
    );
    bad(check(json!({"TTL": "-1s"})), &["Check.TTL: "]);
    for script in [
        json!({"ScriptArgs": ["/bin/true"], "Interval": "1s"}),
        json!({"Args": ["/bin/true"], "Interval": "1s"}),
        json!({"DockerContainerID": "x", "Shell": "/bin/sh", "Args": ["a"], "Interval": "1s"}),
        json!({"OSService": "x", "Interval": "1s"}),
    ] {
        bad(check(script), &["checks of this type are not run here"]);
    }
    let (_, problems) =
        AgentCheck::read(&Value::from_json(&json!({"UDP": "a:1", "Interval": "1s"}))).unwrap();
    assert_eq!(problems.warnings, []);
    bad(
        json!({"Name": "web", "Checks": [{"CheckID": "a", "TTL": "1s"}, {"ID": "a", "TTL": "1s"}]}),
        &["Checks[1]: the check id \"a\" is given twice"],
    );
}

#[test]
fn ids_and_names_of_checks() {
    let ids = |json: Json| -> Vec<(String, String)> {
        let expanded = expand(json, None, &[]).unwrap();
        expanded
            .service
            .checks
            .into_iter()
            .map(|c| (c.check_id, c.name))
            .collect()
    };
    let pair = |id: &str, name: &str| (id.to_owned(), name.to_owned());
    assert_eq!(
        ids(json!({"Name": "web", "Check": {"TTL": "1s"}})),
        [pair("service:web", "Service 'web' check")]
    );
    assert_eq!(
        ids(
            json!({"ID": "w1", "Name": "web", "Check": {"TTL": "1s"}, "Checks": [{"TTL": "2s", "Name": "own"}, {"CheckID": "mine", "TTL": "3s"}]})
        ),
        [
            pair("service:w1:1", "Service 'web' check"),
            pair("service:w1:2", "own"),
            pair("mine", "Service 'web' check")
        ]
    );
    let (check, _) = AgentCheck::read(&Value::from_json(
        &json!({"Name": "disk", "TTL": "1s", "Status": "", "ServiceID": "w1"}),
    ))
    .unwrap();
    let health = check.to_health_check("n1", "disk", None);
    assert_eq!(
        (
            health.check_id.as_str(),
            health.name.as_str(),
            health.service_id.as_str()
        ),
        ("disk", "disk", "w1")
    );
    assert_eq!(health.status, CheckStatus::Critical);
}
