//! A space's addresses, counted here: the kernel must never be asked for one that it has not.
//!
//! Asked in vain it loses an IOMMU domain for good, or dies, by its version. So holes are counted as the
//! kernel counts them, and an object that fits none is refused before any call.

use std::collections::BTreeMap;

/// Addresses end here.
const END: u64 = 1 << 32;

/// What of a space is taken: sizes by first address.
#[derive(Debug, Default)]
pub(super) struct Places(BTreeMap<u64, u64>);

impl Places {
    /// Whether some hole holds `size` bytes.
    pub(super) fn fits(&self, size: u64) -> bool {
        let mut at = 0;
        for (&iova, taken) in &self.0 {
            if iova.saturating_sub(at) >= size {
                return true;
            }
            at = at.max(iova.saturating_add(*taken));
        }
        END.saturating_sub(at) >= size
    }

    pub(super) fn take(&mut self, iova: u64, size: u64) {
        self.0.insert(iova, size);
    }

    pub(super) fn give_back(&mut self, iova: u64) {
        self.0.remove(&iova);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_below_between_and_above() {
        let mut places = Places::default();
        assert!(places.fits(END) && !places.fits(END + 1));
        places.take(0x2000, 0x1000);
        assert!(places.fits(END - 0x3000) && !places.fits(END - 0x2fff));
        places.take(0x8000, END - 0x8000);
        assert!(places.fits(0x5000) && !places.fits(0x5001), "between the two");
        places.take(0x3000, 0x5000);
        assert!(places.fits(0x2000) && !places.fits(0x2001), "below the first");
        places.give_back(0x2000);
        assert!(places.fits(0x3000));
    }
}
