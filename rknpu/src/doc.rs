//! What the examples start from, so that each shows only what it is about. No part of the interface.

use crate::matmul::{Int8, Rows};
use crate::program::{AMOUNT, MatmulProgram};
use crate::sys::regs::Command;
use crate::{
    Buffer, Device, Domain, Layout, Matmul, MatmulLimits, OnDevice, Precision, Result, WeightRef,
    reference,
};

/// A weight with the buffer that it lies in.
#[derive(Debug)]
pub struct Weight(Buffer<OnDevice>, Layout);

impl Weight {
    /// The weight.
    ///
    /// # Errors
    /// Those of [`WeightRef::new`].
    pub fn get(&self) -> Result<WeightRef<'_>> {
        WeightRef::new(&self.0, 0, self.1)
    }
}

/// Two rows of 64 ones, a weight of 32 outputs that are each channel's number, and what multiplies them,
/// on a simulated device.
///
/// # Errors
/// Those of the calls that make them.
pub fn product() -> Result<(Matmul, Weight, Rows<Int8, OnDevice>)> {
    let device = Device::simulated(Default::default())?;
    let domain = device.domain(0)?;
    let layout = Layout::new(64, 32, Precision::Int8)?;
    let mut buffer = domain.alloc(layout.bytes() as usize)?;
    reference::tile_i8(layout, |_, n| n as i8, buffer.as_mut_slice());
    let limits = MatmulLimits { rows: 2, k: 64, n: 32 };
    let matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
    let mut rows = matmul.activations().lease(2, 64)?;
    for row in 0..2 {
        rows.write_row(row, &[1; 64])?;
    }
    let rows = rows.to_device()?;
    Ok((matmul, Weight(buffer.to_device()?, layout), rows))
}

/// The first domain of a simulated device, and a program without trailer that copies 32 fives from the first
/// buffer through the weight in the second to the third.
///
/// # Errors
/// Those of the calls that make them.
pub fn identity() -> Result<(Domain, Vec<Buffer<OnDevice>>, Vec<Command>)> {
    let device = Device::simulated(Default::default())?;
    let domain = device.domain(0)?;
    let layout = Layout::new(32, 32, Precision::Int8)?;
    let mut weights = domain.alloc(layout.bytes() as usize)?;
    reference::tile_i8(layout, |k, n| i8::from(k == n), weights.as_mut_slice());
    let mut input = domain.alloc(32)?;
    input.as_mut_slice().fill(5);
    let output = domain.alloc(32 * 4)?;
    let buffers = vec![input.to_device()?, weights.to_device()?, output.to_device()?];
    let [input, weights, output] = [0, 1, 2].map(|i: usize| buffers[i].iova());
    let program = MatmulProgram {
        precision: Precision::Int8,
        m: 1,
        k: 32,
        n: 32,
        input,
        weights,
        output,
        next: None,
    };
    let commands = program.encode()?[..AMOUNT as usize].to_vec();
    Ok((domain, buffers, commands))
}
