//! Products on the device, compared with the CPU's.

use rknpu::chains::Chains;
use rknpu::matmul::{Element, Fp16, Int4, Int8};
use rknpu::program::{AMOUNT, MatmulProgram};
use rknpu::{
    Cores, Domain, Job, Layout, Matmul, MatmulLimits, OpenOptions, Precision, WeightRef, f16,
    reference,
};

use super::record::Outcome;
use super::steps::Board;
use crate::device::OpenDevice;
use crate::error::Result;

type Make<E> = fn(&Domain, &Cores, MatmulLimits) -> rknpu::Result<Matmul<E>>;

/// Rows and weights of one product, or of several that share their rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shapes<'a> {
    pub(super) precision: Precision,
    pub(super) m: usize,
    pub(super) k: u32,
    pub(super) ns: &'a [u32],
    /// Whether all weights lie in one buffer.
    pub(super) together: bool,
}

/// Multiplies by each weight alone, and says whether all is the CPU's.
pub(super) fn products(board: &Board<'_>, all: &[Shapes<'_>]) -> Result<Outcome> {
    let device = board.open()?;
    let mut results = 0;
    for shapes in all {
        let compared = compare(&device, *shapes)?;
        results += compared.results;
        if let Some(first) = compared.first_wrong {
            let Shapes { precision, m, k, ns, .. } = shapes;
            let detail = format!("{precision:?}, {m} rows, K = {k}, N = {ns:?}: {first}");
            return Ok(Outcome { detail, ..Outcome::default() });
        }
    }
    let detail = format!("{results} results are the CPU's");
    Ok(Outcome { holds: true, detail, ..Outcome::default() })
}

/// Multiplies by a list of weights with a chain that may hold them all, and says whether it is right.
pub(super) fn chain(board: &Board<'_>, shapes: Shapes<'_>, chains: Chains) -> Result<Outcome> {
    let options = OpenOptions::new().chains(shapes.precision, chains);
    let device = board.open_with(&options)?;
    let compared = compare(&device, shapes)?;
    Ok(match compared.first_wrong {
        None => {
            let detail = format!("{} results are the CPU's", compared.results);
            Outcome { holds: true, detail, ..Outcome::default() }
        }
        Some(detail) => Outcome { detail, ..Outcome::default() },
    })
}

struct Compared {
    results: u64,
    first_wrong: Option<String>,
}

fn compare(device: &OpenDevice, shapes: Shapes<'_>) -> Result<Compared> {
    let count = shapes.m * shapes.k as usize;
    match shapes.precision {
        Precision::Int8 => {
            let inputs: Vec<i8> = (0..count).map(|i| (i * 37 % 251) as u8 as i8).collect();
            compare_as::<Int8>(device, shapes, &inputs, Matmul::int8, reference::matmul_i8)
        }
        // Small whole numbers, whose sums are exact in every order.
        Precision::Fp16 => {
            let inputs: Vec<f16> =
                (0..count).map(|i| f16::from_f32((i * 5 % 9) as f32 - 4.0)).collect();
            compare_as::<Fp16>(device, shapes, &inputs, Matmul::fp16, reference::matmul_f16)
        }
        // Few enough that no sum of the NPU's 16 bits saturates.
        Precision::Int4 => {
            let inputs: Vec<i8> = (0..count).map(|i| (i % 5) as i8 - 2).collect();
            compare_as::<Int4>(device, shapes, &inputs, Matmul::int4, reference::matmul_i4)
        }
    }
}

