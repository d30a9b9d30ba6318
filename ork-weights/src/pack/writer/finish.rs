//! The last steps: close the partial file, sync, read back, rename.

use std::fs::File;

use rknpu_sys::layout::PAGE;

use super::{PackWriter, Places, Summary, target};
use crate::pack::entry::Span;
use crate::pack::error::{PackError, Result};
use crate::pack::file::PackFile;
use crate::pack::format::extension::{self, Extension, PACKER};
use crate::pack::format::footer::Footer;
use crate::pack::format::index;
use crate::pack::reader::Pack;
use crate::pack::verify;

impl PackWriter {
    /// Writes index, extension and footer, syncs, reads everything back, and renames onto the target.
    ///
    /// ```
    /// use ork_weights::pack::{Dtype, PackError, PackWriter, WriterOptions};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("small.orkpack");
    /// let two = WriterOptions { expected: Some(2), ..Default::default() };
    /// let mut writer = PackWriter::create(&path, None, two)?;
    /// writer.add("a", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
    /// assert!(matches!(writer.finish(), Err(PackError::Incomplete { present: 1, expected: 2 })));
    /// assert!(!path.exists()); // nothing is there until all of it is
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PackError::Incomplete`] with fewer weights than were expected; [`PackError::TargetExists`]
    /// when the target changed meanwhile or a weight would change its shape;
    /// [`PackError::Checksum`] when the disk gives back other bytes; [`PackError::Io`]. The target is
    /// as before then, and the partial file stays.
    pub fn finish(mut self) -> Result<Summary> {
        let present = self.entries.len() as u32;
        // A place that was left empty would be a gap with anything in it.
        let places = self.options.places.as_ref().map(Places::len);
        let expected = self.options.expected.or(places);
        if let Some(expected) = expected.filter(|expected| *expected != present) {
            return Err(PackError::Incomplete { present, expected });
        }
        // Those that read the pack use weights in the order of its index.
        self.entries.sort_by_key(|entry| entry.blob.offset);
        let names = self.entries.iter().enumerate().map(|(at, entry)| (entry.name.clone(), at));
        self.names = names.collect();
        let at = self.end.next_multiple_of(PAGE);
        let closing = self.closing(at);
        self.write(&closing, at)?;
        let bytes = at + closing.len() as u64;
        let partial = self.paths.partial.clone();
        self.disk
            .set_len(&self.file, bytes)
            .map_err(PackError::io("set the length of", &partial))?;
        self.disk.sync(&self.file).map_err(PackError::io("sync", &partial))?;
        self.read_back()?;
        let (names, entries) = (&self.names, &self.entries);
        let find = |name: &str| names.get(name).and_then(|at| entries.get(*at));
        if !self.options.replace {
            target::still_replaceable(&self.paths.target, self.existing.as_ref(), find)?;
        }
        let fresh = self.existing.is_none() && !self.options.replace;
        let target = self.paths.target.clone();
        self.disk.rename(&partial, &target, fresh).map_err(PackError::io("rename to", &target))?;
        let folder =
            File::open(&self.paths.folder).map_err(PackError::io("open", &self.paths.folder))?;
        self.disk.sync(&folder).map_err(PackError::io("sync", &self.paths.folder))?;
        // The pack is in place. A journal without its partial file is ignored by the next writer.
        let _ = self.disk.remove(&self.paths.journal);
        let resumed = self.resumed;
        Ok(Summary { path: target, bytes, weights: present, resumed })
    }

    /// Index, extension and footer of a pack whose index starts at `at`.
    fn closing(&self, at: u64) -> Vec<u8> {
        let mut out = Vec::new();
        if self.form.prefix {
            let metadata = self.metadata.unwrap_or(Span { offset: 0, bytes: 0 });
            out.extend(metadata.offset.to_le_bytes());
            out.extend(metadata.bytes.to_le_bytes());
        }
        for entry in &self.entries {
            index::encode(&mut out, entry, self.form);
        }
        let extension = Extension {
            packer: PACKER.to_owned(),
            recipe: self.options.recipe,
            identity: self.identity,
            metadata: self.metadata.filter(|_| !self.form.prefix),
            left_out: self.options.left_out.clone(),
        };
        let section = extension::encode(&extension, &self.entries, &out);
        out.extend(section);
        let footer = Footer {
            version: self.options.version,
            bytes: 0,
            index: at,
            entries: self.entries.len() as u32,
            token: 0,
            signature: self.options.signature,
            calibration: None,
        };
        out.extend(footer.encode());
        out
    }

    fn read_back(&self) -> Result<()> {
        let path = &self.paths.partial;
        let file = self.file.try_clone().map_err(PackError::io("reopen", path))?;
        let pack = Pack::parse(PackFile::from_file(file, path)?)?;
        match verify::verify(&pack, &|_| {}).problems.into_iter().next() {
            Some(problem) => Err(problem),
            None => Ok(()),
        }
    }
}
