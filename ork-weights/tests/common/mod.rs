//! Packs made by hand, byte by byte, so that tests can make them wrong in one place.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

pub mod files;
pub mod hub;

use ork_weights::pack::{Entry, Pack, Source};

/// An index entry as it lies in the file.
#[derive(Clone)]
pub struct RawEntry {
    pub name: Vec<u8>,
    pub k: u32,
    pub n: u32,
    pub dtype: u32,
    pub scales: u32,
    pub blob: u64,
    pub blob_bytes: u64,
    pub scales_at: u64,
    pub full_k: u64,
    pub error: f32,
}

/// A pack as it lies in the file: data, index, whatever follows it, footer.
#[derive(Clone)]
pub struct RawPack {
    pub version: u32,
    pub data: Vec<u8>,
    pub metadata: (u64, u64),
    pub entries: Vec<RawEntry>,
    pub after_index: Vec<u8>,
    pub calibration: (u64, u32),
    pub token: u32,
    /// Overrides what the footer would say.
    pub index: Option<u64>,
    pub count: Option<u32>,
}

impl RawPack {
    /// One 64 × 64 int8 weight "w": codes at 0, scales of 0.5 at 4096, the index at 4352.
    pub fn small(version: u32) -> RawPack {
        let mut data = vec![3; 4096];
        data.extend((0..64).flat_map(|_| 0.5f32.to_le_bytes()));
        RawPack {
            version,
            data,
            metadata: (0, 0),
            entries: vec![RawEntry {
                name: b"w".to_vec(),
                k: 64,
                n: 64,
                dtype: 1,
                scales: 64,
                blob: 0,
                blob_bytes: 4096,
                scales_at: 4096,
                full_k: 0,
                error: 0.0,
            }],
            after_index: Vec::new(),
            calibration: (0, 0),
            token: 0,
            index: None,
            count: None,
        }
    }

    /// [`RawPack::small`] with a compact 64 × 32 weight "c" behind it.
    pub fn compact(kind: u32) -> RawPack {
        let mut pack = RawPack::small(2);
        let at = pack.data.len() as u64;
        for field in [0x4F34_4E31, 0, 64, 32, kind] {
            pack.data.extend(u32::to_le_bytes(field));
        }
        pack.data.extend((0..32).flat_map(|_| 0.25f32.to_le_bytes()));
        pack.data.extend((0..64 * 32 / 2).map(|i| (i * 7) as u8));
        let blob_bytes = pack.data.len() as u64 - at;
        let first = pack.entries[0].clone();
        let (blob, name) = (at, b"c".to_vec());
        let entry =
            RawEntry { name, n: 32, dtype: 4, scales: 0, blob, blob_bytes, scales_at: 0, ..first };
        pack.entries.push(entry);
        pack
    }

    pub fn index_at(&self) -> u64 {
        self.data.len() as u64
    }

    /// The index alone, with its prefix.
    pub fn index_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.version >= 6 {
            out.extend(self.metadata.0.to_le_bytes());
            out.extend(self.metadata.1.to_le_bytes());
        }
        for entry in &self.entries {
            out.extend((entry.name.len() as u32).to_le_bytes());
            out.extend(&entry.name);
            for field in [entry.k, entry.n, entry.dtype, entry.scales] {
                out.extend(field.to_le_bytes());
            }
            for field in [entry.blob, entry.blob_bytes, entry.scales_at] {
                out.extend(field.to_le_bytes());
            }
            if self.version >= 4 {
                out.extend(entry.full_k.to_le_bytes());
            }
            if self.version >= 6 {
                out.extend(entry.error.to_le_bytes());
                out.extend([0; 4]);
            }
        }
        out
    }

    pub fn footer(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.index.unwrap_or(self.index_at()).to_le_bytes());
        out.extend(self.count.unwrap_or(self.entries.len() as u32).to_le_bytes());
        out.extend(self.version.to_le_bytes());
        if self.version >= 3 {
            out.extend(self.token.to_le_bytes());
        }
        if self.version >= 5 {
            out.extend([0; 4]);
        }
        if self.version >= 7 {
            out.extend(self.calibration.0.to_le_bytes());
            out.extend(self.calibration.1.to_le_bytes());
            out.extend([0; 4]);
        }
        out.extend(b"ORKPK01\0");
        if matches!(self.version, 3 | 4) {
            out.extend([0; 4]);
        }
        out
    }

    pub fn bytes(&self) -> Vec<u8> {
        let parts =
            [self.data.clone(), self.index_bytes(), self.after_index.clone(), self.footer()];
        parts.concat()
    }
}

/// Whether two packs hold the same weights in the same order: names, forms, codes and scales.
pub fn same_weights<A: Source, B: Source>(a: &Pack<A>, b: &Pack<B>) -> bool {
    a.entries().len() == b.entries().len()
        && a.entries().iter().zip(b.entries()).all(|(x, y)| {
            (&x.name, x.k, x.n, x.dtype, x.groups()) == (&y.name, y.k, y.n, y.dtype, y.groups())
                && tiles(a, x) == tiles(b, y)
                && a.scales(x).unwrap() == b.scales(y).unwrap()
        })
}

fn tiles<S: Source>(pack: &Pack<S>, entry: &Entry) -> Vec<u8> {
    let mut tiles = vec![0; entry.layout().bytes() as usize];
    pack.load_into(entry, &mut tiles).unwrap();
    tiles
}
