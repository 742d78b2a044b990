//! Who gets in, and who doesn't.

use crate::pki::{Authority, DB, OPS, WEB, ask, folder, server};
use crate::program::{run, until, write};

#[test]
fn c2_only_known_clients_with_known_tokens_get_in() {
    let folder = folder();
    let server = server(folder.path(), &[]);
    let (own, theirs) = ("server-ca.pem", "stranger-ca.pem");
    let proxies = &["proxies", "--json"][..];
    let good = ask(
        folder.path(),
        &server,
        own,
        Some("client"),
        Some(OPS),
        proxies,
    );
    assert_eq!(good.code, 0, "{good:?}");
    assert!(good.out.contains("web-sidecar-proxy"), "{good:?}");

    // No certificate, a stranger's, a server that isn't trusted.
    for (trusted, client) in [
        (own, None),
        (own, Some("stranger")),
        (theirs, Some("client")),
    ] {
        let refused = ask(folder.path(), &server, trusted, client, Some(OPS), proxies);
        assert_eq!(refused.code, 1, "{trusted} {client:?}: {refused:?}");
        assert!(
            refused.err.contains("no server answers at https://"),
            "{refused:?}"
        );
    }
    // Not encrypted.
    let plain = run(
        folder.path(),
        &["proxies", "--http-addr", &server.http.to_string()],
    );
    assert_eq!(plain.code, 1, "{plain:?}");
    // No token, a wrong one, another service's.
    for (token, command, said) in [
        (None, proxies, "ACL not found"),
        (Some("wrong-wrong-wrong-wrong"), proxies, "ACL not found"),
        (
            Some(DB),
            &["snapshot", "web-sidecar-proxy"][..],
            "Permission denied: token \"db\"",
        ),
        (
            Some(DB),
            &["resources", "web-sidecar-proxy"],
            "Permission denied",
        ),
        (Some(DB), &["chain", "web"], "Permission denied"),
    ] {
        let refused = ask(folder.path(), &server, own, Some("client"), token, command);
        assert_eq!(refused.code, 1, "{command:?}: {refused:?}");
        assert!(refused.err.contains(said), "{refused:?}");
        assert_eq!(refused.out, "");
    }
    let web = Some(WEB);
    let snapshot = &["snapshot", "web-sidecar-proxy"][..];
    let own_snapshot = ask(folder.path(), &server, own, Some("client"), web, snapshot);
    assert_eq!(own_snapshot.code, 0, "{own_snapshot:?}");
    let listed = ask(folder.path(), &server, own, Some("client"), web, proxies);
    assert!(
        listed.out.contains("web-sidecar-proxy") && !listed.out.contains("db-sidecar"),
        "{listed:?}"
    );
    assert_eq!(server.stop().0, 0);
}

#[test]
fn c2_certificates_and_tokens_are_read_again_when_they_change() {
    let folder = folder();
    let server = server(folder.path(), &[]);
    let proxies = &["proxies"][..];
    // A certificate of another authority, its key first: in between, the old pair stays.
    let other = Authority::new();
    let (certificate, key) = other.issue();
    write(folder.path(), "other-ca.pem", &other.pem);
    write(folder.path(), "server-key.pem", &key);
    write(folder.path(), "server.pem", &certificate);
    until("the new certificate", || {
        let asked = ask(
            folder.path(),
            &server,
            "other-ca.pem",
            Some("client"),
            Some(OPS),
            proxies,
        );
        (asked.code == 0).then_some(())
    });
    let tokens = "tokens = [{ name = \"new\" secret = \"new-new-new-new-new\" operator = true }]";
    write(folder.path(), "tokens.hcl", tokens);
    let with = |token| {
        ask(
            folder.path(),
            &server,
            "other-ca.pem",
            Some("client"),
            Some(token),
            proxies,
        )
    };
    until("the new token", || {
        (with("new-new-new-new-new").code == 0).then_some(())
    });
    assert!(with(OPS).err.contains("ACL not found"));
    // A bad edit is told, and changes nothing.
    write(folder.path(), "tokens.hcl", "tokens = [{ name = \"new\" }]");
    server.logged("the file of tokens: tokens.hcl:1:11: Tokens[0]: a token needs a Secret");
    assert_eq!(with("new-new-new-new-new").code, 0);
    assert_eq!(server.stop().0, 0);
}

#[test]
fn c2_bad_protection_is_told_before_anything_listens() {
    let folder = folder();
    let serve = |args: &[&str]| {
        let mut all = vec!["serve"];
        for port in ["--http-addr", "--xds-addr"] {
            if !args.contains(&port) {
                all.extend([port, "127.0.0.1:0"]);
            }
        }
        all.extend(args);
        run(folder.path(), &all)
    };
    let tls = ["--tls-cert", "server.pem", "--tls-key", "server-key.pem"];
    for (args, said) in [
        (&["--tls-cert", "server.pem"][..], "--tls-key"),
        (
            &["--tls-cert", "server.pem", "--tls-key", "client-key.pem"],
            "can't be used together",
        ),
        (
            &["--tls-cert", "missing.pem", "--tls-key", "server-key.pem"],
            "missing.pem",
        ),
        (
            &["--tls-cert", "tokens.hcl", "--tls-key", "server-key.pem"],
            "no certificate in it",
        ),
        (&["--tokens", "server.pem"], "server.pem:1:"),
        (&["--tokens", "missing.hcl"], "missing.hcl"),
        (
            &["--http-addr", "0.0.0.0:0", tls[0], tls[1], tls[2], tls[3]],
            "whoever connects is let in",
        ),
        (
            &["--xds-addr", "0.0.0.0:0", "--tokens", "tokens.hcl"],
            "not encrypted",
        ),
    ] {
        let ended = serve(args);
        assert_eq!(ended.code, 2, "{args:?}: {ended:?}");
        assert!(ended.err.contains(said), "{args:?}: {ended:?}");
    }
}

/// A crowd that connects and never shakes hands, more of them than there are places.
#[test]
fn clients_that_say_nothing_keep_nobody_from_a_handshake() {
    let folder = folder();
    let server = server(folder.path(), &["--max-http-connections=300"]);
    let connect = |_| std::net::TcpStream::connect(server.http).unwrap();
    let crowd: Vec<_> = (0..400).map(connect).collect();
    let command = &["proxies", "--json"][..];
    let (trusted, client) = ("server-ca.pem", Some("client"));
    let start = std::time::Instant::now();
    let good = ask(folder.path(), &server, trusted, client, Some(OPS), command);
    assert_eq!(good.code, 0, "{good:?}");
    // Before the first of the crowd is given up, which is after 10 s.
    let taken = start.elapsed();
    assert!(taken < std::time::Duration::from_secs(8), "{taken:?}");
    drop(crowd);
    assert_eq!(server.stop().0, 0);
}
