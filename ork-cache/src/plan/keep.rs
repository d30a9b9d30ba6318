//! Which weights to keep so that as many bytes as possible stay and the rest is spread evenly.

/// Units of room that are told apart at most.
const UNITS: u64 = 1 << 17;

/// Chooses members of `sizes` whose sum is at most `room` and as large as possible, and spreads
/// those left out evenly over the order. Exact when the room has at most 2^17 units of the
/// greatest common divisor of the sizes; else short of it by the share `2 · len / 2^17` of the room at
/// most.
///
/// Bytes that are read again every pass are those left out, so this is the choice with the fewest
/// loads; spreading matters because a prefetcher is only a ring ahead.
pub(super) fn keep(sizes: &[u64], room: u64) -> Vec<bool> {
    if sizes.iter().sum::<u64>() <= room {
        return vec![true; sizes.len()];
    }
    let unit = unit(sizes, room);
    let units = (room / unit) as usize;
    let mut reached = Bits::new(units + 1);
    reached.set(0);
    // The first member that reaches a sum; without it, earlier members reach what is left.
    let mut first = vec![u32::MAX; units + 1];
    for (i, &size) in sizes.iter().enumerate() {
        reached.add_shifted(size.div_ceil(unit), |sum| first[sum] = i as u32);
    }
    let mut at = reached.highest();
    let mut kept = vec![false; sizes.len()];
    while at > 0 {
        let member = first[at] as usize;
        kept[member] = true;
        at -= sizes[member].div_ceil(unit) as usize;
    }
    spread(sizes, &mut kept);
    kept
}

/// The multiple of the sizes' greatest common divisor in which sums are counted.
fn unit(sizes: &[u64], room: u64) -> u64 {
    let divisor = sizes.iter().copied().fold(0, gcd).max(1);
    divisor * room.div_ceil(divisor).div_ceil(UNITS).max(1)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Among members of equal size, moves those left out to evenly spaced places.
fn spread(sizes: &[u64], kept: &mut [bool]) {
    let mut by_size: std::collections::BTreeMap<u64, Vec<usize>> =
        std::collections::BTreeMap::new();
    for (i, &size) in sizes.iter().enumerate() {
        by_size.entry(size).or_default().push(i);
    }
    for places in by_size.values() {
        let out = places.iter().filter(|&&i| !kept[i]).count();
        let n = places.len();
        for (j, &i) in places.iter().enumerate() {
            // One more of the `out` is due whenever j·out/n passes a whole number.
            kept[i] = (j + 1) * out / n == j * out / n;
        }
    }
}

struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    fn new(len: usize) -> Bits {
        Bits { words: vec![0; len.div_ceil(64)], len }
    }

    fn set(&mut self, i: usize) {
        self.words[i / 64] |= 1 << (i % 64);
    }

    /// Adds the set shifted up by `by`; `new` is told every bit that was not there.
    fn add_shifted(&mut self, by: u64, mut new: impl FnMut(usize)) {
        if by == 0 || by >= self.len as u64 {
            return;
        }
        let (words, bits) = (by as usize / 64, by as usize % 64);
        // From the top, so that only bits of the old set are shifted.
        for i in (words..self.words.len()).rev() {
            let mut word = self.words[i - words] << bits;
            if bits > 0 && i > words {
                word |= self.words[i - words - 1] >> (64 - bits);
            }
            let mut added = word & !self.words[i];
            if i + 1 == self.words.len() && !self.len.is_multiple_of(64) {
                added &= (1 << (self.len % 64)) - 1;
            }
            self.words[i] |= added;
            while added != 0 {
                new(i * 64 + added.trailing_zeros() as usize);
                added &= added - 1;
            }
        }
    }

    fn highest(&self) -> usize {
        let word = self.words.iter().rposition(|&w| w != 0).unwrap_or(0);
        word * 64 + (63 - self.words[word].max(1).leading_zeros() as usize)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept_bytes(sizes: &[u64], kept: &[bool]) -> u64 {
        sizes.iter().zip(kept).filter(|(_, k)| **k).map(|(s, _)| s).sum()
    }

    fn best(sizes: &[u64], room: u64) -> u64 {
        let sums = (0u32..1 << sizes.len()).map(|mask| {
            (0..sizes.len()).filter(|i| mask >> i & 1 == 1).map(|i| sizes[i]).sum::<u64>()
        });
        sums.filter(|&s| s <= room).max().unwrap_or(0)
    }

    #[test]
    fn equal_members_left_out_are_spread() {
        let kept = keep(&[10; 8], 45);
        assert_eq!(kept, [true, false, true, false, true, false, true, false]);
        assert_eq!(keep(&[10; 3], 30), [true; 3]);
        assert_eq!(keep(&[10; 3], 9), [false; 3]);
        assert_eq!(keep(&[], 9), [false; 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn as_many_bytes_stay_as_an_exhaustive_search_finds(
            sizes in proptest::collection::vec(1u64..2000, 1..12),
            share in 0.0f64..1.0,
        ) {
            let room = (sizes.iter().sum::<u64>() as f64 * share) as u64;
            let kept = kept_bytes(&sizes, &keep(&sizes, room));
            prop_assert!(kept <= room);
            prop_assert_eq!(kept, best(&sizes, room));
        }

        #[test]
        fn large_sizes_come_within_the_rounding(
            sizes in proptest::collection::vec(1u64 << 20..1 << 30, 1..12),
            share in 0.0f64..1.0,
        ) {
            let room = (sizes.iter().sum::<u64>() as f64 * share) as u64;
            let kept = kept_bytes(&sizes, &keep(&sizes, room));
            prop_assert!(kept <= room);
            // Each size is rounded up to the unit and the room down, and sums are compared so.
            let rounding = unit(&sizes, room) * (sizes.len() as u64 + 1);
            let best = best(&sizes, room.saturating_sub(rounding));
            prop_assert!(kept + rounding >= best, "{kept}, {best}");
        }
    }
}
