//! A matmul on the NPU of this board, or on the simulator where there is none:
//! `cargo run -p rknpu --example first_matmul`.

use std::time::Instant;

use rknpu::{Device, Error, Layout, Matmul, MatmulLimits, Precision, WeightRef, reference};

const M: u32 = 64;
const K: u32 = 2048;
const N: u32 = 512;

fn main() -> Result<(), Error> {
    let device = Device::open().or_else(|error| {
        eprintln!("{error}\nusing the simulated device\n");
        Device::simulated(Default::default())
    })?;
    println!("{}\n", device.capabilities());

    let domain = device.new_domain()?;
    let layout = Layout::new(K, N, Precision::Int8)?;
    let mut buffer = domain.alloc(layout.bytes() as usize)?;
    reference::fill(layout, 1, buffer.as_mut_slice());
    let tiled = buffer.as_slice().to_vec();
    let buffer = buffer.to_device()?;
    let weight = WeightRef::new(&buffer, 0, layout)?;

    let limits = MatmulLimits { rows: M, k: K, n: N };
    let mut matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
    let activations: Vec<i8> = (0..M * K).map(|i| (i % 255) as u8 as i8).collect();
    let mut out = vec![0; (M * N) as usize];
    matmul.run(&weight, &activations, &mut out)?;

    let begin = Instant::now();
    let stats = matmul.run(&weight, &activations, &mut out)?;
    println!(
        "M={M} K={K} N={N}: {} programs in {} submits on {} cores, {:?} on the NPU, {:?} in all",
        stats.programs,
        stats.submits,
        stats.cores,
        stats.busy,
        begin.elapsed()
    );
    let right = out == reference::matmul_i8(layout, &tiled, &activations);
    println!("equal to the CPU: {right}; device: {}", device.health());
    Ok(())
}
