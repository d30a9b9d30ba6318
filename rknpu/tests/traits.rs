//! What each handle can and cannot do, pinned at compile time.

use static_assertions::{assert_impl_all, assert_not_impl_any};

use rknpu::buffer::{Host, Imported, OnDevice};
use rknpu::domain::Active;
use rknpu::import::DmaBuf;
use rknpu::job::Running;
use rknpu::matmul::{Activations, Int8, Rows};
use rknpu::{Arena, Buffer, Core, Cores, Device, Domain, Error, Job, Matmul, WeightRef};

// Shared by handle, from any thread.
assert_impl_all!(Device: Clone, Send, Sync);
assert_impl_all!(Domain: Clone, Send, Sync);
assert_impl_all!(Arena: Clone, Send, Sync);
assert_impl_all!(Cores: Clone, Send, Sync);
assert_impl_all!(Activations<Int8>: Clone, Send, Sync);

// One owner each, which may move between threads.
assert_impl_all!(Buffer<Host>: Send, Sync);
assert_impl_all!(Buffer<OnDevice>: Send, Sync);
assert_impl_all!(Buffer<Imported>: Send, Sync);
assert_impl_all!(DmaBuf: Send, Sync);
assert_impl_all!(Core: Send);
assert_impl_all!(Job: Send);
assert_impl_all!(Running: Send);
assert_impl_all!(Matmul: Send);
assert_impl_all!(Rows<Int8, Host>: Send, Sync);
assert_impl_all!(Rows<Int8, OnDevice>: Send, Sync);
assert_not_impl_any!(Buffer<Host>: Clone, Copy);
assert_not_impl_any!(Buffer<OnDevice>: Clone, Copy);
assert_not_impl_any!(Buffer<Imported>: Clone, Copy);
assert_not_impl_any!(DmaBuf: Clone, Copy);
assert_not_impl_any!(Core: Clone, Copy);
assert_not_impl_any!(Job: Clone, Copy);
assert_not_impl_any!(Running: Clone, Copy);
assert_not_impl_any!(Matmul: Clone, Copy);
assert_not_impl_any!(Rows<Int8, Host>: Clone, Copy);
assert_not_impl_any!(Rows<Int8, OnDevice>: Clone, Copy);

// Bound to its thread: what it keeps another thread from is told by thread.
assert_not_impl_any!(Active: Send, Sync, Clone);

// A borrowed description, nothing to own.
assert_impl_all!(WeightRef<'static>: Copy, Send, Sync);

// Owned handles borrow nothing, so that a cache may hold them beside each other.
assert_impl_all!(Error: Send, Sync, std::error::Error);
const _: () = {
    const fn is_static<T: 'static>() {}
    is_static::<Buffer<Host>>();
    is_static::<Buffer<OnDevice>>();
    is_static::<Core>();
    is_static::<Domain>();
    is_static::<Matmul>();
    is_static::<Rows<Int8, OnDevice>>();
};

#[test]
fn the_assertions_above_are_checked_by_the_compiler() {
    // A handle is a few words: what is large is shared or boxed.
    assert!(size_of::<Device>() <= 8 && size_of::<Domain>() <= 8 && size_of::<Job>() <= 8);
}
