//! A disk that is full while a pack is made on the way.

mod host;

use ork_weights::model::gguf::Tensors;
use ork_weights::model::synth::Shape;

use host::*;

const ROWS: usize = 40;
const NAMES: [&str; 7] =
    ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];

/// Products with every weight of two blocks; how often a line was said, and their results' bits.
fn pass(
    settings: &[(&'static str, &str)],
    path: &std::path::Path,
    line: &str,
) -> (usize, Vec<u32>) {
    let host = Host::new(Kind::WithCpu, settings).unwrap();
    let (file, map) = (Tensors::open(path).unwrap(), map(path));
    let start = file.header().data_start() as usize;
    let buffer = host.wrap(&map[start..]).usage(1);
    let mut bits = Vec::new();
    for i in 0..2 * NAMES.len() {
        let name = format!("blk.{}.{}.weight", i / NAMES.len(), NAMES[i % NAMES.len()]);
        let mut weight = weight(&file, &name, &buffer, start);
        let (k, n) = (weight.ne[0], weight.ne[1]);
        let (mut input, mut out) = (noise(ROWS * k as usize, 7), vec![0.0; ROWS * n as usize]);
        let mut rows = numbers([k, ROWS as i64, 1, 1], &mut input);
        let ne = [n, ROWS as i64, 1, 1];
        let mut node = product(MUL_MAT, &mut [&mut weight, &mut rows], ne, &mut out);
        assert_eq!((host.compute(vec![&mut node]), on_cpu()), (0, vec![]), "{name}");
        bits.extend(out.iter().map(|value| value.to_bits()));
    }
    drop(buffer);
    (log().iter().filter(|said| said.contains(line)).count(), bits)
}

#[test]
fn the_npu_goes_on_without_the_pack_and_says_so_once() {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    Shape { embedding: 512, feed_forward: 1536, ..Shape::tiny() }.write(file.as_file()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let pack = folder.path().join("m.orkpack");
    let small = ("ORK_WCACHE_BUDGET_MB", "2");
    let settings = [("ORK_PERSIST", pack.to_str().unwrap()), small];
    let failed = "the pack could not be completed: write";
    let (_, wanted) = pass(&[small], file.path(), failed);
    // Files may not grow past some of the weights: as on a full disk, writes fail in the middle of one. What the
    // simulator has for memory is smaller.
    let limit = libc::rlimit { rlim_cur: 2300 << 10, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: both take numbers, and a structure that is there; nothing in this process handles the signal.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
    let (said, got) = pass(&settings, file.path(), failed);
    assert!(got == wanted);
    assert_eq!(said, 1);
    assert!(!pack.exists());
    // With room again the next run makes it of what there is.
    let all = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, ..limit };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &all) }, 0);
    let (said, got) = pass(&settings, file.path(), "is complete: the next run loads it");
    assert!(got == wanted && pack.exists());
    assert_eq!(said, 1);
}
