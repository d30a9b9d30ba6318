//! Runs one matmul: input gathered to rows, tile after tile multiplied, results written out.

use super::cube::{ATOM, Cube};
use super::dot::Blocks;
use super::dot::int8::Path;
use super::dot::{fp16, int4};
use super::matmul::{Kind, Matmul};
use super::output;
use super::refusal::Refusal;
use super::weights::K_BLOCK;
use crate::engine::{Bus, BusFault, Unit};

/// Buffers that a core keeps from program to program.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Input as gapless rows, where it is not so in memory.
    rows: Vec<u8>,
    /// Input and a tile's weights widened: int4 codes as bytes, halves as floats.
    codes: [Vec<u8>; 2],
    floats: [Vec<f32>; 2],
    narrow: Vec<f32>,
    /// Sums of one tile, `[row][channel]`.
    sums: Vec<i32>,
    float_sums: Vec<f32>,
    /// All results, before they are written.
    staging: Vec<u8>,
}

impl Scratch {
    /// Executes `matmul`, whose program stands at `program`.
    pub(super) fn execute(
        &mut self,
        matmul: &Matmul,
        bus: &mut dyn Bus,
        program: u32,
    ) -> Result<(), Refusal> {
        let access = |what| move |fault: BusFault| Refusal::Access { program, what, fault };
        self.compute(matmul, &*bus, access)?;
        let output = &matmul.output;
        let (base, staging) = (u64::from(output.base), &self.staging);
        let staged = output.rows * output.row_bytes();
        let mut write = |at, bytes: &[u8]| {
            bus.write(Unit::DpuWrite, at, bytes).map_err(access("writing the output"))
        };
        if output.is_dense() {
            return write(base, &staging[..staged]);
        }
        for (row, results) in staging[..staged].chunks_exact(output.row_bytes()).enumerate() {
            for (first, atoms) in output.runs() {
                write(base + output.offset(row, first), &results[first * ATOM..][..atoms * ATOM])?;
            }
        }
        Ok(())
    }

    /// Reads what `matmul` multiplies, and leaves the results in `staging`.
    fn compute<F: Fn(BusFault) -> Refusal>(
        &mut self,
        matmul: &Matmul,
        bus: &dyn Bus,
        access: impl Fn(&'static str) -> F,
    ) -> Result<(), Refusal> {
        let rows = read_rows(matmul, bus, &mut self.rows).map_err(access("reading the input"))?;
        let wrapped;
        let rows = match matmul.lost.as_ref().and_then(|lost| lost.wraps_at) {
            Some(fit) => {
                let kept = fit as usize * matmul.input.row_bytes();
                wrapped = rows[..kept].repeat(matmul.input.rows.div_ceil(fit as usize));
                &wrapped[..rows.len()]
            }
            None => rows,
        };
        let fetch = if matmul.weights.resident { Bus::kept } else { Bus::read };
        let weights =
            fetch(bus, Unit::CnaWeight, u64::from(matmul.weights.base), matmul.weights.bytes())
                .map_err(access("reading the weights"))?;
        let output = &matmul.output;
        // Before anything is computed: a program that faults has written nothing.
        writable(output, bus).map_err(access("writing the output"))?;
        let staged = output.rows * output.row_bytes();
        self.staging.resize(staged.max(self.staging.len()), 0);
        let staging = &mut self.staging[..staged];
        let dense = output.is_dense();

        let kind = matmul.kind;
        let channels = matmul.weights.tile_channels as usize;
        let tile_atoms = channels * kind.output_bytes() as usize / ATOM;
        let mut arithmetic = Arithmetic {
            path: Path::best(),
            blocks: (matmul.k / K_BLOCK) as usize,
            codes: &mut self.codes,
            floats: &mut self.floats,
            narrow: &mut self.narrow,
        };
        arithmetic.prepare(kind, rows);
        self.sums.resize(output.rows * channels, 0);
        self.float_sums.resize(output.rows * channels, 0.0);
        // Where an atom goes in the staging buffer: as in memory if that is dense, else row by row.
        let place = |row, atom| {
            if dense {
                output.offset(row, atom) as usize
            } else {
                row * output.row_bytes() + atom * ATOM
            }
        };
        for (tile, weights) in weights.chunks_exact(matmul.weights.tile_bytes()).enumerate() {
            let first = tile * tile_atoms;
            let pieces = Pieces { first, atoms: tile_atoms, run: output.run };
            if kind.is_float() {
                arithmetic.float_tile(kind, weights, &mut self.float_sums);
                for (row, sums) in self.float_sums.chunks_exact(channels).enumerate() {
                    pieces.each(sums, |atom, sums| {
                        output::store_floats(kind, sums, &mut staging[place(row, atom)..]);
                    });
                }
            } else {
                arithmetic.int_tile(kind, rows, weights, &mut self.sums);
                for (row, sums) in self.sums.chunks_exact(channels).enumerate() {
                    pieces.each(sums, |atom, sums| {
                        output::store_ints(kind, sums, &mut staging[place(row, atom)..]);
                    });
                }
            }
        }

        Ok(())
    }
}

/// The input as gapless rows: in place, or gathered in `rows`. Gaps are not read.
fn read_rows<'a>(
    matmul: &Matmul,
    bus: &'a dyn Bus,
    rows: &'a mut Vec<u8>,
) -> Result<&'a [u8], BusFault> {
    let (input, kept) = (&matmul.input, matmul.input_kept);
    let read = |at, len| {
        let iova = u64::from(input.base) + at;
        let fetch = if kept { Bus::kept } else { Bus::read };
        fetch(bus, Unit::CnaFeature, iova, len)
    };
    if input.is_dense() {
        let bytes = read(0, input.extent())?;
        if input.is_row_major() {
            return Ok(bytes);
        }
        input.gather(bytes, rows);
        return Ok(rows);
    }
    rows.clear();
    for row in 0..input.rows {
        for (first, atoms) in input.runs() {
            rows.extend_from_slice(read(input.offset(row, first), (atoms * ATOM) as u64)?);
        }
    }
    Ok(rows)
}

