//! Fuzz target bodies as plain functions, replayed by `cargo test`.
//!
//! A target is a function from bytes that panics when something is wrong. `fuzz_targets/` wraps each
//! for libFuzzer, `tests/replay.rs` runs each over `corpus/<target>/` and `regressions/<target>/`.
//! A new target is a module here, a line in [`TARGETS`], a three-line file in `fuzz_targets/`, a
//! `[[bin]]` in the manifest, and a seed corpus.
//!
//! Live fuzzing works with the stable compiler:
//!
//! ```text
//! cargo install cargo-fuzz
//! cargo fuzz run --sanitizer none pack_open -- -max_total_time=60 -rss_limit_mb=512 -dict=fuzz/dict/pack.dict
//! ```
//!
//! What it finds goes to `fuzz/regressions/<target>/`, named after the defect.
#![forbid(unsafe_code)]

mod cache_ops;
mod gguf_dequant;
mod gguf_open;
mod hub_open;
mod pack_mutate;
mod pack_open;
mod pack_roundtrip;
mod spec;
mod tile_differential;

pub use cache_ops::cache_ops;
pub use gguf_dequant::gguf_dequant;
pub use gguf_open::gguf_open;
pub use hub_open::hub_open;
pub use pack_mutate::pack_mutate;
pub use pack_open::pack_open;
pub use pack_roundtrip::pack_roundtrip;
pub use tile_differential::tile_differential;

/// A target's body.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("cache_ops", cache_ops),
    ("gguf_dequant", gguf_dequant),
    ("gguf_open", gguf_open),
    ("hub_open", hub_open),
    ("pack_mutate", pack_mutate),
    ("pack_open", pack_open),
    ("pack_roundtrip", pack_roundtrip),
    ("tile_differential", tile_differential),
];

/// The program of a target: libFuzzer's under `cfg(fuzzing)`, otherwise one that runs the body on
/// the files given as arguments.
#[macro_export]
macro_rules! program {
    ($target:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::$target(data));

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            for path in std::env::args_os().skip(1) {
                $crate::$target(&std::fs::read(path)?);
            }
            Ok(())
        }
    };
}
