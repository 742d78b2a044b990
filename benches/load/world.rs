//! The mesh under load: replicas of `web`, each with a sidecar that dials `s0` and others, and who changes an endpoint.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::http::Http;
use crate::wire::marked;

/// Connections that registrations are written over.
const WRITERS: usize = 4;

/// The shape of the mesh.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub proxies: usize,
    pub upstreams: usize,
    pub endpoints: usize,
    pub services: usize,
}

impl Shape {
    /// The services that a proxy dials: the one that all dial, and others by turns.
    fn dialled(&self, proxy: usize) -> impl Iterator<Item = usize> {
        let services = self.services;
        let others =
            (0..services.saturating_sub(1)).map(move |u| 1 + (proxy * 7 + u) % (services - 1));
        std::iter::once(0).chain(others).take(self.upstreams)
    }

    fn proxy(&self, fleet: &Fleet, proxy: usize) -> Value {
        let upstreams = self.dialled(proxy).zip(9001..);
        let upstreams: Vec<_> = upstreams
            .map(|(service, port)| json!({"DestinationName": format!("s{service}"), "LocalBindPort": port}))
            .collect();
        json!({
            "Node": fleet.node_of(proxy),
            "Address": format!("10.{}.{}.{}", 128 + (proxy >> 16), proxy >> 8 & 255, proxy & 255),
            "Service": {
                "Kind": "connect-proxy", "ID": fleet.id_of(proxy), "Service": "web-sidecar-proxy", "Port": 21000,
                "Proxy": {
                    "DestinationServiceName": "web", "DestinationServiceID": format!("web-{proxy}"),
                    "LocalServicePort": 8080, "Upstreams": upstreams,
                },
            },
        })
    }
}

fn instance(service: usize, endpoint: usize, address: &str) -> Value {
    json!({
        "Node": format!("node-{endpoint}"),
        "Address": format!("10.0.{}.{}", endpoint >> 8, endpoint & 255),
        "Service": {
            "Kind": "connect-proxy", "ID": format!("s{service}-{endpoint}-sidecar-proxy"),
            "Service": format!("s{service}-sidecar-proxy"), "Address": address, "Port": 20000 + service,
            "Proxy": {"DestinationServiceName": format!("s{service}"), "LocalServicePort": 8080},
        },
    })
}

/// Registers everything with our server.
pub async fn set_up(fleet: &Arc<Fleet>, shape: Shape, http: &str) -> Result<(), String> {
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let mut http = Http::connect(http).await?;
        let fleet = fleet.clone();
        tasks.spawn(async move {
            let mine = |n: usize| n % WRITERS == writer;
            for service in (0..shape.services).filter(|n| mine(*n)) {
                for endpoint in 0..shape.endpoints {
                    let address = match endpoint {
                        0 => marked(0),
                        other => format!(
                            "10.{}.{}.{}",
                            1 + (service >> 8),
                            service & 255,
                            other & 255
                        ),
                    };
                    let body = instance(service, endpoint, &address);
                    http.put("/v1/catalog/register", &body.to_string()).await?;
                }
            }
            for proxy in (0..shape.proxies).filter(|n| mine(*n)) {
                let body = shape.proxy(&fleet, proxy);
                http.put("/v1/catalog/register", &body.to_string()).await?;
            }
            Ok::<_, String>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(|e| e.to_string())??;
    }
    Ok(())
}

/// Changes an endpoint: gives the first instance of a service another address.
pub struct Writer {
    http: Http,
    ours: bool,
    next: u64,
}

impl Writer {
    pub async fn new(http: &str, ours: bool) -> Result<Self, String> {
        Ok(Self {
            http: Http::connect(http).await?,
            ours,
            next: 1,
        })
    }

    /// Makes the next change. It has begun before this asks the server for it, and is written when this returns.
    pub async fn change(&mut self, fleet: &Fleet, service: usize) -> Result<(), String> {
        let change = self.next;
        self.next += 1;
        if self.ours {
            let body = instance(service, 0, &marked(change)).to_string();
            fleet.begin(change);
            self.http.put("/v1/catalog/register", &body).await
        } else {
            let path = format!("/change?service=s{service}&address={}", marked(change));
            fleet.begin(change);
            self.http.put(&path, "").await
        }
    }
}
