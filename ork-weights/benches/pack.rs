//! Opening, loading and verifying packs.

use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use ork_weights::Mapping;
use ork_weights::pack::{
    Codebook, Dtype, Pack, PackWriter, Source, WriterOptions, o4n1_header, verify,
};
use ratio::{Bench, Pages};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bench = Bench::from_args();
    let folder = tempfile::tempdir()?;
    open(&bench, folder.path())?;
    load(&bench, folder.path())?;
    inflate(&bench, folder.path())?;
    verifying(&bench, folder.path())?;
    Ok(())
}

/// An index of 100,000 experts, as a mixture of many layers has them; the target is a time.
fn open(bench: &Bench, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    const NAME: &str = "open/100,000 entries";
    const TARGET_MS: f64 = 20.0;
    if !bench.wants(NAME) {
        return Ok(());
    }
    let weights = if bench.measures() { 100_000 } else { 100 };
    let path = folder.join("open.orkpack");
    let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    let mut blob = o4n1_header(32, 32, Codebook::Nf4).to_vec();
    blob.resize(20 + 4 * 32 + 512, 0);
    for i in 0..weights {
        let name = format!("blk.{}.ffn_gate_exps.weight#{}", i / 1000, i % 1000);
        writer.add(&name, 32, 32, Dtype::O4n1, &blob, &[])?;
    }
    writer.finish()?;
    let mut times: Vec<f64> = (0..if bench.measures() { 15 } else { 1 })
        .map(|_| {
            let start = Instant::now();
            let pack = Pack::open(&path).map(black_box);
            let time = start.elapsed().as_secs_f64() * 1e3;
            assert!(pack.is_ok_and(|pack| pack.entries().len() == weights));
            time
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    let verdict = if median <= TARGET_MS { "ok" } else { "above" };
    let best = times[0];
    println!("{NAME}: {median:.1} ms (best {best:.1})  target {TARGET_MS} ms  {verdict}");
    Ok(())
}

/// A 16 MiB int8 weight out of a pack that is in the page cache.
fn load(bench: &Bench, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let path = folder.join("load.orkpack");
    let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    let blob: Vec<u8> = (0..16u32 << 20).map(|i| (i * 7) as u8).collect();
    writer.add("w", 4096, 4096, Dtype::Int8, &blob, &[1.0; 4096])?;
    writer.finish()?;
    compare(bench, "load/int8 16 MiB, pread, against memcpy", &Pack::open(&path)?, &blob);
    // SAFETY: the file lies in a folder of this program's own, which no longer writes to it.
    let mapping = unsafe { Mapping::open(&path)? };
    compare(bench, "load/int8 16 MiB, mapped, against memcpy", &Pack::parse(mapping)?, &blob);
    Ok(())
}

fn compare<S: Source>(bench: &Bench, name: &str, pack: &Pack<S>, blob: &[u8]) {
    let (mut out, mut copy) = (vec![0; blob.len()], vec![0; blob.len()]);
    let entry = &pack.entries()[0];
    let subject = || pack.load_into(black_box(entry), &mut out).unwrap_or_default();
    let baseline = || copy.copy_from_slice(black_box(blob));
    bench.compare(name, 0.9, blob.len() as u64, subject, baseline);
}

/// 4-bit codes of a compact weight to 16 MiB of int8 tiles, on one thread.
///
/// What bounds it: values are written twice, to rows in the L2 cache and from there to their tile.
fn inflate(bench: &Bench, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let side = if bench.measures() { 4096 } else { 256 };
    let path = folder.join("inflate.orkpack");
    let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    for (name, codebook) in [("uniform", Codebook::Uniform), ("nf4", Codebook::Nf4)] {
        let mut blob = o4n1_header(side, side, codebook).to_vec();
        (0..side).for_each(|_| blob.extend(1f32.to_le_bytes()));
        blob.extend((0..side * side / 2).map(|i| ((i * 7) >> 3) as u8));
        writer.add(name, side, side, Dtype::O4n1, &blob, &[])?;
    }
    writer.finish()?;
    let pack = Pack::open(&path)?;
    let bytes = side as usize * side as usize;
    let (from, mut copy, mut out) = (Pages::new(bytes), Pages::new(bytes), Pages::new(bytes));
    for entry in pack.entries() {
        bench.compare(
            &format!("load/o4n1 {} to int8, against memcpy", entry.name),
            0.2,
            bytes as u64,
            || pack.load_into(black_box(entry), &mut out).unwrap_or_default(),
            || copy.copy_from_slice(black_box(&from)),
        );
    }
    Ok(())
}

/// Every check and checksum on all threads, against `cat` to nowhere.
fn verifying(bench: &Bench, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let weights = if bench.measures() { 32 } else { 1 };
    let path = folder.join("verify.orkpack");
    let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    let blob: Vec<u8> = (0..16u32 << 20).map(|i| (i * 7) as u8).collect();
    for i in 0..weights {
        writer.add(&format!("w{i}"), 4096, 4096, Dtype::Int8, &blob, &[1.0; 4096])?;
    }
    let bytes = writer.finish()?.bytes;
    let pack = Pack::open(&path)?;
    bench.compare(
        "verify/512 MiB, against cat",
        0.5,
        bytes,
        || assert!(verify(&pack, &|_| {}).is_sound()),
        || {
            // Copied by a pipe's reader would be a slower baseline than users see.
            let cat = Command::new("cat").arg(&path).stdout(Stdio::null()).status();
            assert!(cat.is_ok_and(|status| status.success()));
        },
    );
    Ok(())
}
