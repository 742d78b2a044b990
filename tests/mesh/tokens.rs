//! JSON web tokens in intentions.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

use crate::member::Member;
use crate::support::apps::App;
use crate::support::http::{Client, Response};
use crate::traffic::from_now_on;
use crate::world::Mesh;

/// Somebody who makes tokens.
struct Issuer {
    name: String,
    key: EcdsaKeyPair,
}

impl Issuer {
    fn new(name: &str) -> Self {
        let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self {
            name: name.to_owned(),
            key: EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap(),
        }
    }

    /// The public key, as a key set.
    fn keys(&self) -> String {
        // After a byte that says that they follow, both coordinates.
        let point = &self.key.public_key().as_ref()[1..];
        let (x, y) = point.split_at(point.len() / 2);
        let of = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": "one", "x": of(x), "y": of(y)}]})
            .to_string()
    }

    /// A token with these claims, of this issuer unless they name another.
    fn token(&self, claims: Value) -> String {
        let mut all = json!({"iss": self.name, "exp": 4_102_444_800_u64});
        let fields = all.as_object_mut().unwrap();
        fields.extend(claims.as_object().cloned().unwrap());
        let header = json!({"alg": "ES256", "kid": "one", "typ": "JWT"});
        let [header, claims] = [header, all].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let signed = format!("{header}.{claims}");
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes());
        let signature = URL_SAFE_NO_PAD.encode(signature.unwrap());
        format!("{signed}.{signature}")
    }

    /// The entry of a provider with the keys in it.
    fn provider(&self, more: Value) -> Value {
        let mut entry = json!({
            "Kind": "jwt-provider", "Name": self.name, "Issuer": self.name,
            "JSONWebKeySet": {"Local": {"JWKS": STANDARD.encode(self.keys())}},
        });
        let fields = entry.as_object_mut().unwrap();
        fields.extend(more.as_object().cloned().unwrap());
        entry
    }
}

struct World {
    mesh: Mesh,
    address: String,
}

impl World {
    fn ask(&self, path: &str, token: &str) -> Response {
        let bearer = format!("Bearer {token}");
        let headers: &[(&str, &str)] = &[("authorization", &bearer)];
        let headers = if token.is_empty() { &[] } else { headers };
        Client::new(&self.address).get(path, headers).unwrap()
    }

    fn status(&self, path: &str, token: &str) -> u16 {
        self.ask(path, token).status
    }

    /// Waits until a request with a token is answered so, from then on.
    fn settles(&self, status: u16, path: &str, token: &str) {
        from_now_on(&status.to_string(), || {
            Ok(self.status(path, token).to_string())
        });
    }

    fn intentions(&self, jwt: Option<Value>, source: Value) {
        let mut entry = json!({"Kind": "service-intentions", "Name": "api", "Sources": [source]});
        if let Some(jwt) = jwt {
            entry["JWT"] = jwt;
        }
        self.mesh.entry(entry);
    }
}

fn needs(provider: &str, claims: Value) -> Value {
    json!({"Providers": [{"Name": provider, "VerifyClaims": claims}]})
}

