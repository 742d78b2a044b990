//! Route tables of splitters and routers.

use super::*;

/// The routes of a chain of `shop` with a router in front of the subsets v1 and v2.
fn routes(routes: Value) -> Vec<Value> {
    let nodes = json!({
        "router:shop": {"Type": "router", "Name": "shop", "Routes": routes},
        "splitter:shop": {"Type": "splitter", "Name": "shop", "Splits": [
            {"Definition": {"RequestHeaders": {"Set": {"x": "1"}}}, "Weight": 95.5, "NextNode": "resolver:v1"},
            {"Definition": {}, "Weight": 4.0, "NextNode": "resolver:v2"},
            {"Definition": {}, "Weight": 0.5, "NextNode": "resolver:v1"},
        ], "LoadBalancer": {"Policy": "maglev", "HashPolicies": [
            {"Field": "header", "FieldValue": "x-user", "Terminal": true},
            {"Field": "cookie", "FieldValue": "c", "CookieConfig": {"Session": true, "Path": "/p"}},
            {"SourceIP": true},
            {"Field": "query_parameter", "FieldValue": "q"},
        ]}},
        "resolver:v1": resolver("v1.shop.default.default.dc1", json!({"RequestTimeout": "3s"})),
        "resolver:v2": resolver("v2.shop.default.default.dc1", json!({})),
    });
    let targets = [target("shop", "v1", "dc1"), target("shop", "v2", "dc1")];
    let chain = chain("shop", "http", "router:shop", nodes, &targets);
    let generated = checked(&Fixture::web().upstream(definition("shop", 5432), chain, &[]));
    let table = shown(&generated, ResourceType::Route, "shop");
    table["virtualHosts"][0]["routes"]
        .as_array()
        .unwrap()
        .clone()
}

#[test]
fn xds_45_weights_of_a_split_and_its_hash_policies() {
    let routes = routes(json!([{"Definition": {}, "NextNode": "splitter:shop"}]));
    let (v1, v2) = (
        cluster_name("v1.shop.default.dc1"),
        cluster_name("v2.shop.default.dc1"),
    );
    assert_eq!(
        routes,
        [json!({"match": {"prefix": "/"}, "route": {
            "weightedClusters": {"clusters": [
                {"name": v1, "weight": 9550, "requestHeadersToAdd": [
                    {"header": {"key": "x", "value": "1"}, "appendAction": "OVERWRITE_IF_EXISTS_OR_ADD"},
                ]},
                {"name": v2, "weight": 400},
                {"name": v1, "weight": 50},
            ]},
            "hashPolicy": [
                {"header": {"headerName": "x-user"}, "terminal": true},
                {"cookie": {"name": "c", "path": "/p", "ttl": "0s"}},
                {"connectionProperties": {"sourceIp": true}},
                {"queryParameter": {"name": "q"}},
            ],
        }})]
    );
}

