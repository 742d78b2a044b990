//! The local state by itself (engine.md 4.1, 4.2).

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use crate::config_source::testing::{check, definition};
use crate::config_source::{LocalState, Origin, OriginRecords};
use crate::model::{CheckStatus, ServiceDefinition, SidecarPortRange};

fn state() -> LocalState {
    LocalState::new("n1", SidecarPortRange::default())
}

fn with_sidecar(name: &str, port: u16) -> ServiceDefinition {
    definition(json!({"Name": name, "Connect": {"SidecarService": {"Port": port}}}))
}

fn port_of(state: &LocalState, id: &str) -> u16 {
    state.service(id).unwrap().service.port
}

fn ids(state: &LocalState) -> Vec<String> {
    let services = state.services();
    services.iter().map(|s| s.service.id.clone()).collect()
}

#[test]
fn local_4_1_add_defaults_the_id_replaces_and_signals() {
    let state = state();
    let changed = state.subscribe();
    let web = definition(json!({"Name": "web", "Port": 80, "Token": "t"}));
    let added = state.add(web.clone(), &Origin::API).unwrap();
    assert_eq!(added.id, "web");
    assert_eq!(state.token("web"), "t");
    assert_eq!(state.token("nobody"), "");
    assert!(changed.try_recv().is_ok());
    // Also without a change, and a burst leaves one token.
    state.add(web.clone(), &Origin::API).unwrap();
    state.add(web, &Origin::API).unwrap();
    assert!(changed.try_recv().is_ok());
    assert!(changed.try_recv().is_err());

    let partition = definition(json!({"Name": "x"}));
    let partition = ServiceDefinition {
        partition: "other".to_owned(),
        ..partition
    };
    let problems = state.add(partition, &Origin::API).unwrap_err();
    assert!(
        problems.text().contains("enterprise only"),
        "{}",
        problems.text()
    );
    assert_eq!(ids(&state), ["web"]);
}

#[test]
fn local_4_1_removed_services_do_not_exist() {
    let state = state();
    state.add(with_sidecar("web", 0), &Origin::API).unwrap();
    let changed = state.subscribe();
    let error = state.remove("webs").unwrap_err().to_string();
    let wanted =
        "Unknown service ID \"webs\". Ensure that the service ID is passed, not the service name.";
    assert_eq!(error, wanted);
    assert!(changed.try_recv().is_err());
    state.remove("web").unwrap();
    assert!(changed.try_recv().is_ok());
    assert!(!state.exists("web") && !state.exists("web-sidecar-proxy"));
    assert!(state.remove("web").is_err());
    assert!(state.checks().is_empty());
}

#[test]
fn local_4_1_check_states_signal_and_outputs_do_not() {
    let state = state();
    let web = json!({"Name": "web", "Check": {"CheckID": "c", "TTL": "10s"}});
    state.add(definition(web), &Origin::API).unwrap();
    let changed = state.subscribe();
    assert!(state.set_check("C", CheckStatus::Passing, "fine").unwrap());
    assert!(changed.try_recv().is_ok());
    assert!(
        !state
            .set_check("c", CheckStatus::Passing, "very fine")
            .unwrap()
    );
    assert!(changed.try_recv().is_err());
    assert_eq!(state.check("c").unwrap().check.output, "very fine");
    assert!(state.set_check("d", CheckStatus::Passing, "").is_err());
}

#[test]
fn local_4_1_dropped_subscribers_are_forgotten() {
    let state = state();
    drop(state.subscribe());
    let changed = state.subscribe();
    state.add(with_sidecar("web", 0), &Origin::API).unwrap();
    assert!(changed.try_recv().is_ok());
}

