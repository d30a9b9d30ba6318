//! See `ork_fuzz::pack_roundtrip`.
#![cfg_attr(fuzzing, no_main)]

ork_fuzz::program!(pack_roundtrip);
