//! IOVA allocation of one domain, as the vendor driver 0.9.8 does it on Linux 6.1.
//!
//! Two users share a space. The kernel's DMA API aligns to the next power of two, rounds sizes
//! below 32 pages up, reuses freed ranges of up to 32 pages in last-in, first-out order, and
//! flushes those magazines when it runs out. The driver's own path (flag 0x400) works page by page
//! without alignment, never looks into the magazines and never flushes them.
//!
//! ```
//! use rknpu_sim::{config::Alignment, iova::Space};
//!
//! // Aligned, three times 768 MiB leave no place for a fourth; without alignment they do.
//! let mut space = Space::new(Alignment::PowerOfTwo);
//! let three = [0; 3].map(|_| space.alloc_aligned(0x3000_0000, 0));
//! assert_eq!(three, [Some(0xC000_0000), Some(0x8000_0000), Some(0x4000_0000)]);
//! assert_eq!(space.clone().alloc_aligned(0x3000_0000, 0), None);
//! assert_eq!(space.alloc_unaligned(0x3000_0000), Some(0x1000_0000));
//! ```

mod cache;
mod tree;

use crate::config::Alignment;
use cache::{Magazines, ORDERS, order_of};
use tree::{LIMIT, Tree};

/// Bytes of a page, the IOMMU's granule.
pub(crate) const PAGE: u64 = 4096;

/// One domain's 4 GiB − 4 KiB of address space.
///
/// ```
/// use rknpu_sim::{config::Alignment, iova::Space};
///
/// let mut space = Space::new(Alignment::PowerOfTwo);
/// let first = space.alloc_aligned(0x1000, 0).unwrap();
/// assert_eq!(first, 0xFFFF_F000);
/// // 3 MiB is not rounded up, but starts on a multiple of 4 MiB.
/// assert_eq!(space.alloc_aligned(0x30_0000, 0), Some(0xFFC0_0000));
/// assert_eq!(space.alloc_unaligned(0x3000), Some(0xFFBF_D000));
/// space.free_unaligned(0xFFBF_D000);
/// ```
#[derive(Clone, Debug)]
pub struct Space {
    tree: Tree,
    magazines: Magazines,
    alignment: Alignment,
}

impl Space {
    /// An empty space.
    ///
    /// ```
    /// use rknpu_sim::{config::Alignment, iova::Space};
    ///
    /// let space = Space::new(Alignment::PowerOfTwo);
    /// assert_eq!((space.used(), space.largest_gap()), (0, (4 << 30) - 4096));
    /// ```
    pub fn new(alignment: Alignment) -> Space {
        Space { tree: Tree::new(), magazines: Magazines::default(), alignment }
    }

    /// The DMA API's path: `bytes` is rounded up to pages; `None` when nothing fits. `cpu` is the
    /// caller's, whose magazines are looked into first.
    ///
    /// ```
    /// use rknpu_sim::{config::Alignment, iova::Space};
    ///
    /// let mut space = Space::new(Alignment::PowerOfTwo);
    /// let page = space.alloc_aligned(4096, 0).expect("an empty space");
    /// space.free_aligned(page, 4096, 0);
    /// assert_eq!(space.alloc_aligned(100, 0), Some(page)); // the range kept for reuse
    /// assert_eq!(space.alloc_aligned(4 << 30, 0), None);
    /// ```
    pub fn alloc_aligned(&mut self, bytes: u64, cpu: usize) -> Option<u64> {
        let mut pages = pages(bytes)?;
        // A cacheable size that is no power of two would spoil the magazines, so it is rounded.
        if pages < 1 << (ORDERS - 1) {
            pages = pages.next_power_of_two();
        }
        if let Some(page) = order_of(pages).and_then(|order| self.magazines.take(order, cpu)) {
            return Some(u64::from(page) * PAGE);
        }
        let align = self.align(pages);
        let page = match self.tree.alloc(pages, align) {
            Some(page) => page,
            None => {
                for page in self.magazines.flush() {
                    self.tree.free(page);
                }
                self.tree.alloc(pages, align)?
            }
        };
        Some(u64::from(page) * PAGE)
    }

