//! The record of what a partial file holds, so that an interrupted conversion can go on.
//!
//! A header says which conversion this is; a record follows for every weight whose bytes were
//! written. Each carries its own checksum, so a journal cut or damaged anywhere is good up to there.

use xxhash_rust::xxh3::xxh3_64;

use super::WriterOptions;
use crate::pack::Identity;
use crate::pack::entry::{Checksums, Entry};
use crate::pack::format::bytes::Cursor;
use crate::pack::format::extension::layout_id;
use crate::pack::format::footer::Form;
use crate::pack::format::index;

const MAGIC: [u8; 8] = *b"ORKJRN02";
/// Bytes of the header with its checksum.
pub(super) const HEADER: usize = 96;

/// What must agree for a conversion to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    version: u32,
    layout: u32,
    recipe: u64,
    identity: Identity,
}

impl Job {
    /// `None` for a model without identity: nobody could tell that it is the same.
    pub(super) fn new(identity: Option<&Identity>, options: &WriterOptions) -> Option<Job> {
        let (version, recipe) = (options.version, options.recipe);
        Some(Job { version, layout: layout_id(), recipe, identity: *identity? })
    }

    /// How an interrupted job differs from this one; `None` when it can go on.
    pub(super) fn differs(&self, interrupted: &Job) -> Option<String> {
        if let Err(error) = interrupted.identity.check(&self.identity) {
            return Some(format!("another model ({error})"));
        }
        let same = |a: &Job| (a.version, a.layout);
        if same(self) != same(interrupted) {
            return Some("this model in another pack version or layout".into());
        }
        (self.recipe != interrupted.recipe).then(|| "this model with other settings".into())
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER);
        out.extend(MAGIC);
        for field in [self.version, self.layout] {
            out.extend(field.to_le_bytes());
        }
        out.extend(u32::from(self.identity.full_hash.is_some()).to_le_bytes());
        out.extend(self.recipe.to_le_bytes());
        out.extend(self.identity.size.to_le_bytes());
        out.extend(self.identity.modified_ns.to_le_bytes());
        out.extend(self.identity.sample_hash.to_le_bytes());
        out.extend(self.identity.full_hash.unwrap_or(0).to_le_bytes());
        out.resize(HEADER - 8, 0);
        out.extend(xxh3_64(&out).to_le_bytes());
        out
    }

    fn decode(header: &[u8; HEADER]) -> Option<Job> {
        let (body, sum) = header.split_last_chunk::<8>()?;
        let mut at = Cursor::new(body);
        if at.array()? != MAGIC || xxh3_64(body) != u64::from_le_bytes(*sum) {
            return None;
        }
        let (version, layout, full) = (at.u32()?, at.u32()?, at.u32()?);
        let (recipe, size, modified_ns) = (at.u64()?, at.u64()?, at.u64()?);
        let (sample_hash, hash) = (at.u128()?, at.u128()?);
        let full_hash = (full != 0).then_some(hash);
        let identity = Identity { size, modified_ns, sample_hash, full_hash };
        Some(Job { version, layout, recipe, identity })
    }
}

/// The record of a weight.
pub(super) fn record(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::new();
    index::encode(&mut out, entry, Form::PREFIXED_56);
    let sums = entry.checksums.unwrap_or_default();
    out.extend(sums.blob.to_le_bytes());
    out.extend(sums.scales.to_le_bytes());
    out.extend(xxh3_64(&out).to_le_bytes());
    out
}

/// A journal's job and the weights of its good records, in order, each with the journal's length
/// behind it; `None` when not even the header is good.
pub(super) fn read(journal: &[u8]) -> Option<(Job, Vec<(Entry, u64)>)> {
    let (header, records) = journal.split_first_chunk::<HEADER>()?;
    let job = Job::decode(header)?;
    let mut at = Cursor::new(records);
    let mut entries = Vec::new();
    while let Some(entry) = read_record(records, &mut at, entries.len() as u32) {
        entries.push((entry, (HEADER + at.position()) as u64));
    }
    Some((job, entries))
}

fn read_record(records: &[u8], at: &mut Cursor<'_>, order: u32) -> Option<Entry> {
    let start = at.position();
    let mut entry = index::read_entry(at, order, u64::MAX, Form::PREFIXED_56).ok()?;
    let (blob, scales) = (at.u64()?, at.u64()?);
    let sum = xxh3_64(records.get(start..at.position())?);
    entry.checksums = Some(Checksums { blob, scales });
    (at.u64()? == sum).then_some(entry)
}
