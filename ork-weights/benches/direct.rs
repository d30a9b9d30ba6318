//! A pack read past the page cache, against plain direct reads of the same bytes on the same disk, and
//! against reading it through the cache.
//!
//! What bounds it: the disk. The processor's part is its time for each byte.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use ork_weights::pack::{Dtype, Pack, PackFile, PackWriter, WriterOptions};
use ratio::{Bench, Pages};
use rustix::fs::{Advice, OFlags, fadvise};
use rustix::time::{ClockId, clock_gettime};

/// Bytes of one read of the baseline: large enough that the disk gives all it has.
const PLAIN: usize = 8 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let bench = Bench::from_args();
    // Beside the sources, because a temporary folder may be memory only.
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?;
    let path = folder.path().join("model.orkpack");
    let side = if bench.measures() { 4096 } else { 256 };
    let weights = if bench.measures() { 32 } else { 2 };
    write(&path, side, weights)?;

    let (buffered, direct) = (Pack::open(&path)?, Pack::open(&path)?);
    if let Err(error) = direct.source().read_directly() {
        println!("no direct reads here: {error}");
        return Ok(());
    }
    let bytes = u64::from(weights) * u64::from(side * side);
    let mut out = Pages::new((side * side) as usize);
    let mut plain_out = Pages::new(PLAIN);
    let plain =
        File::options().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path)?;
    bench.compare(
        "direct/pack, against plain direct reads",
        0.9,
        bytes,
        || load(&direct, &mut out),
        || {
            let size = bytes as usize / 4096 * 4096;
            for at in (0..size).step_by(PLAIN) {
                let piece = &mut plain_out[..PLAIN.min(size - at)];
                plain.read_exact_at(piece, at as u64).expect("a whole pack");
            }
        },
    );

    // What the disk and the copy cost the processor, the cache cold for both.
    let mut spent = |pack: &Pack<PackFile>| {
        forget(pack);
        let start = processor();
        load(pack, &mut out);
        (processor() - start).as_secs_f64() * 1e3
    };
    let rounds = if bench.measures() { 7 } else { 1 };
    let (mut ours, mut theirs): (Vec<f64>, Vec<f64>) =
        (0..rounds).map(|_| (spent(&direct), spent(&buffered))).unzip();
    let median = |times: &mut Vec<f64>| {
        times.sort_unstable_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let (ours, theirs) = (median(&mut ours), median(&mut theirs));
    let share = ours / theirs.max(f64::MIN_POSITIVE);
    let verdict = if share <= 0.25 { "ok" } else { "above" };
    println!(
        "direct/processor time, of that through the cache: {share:.2}  target 0.25  {verdict}  {ours:.0} ms against \
         {theirs:.0} for {} MiB",
        bytes >> 20,
    );
    println!("  {:?}", direct.source().direct_reads());
    Ok(())
}

fn write(path: &Path, side: u32, weights: u32) -> Result<(), Box<dyn Error>> {
    let mut writer = PackWriter::create(path, None, WriterOptions::default())?;
    let blob: Vec<u8> = (0..side * side).map(|i| (i * 7) as u8).collect();
    for i in 0..weights {
        writer.add(&format!("w{i}"), side, side, Dtype::Int8, &blob, &vec![1.0; side as usize])?;
    }
    writer.finish()?;
    Ok(())
}

fn load(pack: &Pack<PackFile>, out: &mut [u8]) {
    for entry in pack.entries() {
        pack.load_into(entry, out).expect("a whole pack");
    }
}

/// Has the system forget the pages of a pack.
fn forget(pack: &Pack<PackFile>) {
    let _ = fadvise(pack.source().file(), 0, None, Advice::DontNeed);
}

/// Processor time of this process so far.
fn processor() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
