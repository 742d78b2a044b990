//! Tests by rule.