#[test]
fn xds_46_47_routes_of_a_router() {
    let routes = routes(json!([
        {"Definition": {
            "Match": {"HTTP": {
                "PathPrefix": "/a", "CaseInsensitive": true,
                "Header": [
                    {"Name": "x", "Exact": "1", "Invert": true}, {"Name": "y", "Regex": "a|b"}, {"Name": "p", "Present": true},
                    {"Name": "ignored"},
                ],
                "QueryParam": [{"Name": "q", "Exact": "1"}, {"Name": "r", "Regex": "[0-9]+"}, {"Name": "s", "Present": true}],
                "Methods": ["GET", "PUT"],
            }},
            "Destination": {
                "PrefixRewrite": "/b", "RequestTimeout": "33s", "IdleTimeout": "5s", "NumRetries": 4,
                "RetryOnConnectFailure": true, "RetryOn": ["connect-failure", "5xx"], "RetryOnStatusCodes": [401, 409],
                "RequestHeaders": {"Add": {"b": "2", "a": "1"}, "Set": {"c": "3"}, "Remove": ["d"]},
                "ResponseHeaders": {"Remove": ["e"]},
            },
        }, "NextNode": "resolver:v1"},
        {"Definition": {"Match": {"HTTP": {"PathExact": "/e", "PathPrefix": "/ignored"}}}, "NextNode": "resolver:v2"},
        {"Definition": {"Match": {"HTTP": {"PathRegex": "/r.*"}}, "Destination": {"IdleTimeout": "-1s"}}, "NextNode": "resolver:v2"},
        {"Definition": {"Match": {}}, "NextNode": "resolver:v2"},
    ]));
    let header = |key: &str, value: &str| json!({"key": key, "value": value});
    assert_eq!(
        routes[0],
        json!({
            "match": {
                "prefix": "/a", "caseSensitive": false,
                "headers": [
                    {"name": "x", "stringMatch": {"exact": "1"}, "invertMatch": true},
                    {"name": "y", "stringMatch": {"safeRegex": {"regex": "a|b"}}},
                    {"name": "p", "presentMatch": true},
                    {"name": ":method", "stringMatch": {"safeRegex": {"regex": "GET|PUT"}}},
                ],
                "queryParameters": [
                    {"name": "q", "stringMatch": {"exact": "1"}},
                    {"name": "r", "stringMatch": {"safeRegex": {"regex": "[0-9]+"}}},
                    {"name": "s", "presentMatch": true},
                ],
            },
            "route": {
                "cluster": cluster_name("v1.shop.default.dc1"), "prefixRewrite": "/b", "timeout": "33s", "idleTimeout": "5s",
                "retryPolicy": {"retryOn": "connect-failure,5xx,retriable-status-codes", "numRetries": 4,
                    "retriableStatusCodes": [401, 409]},
            },
            "requestHeadersToAdd": [
                {"header": header("a", "1")}, {"header": header("b", "2")},
                {"header": header("c", "3"), "appendAction": "OVERWRITE_IF_EXISTS_OR_ADD"},
            ],
            "requestHeadersToRemove": ["d"],
            "responseHeadersToRemove": ["e"],
        })
    );
    assert_eq!(routes[1]["match"], json!({"path": "/e"}));
    assert_eq!(routes[2]["match"], json!({"safeRegex": {"regex": "/r.*"}}));
    assert_eq!(routes[2]["route"]["idleTimeout"], "0s");
    assert_eq!(routes[3]["match"], json!({"prefix": "/"}));
    assert!(routes[3]["route"].get("timeout").is_none());
}

#[test]
fn fc_066_a_rewrite_is_handed_on_as_it_is() {
    let route = |rewrite: &str| {
        json!({"Definition": {
            "Match": {"HTTP": {"PathPrefix": "/sp"}}, "Destination": {"PrefixRewrite": rewrite},
        }, "NextNode": "resolver:v1"})
    };
    let routes = routes(json!([route("/"), route("")]));
    assert_eq!(routes[0]["route"]["prefixRewrite"], "/");
    assert!(routes[1]["route"].get("prefixRewrite").is_none());
}

#[test]
fn x3_a_broken_route_keeps_the_whole_upstream_out_or_as_it_was() {
    let table = |pattern: &str| {
        let nodes = json!({
            "router:db": {"Type": "router", "Name": "db", "Routes": [{
                "Definition": {"Match": {"HTTP": {"PathRegex": pattern}}}, "NextNode": "resolver:db",
            }]},
            "resolver:db": resolver("db.default.default.dc1", json!({})),
        });
        chain("db", "http", "router:db", nodes, &[target("db", "", "dc1")])
    };
    let generator = crate::xds::Generator::new();
    let good = Fixture::web().upstream(definition("db", 5432), table("/a+"), &[]);
    let first = generator.resources(&good.snapshot(), None);
    assert_eq!(first.problems, []);
    let broken = good.retarget("db", |target| target.chain = Part::new(table("/a(?=b)")));
    let second = generator.resources(&broken.snapshot(), Some(&first));
    assert!(
        second.problems[0].message.contains("PathRegex"),
        "{:?}",
        second.problems
    );
    for kind in ResourceType::ALL {
        assert!(second.set.shares(&first.set, kind));
    }
    let fresh = generator.resources(&broken.snapshot(), None);
    assert_eq!(names(&fresh.set, ResourceType::Cluster), ["local_app"]);
    assert_consistent(&fresh);
}