    /// Frees what [`Space::alloc_aligned`] gave for `bytes`. A range that was never given is kept
    /// for reuse all the same, as the kernel keeps it.
    ///
    /// ```
    /// use rknpu_sim::{config::Alignment, iova::Space};
    ///
    /// let mut space = Space::new(Alignment::PowerOfTwo);
    /// let iova = space.alloc_aligned(4096, 0).expect("an empty space");
    /// space.free_aligned(iova, 4096, 0);
    /// assert_eq!(space.used(), 4096); // kept for reuse
    /// assert_eq!(space.ranges(), (1, 1));
    /// ```
    pub fn free_aligned(&mut self, iova: u64, bytes: u64, cpu: usize) {
        let (Some(pages), Ok(page)) = (pages(bytes), u32::try_from(iova / PAGE)) else { return };
        match order_of(pages) {
            Some(order) => {
                for page in self.magazines.put(order, cpu, page) {
                    self.tree.free(page);
                }
            }
            None => {
                self.tree.free(page);
            }
        }
    }

    /// The driver's own path (flag 0x400): page granular, straight from the tree.
    ///
    /// ```
    /// use rknpu_sim::{config::Alignment, iova::Space};
    ///
    /// let mut space = Space::new(Alignment::PowerOfTwo);
    /// assert_eq!(space.alloc_unaligned(4096), Some(0xFFFF_F000));
    /// assert_eq!(space.alloc_unaligned(3 << 20), Some(0xFFCF_F000)); // right below
    /// ```
    pub fn alloc_unaligned(&mut self, bytes: u64) -> Option<u64> {
        Some(u64::from(self.tree.alloc(pages(bytes)?, 1)?) * PAGE)
    }

    /// Frees what [`Space::alloc_unaligned`] gave; straight into the tree.
    ///
    /// ```
    /// use rknpu_sim::{config::Alignment, iova::Space};
    ///
    /// let mut space = Space::new(Alignment::PowerOfTwo);
    /// let iova = space.alloc_unaligned(4096).expect("an empty space");
    /// space.free_unaligned(iova);
    /// assert_eq!(space.used(), 0);
    /// ```
    pub fn free_unaligned(&mut self, iova: u64) {
        if let Ok(page) = u32::try_from(iova / PAGE) {
            self.tree.free(page);
        }
    }

    /// Bytes taken, those of ranges kept for reuse included.
    ///
    /// ```
    /// use rknpu_sim::{config::Alignment, iova::Space};
    ///
    /// let mut space = Space::new(Alignment::PowerOfTwo);
    /// space.alloc_aligned(3 * 4096, 0); // of less than 32 pages, a power of two
    /// assert_eq!(space.used(), 4 * 4096);
    /// ```
    pub fn used(&self) -> u64 {
        u64::from(self.tree.pages()) * PAGE
    }

    /// The longest free range in bytes, regardless of alignment.
    ///
    /// ```
    /// use rknpu_sim::{config::Alignment, iova::Space};
    ///
    /// let mut space = Space::new(Alignment::PowerOfTwo);
    /// space.alloc_unaligned(1 << 30);
    /// assert_eq!(space.largest_gap(), (3 << 30) - 4096);
    /// ```
    pub fn largest_gap(&self) -> u64 {
        u64::from(self.tree.largest_gap()) * PAGE
    }

    /// Ranges taken, and how many of them are only kept for reuse.
    ///
    /// ```
    /// use rknpu_sim::{config::Alignment, iova::Space};
    ///
    /// let mut space = Space::new(Alignment::PowerOfTwo);
    /// space.alloc_unaligned(4096);
    /// space.alloc_aligned(4096, 0);
    /// assert_eq!(space.ranges(), (2, 0));
    /// ```
    pub fn ranges(&self) -> (usize, usize) {
        (self.tree.len(), self.magazines.len())
    }

    fn align(&self, pages: u32) -> u32 {
        let natural = pages.next_power_of_two();
        match self.alignment {
            Alignment::PowerOfTwo => natural,
            Alignment::Cap2MiB => natural.min(512),
            Alignment::None => 1,
        }
    }
}

/// Bytes as pages, when they fit the space at all.
fn pages(bytes: u64) -> Option<u32> {
    let pages = u32::try_from(bytes.div_ceil(PAGE)).ok()?;
    (pages > 0 && pages < LIMIT).then_some(pages)
}
