//! Weights by name.

use xxhash_rust::xxh3::xxh3_64;

use super::entry::Entry;
use super::error::{PackError, Result};

/// Places of entries, sorted by the hash of their names and then by name. Names of one model share
/// long prefixes, so that comparing hashes is several times faster than comparing them.
#[derive(Debug)]
pub(crate) struct ByName(Vec<(u64, u32)>);

impl ByName {
    /// Sorts `entries` and refuses names that occur twice.
    pub(crate) fn of(entries: &[Entry]) -> Result<ByName> {
        let hash = |entry: &Entry| xxh3_64(entry.name.as_bytes());
        let mut sorted: Vec<(u64, u32)> =
            entries.iter().zip(0..).map(|(entry, at)| (hash(entry), at)).collect();
        let name = |at: u32| &*entries[at as usize].name;
        sorted.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| name(a.1).cmp(name(b.1))));
        for pair in sorted.windows(2) {
            if let [a, b] = pair
                && a.0 == b.0
                && name(a.1) == name(b.1)
            {
                return Err(PackError::DuplicateName { name: name(a.1).into() });
            }
        }
        Ok(ByName(sorted))
    }

    /// The entry of this name; `entries` are those that were sorted.
    pub(crate) fn find<'a>(&self, entries: &'a [Entry], name: &str) -> Option<&'a Entry> {
        let hash = xxh3_64(name.as_bytes());
        let compare = |(other, at): &(u64, u32)| {
            let name_there = || entries.get(*at as usize).map(|entry| &*entry.name);
            other.cmp(&hash).then_with(|| name_there().cmp(&Some(name)))
        };
        let found = self.0.binary_search_by(compare).ok()?;
        entries.get(self.0.get(found)?.1 as usize)
    }
}
