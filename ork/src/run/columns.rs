//! Ranges of a weight's columns: what goes through a slot that is smaller than the weight.

use std::ops::Range;

use rknpu::Layout;

/// Some output channels of a weight, whole tiles, as a weight of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    first: u32,
    layout: Layout,
}

impl Columns {
    /// Channels from `first` on, as many as `layout` has.
    pub fn new(first: u32, layout: Layout) -> Columns {
        Columns { first, layout }
    }

    /// All channels.
    pub fn all(layout: Layout) -> Columns {
        Columns { first: 0, layout }
    }

    /// The channels.
    pub fn range(&self) -> Range<usize> {
        let first = self.first as usize;
        first..first + self.layout.n() as usize
    }

    /// Layout of the part.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether it is all of a weight of this layout.
    pub fn is_all(&self, whole: &Layout) -> bool {
        self.layout == *whole
    }

    /// Copies the part out of the tiles of the whole weight. Tiles are rows of channels, so within a
    /// slice of the part each K slice is one run, or two where the whole begins a new slice.
    pub fn cut(&self, whole: &Layout, tiles: &[u8], out: &mut [u8]) {
        let width = whole.precision().tile_width();
        for to in self.layout.slices() {
            let tile = whole.precision().tile_bytes(to.kp);
            let mut at = to.offset;
            for tile_at in (0..to.nc).step_by(width as usize) {
                let n = self.first + to.n0 + tile_at;
                let from = whole
                    .slices()
                    .find(|from| from.k0 == to.k0 && (from.n0..from.n0 + from.nc).contains(&n));
                let Some(from) = from else { return };
                let start = from.offset + u64::from((n - from.n0) / width) * tile;
                let (start, end) = (start as usize, (start + tile) as usize);
                let target = at as usize..(at + tile) as usize;
                if let (Some(to), Some(from)) = (out.get_mut(target), tiles.get(start..end)) {
                    to.copy_from_slice(from);
                }
                at += tile;
            }
            let padding = at as usize..(to.offset + to.padded_bytes()) as usize;
            if let Some(padding) = out.get_mut(padding) {
                padding.fill(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rknpu::Precision;

    use super::*;

    #[test]
    fn parts_hold_the_columns_they_say() {
        for (k, n, precision) in
            [(1056, 256, Precision::Int8), (64, 8256, Precision::Int8), (64, 256, Precision::Int4)]
        {
            let whole = Layout::new(k, n, precision).unwrap();
            let values =
                usize::try_from(u64::from(k) * u64::from(n) * u64::from(precision.bits()) / 8)
                    .unwrap();
            let rows: Vec<u8> = (0..values).map(|i| (i * 31 % 251) as u8).collect();
            let mut tiles = vec![0; whole.bytes() as usize];
            ork_weights::tile::tile(&whole, &rows, &mut tiles).unwrap();
            for (first, columns) in [(0, 64), (64, 128), (n - 192, 192)] {
                let part = Columns::new(first, Layout::new(k, columns, precision).unwrap());
                let mut cut = vec![0xff; part.layout().bytes() as usize];
                part.cut(&whole, &tiles, &mut cut);
                let row = values / n as usize;
                let wanted = &rows[first as usize * row..(first + columns) as usize * row];
                let mut direct = vec![0; cut.len()];
                ork_weights::tile::tile(part.layout(), wanted, &mut direct).unwrap();
                assert!(cut == direct, "K={k} N={n} {precision:?} from {first}");
            }
        }
    }
}
