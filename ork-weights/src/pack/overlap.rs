//! Parts of a pack that share bytes: a small file could otherwise stand for huge loads.

use super::entry::{Entry, Span};
use super::error::{PackError, Result};

/// Refuses a pack two of whose parts share a byte.
pub(crate) fn refuse(entries: &[Entry], metadata: Option<Span>) -> Result<()> {
    // Packers write front to back. Nothing more is to be done when each part starts after the last.
    let parts = || entries.iter().flat_map(parts_of).chain(metadata);
    let mut last = 0;
    if parts().all(|span| span.offset >= std::mem::replace(&mut last, span.range().end)) {
        return Ok(());
    }
    let owners = entries.iter().flat_map(|entry| parts_of(entry).map(move |_| Some(entry)));
    let mut parts: Vec<(Span, Option<&Entry>)> = parts().zip(owners.chain([None])).collect();
    parts.sort_by_key(|(span, _)| span.offset);
    let name = |owner: Option<&Entry>| match owner {
        Some(entry) => entry.name.clone(),
        None => "the metadata section".into(),
    };
    for pair in parts.windows(2) {
        if let [(a, first), (b, second)] = pair
            && a.range().end > b.offset
        {
            let (first, second) = (name(*first), name(*second));
            return Err(PackError::Overlap { first, second, offset: b.offset });
        }
    }
    Ok(())
}

/// The parts of an entry that have bytes, in the order in which packers write them.
pub(crate) fn parts_of(entry: &Entry) -> impl Iterator<Item = Span> + '_ {
    [entry.blob, entry.full_k, entry.scales].into_iter().filter(|span| span.bytes != 0)
}
