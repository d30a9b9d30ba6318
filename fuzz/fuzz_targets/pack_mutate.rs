//! See `ork_fuzz::pack_mutate`.
#![cfg_attr(fuzzing, no_main)]

ork_fuzz::program!(pack_mutate);
