//! Scenarios across the crates
