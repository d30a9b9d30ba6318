//! Weights and the embedded GGUF out of a pack, for other tools.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::entry::Entry;
use super::error::{PackError, Result};
use super::reader::Pack;
use super::source::Source;

/// Bytes copied at once.
const CHUNK: u64 = 1 << 20;

impl<S: Source> Pack<S> {
    /// Writes the codes of a weight as a NumPy file: int8, shape (N, K), row-major.
    ///
    /// ```
    /// use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("small.orkpack");
    /// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    /// writer.add("w", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
    /// writer.finish()?;
    ///
    /// let pack = Pack::open(&path)?;
    /// let mut npy = Vec::new();
    /// pack.write_codes_npy(&pack.entries()[0], &mut npy)?;
    /// assert!(npy.starts_with(b"\x93NUMPY"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pack::codes`]; [`PackError::Io`] when `out` fails.
    pub fn write_codes_npy(&self, entry: &Entry, out: &mut impl Write) -> Result<()> {
        let bytes: Vec<u8> = self.codes(entry)?.into_iter().map(|code| code as u8).collect();
        npy(out, "|i1", &[entry.layout().n(), entry.layout().k()], &bytes)
    }

    /// Writes the scales of a weight as a NumPy file: f32, shape (N,) or (groups, N).
    ///
    /// ```
    /// use ork_weights::pack::Pack;
    ///
    /// # use ork_weights::pack::{Dtype, PackWriter, WriterOptions};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("small.orkpack");
    /// # let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    /// # writer.add("blk.0.ffn_up.weight", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
    /// # writer.finish()?;
    /// let pack = Pack::open(&path)?; // of one int8 weight, 64 × 64
    /// let entry = &pack.entries()[0];
    /// let mut npy = Vec::new();
    /// pack.write_scales_npy(entry, &mut npy)?;
    /// assert!(npy.ends_with(&0.5f32.to_le_bytes()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pack::scales`]; [`PackError::Io`] when `out` fails.
    pub fn write_scales_npy(&self, entry: &Entry, out: &mut impl Write) -> Result<()> {
        let scales = self.scales(entry)?;
        let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        match entry.groups() {
            1 => npy(out, "<f4", &[entry.layout().n()], &bytes),
            groups => npy(out, "<f4", &[groups, entry.layout().n()], &bytes),
        }
    }

    /// Writes the embedded GGUF into the empty file `out`: header and kept tensors in their places,
    /// holes where the packed tensors were. Returns its length.
    ///
    /// ```
    /// use ork_weights::pack::{Pack, PackError};
    ///
    /// # use ork_weights::pack::{Dtype, PackWriter, WriterOptions};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("small.orkpack");
    /// # let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    /// # writer.add("blk.0.ffn_up.weight", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
    /// # writer.finish()?;
    /// // Only packs of late packers embed parts of their model.
    /// let stub = tempfile::tempfile()?;
    /// assert!(matches!(Pack::open(&path)?.write_stub(&stub), Err(PackError::NoMetadata)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PackError::NoMetadata`] when the pack embeds none; [`PackError::Metadata`] when the section
    /// is damaged; [`PackError::Io`].
    pub fn write_stub(&self, out: &File) -> Result<u64> {
        let metadata = self.metadata()?.ok_or(PackError::NoMetadata)?;
        let failed = |source| PackError::io("write", Path::new("the stub GGUF"))(source);
        out.set_len(metadata.source_bytes).map_err(failed)?;
        let mut buffer = Vec::new();
        let header = [(0, metadata.header)];
        let kept = metadata.kept.into_iter().map(|kept| (kept.source_offset, kept.range));
        for (mut to, range) in header.into_iter().chain(kept) {
            let mut at = range.start;
            while at < range.end {
                buffer.resize((range.end - at).min(CHUNK) as usize, 0);
                self.source.read_at(at, &mut buffer)?;
                out.write_all_at(&buffer, to).map_err(failed)?;
                at += buffer.len() as u64;
                to += buffer.len() as u64;
            }
        }
        Ok(metadata.source_bytes)
    }
}

/// A NumPy file, format 1.0: magic, header padded so that the data starts on a multiple of 64, data.
fn npy(out: &mut impl Write, kind: &str, shape: &[u32], data: &[u8]) -> Result<()> {
    let shape: String = shape.iter().map(|side| format!("{side},")).collect();
    let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.extend(std::iter::repeat_n(' ', padded - 1 - header.len()));
    header.push('\n');
    let length = (header.len() as u16).to_le_bytes();
    [&b"\x93NUMPY\x01\x00"[..], &length, header.as_bytes(), data]
        .into_iter()
        .try_for_each(|part| out.write_all(part))
        .map_err(|source: io::Error| PackError::io("write", Path::new("the .npy file"))(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn npy_headers_are_what_numpy_writes() {
        let mut out = Vec::new();
        npy(&mut out, "|i1", &[2, 3], &[1, 2, 3, 4, 5, 6]).unwrap();
        let header =
            b"\x93NUMPY\x01\x00\x76\x00{'descr': '|i1', 'fortran_order': False, 'shape': (2,3,), }";
        assert!(out.starts_with(header));
        assert_eq!(out.len(), 128 + 6);
        assert_eq!(out[127], b'\n');
        assert!(out[header.len()..127].iter().all(|byte| *byte == b' '));
    }
}