/// Whether every atom of `output` can be written.
fn writable(output: &Cube, bus: &dyn Bus) -> Result<(), BusFault> {
    let base = u64::from(output.base);
    if output.is_dense() {
        return bus.writable(base, output.extent());
    }
    for row in 0..output.rows {
        for (first, atoms) in output.runs() {
            bus.writable(base + output.offset(row, first), (atoms * ATOM) as u64)?;
        }
    }
    Ok(())
}

/// The dot products with what they need besides sums.
struct Arithmetic<'a> {
    path: Path,
    blocks: usize,
    codes: &'a mut [Vec<u8>; 2],
    floats: &'a mut [Vec<f32>; 2],
    narrow: &'a mut Vec<f32>,
}

impl Arithmetic<'_> {
    /// Widens the input once for all tiles.
    fn prepare(&mut self, kind: Kind, rows: &[u8]) {
        match kind {
            Kind::Int4ToInt16 => {
                self.codes[0].clear();
                int4::widen(rows, &mut self.codes[0]);
            }
            Kind::Fp16ToFp32 | Kind::Fp16ToFp16 | Kind::Bf16ToFp32 => {
                self.floats[0].clear();
                widen_halves(kind)(rows, &mut self.floats[0]);
            }
            Kind::Int8ToInt32 | Kind::Int8ToInt8(_) => {}
        }
    }

    fn int_tile(&mut self, kind: Kind, rows: &[u8], weights: &[u8], sums: &mut [i32]) {
        let [wide_rows, wide_weights] = self.codes;
        let (rows, weights) = if kind == Kind::Int4ToInt16 {
            wide_weights.clear();
            int4::widen(weights, wide_weights);
            (&wide_rows[..], &wide_weights[..])
        } else {
            (rows, weights)
        };
        let step = weights.len() / self.blocks;
        self.path.tile(rows, Blocks::new(weights, step, self.blocks), sums);
    }

    fn float_tile(&mut self, kind: Kind, weights: &[u8], sums: &mut [f32]) {
        let [rows, wide_weights] = self.floats;
        self.narrow.clear();
        widen_halves(kind)(weights, self.narrow);
        fp16::transpose(self.narrow, wide_weights);
        fp16::tile(rows, wide_weights, sums);
    }
}

/// How halves of a type become floats.
fn widen_halves(kind: Kind) -> fn(&[u8], &mut Vec<f32>) {
    if kind == Kind::Bf16ToFp32 { fp16::widen_bf16 } else { fp16::widen }
}

/// The atoms of one row of a tile, in pieces that lie together in memory.
#[derive(Clone, Copy, Debug)]
struct Pieces {
    /// The tile's first atom in its row.
    first: usize,
    /// Atoms of the tile in a row.
    atoms: usize,
    /// Atoms that follow each other in memory.
    run: usize,
}

impl Pieces {
    /// Hands out each piece: its first atom and its part of `sums`, which are the row's of this tile.
    fn each<T>(self, sums: &[T], mut piece: impl FnMut(usize, &[T])) {
        let per_atom = sums.len() / self.atoms;
        let mut done = 0;
        while done < self.atoms {
            let atom = self.first + done;
            let count = (self.run - atom % self.run).min(self.atoms - done);
            piece(atom, &sums[done * per_atom..(done + count) * per_atom]);
            done += count;
        }
    }
}
