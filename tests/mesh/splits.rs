//! Splitters and subsets: shares of the requests, and where they go when a subset fails.

use std::collections::BTreeMap;
use std::io;

use proxycfg::model::CheckStatus;
use serde_json::{Value, json};

use crate::member::Member;
use crate::support::apps::http_name;
use crate::support::envoy::Envoy;
use crate::support::http::Client;
use crate::traffic::{Traffic, answered_by, from_now_on, refused_from_now_on};
use crate::world::Mesh;

/// A caller `web` of an HTTP service `api` with instances of two versions.
struct World {
    mesh: Mesh,
    web: Member,
    versions: Vec<Member>,
    envoys: Vec<Envoy>,
}

impl World {
    /// With instances of these ids; the version is what stands before the dash.
    fn start(instances: &[&str]) -> Self {
        let mesh = Mesh::start();
        mesh.protocol("api", "http");
        mesh.protocol("alias", "http");
        let of_version = |id: &&str| {
            let version = id.split_once('-').unwrap().0;
            Member::http("api", id).meta("version", version)
        };
        let versions: Vec<Member> = instances.iter().map(of_version).collect();
        let web = Member::tcp("web", "web-1")
            .upstream("api")
            .upstream("alias");
        for member in versions.iter().chain([&web]) {
            mesh.register(member);
        }
        let envoys = versions.iter().chain([&web]);
        let envoys = envoys.map(|member| mesh.envoy(member)).collect();
        Self {
            mesh,
            web,
            versions,
            envoys,
        }
    }

    fn address(&self) -> String {
        self.web.address_of("api")
    }

    /// Divides `api` into its versions.
    fn resolver(&self, more: Value) {
        let subset =
            |version: &str| json!({"Filter": format!("Service.Meta.version == {version}")});
        let mut entry = json!({
            "Kind": "service-resolver", "Name": "api", "ConnectTimeout": "3s",
            "Subsets": {"v1": subset("v1"), "v2": subset("v2")},
        });
        let fields = entry.as_object_mut().unwrap();
        fields.extend(more.as_object().cloned().unwrap_or_default());
        self.mesh.entry(entry);
    }

    fn splitter(&self, splits: Value) {
        self.mesh
            .entry(json!({"Kind": "service-splitter", "Name": "api", "Splits": splits}));
    }

    fn assert_calm(&self) {
        let envoys: Vec<_> = self.envoys.iter().collect();
        self.mesh.assert_calm(&envoys);
    }
}

fn leg(weight: f64, subset: &str) -> Value {
    json!({"Weight": weight, "ServiceSubset": subset})
}

/// What an answer says about the leg that it came by: the instance, the header that the request got on the way, and the
/// one that the answer got.
fn mark(client: &mut Client) -> io::Result<(String, String, String)> {
    let response = client.get("/", &[("x-leg", "none")])?;
    if response.status != 200 {
        return Err(io::Error::other(format!("{response:?}")));
    }
    let seen = response.json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let answered = response.header("x-leg").unwrap_or_default().to_owned();
    Ok((
        text(&seen["name"]),
        text(&seen["headers"]["x-leg"]),
        answered,
    ))
}

/// Who answers how many of 1,000 requests.
fn shares(client: &mut Client) -> BTreeMap<(String, String, String), i32> {
    let mut counts = BTreeMap::new();
    for _ in 0..1_000 {
        *counts.entry(mark(client).unwrap()).or_default() += 1;
    }
    counts
}

#[test]
fn a_split_shares_requests_and_marks_them() {
    let world = World::start(&["v1-1", "v2-1"]);
    let address = world.address();
    world.resolver(json!({}));
    let mut client = Client::new(&address);
    // What requests and answers get shows the leg that they came by, and which splitter is in force.
    let marked = |weight: f64, version: &str, generation: u32| {
        let mut leg = leg(weight, version);
        leg["RequestHeaders"] = json!({"Set": {"x-leg": format!("{version} of {generation}")}});
        leg["ResponseHeaders"] = json!({"Add": {"x-leg": format!("by {version}")}});
        leg
    };
    let mut shares_of = |generation: u32, splits: Value| {
        world.splitter(splits);
        let current = format!("of {generation}");
        from_now_on("current", || {
            let (_, seen, _) = mark(&mut Client::new(&address))?;
            let current = seen.ends_with(&current);
            Ok(if current { "current".to_owned() } else { seen })
        });
        shares(&mut client)
    };
    let of = |version: &str, generation: u32| {
        (
            format!("{version}-1"),
            format!("{version} of {generation}"),
            format!("by {version}"),
        )
    };
    let counts = shares_of(1, json!([marked(80.0, "v1", 1), marked(20.0, "v2", 1)]));
    assert!(
        counts.keys().eq([of("v1", 1), of("v2", 1)].iter()),
        "{counts:?}"
    );
    // Five standard deviations: of 1,000 requests a share of 20 percent has one of 12.6.
    let off = (counts[&of("v2", 1)] - 200).abs();
    assert!(off <= 63, "{counts:?}");

    // Small shares count too.
    let counts = shares_of(2, json!([marked(97.5, "v2", 2), marked(2.5, "v1", 2)]));
    let off = (counts[&of("v1", 2)] - 25).abs();
    assert!(off <= 24, "{counts:?}");
    // A share of nothing gets nothing.
    let counts = shares_of(3, json!([marked(100.0, "v1", 3), marked(0.0, "v2", 3)]));
    assert!(counts.keys().eq([of("v1", 3)].iter()), "{counts:?}");

    a_change_under_load(&world);
    world.assert_calm();
}

