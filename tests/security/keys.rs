//! Private keys appear in the leaf endpoint and in the secret resource, and nowhere else (decision C1).

use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::{Value, json};

use crate::pki::MESH;
use crate::program::{Server, folder};

/// A key as it may show up: the lines of its PEM that hold the secret number, and the number in hexadecimal digits. The last
/// line holds the public half alone, which certificates show too.
fn forms(pem: &str) -> Vec<String> {
    let body: Vec<&str> = pem.lines().filter(|line| !line.starts_with('-')).collect();
    assert_eq!(body.len(), 3, "a P-256 key in PKCS 8 form");
    let mut forms: Vec<String> = body[..2].iter().map(|line| (*line).to_owned()).collect();
    let base64 = body.concat();
    let decoded = Command::new("python3")
        .args([
            "-c",
            "import base64,sys; print(base64.b64decode(sys.argv[1])[36:68].hex())",
            &base64,
        ])
        .output()
        .unwrap();
    forms.push(String::from_utf8(decoded.stdout).unwrap().trim().to_owned());
    forms
}

#[test]
fn c1_no_output_of_a_running_system_holds_a_private_key() {
    let there = folder(&[("mesh.hcl", MESH)]);
    let server = Server::start(
        there.path(),
        &["--config", "mesh.hcl", "--log-level", "trace"],
    );
    let ready = |id: &str| {
        crate::program::until("a snapshot", || {
            server.get(&format!("/v1/proxycfg/snapshot/{id}"))
        });
    };
    ready("web-sidecar-proxy");
    // A root of our own, whose key is known here.
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_key = KeyPair::generate().unwrap();
    let root = params.self_signed(&root_key).unwrap().pem();
    let own = json!({"Provider": "consul", "Config": {"RootCert": root, "PrivateKey": root_key.serialize_pem()}});
    server.put("/v1/connect/ca/configuration", &own);
    server.put("/v1/proxycfg/renew/web-sidecar-proxy", &Value::Null);
    let mut secrets = forms(&root_key.serialize_pem());
    for service in ["web", "db"] {
        let leaf = server
            .get(&format!("/v1/agent/connect/ca/leaf/{service}"))
            .unwrap();
        secrets.extend(forms(leaf["PrivateKeyPEM"].as_str().unwrap()));
    }
    ready("db-sidecar-proxy");

    let mut outputs = Vec::new();
    for path in [
        "/metrics",
        "/v1/agent/self",
        "/v1/agent/services",
        "/v1/agent/checks",
        "/v1/agent/service/web",
        "/v1/agent/connect/ca/roots",
        "/v1/catalog/nodes",
        "/v1/catalog/services",
        "/v1/catalog/service/web-sidecar-proxy",
        "/v1/catalog/node/n1",
        "/v1/config/proxy-defaults",
        "/v1/connect/ca/roots",
        "/v1/connect/ca/roots?pem=true",
        "/v1/connect/ca/configuration",
        "/v1/discovery-chain/db",
        "/v1/health/connect/db",
        "/v1/health/state/any",
        "/v1/proxycfg/proxies",
        "/v1/proxycfg/snapshot/web-sidecar-proxy",
        "/v1/proxycfg/snapshot/web-sidecar-proxy?pointer=/ConnectProxy/Leaf",
        "/v1/proxycfg/resources/web-sidecar-proxy",
        "/v1/proxycfg/resources/web-sidecar-proxy?type=secret",
        "/v1/proxycfg/resources/db-sidecar-proxy",
    ] {
        outputs.push((path.to_owned(), server.text(path)));
    }
    for command in [
        &["proxies"][..],
        &["proxies", "--json"],
        &["snapshot", "web-sidecar-proxy"],
        &["resources", "web-sidecar-proxy"],
        &["resources", "web-sidecar-proxy", "--type", "secret"],
        &["chain", "db"],
        &["envoy", "--sidecar-for", "web", "--bootstrap"],
    ] {
        let ended = server.client(command);
        assert_eq!(ended.code, 0, "{ended:?}");
        outputs.push((command.join(" "), ended.out + &ended.err));
    }
    // A refused configuration isn't echoed either.
    let bad = json!({"Provider": "consul", "Config": {"RootCert": "no PEM", "PrivateKey": root_key.serialize_pem()}});
    let (status, said) = server
        .try_put("/v1/connect/ca/configuration", &bad)
        .unwrap();
    assert_eq!(status, 400, "{said}");
    outputs.push(("a refused configuration".to_owned(), said));
    outputs.push(("the log".to_owned(), server.whole_log()));

    for (name, text) in &outputs {
        assert!(!text.is_empty(), "{name}");
        assert!(!text.contains("PRIVATE KEY"), "{name}: {text}");
        for secret in &secrets {
            // Line ends may be written out in JSON, or gone.
            let joined = text.replace("\\n", "").replace('\n', "");
            let lower = joined.to_ascii_lowercase();
            assert!(
                !joined.contains(secret.as_str()) && !lower.contains(secret.as_str()),
                "{name}"
            );
        }
    }
    // The search finds what is there: the one place that shows it.
    let leaf = server
        .text("/v1/agent/connect/ca/leaf/web")
        .replace("\\n", "");
    assert!(secrets.iter().any(|secret| leaf.contains(secret.as_str())));
    assert_eq!(server.stop().0, 0);
}
