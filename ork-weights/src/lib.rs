//! Model weights for the RK3588 NPU: read, quantise, tile, and keep in `.orkpack` files.
//!
//! | module | what it does |
//! |---|---|
//! | [`model`] | opens GGUF and safetensors models and says which weights they hold |
//! | [`dequant`] | GGUF block types to f32 |
//! | [`quantise`] | f32 rows to int8, int4 and fp16, in the NPU's tiles |
//! | [`tile`] | row-major matrices to tiles and back |
//! | [`pack`] | `.orkpack` files, every version read, crash-safe writing |
//! | [`convert`] | a whole model into a pack |
//! | [`reference`](mod@reference) | the same products on the CPU, for checking |
//!
//! Begin with [`model::Model`], which is what there is, and [`convert::convert`], which makes a pack of
//! it; [`pack::Pack`] is what runs then. [`quantise`], [`dequant`] and [`tile`] are the steps in
//! between, for those who do without packs.
//!
//! Nothing here knows of a device: whoever has one gives a `&mut [u8]` to fill. Tensors are never
//! held whole as floats; a weight is dequantised a few rows at a time, in the cache, on the way to
//! its tiles. The bytes of a pack depend on the model's bytes and time of change (which its identity
//! holds), the settings and this crate's version, not on the machine or the number of threads.
//!
//! What this is not: an inference engine. It knows which tensors are matrices of multiplications,
//! and nothing of what a model does with them.
//!
//! ```
//! use ork_weights::convert::{Options, convert};
//! use ork_weights::model::{Model, OpenOptions, synth::Shape};
//! use ork_weights::pack::Pack;
//!
//! let folder = tempfile::tempdir()?;
//! let gguf = folder.path().join("model.gguf");
//! Shape::tiny().write(std::fs::File::create(&gguf)?)?;
//!
//! // Once: a minute on a board.
//! let model = Model::open(&gguf, &OpenOptions::default())?;
//! convert(&model, folder.path().join("model.orkpack"), &Options::default(), |_| {})?;
//!
//! // From then on: a copy.
//! let pack = Pack::open(folder.path().join("model.orkpack"))?;
//! let entry = pack.get("blk.0.ffn_up.weight").ok_or("no such weight")?;
//! let mut tiled = vec![0; entry.layout().bytes() as usize];
//! pack.load_into(entry, &mut tiled)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Safety
//!
//! What files say is checked before it is believed, in code that forbids `unsafe`: no input makes a
//! reader panic. Models and packs are read by position, so that a file which is cut or written
//! meanwhile is an error. The one unsafe function is [`Mapping::open`], for those who read the tiles
//! of a pack in place and know that nobody writes it.
//!
//! The crate has no features. Every byte of a pack is described in [`_orkpack`].

#[cfg(doc)]
#[doc = include_str!("../docs/orkpack.md")]
pub mod _orkpack {}
pub mod convert;
pub mod dequant;
mod direct;
#[doc(hidden)]
pub mod doc;
mod last_cache;
mod mapping;
pub mod model;
pub mod pack;
mod pattern;
mod pieces;
pub mod quantise;
pub mod reference;
mod regular_file;
mod simd;
pub mod tile;

pub use mapping::Mapping;
pub use regular_file::open_regular;