/// Weights move step by step from one version to the other and back, while requests go on: none of them fails. Legs come
/// and go, and their clusters with them.
fn a_change_under_load(world: &World) {
    let address = world.address();
    let kept = {
        let mut client = Client::new(&address);
        Traffic::start(move || {
            client
                .get("/", &[])
                .map(|r| format!("{} {:?}", r.status, r.header("x-app")))
        })
    };
    let fresh = {
        let address = address.clone();
        Traffic::start(move || http_name(&address))
    };
    for _ in 0..2 {
        for step in 0..=10 {
            let to = f64::from(step) * 10.0;
            let legs = match step {
                0 => json!([leg(100.0, "v1")]),
                10 => json!([leg(100.0, "v2")]),
                _ => json!([leg(100.0 - to, "v1"), leg(to, "v2")]),
            };
            world.splitter(legs);
            kept.more(2);
            fresh.more(2);
        }
        from_now_on("v2-1", || http_name(&address));
        world.splitter(json!([leg(100.0, "v1")]));
        from_now_on("v1-1", || http_name(&address));
    }
    kept.more(2);
    fresh.more(2);
    let answers = [kept.stop(), fresh.stop()];
    let [kept, fresh] = &answers;
    let good = ["200 Some(\"v1-1\")", "200 Some(\"v2-1\")"];
    assert!(kept.keys().eq(good.iter()), "{answers:?}");
    assert!(fresh.keys().eq(["v1-1", "v2-1"].iter()), "{answers:?}");
}

#[test]
fn subsets_are_chosen_redirected_to_and_fail_over() {
    let world = World::start(&["v1-1", "v1-2", "v2-1"]);
    let (address, alias) = (world.address(), world.web.address_of("alias"));
    let (mesh, versions) = (&world.mesh, &world.versions);
    answered_by(&["v1-1", "v1-2", "v2-1"], || http_name(&address));
    world.resolver(json!({"DefaultSubset": "v2"}));
    from_now_on("v2-1", || http_name(&address));
    world.resolver(json!({"DefaultSubset": "v1"}));
    answered_by(&["v1-1", "v1-2"], || http_name(&address));

    // A canary: who says so gets the new version.
    mesh.entry(json!({
        "Kind": "service-router", "Name": "api",
        "Routes": [{
            "Match": {"HTTP": {"Header": [{"Name": "x-version", "Exact": "2"}]}},
            "Destination": {"ServiceSubset": "v2"},
        }],
    }));
    let canary = || -> io::Result<String> {
        let response = Client::new(&address).get("/", &[("x-version", "2")])?;
        Ok(response.header("x-app").unwrap_or_default().to_owned())
    };
    from_now_on("v2-1", canary);
    answered_by(&["v1-1", "v1-2"], || http_name(&address));

    // Another name for a subset.
    mesh.entry(json!({"Kind": "service-resolver", "Name": "alias", "Redirect": {"Service": "api", "ServiceSubset": "v2"}}));
    from_now_on("v2-1", || http_name(&alias));

    // The whole subset has to fail.
    world.resolver(json!({"DefaultSubset": "v1", "Failover": {"v1": {"ServiceSubset": "v2"}}}));
    mesh.check(&versions[0], CheckStatus::Critical);
    from_now_on("v1-2", || http_name(&address));
    mesh.check(&versions[1], CheckStatus::Critical);
    from_now_on("v2-1", || http_name(&address));
    mesh.check(&versions[1], CheckStatus::Passing);
    from_now_on("v1-2", || http_name(&address));
    mesh.check(&versions[0], CheckStatus::Passing);
    answered_by(&["v1-1", "v1-2"], || http_name(&address));
    // Nothing is left to fail over to.
    for version in versions {
        mesh.check(version, CheckStatus::Critical);
    }
    refused_from_now_on(|| http_name(&address));
    for version in versions {
        mesh.check(version, CheckStatus::Passing);
    }
    answered_by(&["v1-1", "v1-2"], || http_name(&address));

    // A failover under load loses nothing but what was on its way to those that fail; these still answer.
    let traffic = {
        let address = address.clone();
        Traffic::start(move || http_name(&address))
    };
    for _ in 0..3 {
        for version in &versions[..2] {
            mesh.check(version, CheckStatus::Critical);
        }
        from_now_on("v2-1", || http_name(&address));
        for version in &versions[..2] {
            mesh.check(version, CheckStatus::Passing);
        }
        answered_by(&["v1-1", "v1-2"], || http_name(&address));
    }
    let answers = traffic.stop();
    assert!(
        answers.keys().all(|answer| answer.starts_with('v')),
        "{answers:?}"
    );
    world.assert_calm();
}
