//! What several tests need.
#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod families;
pub(crate) mod gguf;

use std::path::PathBuf;

/// The model that a variable names; without one, the test says that it is skipped.
pub(crate) fn model(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        eprintln!("skipped: {variable} names no model");
    }
    path
}

/// A file of the reference data.
pub(crate) fn golden(name: &str) -> serde_json::Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    serde_json::from_str(&text).unwrap()
}