#[test]
fn local_a_new_registration_keeps_the_states_of_checks() {
    let state = state();
    let web = json!({"Name": "web", "Checks": [
        {"CheckID": "c", "TTL": "10s"}, {"CheckID": "d", "TTL": "10s"}]});
    state.add(definition(web), &Origin::API).unwrap();
    let own = check(json!({"CheckID": "own", "ServiceID": "web", "TTL": "5s"}));
    state.add_check(own, &Origin::API).unwrap();
    for id in ["c", "own"] {
        state.set_check(id, CheckStatus::Passing, "fine").unwrap();
    }
    let again = json!({"Name": "web", "Port": 81, "Check": {"CheckID": "c", "TTL": "20s"}});
    state.add(definition(again), &Origin::API).unwrap();
    let c = state.check("c").unwrap().check;
    assert_eq!(
        (c.status, c.output.as_str()),
        (CheckStatus::Passing, "fine")
    );
    // A check that was registered by itself doesn't go with the definition; one of the old definition does.
    assert_eq!(
        state.check("own").unwrap().check.status,
        CheckStatus::Passing
    );
    assert!(state.check("d").is_none());
    state.remove_check("own").unwrap();
    assert!(state.remove_check("own").is_err());
    state.remove("web").unwrap();
    assert!(state.check("c").is_none());
}

#[test]
fn local_checks_of_the_node_and_of_unknown_services() {
    let state = state();
    let disk = check(json!({"Name": "disk", "TTL": "10s"}));
    assert_eq!(state.add_check(disk, &Origin::API).unwrap(), "disk");
    let found = state.check("disk").unwrap().check;
    assert_eq!((found.node.as_str(), found.service_id.as_str()), ("n1", ""));
    let lost = check(json!({"CheckID": "x", "ServiceID": "nobody", "TTL": "10s"}));
    let problems = state.add_check(lost, &Origin::API).unwrap_err();
    assert!(
        problems.text().contains("register it first"),
        "{}",
        problems.text()
    );
}

