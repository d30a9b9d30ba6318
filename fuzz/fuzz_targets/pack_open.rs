//! See `ork_fuzz::pack_open`.
#![cfg_attr(fuzzing, no_main)]

ork_fuzz::program!(pack_open);
