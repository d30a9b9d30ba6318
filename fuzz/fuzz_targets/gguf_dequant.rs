//! See `ork_fuzz::gguf_dequant`.
#![cfg_attr(fuzzing, no_main)]

ork_fuzz::program!(gguf_dequant);
