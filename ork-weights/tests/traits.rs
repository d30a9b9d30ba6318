//! What each type can do, pinned at compile time.

use ork_weights::convert::{ConvertError, Imatrix, RuleError, TierChoice};
use ork_weights::dequant::DequantError;
use ork_weights::model::gguf::{Gguf, GgufError};
use ork_weights::model::{Model, ModelError, ParseReadError, Weight};
use ork_weights::pack::{Entry, Pack, PackError, PackFile, PackWriter};
use ork_weights::quantise::{ParseTierError, QuantiseError, Recipe, Rows, Tier};
use ork_weights::tile::TileError;
use static_assertions::{assert_impl_all, assert_not_impl_any};
use std::error::Error;

// Read by many threads at once.
assert_impl_all!(Model: Send, Sync);
assert_impl_all!(Pack<PackFile>: Send, Sync);
assert_impl_all!(Pack<Vec<u8>>: Send, Sync);
assert_impl_all!(Imatrix: Send, Sync);
assert_impl_all!(ork_weights::Mapping: Send, Sync);

// One writer, on whatever thread.
assert_impl_all!(PackWriter: Send);
assert_not_impl_any!(PackWriter: Clone);

// Descriptions are values.
assert_impl_all!(Entry: Clone, Send, Sync);
assert_impl_all!(Weight: Clone, Send, Sync);
assert_impl_all!(Gguf: Clone, Send, Sync);
assert_impl_all!(TierChoice: Clone, Send, Sync);
assert_impl_all!(Tier: Copy, Send, Sync);
assert_impl_all!(Rows<'static>: Copy, Send, Sync);
assert_impl_all!(Recipe<'static>: Copy, Send, Sync);

// Errors travel between threads and as boxes.
assert_impl_all!(ConvertError: Error, Send, Sync);
assert_impl_all!(DequantError: Error, Send, Sync);
assert_impl_all!(GgufError: Error, Send, Sync);
assert_impl_all!(ModelError: Error, Send, Sync);
assert_impl_all!(PackError: Error, Send, Sync);
assert_impl_all!(ParseReadError: Error, Send, Sync);
assert_impl_all!(ParseTierError: Error, Send, Sync);
assert_impl_all!(QuantiseError: Error, Send, Sync);
assert_impl_all!(RuleError: Error, Send, Sync);
assert_impl_all!(TileError: Error, Send, Sync);

#[test]
fn the_assertions_above_are_checked_by_the_compiler() {
    // Passed by value for every weight.
    assert!(size_of::<Tier>() <= 16);
}
