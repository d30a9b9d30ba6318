//! Benches that print a measured ratio beside its target
