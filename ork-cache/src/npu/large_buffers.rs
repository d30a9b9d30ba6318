//! Pieces cut from few large buffers, for good: a weight or a slot is not a kernel object each.

use std::sync::{Mutex, PoisonError};

use rknpu::{Arena, Buffer, Domain, Host};

/// Bytes of a large buffer: few of them hold a domain, and each still finds a place between others.
const LARGE: u64 = 256 << 20;

/// Pieces that are cut from one buffer, which is made when the first is asked for. Each piece has its
/// place for good: what is given back is there for the same taker only, so that nothing ever splits.
#[derive(Debug)]
pub(super) struct LargeBuffer {
    sizes: Vec<usize>,
    pieces: Mutex<Pieces>,
}

#[derive(Debug)]
enum Pieces {
    Unmade,
    Made(Vec<Option<Buffer<Host>>>),
    /// The device has no room for the whole: each piece is a buffer of its own.
    Alone,
}

impl LargeBuffer {
    fn new(sizes: Vec<usize>) -> LargeBuffer {
        LargeBuffer { sizes, pieces: Mutex::new(Pieces::Unmade) }
    }

    pub(super) fn len(&self) -> usize {
        self.sizes.len()
    }

    /// Takes piece number `index`, which nobody has.
    pub(super) fn take(&self, domain: &Domain, index: usize) -> rknpu::Result<Buffer<Host>> {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Pieces::Unmade = *pieces {
            *pieces = match self.sizes.len() {
                1 => Pieces::Alone,
                _ => cut(domain, &self.sizes).map_or(Pieces::Alone, |pieces| {
                    Pieces::Made(pieces.into_iter().map(Some).collect())
                }),
            };
        }
        let piece = match &mut *pieces {
            Pieces::Made(pieces) => pieces.get_mut(index).and_then(Option::take),
            Pieces::Unmade | Pieces::Alone => None,
        };
        drop(pieces);
        match piece {
            Some(piece) => Ok(piece),
            None => domain.alloc(self.sizes.get(index).copied().unwrap_or(0)),
        }
    }

    /// Gives a piece back. A buffer of its own is returned: it is to be freed.
    pub(super) fn give_back(&self, index: usize, piece: Buffer<Host>) -> Option<Buffer<Host>> {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *pieces {
            Pieces::Made(pieces) => match pieces.get_mut(index) {
                Some(place @ None) => {
                    *place = Some(piece);
                    None
                }
                _ => Some(piece),
            },
            Pieces::Unmade | Pieces::Alone => Some(piece),
        }
    }
}

/// Groups of pieces of the given sizes, in order, none larger than a large buffer unless one piece is.
pub(super) fn large_buffers(sizes: impl IntoIterator<Item = usize>) -> Vec<LargeBuffer> {
    let (mut large_buffers, mut group, mut bytes) = (Vec::new(), Vec::new(), 0);
    for size in sizes {
        if bytes + size as u64 > LARGE && !group.is_empty() {
            large_buffers.push(LargeBuffer::new(std::mem::take(&mut group)));
            bytes = 0;
        }
        bytes += size as u64;
        group.push(size);
    }
    if !group.is_empty() {
        large_buffers.push(LargeBuffer::new(group));
    }
    large_buffers
}

/// Up to `count` pieces of one size in as few buffers as can be, and why there are no more.
pub(super) fn slots(
    domain: &Domain,
    size: usize,
    count: usize,
) -> (Vec<Buffer<Host>>, Option<rknpu::Error>) {
    let mut slots = Vec::with_capacity(count);
    for group in large_buffers(std::iter::repeat_n(size, count)) {
        match cut(domain, &group.sizes) {
            Ok(pieces) => slots.extend(pieces),
            Err(_) => {
                for &size in &group.sizes {
                    match domain.alloc(size) {
                        Ok(slot) => slots.push(slot),
                        Err(error) => return (slots, Some(error)),
                    }
                }
            }
        }
    }
    (slots, None)
}

/// Cuts a new buffer into pieces: all of it, since sizes are whole pages.
fn cut(domain: &Domain, sizes: &[usize]) -> rknpu::Result<Vec<Buffer<Host>>> {
    let arena = Arena::new(domain, sizes.iter().sum())?;
    sizes.iter().map(|&size| arena.alloc(size)).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rknpu::Device;

    use super::*;

    #[test]
    fn large_pieces_end_a_buffer_and_small_ones_share_it() {
        let mib = |n: usize| n << 20;
        let sizes = [100, 100, 100, 300, 1, 255, 1].map(mib);
        let sizes: Vec<Vec<usize>> =
            large_buffers(sizes).into_iter().map(|group| group.sizes).collect();
        let want: [&[usize]; 5] = [&[100, 100], &[100], &[300], &[1, 255], &[1]];
        assert_eq!(sizes, want.map(|large| large.iter().copied().map(mib).collect::<Vec<_>>()));
        assert!(large_buffers([]).is_empty());
    }

    #[test]
    fn pieces_are_one_buffer_and_are_taken_again_in_any_order() {
        let device = Device::simulated(Default::default()).unwrap();
        let domain = device.domain(0).unwrap();
        let large = LargeBuffer::new(vec![4096, 8192, 4096]);
        let mut taken: Vec<_> = (0..3).map(|i| large.take(&domain, i).unwrap()).collect();
        assert_eq!((domain.stats().used, domain.stats().buffers), (16384, 1));
        // One that nobody gave back is a buffer of its own.
        let extra = large.take(&domain, 0).unwrap();
        assert_eq!(domain.stats().buffers, 2);
        assert!(large.give_back(0, taken.remove(0)).is_none());
        extra.free().unwrap();
        assert!(large.give_back(2, taken.pop().unwrap()).is_none());
        assert!(large.give_back(1, taken.pop().unwrap()).is_none());
        for index in [1, 0, 2] {
            let piece = large.take(&domain, index).unwrap();
            assert_eq!(piece.len(), [4096, 8192, 4096][index]);
            assert!(large.give_back(index, piece).is_none());
        }
        assert_eq!((domain.stats().used, domain.stats().buffers), (16384, 1));
        drop(large);
        assert_eq!(domain.stats().used, 0);
    }

    #[test]
    fn without_room_for_the_whole_each_piece_is_a_buffer_of_its_own() {
        let device = Device::simulated(Default::default()).unwrap();
        let domain = device.domain(0).unwrap();
        // Holes of a MiB, and no more.
        let all = domain.stats().largest_free;
        let _rest = domain.alloc((all - (4 << 20)) as usize).unwrap();
        let mut four: Vec<_> = (0..4).map(|_| domain.alloc(1 << 20).unwrap()).collect();
        drop(four.remove(2));
        drop(four.remove(0));
        let large = LargeBuffer::new(vec![1 << 20; 2]);
        let taken = [0, 1].map(|i| large.take(&domain, i).unwrap());
        assert!(large.take(&domain, 0).is_err());
        for (index, piece) in taken.into_iter().enumerate() {
            large.give_back(index, piece).expect("its own").free().unwrap();
        }
        let (slots, error) = slots(&domain, 1 << 20, 3);
        assert!(slots.len() == 2 && error.is_some());
    }
}
