//! What stays after many requests: nothing.

mod host;

use ork_weights::model::gguf::Tensors;
use ork_weights::model::synth::Shape;

use host::*;

#[global_allocator]
static COUNTING: ratio::Counting = ratio::Counting;

const ROWS: usize = 40;

#[test]
fn a_thousand_requests_leave_nothing_behind() {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    Shape::tiny().write(file.as_file()).unwrap();
    let host = Host::new(Kind::V3, &[]).unwrap();
    let (tensors, map) = (Tensors::open(file.path()).unwrap(), map(file.path()));
    let start = tensors.header().data_start() as usize;
    let buffer = host.wrap(&map[start..]).usage(1);
    let mut weight = weight(&tensors, "blk.0.ffn_up.weight", &buffer, start);
    let (k, n) = (weight.ne[0], weight.ne[1]);
    let (mut input, mut out) = (noise(ROWS * k as usize, 7), vec![0.0; ROWS * n as usize]);
    let mut rows = numbers([k, ROWS as i64, 1, 1], &mut input);
    let mut node =
        product(MUL_MAT, &mut [&mut weight, &mut rows], [n, ROWS as i64, 1, 1], &mut out);
    // Each with a context of its own, as a server makes them.
    let mut requests = |count: usize| {
        for _ in 0..count {
            assert_eq!(host.compute(vec![&mut node]), 0);
            assert_eq!(log().iter().filter(|line| line.contains("products of")).count(), 1);
        }
    };
    requests(100);
    let handles = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = handles();
    let ((), peak) = ratio::peak_bytes(|| requests(1000));
    // What a single request holds meanwhile.
    assert!(peak < 1 << 20, "{peak} bytes more");
    assert_eq!(handles(), before);
}
