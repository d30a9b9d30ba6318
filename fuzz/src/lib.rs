//! Fuzz target bodies as plain functions, replayed by cargo test
