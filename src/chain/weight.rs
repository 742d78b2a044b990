//! Weights of splits: percent, in steps of 0.01 (discovery-chain.md 10.3).

use crate::model::weight_units;

/// A weight rounded to a whole number of units.
#[must_use]
pub fn normalize_weight(weight: f32) -> f32 {
    #[allow(
        clippy::cast_precision_loss,
        reason = "weights that make sense have at most 10000 units"
    )]
    let units = weight_units(weight) as f32;
    units / 100.0
}

/// The weight of a leg of a splitter that is itself behind a leg (discovery-chain.md 6.2).
pub(crate) fn nested_weight(outer: f32, inner: f32) -> f32 {
    normalize_weight(outer * inner / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_have_two_decimals() {
        assert_eq!(weight_units(33.33), 3333);
        assert_eq!(weight_units(99.999), 10000);
        assert_eq!(weight_units(0.001), 0);
        assert_eq!(weight_units(f32::NAN), 0);
        assert_eq!(weight_units(f32::INFINITY), i64::MAX);
        assert!((normalize_weight(99.999) - 100.0).abs() < f32::EPSILON);
        assert!((nested_weight(60.0, 50.0) - 30.0).abs() < f32::EPSILON);
    }
}
