//! Rotary positions: pairs of a head's values are turned by an angle that grows with the position.

use crate::config::Metadata;
use crate::error::{Error, Result};

/// Which values of a head are turned together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pairs {
    /// Neighbours: 0 and 1, 2 and 3, …
    Adjacent,
    /// Those at the same place of both halves ("NEOX").
    Halves,
}

/// The angles of a kind of layer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rope {
    pairs: Pairs,
    /// Angle by which a position turns each pair.
    frequencies: Vec<f64>,
}

impl Rope {
    /// The angles that `base` gives heads whose first `rotated` values are turned: pair i turns by
    /// base^(−2i / rotated), divided by its factor where there are such.
    pub(crate) fn new(
        pairs: Pairs,
        rotated: usize,
        base: f32,
        factors: impl Fn(usize) -> f64,
    ) -> Rope {
        let frequency =
            |i: usize| libm::pow(base.into(), -2.0 * i as f64 / rotated as f64) / factors(i);
        Rope { pairs, frequencies: (0..rotated / 2).map(frequency).collect() }
    }

    /// As the header says for heads of `head` values; `factors` are those of the tensor
    /// `rope_freqs`, which models for long contexts have.
    pub(crate) fn read(
        metadata: Metadata<'_>,
        pairs: Pairs,
        head: usize,
        factors: Option<Vec<f32>>,
    ) -> Result<Rope> {
        let rotated = metadata.count_or("rope.dimension_count", Some(head))?;
        if rotated > head || !rotated.is_multiple_of(2) {
            let key = format!("{}.rope.dimension_count", metadata.architecture);
            return Err(Error::key(key, format!("is {rotated}, heads have {head} values")));
        }
        let base = metadata.positive_or("rope.freq_base", 10_000.0)?;
        let scale = scale(metadata)?;
        Ok(Rope::new(pairs, rotated, base, |i| {
            let factor = factors.as_ref().and_then(|factors| factors.get(i)).copied();
            f64::from(factor.unwrap_or(1.0)) * f64::from(scale)
        }))
    }

    /// Cosines and sines for a position: one pair of them for each pair of values.
    fn angles(&self, position: usize) -> impl Iterator<Item = (f32, f32)> + '_ {
        self.frequencies.iter().map(move |frequency| {
            let (sin, cos) = libm::sincos(position as f64 * frequency);
            (cos as f32, sin as f32)
        })
    }

    /// Writes the cosines and sines of `rows` positions from `first` on.
    pub(crate) fn tabulate(&self, first: usize, rows: usize, table: &mut Vec<(f32, f32)>) {
        table.clear();
        table.extend((first..first + rows).flat_map(|position| self.angles(position)));
    }

    /// Turns every head of every row; `table` is that of the rows' positions.
    pub(crate) fn turn(&self, rows: &mut [f32], width: usize, head: usize, table: &[(f32, f32)]) {
        let half = self.frequencies.len();
        if half == 0 {
            return;
        }
        for (row, angles) in rows.chunks_exact_mut(width).zip(table.chunks_exact(half)) {
            for head in row.chunks_exact_mut(head) {
                let turned = &mut head[..2 * half];
                match self.pairs {
                    Pairs::Adjacent => {
                        for (pair, angle) in turned.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
                            *pair = turn((pair[0], pair[1]), *angle).into();
                        }
                    }
                    Pairs::Halves => {
                        let (low, high) = turned.split_at_mut(half);
                        for ((low, high), angle) in low.iter_mut().zip(high).zip(angles) {
                            (*low, *high) = turn((*low, *high), *angle);
                        }
                    }
                }
            }
        }
    }
}

fn turn((x, y): (f32, f32), (cos, sin): (f32, f32)) -> (f32, f32) {
    (x * cos - y * sin, x * sin + y * cos)
}

/// By how much positions are drawn together.
fn scale(metadata: Metadata<'_>) -> Result<f32> {
    match metadata.text("rope.scaling.type") {
        None | Some("none") => Ok(1.0),
        Some("linear") => metadata.positive_or("rope.scaling.factor", 1.0),
        Some(other) => {
            let key = format!("{}.rope.scaling.type", metadata.architecture);
            Err(Error::key(key, format!("is {other:?}; \"none\" and \"linear\" are known")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_turn_by_their_angle() {
        let turned = |pairs, position| {
            let rope = Rope::new(pairs, 4, 100.0, |_| 1.0);
            let mut table = Vec::new();
            rope.tabulate(position, 1, &mut table);
            let mut row = [1.0, 0.0, 0.0, 2.0];
            rope.turn(&mut row, 4, 4, &table);
            row.map(f64::from)
        };
        let close = |found: [f64; 4], wanted: [f64; 4]| {
            let near = found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(near, "{found:?} {wanted:?}");
        };
        // Angles 3 and 3 / 10.
        let ((s, c), (s2, c2)) = (3f64.sin_cos(), 0.3f64.sin_cos());
        close(turned(Pairs::Adjacent, 3), [c, s, -2.0 * s2, 2.0 * c2]);
        close(turned(Pairs::Halves, 3), [c, -2.0 * s2, s, 2.0 * c2]);
        close(turned(Pairs::Halves, 0), [1.0, 0.0, 0.0, 2.0]);
    }
}
