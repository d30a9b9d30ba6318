//! Finds out whether the compiler has AVX-512 intrinsics (stable since Rust 1.89).

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(avx512_intrinsics)");
    if minor_version().is_some_and(|minor| minor >= 89) {
        println!("cargo::rustc-cfg=avx512_intrinsics");
    }
}

/// The y of `rustc 1.y.z`.
fn minor_version() -> Option<u32> {
    let rustc = std::env::var_os("RUSTC")?;
    let output = Command::new(rustc).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.strip_prefix("rustc 1.")?.split('.').next()?.parse().ok()
}
