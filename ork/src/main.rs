//! `ork`: runs models larger than the NPU window on an RK3588.
fn main() {}
