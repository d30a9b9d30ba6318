//! Going on with what an interrupted run of the same conversion left.

use super::journal::{self, Job};
use super::{Journal, PackWriter, target};
use crate::pack::entry::Entry;
use crate::pack::error::{PackError, Result};
use crate::pack::file::PackFile;
use crate::pack::verify;

impl PackWriter {
    /// Takes over what an interrupted run of the same job left, and cuts both files to that.
    pub(super) fn resume(&mut self) -> Result<()> {
        let path = self.paths.journal.clone();
        let Some(job) = Job::new(self.identity.as_ref(), &self.options) else {
            self.disk.remove(&path).map_err(PackError::io("remove", &path))?;
            return self.cut(0);
        };
        let file = target::open(&path)?;
        let mut end = journal::HEADER as u64;
        let found = std::fs::read(&path).map_err(PackError::io("read", &path))?;
        let mut fresh = true;
        if let Some((interrupted, records)) = journal::read(&found) {
            match job.differs(&interrupted) {
                None => {
                    fresh = false;
                    end = self.take_over(records, end)?;
                }
                Some(what) if !self.options.replace => {
                    let path = self.paths.partial.clone();
                    return Err(PackError::PartialDiffers { path, what });
                }
                Some(_) => {}
            }
        }
        self.cut(self.end)?;
        if fresh {
            let header = job.encode();
            self.disk.write_at(&file, &header, 0).map_err(PackError::io("write", &path))?;
        }
        self.disk.set_len(&file, end).map_err(PackError::io("truncate", &path))?;
        self.journal = Some(Journal { file, end });
        Ok(())
    }

    /// Adopts records up to the first whose bytes are not there as written; returns the length of
    /// the journal up to there.
    fn take_over(&mut self, records: Vec<(Entry, u64)>, header: u64) -> Result<u64> {
        let path = &self.paths.partial;
        let file = self.file.try_clone().map_err(PackError::io("reopen", path))?;
        let source = PackFile::from_file(file, path)?;
        let (entries, ends): (Vec<Entry>, Vec<u64>) = records.into_iter().unzip();
        let good = verify::all_checksums(&source, &entries);
        let mut journal_end = header;
        for ((entry, sound), end) in entries.into_iter().zip(good).zip(ends) {
            let in_place = entry.blob.offset == self.place(&entry.name);
            if sound.is_err() || !in_place || self.contains(&entry.name) {
                break;
            }
            self.end = self.end.max(entry.scales.range().end).max(entry.blob.range().end);
            self.names.insert(entry.name.clone(), self.entries.len());
            self.entries.push(entry);
            journal_end = end;
        }
        self.resumed = self.entries.len() as u32;
        Ok(journal_end)
    }

    fn cut(&mut self, bytes: u64) -> Result<()> {
        let path = &self.paths.partial;
        self.disk.set_len(&self.file, bytes).map_err(PackError::io("truncate", path))
    }
}
