//! See `ork_fuzz::cache_ops`.
#![cfg_attr(fuzzing, no_main)]

ork_fuzz::program!(cache_ops);