#[test]
fn fc_034_parallel_registrations_get_distinct_ports() {
    let state = Arc::new(state());
    let threads: Vec<_> = (0..8)
        .map(|t| {
            let state = state.clone();
            std::thread::spawn(move || {
                for i in 0..25 {
                    let name = format!("s{}", t * 25 + i);
                    state.add(with_sidecar(&name, 0), &Origin::API).unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let ports: BTreeSet<u16> = (0..200)
        .map(|i| port_of(&state, &format!("s{i}-sidecar-proxy")))
        .collect();
    assert_eq!(ports.len(), 200);
    assert!(ports.iter().all(|p| (21_000..=21_255).contains(p)));
}

#[test]
fn fc_034_ports_run_out_and_come_back() {
    let range = SidecarPortRange {
        min: 21_000,
        max: 21_001,
    };
    let state = LocalState::new("n1", range);
    state.add(with_sidecar("a", 0), &Origin::API).unwrap();
    state.add(with_sidecar("b", 0), &Origin::API).unwrap();
    let problems = state.add(with_sidecar("c", 0), &Origin::API).unwrap_err();
    let wanted = "none left in the configured range [21000, 21001]";
    assert!(problems.text().contains(wanted), "{}", problems.text());
    assert!(!state.exists("c"));
    // A registration keeps its port when it is made again; a free one is given out.
    state.add(with_sidecar("b", 0), &Origin::API).unwrap();
    assert_eq!(port_of(&state, "b-sidecar-proxy"), 21_001);
    state.remove("a").unwrap();
    state.add(with_sidecar("c", 0), &Origin::API).unwrap();
    assert_eq!(port_of(&state, "c-sidecar-proxy"), 21_000);
}

#[test]
fn fc_035_explicit_sidecar_port() {
    let state = state();
    let web =
        |port| json!({"Name": "web", "Port": 8080, "Connect": {"SidecarService": {"Port": port}}});
    state.add(definition(web(8443)), &Origin::API).unwrap();
    assert_eq!(port_of(&state, "web-sidecar-proxy"), 8443);
    state.add(definition(web(21_003)), &Origin::API).unwrap();
    assert_eq!(port_of(&state, "web-sidecar-proxy"), 21_003);
    let others: Vec<u16> = (0..6)
        .map(|i| {
            let name = format!("s{i}");
            state.add(with_sidecar(&name, 0), &Origin::API).unwrap();
            port_of(&state, &format!("{name}-sidecar-proxy"))
        })
        .collect();
    assert_eq!(others, [21_000, 21_001, 21_002, 21_004, 21_005, 21_006]);
}

#[test]
fn fc_035_a_file_assigns_no_port_that_a_later_record_in_it_gives() {
    let state = state();
    let records = vec![with_sidecar("a", 0), with_sidecar("b", 21_000)];
    state.replace_origin(&Origin::file("f"), records).unwrap();
    assert_eq!(port_of(&state, "a-sidecar-proxy"), 21_001);
    assert_eq!(port_of(&state, "b-sidecar-proxy"), 21_000);
}

#[test]
fn fc_037_two_sidecars_with_one_explicit_port() {
    let state = state();
    let first = state.add(with_sidecar("a", 20_000), &Origin::API).unwrap();
    assert!(first.warnings.is_empty());
    let second = state.add(with_sidecar("b", 20_000), &Origin::API).unwrap();
    assert!(
        second.warnings[0].contains("port 20000"),
        "{:?}",
        second.warnings
    );
    assert_eq!(port_of(&state, "a-sidecar-proxy"), 20_000);
    assert_eq!(port_of(&state, "b-sidecar-proxy"), 20_000);
}

#[test]
fn fc_040_capital_letters_in_ids() {
    let state = state();
    let service =
        json!({"ID": "Service_A", "Name": "Service_A", "Connect": {"SidecarService": {}}});
    let added = state.add(definition(service), &Origin::API).unwrap();
    assert_eq!(added.sidecar_id.unwrap(), "Service_A-sidecar-proxy");
    for id in ["Service_A", "service_a"] {
        assert_eq!(state.service(id).unwrap().service.id, "Service_A");
        let sidecar = state.sidecar_for(id).unwrap();
        assert_eq!(sidecar.service.id, "Service_A-sidecar-proxy");
    }
}

#[test]
fn fc_041_a_sidecar_goes_with_its_service_and_others_stay() {
    let state = state();
    state.add(with_sidecar("web", 0), &Origin::API).unwrap();
    let other = json!({"Kind": "connect-proxy", "Name": "web-proxy-2", "Port": 2000,
        "Proxy": {"DestinationServiceName": "web", "DestinationServiceID": "web"}});
    state.add(definition(other), &Origin::API).unwrap();
    let removed = state.remove("web").unwrap();
    assert_eq!(removed, ["web", "web-sidecar-proxy"]);
    assert_eq!(ids(&state), ["web-proxy-2"]);
}

#[test]
fn local_4_2_a_sidecar_that_is_not_asked_for_any_more_goes() {
    let state = state();
    state.add(with_sidecar("web", 0), &Origin::API).unwrap();
    let plain = || definition(json!({"Name": "web"}));
    state.add(plain(), &Origin::API).unwrap();
    assert_eq!(ids(&state), ["web"]);
    // One that was registered by itself stays, whatever its name.
    let own = json!({"Kind": "connect-proxy", "Name": "web-sidecar-proxy", "Port": 2000,
        "Proxy": {"DestinationServiceName": "web"}});
    state.add(definition(own), &Origin::API).unwrap();
    state.add(plain(), &Origin::API).unwrap();
    assert!(state.sidecar_for("web").is_none());
    state.remove("web").unwrap();
    assert_eq!(ids(&state), ["web-sidecar-proxy"]);
}

#[test]
fn local_4_2_a_sidecar_takes_over_its_service_s_token() {
    let state = state();
    let of = |own: &str| json!({"Name": "web", "Token": "parent", "Connect": {"SidecarService": {"Token": own}}});
    state.add(definition(of("")), &Origin::API).unwrap();
    assert_eq!(state.token("web-sidecar-proxy"), "parent");
    state.add(definition(of("own")), &Origin::API).unwrap();
    assert_eq!(state.token("web-sidecar-proxy"), "own");
}

#[test]
fn local_records_of_a_file_are_replaced_as_a_whole() {
    let state = state();
    let file = Origin::file("/etc/a.hcl");
    state
        .replace_origin(&file, vec![with_sidecar("a", 0), with_sidecar("b", 0)])
        .unwrap();
    state.add(with_sidecar("api", 0), &Origin::API).unwrap();
    let changed = state.subscribe();
    state
        .replace_origin(&file, vec![with_sidecar("b", 0), with_sidecar("c", 0)])
        .unwrap();
    assert_eq!(
        ids(&state),
        [
            "api",
            "api-sidecar-proxy",
            "b",
            "b-sidecar-proxy",
            "c",
            "c-sidecar-proxy"
        ]
    );
    assert_eq!(port_of(&state, "b-sidecar-proxy"), 21_001);
    assert!(changed.try_recv().is_ok());

    // All or nothing, with every problem.
    let before = ids(&state);
    let bad = |name: &str| ServiceDefinition {
        name: name.to_owned(),
        ..ServiceDefinition::default()
    };
    let records = vec![with_sidecar("d", 0), bad("x.y"), bad("")];
    let errors = state.replace_origin(&file, records).unwrap_err();
    let positions: Vec<usize> = errors.iter().map(|e| e.position).collect();
    assert_eq!(positions, [1, 2]);
    assert!(
        errors[0]
            .to_string()
            .starts_with("/etc/a.hcl: service \"x.y\": "),
        "{}",
        errors[0]
    );
    assert_eq!(ids(&state), before);
    assert!(changed.try_recv().is_err());

    state.replace_origin(&file, Vec::new()).unwrap();
    assert_eq!(ids(&state), ["api", "api-sidecar-proxy"]);
    assert_eq!(state.origins(), BTreeSet::from([Origin::API]));
}

#[test]
fn local_two_files_can_not_define_one_service_but_it_can_move() {
    let state = state();
    let (a, b) = (Origin::file("a"), Origin::file("b"));
    state
        .replace_origin(&a, vec![with_sidecar("web", 0)])
        .unwrap();
    let errors = state
        .replace_origin(&b, vec![with_sidecar("WEB", 0)])
        .unwrap_err();
    assert!(
        errors[0].to_string().contains("is defined in a too"),
        "{}",
        errors[0]
    );
    let twice = vec![
        with_sidecar("web", 0),
        definition(json!({"Name": "web-sidecar-proxy"})),
    ];
    assert_eq!(state.replace_origin(&a, twice).unwrap_err().len(), 1);
    // Moved from one file to the other in one step.
    let records = |origin: &Origin, services| OriginRecords {
        origin: origin.clone(),
        services,
        checks: Vec::new(),
    };
    let moved = vec![
        records(&b, vec![with_sidecar("web", 0)]),
        records(&a, Vec::new()),
    ];
    state.replace_origins(moved).unwrap();
    assert_eq!(state.service("web").unwrap().origin, b);
    // Over the API one can be taken over, and the file takes it back when it changes.
    state.add(with_sidecar("web", 9000), &Origin::API).unwrap();
    assert_eq!(port_of(&state, "web-sidecar-proxy"), 9000);
    state
        .replace_origin(&b, vec![with_sidecar("web", 0)])
        .unwrap();
    assert_eq!(port_of(&state, "web-sidecar-proxy"), 21_000);
}

#[test]
fn local_checks_of_a_file_go_with_it() {
    let state = state();
    let file = Origin::file("f");
    let records = |checks| {
        vec![OriginRecords {
            origin: file.clone(),
            services: vec![definition(json!({"Name": "web"}))],
            checks,
        }]
    };
    let own = || check(json!({"CheckID": "c", "ServiceID": "web", "TTL": "5s"}));
    let disk = || check(json!({"CheckID": "disk", "TTL": "5s"}));
    state.replace_origins(records(vec![own(), disk()])).unwrap();
    assert!(state.check("c").is_some() && state.check("disk").is_some());
    state.replace_origins(records(vec![disk()])).unwrap();
    assert!(state.check("c").is_none() && state.check("disk").is_some());
    let errors = state
        .replace_origins(records(vec![disk(), disk()]))
        .unwrap_err();
    assert!(errors[0].is_check && errors[0].position == 1);
}
