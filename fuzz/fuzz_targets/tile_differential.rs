//! See `ork_fuzz::tile_differential`.
#![cfg_attr(fuzzing, no_main)]

ork_fuzz::program!(tile_differential);
