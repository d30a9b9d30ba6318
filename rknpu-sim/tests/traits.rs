//! What each handle can and cannot do, pinned at compile time.

use rknpu_sim::{Acting, Config, File, Machine, Mapping, Report, Reservation};
use static_assertions::{assert_impl_all, assert_not_impl_any};
use std::fmt::Debug;

// Shared by handle, from any thread.
assert_impl_all!(Machine: Clone, Send, Sync, Debug);
assert_impl_all!(Config: Clone, Send, Sync, Debug);

// One owner each, which may move between threads.
assert_impl_all!(File: Send, Sync, Debug);
assert_impl_all!(Reservation: Send, Sync, Debug);
assert_impl_all!(Mapping: Send, Sync, Debug);
assert_not_impl_any!(File: Clone);
assert_not_impl_any!(Reservation: Clone);
assert_not_impl_any!(Mapping: Clone);

// Bound to its thread, which is what holds the clock.
assert_not_impl_any!(Acting: Send, Sync, Clone);

// Results are values.
assert_impl_all!(Report: Clone, Send, Sync, PartialEq);

#[test]
fn the_assertions_above_are_checked_by_the_compiler() {
    // A machine is one word: a shared handle.
    assert_eq!(size_of::<Machine>(), size_of::<usize>());
}
