//! The two views of a buffer against a cache that is written out line by line.

use super::*;
use proptest::prelude::*;

const LEN: usize = 3 * PAGE - 40;

/// The device's view of a range.
fn device(backing: &Backing, at: usize, len: usize) -> Vec<u8> {
    Reader::new().read(backing.device(at, len), at, len).to_vec()
}

/// A cache over a memory: a line is absent, or present and possibly dirty.
struct Naive {
    memory: Vec<u8>,
    lines: Vec<Option<(Vec<u8>, bool)>>,
}

impl Naive {
    fn new(poisoned: bool) -> Naive {
        let zero = |line: usize| vec![0; LINE.min(LEN - line * LINE)];
        let lines = 0..LEN.div_ceil(LINE);
        if poisoned {
            // Zeroed through the cache, and never cleaned.
            let lines = lines.map(|line| Some((zero(line), true))).collect();
            return Naive { memory: vec![POISON; LEN], lines };
        }
        Naive { memory: vec![0; LEN], lines: lines.map(|line| Some((zero(line), false))).collect() }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        for (at, &byte) in (at..).zip(bytes) {
            let line = self.line(at / LINE);
            // A store of the value that is there changes nothing that anybody could see.
            line.1 |= line.0[at % LINE] != byte;
            line.0[at % LINE] = byte;
        }
    }

    fn line(&mut self, n: usize) -> &mut (Vec<u8>, bool) {
        let range = n * LINE..(n * LINE + LINE).min(LEN);
        self.lines[n].get_or_insert_with(|| (self.memory[range].to_vec(), false))
    }

    fn cpu(&mut self) -> Vec<u8> {
        (0..LEN.div_ceil(LINE)).flat_map(|n| self.line(n).0.clone()).collect()
    }

    fn clean(&mut self, n: usize) {
        if let Some((bytes, true)) = &self.lines[n] {
            self.memory[n * LINE..n * LINE + bytes.len()].copy_from_slice(bytes);
        }
        if let Some(line) = &mut self.lines[n] {
            line.1 = false;
        }
    }

    fn sync(&mut self, at: usize, len: usize, clean: bool, invalidate: bool) {
        if len == 0 {
            return;
        }
        for n in at / LINE..=(at + len - 1) / LINE {
            let whole = n * LINE >= at && (n * LINE + LINE).min(LEN) <= at + len;
            if clean || (invalidate && !whole) {
                self.clean(n);
            }
            if invalidate {
                self.lines[n] = None;
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Cpu { at: usize, bytes: Vec<u8> },
    Device { at: usize, bytes: Vec<u8> },
    Sync { at: usize, len: usize, clean: bool, invalidate: bool },
}

fn range() -> impl Strategy<Value = (usize, usize)> {
    (0..LEN, prop_oneof![1..200usize, 1..LEN]).prop_map(|(at, len)| (at, len.min(LEN - at)))
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = || {
        (range(), any::<u8>()).prop_map(|((at, len), seed)| {
            (at, (0..len).map(|n| seed.wrapping_add((n / 40) as u8)).collect::<Vec<u8>>())
        })
    };
    prop_oneof![
        bytes().prop_map(|(at, bytes)| Op::Cpu { at, bytes }),
        bytes().prop_map(|(at, bytes)| Op::Device { at, bytes }),
        (range(), any::<bool>(), any::<bool>())
            .prop_map(|((at, len), clean, invalidate)| Op::Sync { at, len, clean, invalidate }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn views_meet_where_lines_are_synced(
        ops in prop::collection::vec(op(), 1..24),
        poisoned in any::<bool>(),
    ) {
        let backing = Backing::new(LEN, true, poisoned, Pinning::Allowed).unwrap();
        let mut naive = Naive::new(poisoned);
        for op in ops {
            match op {
                Op::Cpu { at, bytes } => {
                    backing.cpu_write(at, &bytes);
                    naive.write(at, &bytes);
                }
                Op::Device { at, bytes } => {
                    backing.device_write(at, &bytes);
                    naive.memory[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                Op::Sync { at, len, clean, invalidate } => {
                    backing.sync(at, len, clean, invalidate);
                    naive.sync(at, len, clean, invalidate);
                }
            }
            let mut cpu = vec![0; LEN];
            backing.cpu_read(0, &mut cpu);
            prop_assert!(cpu == naive.cpu(), "the CPU's view");
            prop_assert!(device(&backing, 0, LEN) == naive.memory, "the device's view");
        }
    }
}

#[test]
fn one_view_needs_no_sync() {
    let backing = Backing::new(LEN, false, true, Pinning::Allowed).unwrap();
    backing.cpu_write(10, b"there");
    assert_eq!(device(&backing, 10, 5), b"there");
    backing.device_write(10, b"where");
    let mut bytes = [0; 5];
    backing.cpu_read(10, &mut bytes);
    assert_eq!(&bytes, b"where");
    assert!(backing.unfetched());
    backing.sync(0, LEN, false, true);
    assert!(!backing.unfetched());
}

#[test]
fn pages_that_come_back_are_zero() {
    for _ in 0..3 {
        let backing = Backing::new(LARGE, false, false, Pinning::Allowed).unwrap();
        for page in (0..LARGE).step_by(PAGE) {
            assert_eq!(device(&backing, page, 1), [0]);
            backing.device_write(page, &[1]);
        }
    }
}
