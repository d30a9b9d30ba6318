//! What plans need: the cost of a submit, of products, of copies and of reads.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ork_cache::{BlockWeight, Blocks, Store};
use ork_linear::{Layers, Product, Setup};
use ork_weights::dequant::TensorType;
use ork_weights::pack::{DirectReads, Dtype, Pack, PackWriter, WriterOptions};
use ork_weights::quantise::Tier;
use rknpu::{Layout, Matmul, MatmulLimits, Precision, WeightRef, probe, reference};

use super::record::Outcome;
use super::steps::{Board, Danger, Kind, Step};
use crate::error::{Error, Result};
use crate::output::seconds;

/// Names of figures that the profile takes.
pub(super) const SUBMIT: &str = "submit_seconds";
pub(super) const CROSSOVER: &str = "npu_rows";
pub(super) const DISK: &str = "disk_bytes_per_second";

const fn measure(
    name: &'static str,
    says: &'static str,
    run: fn(&Board<'_>) -> Result<Outcome>,
) -> Step {
    let (kind, danger) = (Kind::Measure, Danger::Safe);
    Step { name, kind, says, source: "", careful: "", danger, seconds: 120, run }
}

pub(super) const MEASURES: &[Step] = &[
    measure("submit", "what a submit costs", submit),
    measure("rows", "from how many rows on the NPU beats this CPU, K = N = 2048", rows),
    measure("copy", "copies into device memory", copy),
    measure("disk", "reads past the page cache into device memory", disk),
];

fn figures<const N: usize>(all: [(&str, f64); N]) -> BTreeMap<String, f64> {
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// A product so small that nothing else counts, on one core.
fn submit(board: &Board<'_>) -> Result<Outcome> {
    let device = board.open()?;
    let layout = Layout::new(64, 32, Precision::Int8).map_err(rknpu::Error::from)?;
    let domain = device.new_domain()?;
    let mut buffer = domain.alloc(layout.bytes() as usize)?;
    reference::fill(layout, 1, buffer.as_mut_slice());
    let buffer = buffer.to_device().map_err(rknpu::Error::from)?;
    let weight = WeightRef::new(&buffer, 0, layout)?;
    let limits = MatmulLimits { rows: 1, k: 64, n: 32 };
    let mut matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
    let mut out = [0; 32];
    let mut times = Vec::new();
    for _ in 0..201 {
        let start = Instant::now();
        matmul.run(&weight, &[1; 64], &mut out)?;
        times.push(start.elapsed());
    }
    let time = median(times);
    let figures = figures([(SUBMIT, time.as_secs_f64())]);
    Ok(Outcome { holds: true, detail: seconds(time), figures })
}

/// A weight of noise.
#[derive(Debug)]
struct Noise(Vec<u8>);

impl Blocks for Noise {
    fn with(&self, _weight: usize, work: &mut dyn FnMut(&[u8])) -> bool {
        work(&self.0);
        true
    }
}

const SIDE: u32 = 2048;

fn rows(board: &Board<'_>) -> Result<Outcome> {
    let layers = |npu_rows: usize| -> Result<Layers> {
        let weight = BlockWeight { name: "w".into(), k: SIDE, n: SIDE, kind: TensorType::F16 };
        let noise = (0..SIDE as usize * SIDE as usize).flat_map(|i| [((i * 31) >> 3) as u8, 0x38]);
        let store = Store::from_blocks(vec![weight], Tier::Int8, Box::new(Noise(noise.collect())))
            .map_err(Error::Store)?;
        let setup = Setup { npu_rows, ..Setup::new(256 << 20) };
        let device = board.open()?;
        let opened = ork_linear::open(&device, &[Arc::new(store)], &setup);
        let opened = opened.map_err(Error::input("a made-up weight".as_ref()))?;
        opened.into_iter().next().ok_or_else(|| Error::Check("no layers".into()))
    };
    let time = |layers: &mut Layers, m: usize| -> Result<Duration> {
        let input: Vec<f32> = (0..m * SIDE as usize).map(|i| (i % 17) as f32 - 8.0).collect();
        let mut out = vec![0.0; m * SIDE as usize];
        let mut times = Vec::new();
        for _ in 0..4 {
            let start = Instant::now();
            let product = Product { weight: 0, out: &mut out };
            let done = layers.multiply(m, &input, [product]);
            done.map_err(Error::input("a made-up weight".as_ref()))?;
            times.push(start.elapsed());
        }
        // The first loads the weight.
        Ok(median(times.split_off(1)))
    };
    let (mut figures, mut detail, mut crossover) = (BTreeMap::new(), String::new(), None);
    let all = [1usize, 8, 16, 32, 64, 128, 256];
    let mut npu = Vec::new();
    {
        let mut layers = layers(1)?;
        for m in all {
            npu.push(time(&mut layers, m)?);
        }
    }
    let mut layers = layers(usize::MAX)?;
    for (m, npu) in all.into_iter().zip(npu) {
        let cpu = time(&mut layers, m)?;
        figures.insert(format!("npu_seconds_{m}_rows"), npu.as_secs_f64());
        figures.insert(format!("cpu_seconds_{m}_rows"), cpu.as_secs_f64());
        detail.push_str(&format!("{m} rows: {} ({} CPU); ", seconds(npu), seconds(cpu)));
        match npu <= cpu {
            true => crossover = crossover.or(Some(m)),
            false => crossover = None,
        }
    }
    if let Some(rows) = crossover {
        figures.insert(CROSSOVER.to_owned(), rows as f64);
    }
    let from = crossover.map_or("never".to_owned(), |rows| format!("from {rows} rows on"));
    Ok(Outcome { holds: true, detail: format!("{detail}faster {from}"), figures })
}

fn copy(board: &Board<'_>) -> Result<Outcome> {
    let device = board.open()?;
    let found = probe::fill(&device.domain(0)?, 16 << 20)?;
    let rate =
        |rate: &probe::FillRate| format!("{} {:.2} GB/s", rate.mapping, found.gb_per_s(rate));
    let detail = found.rates.iter().map(rate).collect::<Vec<_>>().join("; ");
    let figure = |rate: &probe::FillRate| {
        (format!("{}_bytes_per_second", rate.mapping), found.gb_per_s(rate) * 1e9)
    };
    let figures = found.rates.iter().map(figure).collect();
    Ok(Outcome { holds: true, detail, figures })
}

fn disk(board: &Board<'_>) -> Result<Outcome> {
    let (outcome, time) = direct_reads(board)?;
    let rate = BYTES as f64 / time.as_secs_f64().max(1e-9);
    let detail = format!("{:.2} GB/s, {}", rate / 1e9, outcome.detail);
    // Through the cache it would be another speed.
    let figures = if outcome.holds { figures([(DISK, rate)]) } else { BTreeMap::new() };
    Ok(Outcome { holds: true, detail, figures })
}

/// Why a pack can't be used, without its path.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.to_string().rsplit(".orkpack").next().unwrap_or_default())]
struct Unnamed(ork_weights::pack::PackError);

const EDGE: u32 = 4096;
const BYTES: u64 = 2 * (EDGE as u64) * (EDGE as u64);

/// A pack beside the report, read past the page cache into device memory: whether the kernel does that, and how
/// long it takes.
pub(super) fn direct_reads(board: &Board<'_>) -> Result<(Outcome, Duration)> {
    let folder = board.beside.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(".".as_ref());
    let made = tempfile::Builder::new().prefix(".ork-check-").tempdir_in(folder);
    // Paths are nobody else's business: reports are shown to others.
    let place: &Path = "the folder of the report".as_ref();
    let made = made.map_err(Error::file("make a folder in", place))?;
    let path = made.path().join("noise.orkpack");
    let refuse = |error| Error::input(place)(Unnamed(error));
    let mut codes = vec![0u8; BYTES as usize / 2];
    codes.iter_mut().enumerate().for_each(|(i, code)| *code = (i ^ i >> 7 ^ i >> 13) as u8);
    let mut writer = PackWriter::create(&path, None, WriterOptions::default()).map_err(refuse)?;
    for name in ["one", "two"] {
        writer.add(name, EDGE, EDGE, Dtype::Int8, &codes, &[1.0; EDGE as usize]).map_err(refuse)?;
    }
    writer.finish().map_err(refuse)?;
    // On the disk, and not in the page cache alone.
    let synced = File::options().append(true).open(&path).and_then(|mut file| {
        file.flush()?;
        file.sync_all()
    });
    synced.map_err(Error::file("write in", place))?;
    let pack = Pack::open(&path).map_err(refuse)?;
    if let Err(error) = pack.source().read_directly() {
        let detail = format!("the file system here has no direct reads: {error}");
        return Ok((Outcome { detail, ..Outcome::default() }, Duration::ZERO));
    }
    let device = board.open()?;
    let domain = device.new_domain()?;
    let mut time = Duration::ZERO;
    for entry in pack.entries() {
        let mut buffer = domain.alloc(codes.len())?;
        let start = Instant::now();
        pack.load_into(entry, buffer.as_mut_slice()).map_err(refuse)?;
        time += start.elapsed();
        if buffer.as_slice() != codes {
            let detail = "the bytes are not those of the file".to_owned();
            return Ok((Outcome { detail, ..Outcome::default() }, time));
        }
    }
    let reads: DirectReads = pack.source().direct_reads().unwrap_or_default();
    let refusal = reads.refusal().map_or(String::new(), |error| format!(", refused: {error}"));
    let detail = format!(
        "{} MiB past the cache, {} through it{refusal}",
        reads.direct >> 20,
        reads.buffered >> 20
    );
    Ok((Outcome { holds: reads.buffered < BYTES / 100, detail, ..Outcome::default() }, time))
}
