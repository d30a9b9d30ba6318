//! See `ork_fuzz::gguf_open`.
#![cfg_attr(fuzzing, no_main)]

ork_fuzz::program!(gguf_open);
