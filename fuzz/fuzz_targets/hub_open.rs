//! See `ork_fuzz::hub_open`.
#![cfg_attr(fuzzing, no_main)]

ork_fuzz::program!(hub_open);
