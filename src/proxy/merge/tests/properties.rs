//! What holds for any registration and any central configuration.

use proptest::prelude::*;

use super::*;

fn free_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0i64..3).prop_map(Value::from),
        "[ab]{0,1}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..2).prop_map(Value::from),
            free_map(inner).prop_map(Value::Object),
        ]
    })
}

fn free_map(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Opaque> {
    let key = prop_oneof![
        Just("limits"),
        Just("Limits"),
        Just("protocol"),
        Just("Protocol"),
        Just("mesh_gateway"),
        Just("some_key"),
        Just("SomeKey"),
    ];
    let mode = prop_oneof![Just("none"), Just("local"), Just("?")];
    let members = proptest::collection::btree_map(key.prop_map(str::to_owned), value, 0..4);
    (members, proptest::option::of(mode)).prop_map(|(members, mode)| {
        let mut map: Opaque = members.into_iter().collect();
        if let Some(mode) = mode {
            map.insert("mesh_gateway".to_owned(), json!({"mode": mode}));
        }
        map
    })
}

fn gateway_mode() -> impl Strategy<Value = MeshGatewayMode> {
    prop_oneof![
        Just(MeshGatewayMode::Default),
        Just(MeshGatewayMode::None),
        Just(MeshGatewayMode::Remote),
    ]
}

fn proxy_mode() -> impl Strategy<Value = ProxyMode> {
    prop_oneof![
        Just(ProxyMode::Inherit),
        Just(ProxyMode::Direct),
        Just(ProxyMode::Transparent),
    ]
}

fn some_text() -> impl Strategy<Value = String> {
    "[xy]?".prop_map(String::from)
}

prop_compose! {
    fn any_upstream()(
        name in "[a-cA]",
        peer in prop_oneof![Just(""), Just("east")],
        query in proptest::bool::weighted(0.2),
        centrally_configured in proptest::bool::weighted(0.1),
        config in free_map(free_value()),
        mode in gateway_mode(),
    ) -> Upstream {
        let mut upstream = Upstream {
            destination_name: name,
            destination_peer: peer.to_owned(),
            destination_type: if query { "prepared_query".to_owned() } else { String::new() },
            config,
            centrally_configured,
            ..Upstream::default()
        };
        upstream.mesh_gateway.mode = mode;
        upstream
    }
}

prop_compose! {
    fn any_instance()(
        mode in proxy_mode(),
        gateway in gateway_mode(),
        config in free_map(free_value()),
        upstreams in proptest::collection::vec(any_upstream(), 0..4),
        extension in some_text(),
        (kind, text, json) in (some_text(), some_text(), some_text()),
        (port, dialed, checks) in (0u16..2, any::<bool>(), any::<bool>()),
    ) -> ServiceInstance {
        let mut instance = sidecar(json!({}));
        let proxy = &mut instance.proxy;
        proxy.mode = mode;
        proxy.mesh_gateway.mode = gateway;
        proxy.config = config;
        proxy.upstreams = upstreams;
        proxy.envoy_extensions = vec![EnvoyExtension { name: extension, ..EnvoyExtension::default() }];
        proxy.access_logs.kind = kind;
        if json.is_empty() { proxy.access_logs.text_format = text } else { proxy.access_logs.json_format = json }
        proxy.transparent_proxy.outbound_listener_port = port;
        proxy.transparent_proxy.dialed_directly = dialed;
        proxy.expose.checks = checks;
        instance
    }
}

prop_compose! {
    fn any_resolved()(
        mode in proxy_mode(),
        gateway in gateway_mode(),
        proxy_config in free_map(free_value()),
        upstreams in proptest::collection::btree_map(
            (prop_oneof![Just(""), Just("east")], "[a-d*]"), free_map(free_value()), 0..5,
        ),
        limited in any::<bool>(),
        (kind, json) in (some_text(), some_text()),
        (port, dialed, checks) in (0u16..3, any::<bool>(), any::<bool>()),
    ) -> ResolvedServiceConfig {
        let mut resolved = ResolvedServiceConfig {
            mode,
            proxy_config,
            upstream_configs: upstreams
                .into_iter()
                .map(|((peer, name), config)| ResolvedUpstreamConfig { peer: peer.into(), name: name.into(), config })
                .collect(),
            rate_limits: limited.then(RateLimits::default),
            ..ResolvedServiceConfig::default()
        };
        resolved.mesh_gateway.mode = gateway;
        resolved.access_logs.kind = kind;
        resolved.access_logs.json_format = json;
        resolved.transparent_proxy.outbound_listener_port = port;
        resolved.transparent_proxy.dialed_directly = dialed;
        resolved.expose.checks = checks;
        resolved
    }
}

/// Whether everything that is set in a local map is still there with its value.
fn survives(local: &Opaque, merged: &Opaque) -> bool {
    local.iter().all(|(key, value)| match merged.get(key) {
        Some(Value::Object(now)) if value.is_object() => {
            value.as_object().is_some_and(|value| survives(value, now))
        }
        Some(now) => is_zero(value) || now == value,
        None => false,
    })
}

proptest! {
    #[test]
    fn merging_twice_is_merging_once(instance in any_instance(), resolved in any_resolved()) {
        let once = merge_central_config(&instance, &resolved);
        prop_assert_eq!(&merge_central_config(&once, &resolved), &once);
        // Resolving again for the merged instance asks for no other upstreams.
        prop_assert_eq!(central_config_query(&once).upstreams, central_config_query(&instance).upstreams);
    }

    #[test]
    fn what_the_instance_says_wins(instance in any_instance(), resolved in any_resolved()) {
        let merged = merge_central_config(&instance, &resolved).proxy;
        let local = &instance.proxy;
        prop_assert!(survives(&local.config, &merged.config));
        prop_assert!(local.mode == ProxyMode::Inherit || local.mode == merged.mode);
        prop_assert!(local.mesh_gateway.mode == MeshGatewayMode::Default || local.mesh_gateway == merged.mesh_gateway);
        let port = local.transparent_proxy.outbound_listener_port;
        prop_assert!(port == 0 || port == merged.transparent_proxy.outbound_listener_port);
        prop_assert!(local.access_logs.kind.is_empty() || local.access_logs.kind == merged.access_logs.kind);
        prop_assert!(merged.access_logs.text_format.is_empty() || merged.access_logs.json_format.is_empty());

        let own: Vec<_> = local.upstreams.iter().filter(|u| !u.centrally_configured).collect();
        prop_assert!(own.len() <= merged.upstreams.len());
        for (before, after) in own.iter().zip(&merged.upstreams) {
            prop_assert_eq!(UpstreamId::of(before), UpstreamId::of(after));
            let mut said = before.config.clone();
            if before.is_prepared_query() {
                prop_assert_eq!(*before, after);
            } else {
                said.remove("mesh_gateway");
                prop_assert!(survives(&said, &after.config));
            }
            let mode = before.mesh_gateway.mode;
            prop_assert!(mode == MeshGatewayMode::Default || mode == after.mesh_gateway.mode);
        }
        let added = merged.upstreams.get(own.len()..).unwrap_or_default();
        prop_assert!(added.is_empty() || merged.mode == ProxyMode::Transparent);
        prop_assert!(added.iter().all(|u| u.centrally_configured && !u.is_explicit()));
    }
}
