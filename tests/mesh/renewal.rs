//! New certificates and new roots under running traffic.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use proxycfg::source::Query;

use crate::identity::{own_certificates, trusted_serials};
use crate::member::Member;
use crate::support::DEADLINE;
use crate::support::apps::{http_name, tcp_name};
use crate::support::envoy::Envoy;
use crate::traffic::{Traffic, from_now_on};
use crate::world::Mesh;

/// A connection to a TCP application that is kept.
struct Kept(BufReader<TcpStream>);

impl Kept {
    fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut kept = Self(BufReader::new(stream));
        assert_eq!(kept.line(), "db-1\n");
        kept
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    fn assert_alive(&mut self, text: &str) {
        writeln!(self.0.get_mut(), "{text}").unwrap();
        assert_eq!(self.line(), format!("{text}\n"));
    }
}

pub fn serials(envoy: &Envoy) -> BTreeSet<String> {
    own_certificates(envoy)
        .into_iter()
        .map(|(_, serial)| serial)
        .collect()
}

/// Waits until an Envoy presents another certificate than before, and only that.
pub fn wait_renewed(envoy: &Envoy, before: &BTreeSet<String>) -> BTreeSet<String> {
    envoy.wait_until("renewed", DEADLINE, |envoy| {
        let now = serials(envoy);
        if now.len() == 1 && now.is_disjoint(before) {
            Ok(now)
        } else {
            Err(format!("{now:?} after {before:?}"))
        }
    })
}

#[test]
fn certificates_are_renewed_and_roots_rotated_without_a_failed_request() {
    let mesh = Mesh::with(|config| config.leaves.root_change_jitter = Duration::ZERO);
    mesh.protocol("api", "http");
    let db = Member::tcp("db", "db-1");
    let api = Member::http("api", "api-1");
    let web = Member::tcp("web", "web-1").upstream("db").upstream("api");
    let members = [&web, &db, &api];
    for member in members {
        mesh.register(member);
    }
    let envoys = members.map(|member| mesh.envoy(member));
    let (to_db, to_api) = (web.address_of("db"), web.address_of("api"));
    from_now_on("db-1", || tcp_name(&to_db));
    from_now_on("api-1", || http_name(&to_api));
    let mut kept = Kept::open(&to_db);
    let handshakes = |envoy: &Envoy| -> u64 {
        let stats = envoy.stats("^cluster.*ssl.handshake$");
        stats.values().sum()
    };
    let traffic = [
        (Traffic::start(move || tcp_name(&to_db)), "db-1"),
        (Traffic::start(move || http_name(&to_api)), "api-1"),
    ];
    let more = || traffic.iter().for_each(|(traffic, _)| traffic.more(5));
    let mut known: Vec<BTreeSet<String>> = envoys.iter().map(serials).collect();

    for round in 0..3 {
        for ((member, service), (envoy, known)) in members
            .iter()
            .zip(["web", "db", "api"])
            .zip(envoys.iter().zip(&mut known))
        {
            let query = Query::Leaf {
                service: service.into(),
            };
            assert!(
                mesh.embedded
                    .manager
                    .refresh(&Mesh::engine_id(member), &query)
            );
            *known = wait_renewed(envoy, known);
            more();
            kept.assert_alive(&format!("renewed {service} {round}"));
        }
    }

    let old_roots = trusted_serials(&envoys[0]);
    for round in 0..2 {
        let roots = mesh.embedded.rotate_root().unwrap();
        for (envoy, known) in envoys.iter().zip(&mut known) {
            *known = wait_renewed(envoy, known);
            envoy.wait_until("trusts all roots", DEADLINE, |envoy| {
                let trusted = trusted_serials(envoy);
                if trusted.len() == roots.roots.len()
                    && old_roots.iter().all(|old| trusted.contains(old))
                {
                    Ok(())
                } else {
                    Err(format!("{trusted:?}"))
                }
            });
        }
        let before = handshakes(&envoys[0]);
        more();
        assert!(
            handshakes(&envoys[0]) > before,
            "new connections are made all the time"
        );
        kept.assert_alive(&format!("rotated {round}"));
    }
    for (traffic, answer) in traffic {
        traffic.assert_always(answer);
    }
    for (envoy, service) in envoys.iter().zip(["web", "db", "api"]) {
        assert_eq!(own_certificates(envoy)[0].0, mesh.spiffe(service));
    }
    mesh.assert_calm(&envoys.each_ref());
}
