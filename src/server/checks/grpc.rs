//! gRPC checks: the standard health service, `grpc.health.v1.Health/Check`.

use hyper_util::rt::TokioIo;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Endpoint, Uri};
use tonic_prost::ProstCodec;
use tower::service_fn;

use crate::model::{CheckDefinition, CheckStatus};

use super::connect::{Tls, connect, describe_chain, host_of};
use super::plan::target;
use super::probe::Outcome;

/// A health service to ask.
#[derive(Debug, Clone)]
pub(super) struct GrpcProbe {
    /// As the definition writes it, for the output.
    text: String,
    address: String,
    service: String,
    tls: Option<Tls>,
}

impl GrpcProbe {
    /// Reads the gRPC part of a definition.
    pub(super) fn of(definition: &CheckDefinition) -> Result<Self, String> {
        let (address, service) = definition
            .grpc
            .split_once('/')
            .unwrap_or((&definition.grpc, ""));
        let address = target("GRPC", address)?;
        let tls = definition.grpc_use_tls.then(|| Tls {
            server_name: match definition.tls_server_name.as_str() {
                "" => host_of(&address).to_owned(),
                name => name.to_owned(),
            },
            skip_verify: definition.tls_skip_verify,
            alpn: &[b"h2"],
        });
        Ok(Self {
            text: definition.grpc.clone(),
            address,
            service: service.to_owned(),
            tls,
        })
    }

    /// `gRPC check 127.0.0.1:50051/web`: how every output starts.
    pub(super) fn label(&self) -> String {
        format!("gRPC check {}", self.text)
    }

    /// Asks: SERVING passes, all else is critical.
    pub(super) async fn run(&self) -> Outcome {
        let label = self.label();
        match self.ask().await {
            Ok(response) => match ServingStatus::try_from(response.status) {
                Ok(ServingStatus::Serving) => (CheckStatus::Passing, format!("{label}: success")),
                Ok(other) => (
                    CheckStatus::Critical,
                    format!("{label}: {}", other.as_str_name()),
                ),
                Err(_) => (
                    CheckStatus::Critical,
                    format!("{label}: unknown status {}", response.status),
                ),
            },
            Err(error) => (CheckStatus::Critical, format!("{label}: {error}")),
        }
    }

    async fn ask(&self) -> Result<HealthCheckResponse, String> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address))
            .map_err(|error| describe_chain(&error))?;
        let (address, tls) = (self.address.clone(), self.tls.clone());
        // Secured here rather than by tonic: it knows no way to take any certificate.
        let dial = service_fn(move |_: Uri| {
            let (address, tls) = (address.clone(), tls.clone());
            async move { connect(&address, tls.as_ref()).await.map(TokioIo::new) }
        });
        let channel = endpoint
            .connect_with_connector(dial)
            .await
            .map_err(|error| describe_chain(&error))?;
        let mut client = tonic::client::Grpc::new(channel);
        client
            .ready()
            .await
            .map_err(|error| describe_chain(&error))?;
        let request = tonic::Request::new(HealthCheckRequest {
            service: self.service.clone(),
        });
        let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        match client.unary(request, path, ProstCodec::default()).await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(format!(
                "rpc error: code = {:?} desc = {}",
                status.code(),
                status.message()
            )),
        }
    }
}

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckRequest {
    /// Name of the service asked about; empty for the server as a whole.
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckResponse {
    /// A [`ServingStatus`].
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub(super) status: i32,
}

/// `grpc.health.v1.HealthCheckResponse.ServingStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
pub(super) enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl ServingStatus {
    fn as_str_name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Serving => "SERVING",
            Self::NotServing => "NOT_SERVING",
            Self::ServiceUnknown => "SERVICE_UNKNOWN",
        }
    }
}
