//! Scenarios across the crates: a model in, identical bytes out, faults in between. The tests are in
//! `tests/`, what they share is here; the README's examples run here as doctests.
#![forbid(unsafe_code)]

pub mod bench;

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../docs/engines.md")]
struct Engines;
