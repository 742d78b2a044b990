//! When checks run, and who is told.

use super::*;

#[test]
fn r1_a_hanging_target_costs_only_itself() {
    let (sink, runner) = real();
    let server = http_server();
    let open = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = open.local_addr().unwrap().to_string();
    let mut checks: Vec<DesiredCheck> = (0..100)
        .map(|n| {
            check(
                "web",
                &format!("hang-{n}"),
                http(format!("http://{server}/hang")),
            )
        })
        .collect();
    checks.push(check("web", "open", tcp(&address)));
    checks.push(check(
        "web",
        "short",
        CheckDefinition {
            timeout: GoDuration::from_millis(50),
            ..http(format!("http://{server}/hang"))
        },
    ));
    runner.set_checks(checks);
    assert_eq!(sink.first("open").0, CheckStatus::Passing);
    let (status, output) = sink.first("short");
    assert_eq!(
        (status, output),
        (
            CheckStatus::Critical,
            format!("HTTP GET http://{server}/hang: timeout after 50ms")
        )
    );
    assert_eq!(sink.count("hang-0"), 0);
    // Doesn't wait for the hundred that hang.
    let start = Instant::now();
    drop(runner);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn r1_runs_again_after_each_interval_and_reports_changes_only() {
    let (sink, clock, runner) = simulated();
    let connections = Arc::new(Mutex::new(0));
    let counter = connections.clone();
    let address = serve(move |_| *counter.lock() += 1);
    runner.set_checks(vec![check("web", "tcp", tcp(&address))]);
    assert_eq!(sink.first("tcp").0, CheckStatus::Passing);
    let end = Instant::now() + DEADLINE;
    while *connections.lock() < 4 {
        assert!(Instant::now() < end, "never ran again");
        advance(&clock, &runner, Duration::from_millis(500));
    }
    assert_eq!(sink.count("tcp"), 1);
}

#[test]
fn r1_ttl_expires_and_heartbeats_keep_it() {
    let (sink, clock, runner) = simulated();
    runner.set_checks(vec![
        check("web", "beat", ttl(10)),
        check("web", "never", ttl(10)),
    ]);
    runner
        .ttl_update("beat", CheckStatus::Passing, "all well".into())
        .unwrap();
    // Told when the call returns.
    assert_eq!(
        sink.first("beat"),
        (CheckStatus::Passing, "all well".into())
    );
    advance(&clock, &runner, Duration::from_secs(9));
    runner
        .ttl_update("beat", CheckStatus::Warning, "so so".into())
        .unwrap();
    assert_eq!(sink.count("never"), 0);
    advance(&clock, &runner, Duration::from_secs(1));
    assert_eq!(
        sink.first("never"),
        (CheckStatus::Critical, "TTL expired".into())
    );
    advance(&clock, &runner, Duration::from_millis(8999));
    assert_eq!(sink.first("beat"), (CheckStatus::Warning, "so so".into()));
    advance(&clock, &runner, Duration::from_millis(1));
    assert_eq!(
        sink.first("beat"),
        (
            CheckStatus::Critical,
            "TTL expired (last output before timeout follows): so so".into()
        )
    );
    // Once: nothing more comes until somebody speaks.
    advance(&clock, &runner, Duration::from_secs(100));
    assert_eq!(sink.count("beat"), 3);
    runner
        .ttl_update("beat", CheckStatus::Passing, String::new())
        .unwrap();
    assert_eq!(sink.first("beat"), (CheckStatus::Passing, String::new()));
}

#[test]
fn r1_heartbeats_are_for_ttl_checks_only() {
    let (_, runner) = real();
    runner.set_checks(vec![check("web", "tcp", tcp("127.0.0.1:1"))]);
    for id in ["tcp", "unknown"] {
        let error = runner
            .ttl_update(id, CheckStatus::Passing, String::new())
            .unwrap_err();
        assert_eq!(error.check_id, id);
    }
}

#[test]
fn r1_alias_follows_what_it_copies() {
    let (sink, _clock, runner) = simulated();
    runner.set_checks(vec![
        check("web", "web-ttl", ttl(600)),
        check("proxy", "alias", alias("web")),
        check("proxy-of-proxy", "alias-of-alias", alias("proxy")),
        check("other", "missing", alias("nowhere")),
    ]);
    assert_eq!(
        sink.first("missing"),
        (
            CheckStatus::Critical,
            "Service nowhere could not be found".into()
        )
    );
    for (status, output, want) in [
        (CheckStatus::Passing, "fine", "All checks passing."),
        (
            CheckStatus::Warning,
            "slow",
            "Aliased check \"web-ttl\" failing: slow",
        ),
        (
            CheckStatus::Critical,
            "down",
            "Aliased check \"web-ttl\" failing: down",
        ),
    ] {
        runner.ttl_update("web-ttl", status, output.into()).unwrap();
        let (_, seen) = sink.wait_report("alias", |seen, _| seen == status);
        assert_eq!(seen, want);
        sink.wait_report("alias-of-alias", |seen, _| seen == status);
    }
    // Something that isn't run here.
    sink.seen
        .lock()
        .targets
        .insert("nowhere".into(), AliasTarget::NoChecks);
    runner.refresh_aliases();
    let (_, output) = sink.wait_report("missing", |status, _| status == CheckStatus::Passing);
    assert_eq!(output, "No checks found.");
}

#[test]
fn r1_a_circle_of_aliases_ends() {
    let (sink, _clock, runner) = simulated();
    runner.set_checks(vec![
        check("a", "a-copies-b", alias("b")),
        check("b", "b-copies-a", alias("a")),
    ]);
    sink.first("a-copies-b");
    sink.first("b-copies-a");
    // The scheduler still answers.
    runner.set_checks(vec![check("a", "beat", ttl(10))]);
    runner
        .ttl_update("beat", CheckStatus::Passing, String::new())
        .unwrap();
}

#[test]
fn r1_critical_for_too_long_deregisters() {
    let (sink, clock, runner) = simulated();
    let reaped = CheckDefinition {
        deregister_critical_service_after: GoDuration::from_secs(90),
        ..ttl(100_000)
    };
    runner.set_checks(vec![
        check("web", "web", reaped.clone()),
        check("ok", "ok", reaped.clone()),
        check("", "node", reaped),
    ]);
    runner
        .ttl_update("ok", CheckStatus::Passing, String::new())
        .unwrap();
    advance(&clock, &runner, Duration::from_secs(89));
    runner
        .ttl_update("ok", CheckStatus::Warning, String::new())
        .unwrap();
    let deregistered = || sink.seen.lock().deregistered.clone();
    assert!(deregistered().is_empty());
    advance(&clock, &runner, Duration::from_secs(1));
    assert_eq!(deregistered(), ["web"]);
    // It is still desired, so it is asked for again.
    advance(&clock, &runner, Duration::from_secs(89));
    assert_eq!(deregistered(), ["web"]);
    advance(&clock, &runner, Duration::from_secs(1));
    assert_eq!(deregistered(), ["web", "web"]);
    // Recovering ends it.
    runner
        .ttl_update("web", CheckStatus::Passing, String::new())
        .unwrap();
    advance(&clock, &runner, Duration::from_secs(1000));
    assert_eq!(deregistered(), ["web", "web"]);
}

#[test]
fn r1_set_checks_is_a_level() {
    let (sink, _clock, runner) = simulated();
    let connections = Arc::new(Mutex::new(0));
    let counter = connections.clone();
    let address = serve(move |_| *counter.lock() += 1);
    let kept = check("web", "kept", tcp(&address));
    runner.set_checks(vec![
        kept.clone(),
        check("web", "gone", ttl(10)),
        check("web", "changed", ttl(10)),
    ]);
    sink.first("kept");
    runner.set_checks(vec![
        kept,
        check("web", "changed", tcp(&address)),
        check("web", "new", ttl(10)),
    ]);
    assert_eq!(sink.first("changed").0, CheckStatus::Passing);
    runner
        .ttl_update("new", CheckStatus::Passing, String::new())
        .unwrap();
    assert!(
        runner
            .ttl_update("gone", CheckStatus::Passing, String::new())
            .is_err()
    );
    assert!(
        runner
            .ttl_update("changed", CheckStatus::Passing, String::new())
            .is_err()
    );
    // Time stands still: the kept one ran once, the changed one once.
    let end = Instant::now() + DEADLINE;
    while *connections.lock() < 2 {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    assert_eq!(*connections.lock(), 2);
    assert_eq!(sink.count("kept"), 1);
}

#[test]
fn r1_what_cannot_be_run_is_critical_and_says_why() {
    let (sink, runner) = real();
    let mut empty = check("web", "empty", CheckDefinition::default());
    empty.status = CheckStatus::Passing;
    runner.set_checks(vec![empty, check("web", "bad", tcp("nowhere"))]);
    let (status, output) = sink.first("empty");
    assert_eq!(status, CheckStatus::Critical);
    assert!(
        output.starts_with("the check can't be run: there is nothing to run"),
        "{output}"
    );
    let (_, output) = sink.first("bad");
    assert!(output.contains("TCP \"nowhere\""), "{output}");
}

#[test]
fn r1_the_sink_may_call_the_runner_and_may_panic() {
    struct Reentrant {
        runner: Mutex<Option<Arc<CheckRunner>>>,
        recorder: Recorder,
    }
    impl CheckSink for Reentrant {
        fn report(&self, key: &CheckKey, status: CheckStatus, output: String) {
            self.recorder.report(key, status, output);
            if key.check_id == "panics" {
                panic!("told to");
            }
            if key.check_id == "first" {
                let runner = self.runner.lock().clone().unwrap();
                runner
                    .ttl_update("second", CheckStatus::Passing, "from inside".into())
                    .unwrap();
            }
        }
        fn deregister_service(&self, _: &str) {}
        fn alias_target(&self, _: &CheckKey, _: &str, _: &str) -> AliasTarget {
            AliasTarget::Missing
        }
    }
    let sink = Arc::new(Reentrant {
        runner: Mutex::default(),
        recorder: Recorder::default(),
    });
    let runner = Arc::new(CheckRunner::new(sink.clone(), Arc::new(TestClock::new())).unwrap());
    *sink.runner.lock() = Some(runner.clone());
    runner.set_checks(vec![
        check("web", "panics", ttl(10)),
        check("web", "first", ttl(10)),
        check("web", "second", ttl(10)),
    ]);
    runner
        .ttl_update("panics", CheckStatus::Passing, String::new())
        .unwrap();
    runner
        .ttl_update("first", CheckStatus::Passing, String::new())
        .unwrap();
    let (_, output) = sink
        .recorder
        .wait_report("second", |status, _| status == CheckStatus::Passing);
    assert_eq!(output, "from inside");
    *sink.runner.lock() = None;
}
