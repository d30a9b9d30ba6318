//! What the examples start from, so that each shows only what it is about. No part of the interface.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::model::synth::Shape;
use crate::pack::{Dtype, PackWriter, Result, WriterOptions};

/// A file in memory that has a path while it is kept.
#[derive(Debug)]
pub struct Kept {
    _file: File,
    path: PathBuf,
}

impl Kept {
    fn new(name: &str, fill: impl FnOnce(&File) -> io::Result<()>) -> io::Result<Kept> {
        let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
        fill(&file)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(Kept { _file: file, path })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The bytes of a small llama: two layers, GGUF.
///
/// # Errors
/// None: writing to memory.
pub fn llama() -> io::Result<Vec<u8>> {
    let mut file = Vec::new();
    Shape::tiny().write(&mut file)?;
    Ok(file)
}

/// [`llama`] as a file.
///
/// # Errors
/// Those of a file in memory.
pub fn model() -> io::Result<Kept> {
    Kept::new("model.gguf", |file| Shape::tiny().write(file).map(drop))
}

/// A pack of one int8 weight, `blk.0.ffn_up.weight`, 64 × 64, all codes 1 and all scales ½.
///
/// # Errors
/// Those of writing a pack to the folder for temporary files.
pub fn pack() -> Result<Kept> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("ork-weights-doc-{}-{number}.orkpack", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    writer.add("blk.0.ffn_up.weight", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
    writer.finish()?;
    let bytes = std::fs::read(&path);
    let kept = std::fs::remove_file(&path)
        .and(bytes)
        .and_then(|bytes| Kept::new("small.orkpack", |mut file| file.write_all(&bytes)));
    kept.map_err(crate::pack::PackError::io("write", &path))
}
