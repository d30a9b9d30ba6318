//! Any bytes at all, opened as a pack.

use std::ops::Range;

use ork_weights::pack::{Dtype, Pack, PackError, Result, Source, verify};

/// Bytes that have to be read by position, as a file without a mapping has.
struct ByPosition<'a>(&'a [u8]);

impl Source for ByPosition<'_> {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn bytes(&self, _: Range<u64>) -> Option<&[u8]> {
        None
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, out)
    }
}

/// Opens `data`, and touches everything in it if it opens: nothing may panic, read outside, or take
/// memory out of proportion; and reading by position must tell the same as reading in place.
pub fn pack_open(data: &[u8]) {
    let by_position = Pack::parse(ByPosition(data));
    let pack = match (Pack::parse(data), by_position) {
        (Ok(pack), Ok(other)) => {
            assert_eq!(pack.entries(), other.entries());
            touch(&other);
            pack
        }
        (Err(error), Err(other)) => {
            assert_eq!(error.to_string(), other.to_string());
            return;
        }
        (one, other) => panic!("{:?} in place, {:?} by position", one.err(), other.err()),
    };
    touch(&pack);
    let mut end = 0;
    let mut parts: Vec<Range<u64>> = pack
        .entries()
        .iter()
        .flat_map(|entry| [entry.blob_range(), entry.scales_range()])
        .filter(|range| !range.is_empty())
        .collect();
    parts.sort_by_key(|range| range.start);
    for part in parts {
        assert!(part.start >= end, "two parts share bytes");
        end = part.end;
    }
    assert!(end <= data.len() as u64);
}

fn touch<S: Source + Sync>(pack: &Pack<S>) {
    for entry in pack.entries() {
        assert_eq!(pack.get(&entry.name), Some(entry));
        let mut tiles = vec![0; entry.layout().bytes() as usize];
        let loaded = pack.load_into(entry, &mut tiles);
        let codes = pack.codes(entry);
        let same = matches!(
            (&loaded, &codes),
            (Ok(()), Ok(_))
                | (Err(PackError::O4n1 { .. }), Err(PackError::O4n1 { .. }))
                | (Err(PackError::Stamp { .. }), Err(PackError::Stamp { .. }))
        );
        // Half floats have neither codes nor scales.
        let half = entry.dtype == Dtype::Fp16;
        let same = if half { matches!(codes, Err(PackError::NoCodes { .. })) } else { same };
        assert!(same, "{loaded:?}, {:?}", codes.err());
        if let Ok(scales) = pack.scales(entry) {
            let count = u64::from(entry.groups()) * u64::from(entry.layout().n());
            assert_eq!(scales.len() as u64, if half { 0 } else { count });
        }
        let _ = (entry.error(), entry.bits_per_weight(), entry.stored_bytes());
    }
    let _ = (pack.metadata(), pack.calibration(), pack.packer(), pack.identity());
    let report = verify(pack, &|_| {});
    assert_eq!(report.weights, pack.entries().len());
}
