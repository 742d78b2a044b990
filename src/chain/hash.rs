//! The customization hash (discovery-chain.md 8): FNV-1 over the overrides that had an effect, byte for byte the one
//! that existing control planes compute, so that names built from it agree.

use smol_str::SmolStr;

use crate::model::{GoDuration, MeshGatewayMode};

/// The hash of overrides: the first eight hexadecimal digits. An override that had no effect is given as its default.
#[must_use]
pub fn customization_hash(
    mesh_gateway: MeshGatewayMode,
    protocol: &str,
    connect_timeout: GoDuration,
) -> SmolStr {
    let hash = overrides_hash(mesh_gateway, protocol, connect_timeout);
    let text = format!("{hash:x}");
    SmolStr::from(text.get(..8).unwrap_or(&text))
}

/// All 64 bits of the hash.
fn overrides_hash(
    mesh_gateway: MeshGatewayMode,
    protocol: &str,
    connect_timeout: GoDuration,
) -> u64 {
    let gateway = text("MeshGatewayConfig") ^ pair(text("Mode"), text(mesh_gateway.as_str()));
    text("")
        ^ pair(text("OverrideMeshGateway"), gateway)
        ^ pair(text("OverrideProtocol"), text(protocol))
        ^ pair(
            text("OverrideConnectTimeout"),
            fnv1(&connect_timeout.0.to_le_bytes()),
        )
}

fn text(text: &str) -> u64 {
    fnv1(text.as_bytes())
}

fn pair(a: u64, b: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&a.to_le_bytes());
    bytes[8..].copy_from_slice(&b.to_le_bytes());
    fnv1(&bytes)
}

fn fnv1(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte)
    })
}

#[cfg(test)]
pub(crate) use tests::full_hash;

#[cfg(test)]
mod tests {
    use super::*;

    /// All 64 bits, as unpadded hexadecimal text.
    pub(crate) fn full_hash(mode: MeshGatewayMode, protocol: &str, timeout: GoDuration) -> String {
        format!("{:x}", overrides_hash(mode, protocol, timeout))
    }

    #[test]
    fn chain_8_table() {
        let none = MeshGatewayMode::Default;
        let zero = GoDuration::default();
        for (mode, protocol, timeout, hash) in [
            (
                MeshGatewayMode::Local,
                "grpc",
                GoDuration::from_secs(66),
                "78ebd528",
            ),
            (none, "tcp", zero, "96f2c150"),
            (none, "http2", zero, "49c19fe6"),
            (MeshGatewayMode::Local, "", zero, "c225dc1c"),
            (none, "", GoDuration::from_secs(66), "55dbbc81"),
        ] {
            assert_eq!(customization_hash(mode, protocol, timeout), hash);
        }
    }
}
