//! Whole models, on all threads, page cache warm: converting against copying the same number of
//! bytes with `cp`, the ways of reading, and loading a pack against quantising live.
//!
//! What bounds the load: memory. All threads copy out of the page cache until that is busy, and so
//! the ratio shrinks with every core beyond that, since quantising gains by each. Pages of the mapping
//! are touched before the first round, and buffers of either side by it.
//!
//! `ORK_TEST_MODEL` names a model to use instead of a made-up one.

#[path = "../tests/common/hub.rs"]
#[allow(unreachable_pub, reason = "tests use it too")]
mod hub;

use hub::Kept;
use ork_weights::convert::{Options, convert};
use ork_weights::model::synth::Shape;
use ork_weights::model::{Model, OpenOptions, Read};
use ork_weights::pack::{Pack, WriterOptions};
use ork_weights::quantise::Tier;
use ratio::{Bench, Pages};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    let bench = Bench::from_args();
    // Beside the sources, because a temporary folder may be memory only.
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?;
    let path = match std::env::var_os("ORK_TEST_MODEL") {
        Some(path) => PathBuf::from(path),
        None => {
            let path = folder.path().join("model.gguf");
            let shape = if bench.measures() { Shape::demo() } else { Shape::tiny() };
            shape.write(std::fs::File::create(&path)?)?;
            path
        }
    };
    let target = folder.path().join("model.orkpack");
    let options = Options {
        writer: WriterOptions { replace: true, ..WriterOptions::default() },
        ..Options::default()
    };
    let open = |read| Model::open(&path, &OpenOptions { read, ..OpenOptions::default() });
    let (buffered, direct) = (open(Read::Buffered)?, open(Read::Direct)?);
    let report = convert(&buffered, &target, &options, |_| {})?;
    let bytes = report.source_bytes() + report.bytes;
    let run = |model: &Model| {
        convert(model, &target, &options, |_| {}).expect("it converted before");
    };

    let copied = folder.path().join("source.bin");
    copy_of(&[&path], &target, &copied, report.source_bytes(), report.bytes)?;
    let to = folder.path().join("copy.bin");
    bench.compare(
        "convert/cp of source and output",
        0.2,
        bytes,
        || run(&buffered),
        || {
            let copied = Command::new("cp").arg(&copied).arg(&to).status().expect("cp runs");
            assert!(copied.success());
        },
    );
    for kept in [Kept::Half, Kept::Fp8] {
        let hub = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?;
        let (embedding, inner, words) =
            if bench.measures() { (2048, 8192, 16384) } else { (256, 512, 256) };
        hub::folder(hub.path(), kept, embedding, inner, words)?;
        let model = Model::open(hub.path(), &OpenOptions::default())?;
        let report = convert(&model, &target, &options, |_| {})?;
        let parts: Vec<&Path> = model.paths().collect();
        let bytes = report.source_bytes() + report.bytes;
        copy_of(&parts, &target, &copied, report.source_bytes(), report.bytes)?;
        bench.compare(
            &format!("convert {kept:?}/cp of source and output"),
            0.2,
            bytes,
            || run(&model),
            || {
                let copied = Command::new("cp").arg(&copied).arg(&to).status().expect("cp runs");
                assert!(copied.success());
            },
        );
    }
    bench.compare("convert/read against direct", 1.0, bytes, || run(&buffered), || run(&direct));

    let pack = Pack::open(&target)?;
    let largest = pack.entries().iter().map(|entry| entry.layout().bytes()).max().unwrap_or(0);
    let mut out = Pages::new(largest as usize);
    let mut live = Pages::new(largest as usize);
    bench.compare(
        "load from pack/quantise live",
        8.0,
        pack.size(),
        || {
            for entry in pack.entries() {
                let out = &mut out[..entry.layout().bytes() as usize];
                pack.load_into_parallel(entry, out).expect("a whole pack");
                std::hint::black_box(pack.scales(entry).expect("a whole pack"));
            }
        },
        || {
            for weight in buffered.weights() {
                let layout = Tier::Int8.layout(weight.k, weight.n).expect("it was converted");
                let out = &mut live[..layout.bytes() as usize];
                let mut scales = vec![0.0; weight.n as usize];
                buffered.quantise(weight, &Tier::Int8, out, &mut scales).expect("it was converted");
            }
        },
    );
    Ok(())
}

/// A file of so many bytes of the model and of the pack.
fn copy_of(
    model: &[&Path],
    pack: &Path,
    to: &Path,
    of_model: u64,
    of_pack: u64,
) -> std::io::Result<()> {
    use std::io::Read;
    let mut out = std::fs::File::create(to)?;
    let mut left = of_model;
    for part in model {
        left -= std::io::copy(&mut std::fs::File::open(part)?.take(left), &mut out)?;
    }
    std::io::copy(&mut std::fs::File::open(pack)?.take(of_pack), &mut out)?;
    Ok(())
}
