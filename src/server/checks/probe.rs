//! One run of a check that asks a target over the network.

use std::io;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::model::{CheckStatus, GoDuration};

use super::connect::{Tls, connect, describe, describe_chain, host_of};
use super::grpc::GrpcProbe;
use super::http::HttpProbe;

/// What a run came to: the state and what to say about it.
pub(super) type Outcome = (CheckStatus, String);

/// How long a UDP check waits for the network to refuse. Silence passes: UDP servers need not answer.
const UDP_PATIENCE: Duration = Duration::from_secs(1);

/// A target and how to ask it.
#[derive(Debug, Clone)]
pub(super) enum Probe {
    Tcp {
        address: String,
    },
    Udp {
        address: String,
    },
    Http(HttpProbe),
    Grpc(GrpcProbe),
    H2Ping {
        address: String,
        server_name: String,
        skip_verify: bool,
    },
}

impl Probe {
    /// Asks the target once, for no longer than `allowed`.
    pub(super) async fn run(&self, allowed: Duration) -> Outcome {
        match timeout(allowed, self.ask(allowed)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let nanos = i64::try_from(allowed.as_nanos()).unwrap_or(i64::MAX);
                (
                    CheckStatus::Critical,
                    format!("{}: timeout after {}", self.label(), GoDuration(nanos)),
                )
            }
        }
    }

    fn label(&self) -> String {
        match self {
            Self::Tcp { address } => format!("TCP connect {address}"),
            Self::Udp { address } => format!("UDP connect {address}"),
            Self::Http(http) => http.label(),
            Self::Grpc(grpc) => grpc.label(),
            Self::H2Ping { address, .. } => format!("HTTP2 ping {address}"),
        }
    }

    async fn ask(&self, allowed: Duration) -> Outcome {
        let result = match self {
            Self::Http(http) => return http.run().await,
            Self::Grpc(grpc) => return grpc.run().await,
            Self::Tcp { address } => connect(address, None)
                .await
                .map(drop)
                .map_err(|error| describe(&error)),
            Self::Udp { address } => {
                // Ends before the run's own deadline, so that silence is told from a hang.
                udp(address, UDP_PATIENCE.min(allowed / 2))
                    .await
                    .map_err(|error| describe(&error))
            }
            Self::H2Ping {
                address,
                server_name,
                skip_verify,
            } => {
                let tls = Tls {
                    server_name: if server_name.is_empty() {
                        host_of(address).to_owned()
                    } else {
                        server_name.clone()
                    },
                    skip_verify: *skip_verify,
                    alpn: &[b"h2"],
                };
                h2_ping(address, &tls).await
            }
        };
        match result {
            Ok(()) => (CheckStatus::Passing, format!("{}: Success", self.label())),
            Err(error) => (CheckStatus::Critical, format!("{}: {error}", self.label())),
        }
    }
}

async fn udp(address: &str, patience: Duration) -> io::Result<()> {
    let target = tokio::net::lookup_host(address)
        .await?
        .next()
        .ok_or_else(|| io::Error::other("the name has no address"))?;
    let local = if target.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(target).await?;
    socket.send(&[]).await?;
    let mut buffer = [0; 16];
    match timeout(patience, socket.recv(&mut buffer)).await {
        Ok(Err(error)) => Err(error),
        Ok(Ok(_)) | Err(_) => Ok(()),
    }
}

async fn h2_ping(address: &str, tls: &Tls) -> Result<(), String> {
    let stream = connect(address, Some(tls))
        .await
        .map_err(|error| describe(&error))?;
    let (_sender, mut connection) = h2::client::handshake(stream)
        .await
        .map_err(|error| describe_chain(&error))?;
    let mut pings = connection.ping_pong().ok_or("the connection can't ping")?;
    tokio::select! {
        biased;
        pong = pings.ping(h2::Ping::opaque()) => pong.map(drop).map_err(|error| describe_chain(&error)),
        end = connection => Err(match end {
            Ok(()) => "the server closed the connection".to_owned(),
            Err(error) => describe_chain(&error),
        }),
    }
}
