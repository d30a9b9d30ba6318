//! Text from language models, with linear layers that somebody else may compute.
//!
//! | part | what it does |
//! |---|---|
//! | [`Decoder`] | tokens in, logits out, for the [families](families()) that have one |
//! | [`Linears`] | the trait of its linear layers: lists of products that share one input |
//! | [`Reference`] | these in f32 on the CPU, the measure of all others |
//! | [`ork_linear::Layers`] | these on the NPU, and on the CPU where few rows do not pay |
//! | [`Tokenizer`], [`ChatTemplate`] | text to tokens and back, by the GGUF's own metadata |
//! | [`Sampler`] | which token comes next |
//! | [`Session`] | a text: its prompt in blocks, then token after token, or draft after draft |
//! | [`Draft`] | tokens proposed at little cost, by a small [model](DraftModel) or by [n-grams](Ngrams) |
//! | [`Quality`] | how much a cheaper arithmetic changes what a model says |
//!
//! The same bits come out however a text is cut into batches, on any number of threads and on every
//! machine: each sum has one order, and transcendental functions are in Rust. Nothing but the linear
//! layers depends on who computes them.
//!
//! ```no_run
//! use ork_llm::{Decoder, Reference, Sampler, Session, Tokenizer};
//! use ork_weights::model::gguf::Tensors;
//! use std::ops::ControlFlow;
//!
//! let tensors = Tensors::open("smollm2.gguf")?;
//! let tokenizer = Tokenizer::new(tensors.header())?;
//! let linears = Reference::f32(&tensors)?;
//! let decoder = Decoder::new(tensors, Box::new(linears))?;
//!
//! let mut session = Session::new(decoder, 2048);
//! session.prompt(&tokenizer.encode("The capital of France is"))?;
//! let mut text = tokenizer.stream();
//! session.generate(&Sampler::greedy(), 16, |token| tokenizer.is_end(token), |token| {
//!     print!("{}", text.push(token));
//!     ControlFlow::Continue(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod block;
mod config;
mod decoder;
mod draft;
mod error;
mod family;
mod kv;
mod layers;
mod linear;
mod load;
mod math;
mod quality;
mod reference;
mod sample;
mod session;
mod token;

pub use config::Config;
pub use decoder::Decoder;
pub use draft::{Draft, DraftModel, Ngrams};
pub use error::{Error, Result};
pub use family::families;
pub use kv::KvCache;
pub use linear::{LinearError, Linears, Product, Weight};
pub use quality::{Quality, read_text};
pub use reference::Reference;
pub use sample::Sampler;
pub use session::{End, Generated, Session};
pub use token::{ChatTemplate, Message, Role, TextStream, Tokenizer};