fn compare_as<E: Element>(
    device: &OpenDevice,
    shapes: Shapes<'_>,
    inputs: &[E::Input],
    make: Make<E>,
    want: impl Fn(Layout, &[u8], &[E::Input]) -> Vec<E::Output>,
) -> Result<Compared>
where
    E::Output: PartialEq + std::fmt::Debug,
{
    let Shapes { precision, m, k, ns, together } = shapes;
    let layouts = ns.iter().map(|n| Layout::new(k, *n, precision));
    let layouts: Vec<Layout> = layouts.collect::<Result<_, _>>().map_err(rknpu::Error::from)?;
    let domain = device.new_domain()?;
    let bytes = |layout: &Layout| layout.bytes().next_multiple_of(4096) as usize;
    let mut places = Vec::new();
    let mut sizes: Vec<usize> = Vec::new();
    for layout in &layouts {
        if !together || sizes.is_empty() {
            sizes.push(0);
        }
        let (buffer, last) = (sizes.len() - 1, sizes.last_mut());
        if let Some(size) = last {
            places.push((buffer, *size));
            *size += bytes(layout);
        }
    }
    let mut buffers =
        sizes.iter().map(|size| domain.alloc(*size)).collect::<Result<Vec<_>, _>>()?;
    let mut wanted = Vec::new();
    for (i, (layout, (buffer, at))) in layouts.iter().zip(&places).enumerate() {
        let tiles = &mut buffers[*buffer].as_mut_slice()[*at..][..layout.bytes() as usize];
        reference::fill(*layout, 7 + i as u64, tiles);
        wanted.push(want(*layout, tiles, inputs));
    }
    let to_device = buffers.into_iter().map(|b| b.to_device().map_err(rknpu::Error::from));
    let buffers = to_device.collect::<Result<Vec<_>, _>>()?;
    let weights = layouts
        .iter()
        .zip(&places)
        .map(|(layout, (buffer, at))| WeightRef::new(&buffers[*buffer], *at as u64, *layout));
    let weights = weights.collect::<Result<Vec<_>, _>>()?;
    let limits =
        MatmulLimits { rows: m as u32, k, n: ns.iter().copied().max().unwrap_or_default() };
    let mut matmul = make(&domain, &device.cores()?, limits)?;
    // What fits at once is multiplied as one list, the rest of the rows after it.
    let block = matmul.activations().rows(k).min(m);
    let mut compared = Compared { results: 0, first_wrong: None };
    for (index, inputs) in inputs.chunks(block * k as usize).enumerate() {
        let rows_here = inputs.len() / k as usize;
        let mut rows = matmul.activations().lease(rows_here, k)?;
        for (row, inputs) in inputs.chunks_exact(k as usize).enumerate() {
            rows.write_row(row, inputs)?;
        }
        let rows = rows.to_device().map_err(rknpu::Error::from)?;
        let mut got: Vec<Vec<E::Output>> =
            ns.iter().map(|n| vec![E::Output::default(); rows_here * *n as usize]).collect();
        let mut product = matmul.multiply_all(&weights, &rows)?;
        while let Some(outputs) = product.next_columns()? {
            let weight = outputs.weight();
            outputs.copy_to(&mut got[weight])?;
        }
        for (weight, (got, want)) in got.iter().zip(&wanted).enumerate() {
            let want = &want[index * block * ns[weight] as usize..][..got.len()];
            compared.results += got.len() as u64;
            let differs = got.iter().zip(want).position(|(got, want)| got != want);
            if let Some(at) = differs.filter(|_| compared.first_wrong.is_none()) {
                let n = ns[weight] as usize;
                compared.first_wrong = Some(format!(
                    "weight {weight}, row {}, column {}: {:?} where the CPU has {:?}",
                    index * block + at / n,
                    at % n,
                    got[at],
                    want[at]
                ));
            }
        }
    }
    Ok(compared)
}

/// Results of one job each, by their places: of an input at one address, then of one at another, as often as asked.
pub(super) fn jobs(device: &OpenDevice, submits: usize) -> Result<Vec<bool>> {
    let layout = Layout::new(64, 32, Precision::Int8).map_err(rknpu::Error::from)?;
    let domain = device.new_domain()?;
    let mut weights = domain.alloc(layout.bytes() as usize)?;
    reference::fill(layout, 3, weights.as_mut_slice());
    let rows = [1i8, -5].map(|step| (0..64).map(|i| step * (i % 20)).collect::<Vec<i8>>());
    let wanted = rows.each_ref().map(|row| reference::matmul_i8(layout, weights.as_slice(), row));
    let mut input = domain.alloc(2 * 4096)?;
    for (at, row) in rows.iter().enumerate() {
        let bytes = &mut input.as_mut_slice()[at * 4096..];
        bytes.iter_mut().zip(row).for_each(|(byte, value)| *byte = *value as u8);
    }
    let output = domain.alloc(2 * 4096)?;
    let ready = |b: rknpu::Buffer<rknpu::Host>| b.to_device().map_err(rknpu::Error::from);
    let mut buffers = vec![ready(input)?, ready(weights)?, ready(output)?];
    let addresses = [0, 4096].map(|at| (buffers[0].iova() + at, buffers[2].iova() + at));
    let weights = buffers[1].iova();
    let mut core = device.core(0)?;
    let mut right = Vec::new();
    for at in 0..submits {
        let (input, output) = addresses[at % 2];
        let program = MatmulProgram {
            precision: Precision::Int8,
            m: 1,
            k: layout.k(),
            n: layout.n(),
            input,
            weights,
            output,
            next: None,
        };
        let commands = program.encode().map_err(rknpu::Error::from)?;
        let job = Job::new(&domain, &[&commands[..AMOUNT as usize]], buffers);
        let ran = job.map_err(rknpu::Error::from)?.run(&mut core);
        let (job, _) = ran.map_err(|rejected| rejected.error)?;
        buffers = job.into_buffers();
        let Some(results) = buffers.pop() else { break };
        let mut results = results.to_host().map_err(rknpu::Error::from)?;
        let bytes = &mut results.as_mut_slice()[at % 2 * 4096..][..32 * 4];
        let words = bytes.chunks_exact(4).zip(&wanted[at % 2]);
        right.push(words.into_iter().all(|(got, want)| *got == want.to_le_bytes()));
        // Cleared, so that no submit is judged by another's results.
        bytes.fill(0);
        buffers.push(ready(results)?);
    }
    Ok(right)
}
