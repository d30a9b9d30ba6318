//! The promises, a file for each crate that keeps them.

mod cache;
mod linear;
mod rknpu;
mod text;
mod weights;

use super::{Promise, Test};

/// Every promise.
pub fn all() -> impl Iterator<Item = &'static Promise> {
    [rknpu::PROMISES, cache::PROMISES, weights::PROMISES, linear::PROMISES, text::PROMISES]
        .into_iter()
        .flatten()
}

/// A unit test of a library.
const fn unit(package: &'static str, name: &'static str) -> Test {
    Test { package, target: "lib", name }
}

/// A test in `tests/TARGET.rs`.
const fn integration(package: &'static str, target: &'static str, name: &'static str) -> Test {
    Test { package, target, name }
}

/// A model of all interleavings.
const fn model(package: &'static str, name: &'static str) -> Test {
    Test { package, target: "loom", name }
}
