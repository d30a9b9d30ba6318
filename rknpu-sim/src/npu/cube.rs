//! Where the 16-byte atoms of input and output lie.

use rknpu_sys::regs::ATOM_BYTES;

/// Bytes of an atom.
pub(super) const ATOM: usize = ATOM_BYTES as usize;

/// Atoms of a matrix in memory. Both encodings in the field are this with other steps: row-major is
/// one run a row, 16-byte channel planes are runs of one atom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cube {
    /// IOVA of the first atom.
    pub(super) base: u32,
    /// Rows of the matrix.
    pub(super) rows: usize,
    /// Bytes from one row to the next.
    pub(super) row_step: u64,
    /// Atoms of a row.
    pub(super) atoms: usize,
    /// Atoms that follow each other in memory.
    pub(super) run: usize,
    /// Bytes from one run of a row to the next.
    pub(super) run_step: u64,
}

impl Cube {
    /// Bytes from `base` to `atom` of `row`.
    pub(super) fn offset(&self, row: usize, atom: usize) -> u64 {
        let (run, within) = (atom / self.run, atom % self.run);
        row as u64 * self.row_step + run as u64 * self.run_step + (within * ATOM) as u64
    }

    /// Bytes from `base` to the end of the last atom.
    pub(super) fn extent(&self) -> u64 {
        self.offset(self.rows.saturating_sub(1), self.atoms.saturating_sub(1)) + ATOM as u64
    }

    /// Bytes of a row without gaps.
    pub(super) fn row_bytes(&self) -> usize {
        self.atoms * ATOM
    }

    /// Whether rows follow each other without gaps, each in order.
    pub(super) fn is_row_major(&self) -> bool {
        self.run >= self.atoms && (self.rows == 1 || self.row_step == self.row_bytes() as u64)
    }

    /// Whether the atoms fill [`Cube::extent`] without gaps, in whatever order.
    pub(super) fn is_dense(&self) -> bool {
        self.extent() == (self.rows * self.row_bytes()) as u64
    }

    /// Whether no two atoms share bytes: a whole row fits between two rows, or all rows of one run
    /// fit between two runs.
    pub(super) fn is_disjoint(&self) -> bool {
        let run_bytes = (self.run.min(self.atoms) * ATOM) as u64;
        let between = |steps: usize, step: u64, span: u64| steps == 1 || span <= step;
        let span = |steps: usize, step: u64, inner: u64| (steps as u64 - 1) * step + inner;
        let runs = self.atoms.div_ceil(self.run);
        let by_row = between(runs, self.run_step, run_bytes)
            && between(self.rows, self.row_step, span(runs, self.run_step, run_bytes));
        let by_run = between(self.rows, self.row_step, run_bytes)
            && between(runs, self.run_step, span(self.rows, self.row_step, run_bytes));
        by_row || by_run
    }

    /// Runs of a row: first atom and number of atoms.
    pub(super) fn runs(&self) -> impl Iterator<Item = (usize, usize)> {
        let (atoms, run) = (self.atoms, self.run);
        (0..atoms).step_by(run).map(move |first| (first, run.min(atoms - first)))
    }

    /// Gathers `bytes`, which start at `base`, into gapless rows.
    pub(super) fn gather(&self, bytes: &[u8], rows: &mut Vec<u8>) {
        rows.clear();
        rows.reserve(self.rows * self.row_bytes());
        for row in 0..self.rows {
            for (first, count) in self.runs() {
                let at = self.offset(row, first) as usize;
                rows.extend_from_slice(&bytes[at..at + count * ATOM]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn disjoint_by_looking(cube: &Cube) -> bool {
        let mut seen = std::collections::BTreeSet::new();
        (0..cube.rows).all(|row| {
            (0..cube.atoms).all(|atom| {
                let at = cube.offset(row, atom);
                seen.range(at.saturating_sub(15)..at + 16).next().is_none() && seen.insert(at)
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn disjointness_never_claims_too_much(
            rows in 1usize..6, atoms in 1usize..6, run in 1usize..7,
            row_step in 0u64..12, run_step in 0u64..40,
        ) {
            let cube = Cube {
                base: 0, rows, atoms, run, row_step: row_step * 16, run_step: run_step * 16,
            };
            prop_assert!(!cube.is_disjoint() || disjoint_by_looking(&cube));
            prop_assume!(cube.is_disjoint());
            let bytes: Vec<u8> = (0..cube.extent()).map(|i| (i / 16) as u8).collect();
            let mut gathered = Vec::new();
            cube.gather(&bytes, &mut gathered);
            let expected: Vec<u8> = (0..rows)
                .flat_map(|r| (0..atoms).map(move |a| (r, a)))
                .flat_map(|(r, a)| [(cube.offset(r, a) / 16) as u8; 16])
                .collect();
            prop_assert_eq!(gathered, expected);
        }
    }
}
