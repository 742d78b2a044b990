//! Many threads at once.

/// The size of a long test: small in the normal run, full on demand (decision T1).
pub fn size(variable: &str, normal: usize) -> usize {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(normal)
}
