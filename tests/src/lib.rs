//! Scenarios across the crates: a model in, identical bytes out, faults in between. The tests are in
//! `tests/`; the README's examples run here as doctests.

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