#[test]
fn tokens_and_their_claims_open_what_intentions_say() {
    let mesh = Mesh::start_deny();
    mesh.protocol("api", "http");
    let api = Member::http("api", "api-1");
    let web = Member::tcp("web", "web-1").upstream("api");
    let other = Member::tcp("other", "other-1").upstream("api");
    for member in [&api, &web, &other] {
        mesh.register(member);
    }
    let envoys = [&api, &web, &other].map(|member| mesh.envoy(member));
    let other = other.address_of("api");
    let world = World {
        mesh,
        address: web.address_of("api"),
    };
    let (staff, guests, stranger) = (
        Issuer::new("staff"),
        Issuer::new("guests"),
        Issuer::new("stranger"),
    );
    world
        .mesh
        .entry(staff.provider(json!({"Forwarding": {"HeaderName": "x-payload"}})));
    let keys = App::document("keys", guests.keys());
    let remote =
        json!({"URI": format!("http://{}/keys", keys.address()), "FetchAsynchronously": true});
    world.mesh.entry(
        guests.provider(json!({"JSONWebKeySet": {"Remote": remote}, "Audiences": ["mesh"]})),
    );

    // Every request needs a token.
    let allow = json!({"Name": "web", "Action": "allow"});
    world.intentions(Some(needs("staff", json!([]))), allow.clone());
    let good = staff.token(json!({"sub": "me"}));
    world.settles(200, "/", &good);
    let seen = world.ask("/", &good).json();
    let payload = seen["headers"]["x-payload"].as_str().unwrap();
    let payload: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap();
    assert_eq!(payload["sub"], "me");
    assert_eq!(seen["headers"]["authorization"], Value::Null);
    let forged = stranger.token(json!({"iss": "staff"}));
    let expired = staff.token(json!({"exp": 1_000_000_000}));
    let elsewhere = staff.token(json!({"iss": "stranger"}));
    let mut changed = good.clone();
    changed.insert(good.find('.').unwrap() + 1, 'x');
    for bad in ["", "x", &forged, &expired, &elsewhere, &changed] {
        assert_eq!(world.status("/", bad), 403, "{bad}");
    }
    // A token is no substitute for being allowed to call.
    let bearer = format!("Bearer {good}");
    let response = Client::new(&other).get("/", &[("authorization", &bearer)]);
    assert_eq!(response.unwrap().status, 403);

    // Some need one with certain claims, by permission.
    let role = |value: &str| json!([{"Path": ["roles", "first"], "Value": value}]);
    let permissions = json!([
        {"Action": "allow", "HTTP": {"PathExact": "/open"}},
        {"Action": "allow", "HTTP": {"PathPrefix": "/admin"}, "JWT": needs("staff", role("admin"))},
        {"Action": "allow", "HTTP": {"PathPrefix": "/read", "Methods": ["GET"]}, "JWT": needs("guests", json!([]))},
    ]);
    world.intentions(None, json!({"Name": "web", "Permissions": permissions}));
    world.settles(200, "/open", "");
    let admin = staff.token(json!({"roles": {"first": "admin"}}));
    let user = staff.token(json!({"roles": {"first": "user"}, "admin": "admin"}));
    let guest = guests.token(json!({"aud": "mesh"}));
    let for_others = guests.token(json!({"aud": "others"}));
    // Its keys have to be fetched first.
    world.settles(200, "/read", &guest);
    assert!(keys.served() > 0);
    for (path, token, status) in [
        ("/admin", &admin, 200),
        ("/admin", &user, 403),
        ("/admin", &good, 403),
        ("/admin", &guest, 403),
        ("/read", &admin, 403),
        ("/read", &for_others, 403),
        ("/open", &user, 200),
        ("/open", &forged, 200),
        ("/else", &admin, 403),
    ] {
        assert_eq!(world.status(path, token), status, "{path} {token}");
    }
    assert_eq!(world.status("/admin", ""), 403);

    // Tokens in other places.
    world.mesh.entry(staff.provider(json!({
        "Locations": [{"QueryParam": {"Name": "pass"}}, {"Cookie": {"Name": "seat"}}, {"Header": {"Name": "x-token", "ValuePrefix": "T "}}],
    })));
    world.settles(200, &format!("/admin?pass={admin}"), "");
    let in_header = |name: &str, value: String| {
        let response = Client::new(&world.address).get("/admin", &[(name, &value)]);
        response.unwrap().status
    };
    assert_eq!(in_header("cookie", format!("seat={admin}")), 200);
    assert_eq!(in_header("x-token", format!("T {admin}")), 200);
    assert_eq!(in_header("cookie", format!("seat={user}")), 403);
    assert_eq!(world.status("/admin", &admin), 403);
    // New keys take the place of the old ones.
    let staff_again = Issuer::new("staff");
    world.mesh.entry(staff_again.provider(json!({})));
    let claims = json!({"roles": {"first": "admin"}});
    world.settles(200, "/admin", &staff_again.token(claims.clone()));
    assert_eq!(world.status("/admin", &staff.token(claims)), 403);
    world.mesh.assert_calm(&envoys.each_ref());
}
