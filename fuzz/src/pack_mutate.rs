//! A good pack with a few bytes changed.

use arbitrary::{Arbitrary, Result, Unstructured};
use ork_weights::pack::{Pack, PackError, verify};

use crate::spec::{Spec, folder};

/// One edit of the bytes.
#[derive(Arbitrary, Debug)]
enum Edit {
    /// XOR at a place counted from the start.
    Front(u32, u8),
    /// XOR at a place counted from the end, where index and footer are.
    Back(u16, u8),
    /// Eight bytes set at a place counted from the end.
    Word(u16, u64),
    /// Cut at the end.
    Cut(u16),
    /// Appended at the end.
    Grow(u8),
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let length = bytes.len();
        match *self {
            Edit::Front(at, mask) => bytes[at as usize % length] ^= mask,
            Edit::Back(at, mask) => bytes[length - 1 - usize::from(at) % length] ^= mask,
            Edit::Word(at, word) => {
                let at = length - 1 - usize::from(at) % length;
                let end = (at + 8).min(length);
                bytes[at..end].copy_from_slice(&word.to_le_bytes()[..end - at]);
            }
            Edit::Cut(count) => bytes.truncate(length - usize::from(count).min(length - 1)),
            Edit::Grow(byte) => bytes.push(byte),
        }
    }
}

/// Writes a pack, edits up to three places, and opens it: it must be refused, or hold exactly the
/// weights that were written, except those that [`verify`] names.
pub fn pack_mutate(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok((spec, edits)) = read(&mut u) else { return };
    let folder = folder().expect("a temporary folder");
    let path = folder.path().join("p.orkpack");
    spec.write(&path).expect("the pack is sound");
    let whole = std::fs::read(&path).expect("it was just written");
    let mut bytes = whole.clone();
    edits.iter().for_each(|edit| edit.apply(&mut bytes));
    crate::pack_open(&bytes);
    let Ok(pack) = Pack::parse(bytes) else { return };
    // Without its section a pack is like one of another program: no checksums, no promises.
    if pack.packer().is_none() {
        return;
    }
    let problems = verify(&pack, &|_| {}).problems;
    assert_eq!(pack.entries().len(), spec.weights.len());
    for (weight, entry) in spec.weights.iter().zip(pack.entries()) {
        assert!(weight.is(entry), "{weight:?} became {entry:?}");
        let damaged = problems.iter().any(
            |problem| matches!(problem, PackError::Checksum { name, .. } if *name == entry.name),
        );
        let range = entry.blob_range();
        let stored = &pack.source()[range.start as usize..range.end as usize];
        assert!(damaged || stored == weight.blob, "{} changed unseen", entry.name);
    }
}

fn read(u: &mut Unstructured<'_>) -> Result<(Spec, Vec<Edit>)> {
    let spec = Spec::arbitrary(u)?;
    let edits = (0..u.int_in_range(0..=3)?).map(|_| u.arbitrary()).collect::<Result<_>>()?;
    Ok((spec, edits))
}
