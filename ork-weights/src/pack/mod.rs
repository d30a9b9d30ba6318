//! `.orkpack` files: every version read, version 2, 3, 5 or 7 written, nothing ever lost.
//!
//! | part | what it does |
//! |---|---|
//! | [`Pack`] | opens versions 1 to 8, checks the whole index, loads weights |
//! | [`Source`] | where the bytes come from: a [`PackFile`], memory, a [`Mapping`](crate::Mapping) |
//! | [`PackWriter`] | builds a pack beside its target, resumable, and renames it when it is whole |
//! | [`Identity`] | which model a pack was made from |
//! | [`verify`], [`upgrade`] | reads it all against its checksums; any version into ours |
//!
//! Every byte is described in [`_orkpack`](crate::_orkpack).
//!
//! ```
//! use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("small.orkpack");
//! let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
//! writer.add("blk.0.ffn_up.weight", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
//! writer.finish()?;
//!
//! let pack = Pack::open(&path)?;
//! assert_eq!(&*pack.entries()[0].name, "blk.0.ffn_up.weight");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod dtype;
mod entry;
mod error;
mod file;
mod format;
mod identity;
mod inflate;
mod left_out;
mod load;
mod names;
mod overlap;
mod reader;
mod source;
mod upgrade;
mod verify;
mod writer;

pub use crate::direct::DirectReads;
pub use dtype::Dtype;
pub use entry::Entry;
pub use error::{PackError, Part, Result};
pub use file::PackFile;
pub use format::calibration::{Calibration, CalibrationRow};
pub use format::metadata::{Kept, Metadata};
pub use format::o4n1::{Codebook, o4n1_header};
pub use identity::{Freshness, Identity};
pub use left_out::LeftOut;
pub use reader::Pack;
pub use source::Source;
pub use upgrade::{upgrade, upgrade_of};
pub use verify::{Verified, verify};
pub use writer::{PackWriter, Places, Summary, WeightHeader, WeightWriter, WriterOptions};
