//! A second reader, written from the description of the format and sharing nothing with the first:
//! what this library writes must be readable by those rules alone.

mod common;

use std::collections::BTreeMap;

use ork_weights::pack::{
    Codebook, Dtype, Identity, Pack, PackWriter, WeightHeader, WriterOptions, o4n1_header, upgrade,
    verify,
};
use proptest::prelude::*;

/// A weight as an old reader sees it.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    k: usize,
    n: usize,
    dtype: u32,
    /// Row-major [N][K].
    codes: Vec<i8>,
    scales: Vec<f32>,
    blob_at: usize,
    error: f32,
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn le64(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// Reads a pack as the reader of exactly this version does.
fn read(file: &[u8], version: u32) -> BTreeMap<String, Seen> {
    let (footer_bytes, entry_bytes) = match version {
        2 => (24, 40),
        3 => (32, 40),
        5 => (32, 48),
        7 => (48, 56),
        _ => unreachable!(),
    };
    // In version 3 four bytes of padding end the file.
    let end = if version == 3 { file.len() - 4 } else { file.len() };
    assert_eq!(&file[end - 8..end], b"ORKPK01\0");
    assert!(file[end..].iter().all(|pad| *pad == 0));
    if version == 3 {
        assert_eq!(le32(file, file.len() - 32 + 16), 0, "the token");
    }
    let footer = file.len() - footer_bytes;
    assert_eq!(le32(file, footer + 12), version);
    let count = le32(file, footer + 8);
    let mut at = le64(file, footer);
    assert!(at < file.len());
    if version == 7 {
        at += 16;
    }
    let mut seen = BTreeMap::new();
    for _ in 0..count {
        let length = le32(file, at) as usize;
        let name = String::from_utf8(file[at + 4..at + 4 + length].to_vec()).unwrap();
        at += 4 + length;
        let entry = &file[at..at + entry_bytes];
        at += entry_bytes;
        let (k, n) = (le32(entry, 0) as usize, le32(entry, 4) as usize);
        let (dtype, scale_count) = (le32(entry, 8), le32(entry, 12) as usize);
        let (blob_at, blob_bytes, scale_at) = (le64(entry, 16), le64(entry, 24), le64(entry, 32));
        if entry_bytes >= 48 {
            assert_eq!(le64(entry, 40), 0, "full-K copies are not written");
        }
        let error = if entry_bytes == 56 { f32::from_bits(le32(entry, 48)) } else { 0.0 };
        let mut blob = &file[blob_at..blob_at + blob_bytes];
        let mut scale_bytes = &file[scale_at..scale_at + 4 * scale_count];
        if dtype != 4 && blob_bytes == expected_bytes(k, n, dtype) + 4096 {
            check_stamp(&blob[..4096], k, n, dtype);
            blob = &blob[4096..];
        }
        let codes = match dtype {
            1 | 6 => tiles(k, n, 1024, 32, 8, blob),
            5 | 7 => tiles(k, n, 10752, 64, 4, blob),
            256 => tiles(k, n, 2048, 16, 16, blob),
            4 => {
                assert_eq!(blob.len(), 20 + 4 * n + k * n / 2);
                assert_eq!(&blob[..4], b"1N4O");
                assert_eq!([le32(blob, 4), le32(blob, 8), le32(blob, 12)], [0, k as u32, n as u32]);
                scale_bytes = &blob[20..20 + 4 * n];
                compact(&blob[20 + 4 * n..], le32(blob, 16))
            }
            other => panic!("dtype {other}"),
        };
        let scales = scale_bytes.chunks(4).map(|b| f32::from_bits(le32(b, 0))).collect();
        let before = seen.insert(name, Seen { k, n, dtype, codes, scales, blob_at, error });
        assert_eq!(before, None);
    }
    assert!(at <= footer);
    seen
}

/// Σ over N slices (outer) and K slices of the slice rounded up to a page.
fn expected_bytes(k: usize, n: usize, dtype: u32) -> usize {
    let (k_slice, bits) = match dtype {
        5 | 7 => (10752, 4),
        256 => (2048, 16),
        _ => (1024, 8),
    };
    let mut sum = 0;
    for n0 in (0..n).step_by(8192) {
        for k0 in (0..k).step_by(k_slice) {
            let bytes = (k - k0).min(k_slice) * (n - n0).min(8192) * bits / 8;
            sum += bytes.div_ceil(4096) * 4096;
        }
    }
    sum
}

/// Tiles back to rows, straight from "order [nt][kt][nl][kk]"; of half floats both bytes.
fn tiles(k: usize, n: usize, k_slice: usize, width: usize, bits: usize, blob: &[u8]) -> Vec<i8> {
    let each = (bits / 8).max(1);
    let mut codes = vec![0; k * n * each];
    let mut at = 0;
    for n0 in (0..n).step_by(8192) {
        for k0 in (0..k).step_by(k_slice) {
            let (kp, nc) = ((k - k0).min(k_slice), (n - n0).min(8192));
            let mut element = 0;
            for nt in 0..nc / width {
                for kt in 0..kp / 32 {
                    for nl in 0..width {
                        for kk in 0..32 {
                            let (row, column) = (n0 + nt * width + nl, k0 + kt * 32 + kk);
                            let to = (row * k + column) * each;
                            match bits {
                                4 => codes[to] = nibble(blob[at + element / 2], element % 2),
                                _ => {
                                    for byte in 0..each {
                                        codes[to + byte] = blob[at + element * each + byte] as i8;
                                    }
                                }
                            }
                            element += 1;
                        }
                    }
                }
            }
            let end = at + (element * bits / 8).div_ceil(4096) * 4096;
            assert!(blob[at + element * bits / 8..end].iter().all(|pad| *pad == 0));
            at = end;
        }
    }
    assert_eq!(at, blob.len());
    codes
}

fn nibble(byte: u8, odd: usize) -> i8 {
    let value = if odd == 1 { byte >> 4 } else { byte & 15 } as i8;
    if value > 7 { value - 16 } else { value }
}

fn compact(codes: &[u8], kind: u32) -> Vec<i8> {
    const NF4: [i8; 16] = [-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127];
    let value = |byte: u8, odd| match kind {
        0 => nibble(byte, odd),
        1 => NF4[usize::from(if odd == 1 { byte >> 4 } else { byte & 15 })],
        other => panic!("kind {other}"),
    };
    codes.iter().flat_map(|byte| [value(*byte, 0), value(*byte, 1)]).collect()
}

fn check_stamp(page: &[u8], k: usize, n: usize, dtype: u32) {
    let precision = if matches!(dtype, 5 | 7) { 2 } else { 1 };
    let expected = [0x4B50_414F, 0, 0x5B87_5632, precision, k as u32, n as u32, 4096, 0];
    for (field, expected) in expected.iter().enumerate() {
        assert_eq!(le32(page, 4 * field), *expected);
    }
    assert_eq!(&page[32..38], b"rk3588");
    assert!(page[38..].iter().all(|byte| *byte == 0));
}

/// A weight to write: rows of codes and scales.
#[derive(Clone, Debug)]
struct Given {
    k: usize,
    n: usize,
    dtype: Dtype,
    nf4: bool,
    groups: usize,
    error: Option<f32>,
    seed: u64,
}

impl Given {
    fn random(&self, place: usize) -> u64 {
        let mut x = self.seed ^ (place as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x ^= x >> 31;
        x.wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40
    }

    fn four_bit(&self) -> bool {
        matches!(self.dtype, Dtype::O4n1 | Dtype::Int4 | Dtype::Int4AsInt8)
    }

    fn code(&self, n: usize, k: usize) -> i8 {
        let byte = self.random(n * self.k + k) as u8;
        if self.four_bit() { nibble(byte, 0) } else { byte as i8 }
    }

    fn scales(&self) -> Vec<f32> {
        if self.dtype == Dtype::Fp16 {
            return Vec::new();
        }
        (0..self.n * self.groups).map(|i| self.random(i) as f32 / 1e6).collect()
    }

    /// The bytes to store, made cell by cell from the description.
    fn blob(&self) -> Vec<u8> {
        if self.dtype == Dtype::O4n1 {
            let book = if self.nf4 { Codebook::Nf4 } else { Codebook::Uniform };
            let mut blob = o4n1_header(self.k as u32, self.n as u32, book).to_vec();
            blob.extend(self.scales().iter().flat_map(|scale| scale.to_le_bytes()));
            for n in 0..self.n {
                for k in (0..self.k).step_by(2) {
                    blob.push((self.code(n, k) as u8 & 15) | ((self.code(n, k + 1) as u8) << 4));
                }
            }
            return blob;
        }
        let (k_slice, width, bits) = match self.dtype {
            Dtype::Fp16 => (2048, 16, 16),
            _ if self.four_bit() => (10752, 64, 4),
            _ => (1024, 32, 8),
        };
        let mut blob = Vec::new();
        for n0 in (0..self.n).step_by(8192) {
            for k0 in (0..self.k).step_by(k_slice) {
                let (kp, nc) = ((self.k - k0).min(k_slice), (self.n - n0).min(8192));
                for (nt, kt) in (0..nc / width).flat_map(|nt| (0..kp / 32).map(move |kt| (nt, kt)))
                {
                    for (nl, kk) in (0..width).flat_map(|nl| (0..32).map(move |kk| (nl, kk))) {
                        let code = self.code(n0 + nt * width + nl, k0 + kt * 32 + kk) as u8;
                        match (bits, kk % 2) {
                            (4, 1) => *blob.last_mut().unwrap() |= code << 4,
                            (4, _) => blob.push(code & 15),
                            (16, _) => blob.extend([code, code ^ 0x35]),
                            _ => blob.push(code),
                        }
                    }
                }
                blob.resize(blob.len().next_multiple_of(4096), 0);
            }
        }
        blob
    }

    fn expected(&self) -> Vec<i8> {
        let value = |code: i8| match self.nf4 && self.dtype == Dtype::O4n1 {
            true => compact(&[code as u8 & 15], 1)[0],
            false => code,
        };
        let cells = (0..self.n).flat_map(|n| (0..self.k).map(move |k| (n, k)));
        let codes = cells.map(|(n, k)| value(self.code(n, k)));
        match self.dtype {
            Dtype::Fp16 => codes.flat_map(|code| [code, code ^ 0x35]).collect(),
            _ => codes.collect(),
        }
    }
}

fn given() -> impl Strategy<Value = Given> {
    let dtypes = proptest::sample::select(Dtype::ALL.to_vec());
    let groups = proptest::sample::select(vec![1, 2, 4]);
    let error = proptest::option::of(0.001f32..1.0);
    (1..5usize, 1..4usize, dtypes, any::<bool>(), groups, error, any::<u64>()).prop_map(
        |(k, n, dtype, nf4, groups, error, seed)| {
            let rotated = dtype.is_rotated();
            // A row or two beyond the slices now and then.
            let k = if seed % 8 == 0 { 1024 + 32 * k } else { 32 * k };
            let groups = if rotated && k % (32 * groups) == 0 { groups } else { 1 };
            Given { k, n: 64 * n, dtype, nf4, groups, error, seed }
        },
    )
}

const MODEL: Identity = Identity { size: 9, modified_ns: 8, sample_hash: 7, full_hash: None };

fn write(path: &std::path::Path, weights: &[Given], options: WriterOptions) {
    let mut writer = PackWriter::create(path, &MODEL, options).unwrap();
    for (number, w) in weights.iter().enumerate() {
        let scales = if w.dtype == Dtype::O4n1 { Vec::new() } else { w.scales() };
        let name = format!("blk.{number}.weight");
        let (k, n) = (w.k as u32, w.n as u32);
        let header = WeightHeader { name: &name, k, n, dtype: w.dtype };
        let mut weight = writer.begin(header).unwrap();
        weight.write_at(0, &w.blob()).unwrap();
        weight.finish(&scales, w.error).unwrap();
    }
    writer.finish().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_written_reads_by_the_rules_alone(
        weights in proptest::collection::vec(given(), 1..5),
        version in proptest::sample::select(vec![2u32, 3, 5, 7]),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.orkpack");
        let options = WriterOptions { version, ..WriterOptions::default() };
        write(&path, &weights, options.clone());
        let file = std::fs::read(&path).unwrap();
        let seen = read(&file, version);
        prop_assert_eq!(seen.len(), weights.len());
        for (number, w) in weights.iter().enumerate() {
            let seen = &seen[&format!("blk.{number}.weight")];
            prop_assert_eq!((seen.k, seen.n, seen.dtype), (w.k, w.n, w.dtype.code()));
            prop_assert_eq!(&seen.codes, &w.expected());
            prop_assert_eq!(&seen.scales, &w.scales());
            prop_assert_eq!(seen.blob_at % 4096, 0);
            let error = if version == 7 { w.error.unwrap_or(0.0) } else { 0.0 };
            prop_assert_eq!(seen.error, error);
        }

        // The library's own reader agrees, and so does every other version made from this one.
        let pack = Pack::open(&path).unwrap();
        let report = verify(&pack, &|_| {});
        prop_assert!(report.is_sound());
        for (number, (w, entry)) in weights.iter().zip(pack.entries()).enumerate() {
            prop_assert_eq!(&*entry.name, &format!("blk.{number}.weight"));
            prop_assert_eq!(entry.order() as usize, number);
            prop_assert_eq!(entry.error(), w.error);
            prop_assert_eq!(entry.groups() as usize, if w.dtype.is_rotated() { w.groups } else { 1 });
            match w.dtype {
                Dtype::Fp16 => prop_assert!(pack.codes(entry).is_err()),
                _ => prop_assert_eq!(pack.codes(entry).unwrap(), w.expected()),
            }
            let rotation = [5, 6, 7].contains(&w.dtype.code()).then(|| 1 << w.k.trailing_zeros());
            prop_assert_eq!(entry.rotation(), rotation);
            prop_assert_eq!(pack.scales(entry).unwrap(), w.scales());
        }
        for other in [2, 3, 5, 7] {
            let copy = folder.path().join(format!("{other}.orkpack"));
            let options = WriterOptions { version: other, ..options.clone() };
            upgrade(&pack, &copy, options, |_| {}).unwrap();
            let copy = Pack::open(&copy).unwrap();
            prop_assert_eq!(copy.identity(), Some(&MODEL));
            prop_assert!(common::same_weights(&pack, &copy));
            for (a, b) in pack.entries().iter().zip(copy.entries()) {
                prop_assert_eq!((&a.name, a.error()), (&b.name, b.error()));
            }
        }
    }

    #[test]
    fn the_same_weights_give_the_same_bytes(weights in proptest::collection::vec(given(), 1..4)) {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
        write(&a, &weights, WriterOptions::default());
        write(&b, &weights, WriterOptions::default());
        prop_assert_eq!(std::fs::read(a).unwrap(), std::fs::read(b).unwrap());
    }
}
