//! Whole ways through the tables: a model in a file, one in memory, other hosts, other files.

mod host;

use std::ffi::c_int;
use std::path::Path;
use std::sync::Arc;

use ggml_ork::Refusal;
use ggml_ork::ggml as host_types;
use ork_cache::Store;
use ork_linear::{Product, Setup};
use ork_weights::model::gguf::Tensors;
use ork_weights::model::synth::Shape;
use ork_weights::model::{Model, OpenOptions};
use ork_weights::quantise::Tier;

use host::*;

const ROWS: usize = 40;

/// Weights of a block, as llama.cpp asks for them: together, or one by one.
const NAMES: [&[&str]; 6] = [
    &["attn_q"],
    &["attn_k"],
    &["attn_v"],
    &["attn_output"],
    &["ffn_gate", "ffn_up"],
    &["ffn_down"],
];

/// A made-up model's file.
fn model(shape: Shape) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    shape.write(file.as_file()).unwrap();
    file
}

/// K and N of a weight.
fn shape(file: &Tensors, name: &str) -> (usize, usize) {
    let dimensions = &file.get(name).unwrap().dimensions;
    (dimensions[0] as usize, dimensions[1] as usize)
}

/// The exact product of rows with a matrix of a file.
fn exact(file: &Tensors, name: &str, expert: usize, input: &[f32]) -> Vec<f32> {
    let (k, n) = shape(file, name);
    let mut weight = vec![0.0; k * n];
    file.read(name, (expert * n) as u64..((expert + 1) * n) as u64, &mut weight).unwrap();
    let dot = |row: &[f32], channel: &[f32]| {
        row.iter().zip(channel).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
    };
    input.chunks(k).flat_map(|row| weight.chunks(k).map(move |c| dot(row, c))).collect()
}

#[track_caller]
fn assert_close(got: &[f32], wanted: &[f32]) {
    assert_eq!(got.len(), wanted.len());
    let square = |v: f32| f64::from(v) * f64::from(v);
    let off: f64 = got.iter().zip(wanted).map(|(a, b)| square(a - b)).sum();
    let all: f64 = wanted.iter().map(|v| square(*v)).sum();
    assert!(all > 0.0 && off / all < 4e-3, "{off} of {all}");
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Products of 40 rows with every weight of a block, gate and up in one graph; their results.
fn pass(host: &Host, file: &Tensors, buffer: &Buf, start: usize) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for names in NAMES {
        let names: Vec<String> = names.iter().map(|name| format!("blk.0.{name}.weight")).collect();
        let k = shape(file, &names[0]).0;
        let mut input = noise(ROWS * k, 7);
        let mut rows = numbers([k as i64, ROWS as i64, 1, 1], &mut input);
        let mut weights: Vec<_> =
            names.iter().map(|name| weight(file, name, buffer, start)).collect();
        let mut outs: Vec<_> =
            names.iter().map(|name| vec![f32::NAN; ROWS * shape(file, name).1]).collect();
        let mut nodes = Vec::new();
        for ((weight, out), name) in weights.iter_mut().zip(&mut outs).zip(&names) {
            let ne = [shape(file, name).1 as i64, ROWS as i64, 1, 1];
            nodes.push(product(MUL_MAT, &mut [weight, &mut rows], ne, out));
        }
        assert!(nodes.iter().all(|node| host.supports(node)), "{names:?}: {:?}", log());
        let status = host.compute(nodes.iter_mut().map(|node| &raw mut *node).collect());
        assert_eq!(status, 0, "{names:?}: {:?}", log());
        for (out, name) in outs.iter().zip(&names) {
            assert_close(out, &exact(file, name, 0, &noise(ROWS * k, 7)));
        }
        all.extend(outs);
    }
    all
}

/// A pass over a mapped file.
fn mapped_pass(host: &Host, path: &Path) -> Vec<Vec<f32>> {
    let (file, map) = (Tensors::open(path).unwrap(), map(path));
    let start = file.header().data_start() as usize;
    let buffer = host.wrap(&map[start..]).usage(1);
    pass(host, &file, &buffer, start)
}

#[test]
fn a_mapped_model_is_multiplied_with_in_either_version() {
    let file = model(Shape::tiny());
    let of = |kind| mapped_pass(&Host::new(kind, &[]).unwrap(), file.path());
    let (two, three) = (of(Kind::V2), of(Kind::V3));
    assert!(two == three);
    // What `ork run` computes with the same file.
    let opened = OpenOptions::default();
    let opened = Model::open(file.path(), &opened).unwrap();
    let tier = Tier::RotatedInt8 { group: None };
    let store = Arc::new(Store::from_model(opened, tier, None).unwrap());
    let device = rknpu::Device::simulated(Default::default()).unwrap();
    let mut models = ork_linear::open(&device, &[store], &Setup::new(64 << 20)).unwrap();
    for (name, got) in NAMES.concat().iter().zip(&two) {
        let weight = models[0].find(&format!("blk.0.{name}.weight")).unwrap();
        let (k, n) = models[0].shape(weight).unwrap();
        let mut out = vec![0.0; ROWS * n as usize];
        let input = noise(ROWS * k as usize, 7);
        models[0].multiply(ROWS, &input, [Product { weight, out: &mut out }]).unwrap();
        assert!(bits(&out) == bits(got), "{name}");
    }
    let lines = log();
    assert!(lines.iter().any(|line| line.contains("7 products of 280 rows in all")), "{lines:?}");
}

#[test]
fn results_do_not_depend_on_budget_memory_or_reload() {
    let wide = Shape { embedding: 512, feed_forward: 1024, layers: 3, ..Shape::tiny() };
    let file = model(wide);
    let host = Host::new(Kind::V2, &[]).unwrap();
    let wanted: Vec<_> = mapped_pass(&host, file.path()).iter().map(|out| bits(out)).collect();
    // Freed, and read again.
    let again: Vec<_> = mapped_pass(&host, file.path()).iter().map(|out| bits(out)).collect();
    assert!(again == wanted);
    assert!(log().iter().any(|line| line.contains(" 0 MiB are streamed")));

    let small = Host::new(Kind::V3, &[("ORK_WCACHE_BUDGET_MB", "2")]).unwrap();
    let streamed: Vec<_> = mapped_pass(&small, file.path()).iter().map(|out| bits(out)).collect();
    assert!(streamed == wanted);
    let lines = log();
    assert!(
        lines.iter().any(|l| l.contains("are streamed") && !l.contains(" 0 MiB are streamed")),
        "{lines:?}"
    );

    // No file behind it: tensors are told, and written.
    let tensors = Tensors::open(file.path()).unwrap();
    let start = tensors.header().data_start() as usize;
    let bytes = std::fs::read(file.path()).unwrap();
    let buffer = host.alloc(bytes.len() - start).usage(1);
    for entry in tensors.iter() {
        let mut tensor = weight(&tensors, &entry.name, &buffer, start);
        buffer.set(&mut tensor, &bytes[entry.range().start as usize..entry.range().end as usize]);
    }
    let of_memory: Vec<_> =
        pass(&host, &tensors, &buffer, start).iter().map(|out| bits(out)).collect();
    assert!(of_memory == wanted);

    // What is written later counts.
    let name = "blk.0.attn_q.weight";
    let mut tensor = weight(&tensors, name, &buffer, start);
    let range = tensors.get(name).unwrap().range();
    let zeros = vec![0; (range.end - range.start) as usize];
    buffer.set(&mut tensor, &zeros);
    let (k, n) = shape(&tensors, name);
    let (mut input, mut out) = (noise(ROWS * k, 7), vec![f32::NAN; ROWS * n]);
    let mut rows = numbers([k as i64, ROWS as i64, 1, 1], &mut input);
    let mut node =
        product(MUL_MAT, &mut [&mut tensor, &mut rows], [n as i64, ROWS as i64, 1, 1], &mut out);
    assert_eq!(host.compute(vec![&mut node]), 0);
    assert!(out.iter().all(|value| *value == 0.0));
}

#[test]
fn rows_may_lie_anywhere_and_be_halves() {
    let file = model(Shape::tiny());
    let host = Host::new(Kind::V2, &[]).unwrap();
    let (tensors, map) = (Tensors::open(file.path()).unwrap(), map(file.path()));
    let start = tensors.header().data_start() as usize;
    let buffer = host.wrap(&map[start..]).usage(1);
    let mut q = weight(&tensors, "blk.0.attn_q.weight", &buffer, start);
    let (k, n) = (256usize, 256usize);
    // 5 × 8 rows, as a cut of a wider tensor, with its dimensions exchanged.
    let mut wide = noise(5 * 8 * 300, 3);
    let mut rows = numbers([300, 8, 5, 1], &mut wide);
    rows.ne = [k as i64, 5, 8, 1];
    rows.nb = [4, 300 * 8 * 4, 300 * 4, 300 * 8 * 5 * 4];
    let mut out = vec![f32::NAN; 40 * n];
    let mut node = product(MUL_MAT, &mut [&mut q, &mut rows], [n as i64, 5, 8, 1], &mut out);
    assert!(host.supports(&node));
    assert_eq!(host.compute(vec![&mut node]), 0);
    let gathered: Vec<f32> = (0..8)
        .flat_map(|i2| (0..5).map(move |i1| (i1 * 8 + i2) * 300))
        .flat_map(|at| wide[at..at + k].to_vec())
        .collect();
    assert_close(&out, &exact(&tensors, "blk.0.attn_q.weight", 0, &gathered));

    let mut halves: Vec<half::f16> = gathered.iter().map(|v| half::f16::from_f32(*v)).collect();
    let mut rows = tensor(F16, [k as i64, 40, 1, 1], 2, k * 2, halves.as_mut_ptr().cast());
    let mut out = vec![f32::NAN; 40 * n];
    let mut node = product(MUL_MAT, &mut [&mut q, &mut rows], [n as i64, 40, 1, 1], &mut out);
    assert!(host.supports(&node));
    assert_eq!(host.compute(vec![&mut node]), 0);
    let values: Vec<f32> = halves.iter().map(|v| v.to_f32()).collect();
    assert_close(&out, &exact(&tensors, "blk.0.attn_q.weight", 0, &values));
}

/// Products of the rows of 40 tokens with the experts that each chose, 1 and 0 or 3, by the stacks of
/// `blk.0.ffn_up_exps` and `blk.0.ffn_down_exps`; nobody chooses the others.
fn chosen_pass(host: &Host, tensors: &Tensors, buffer: &Buf, start: usize) -> Vec<Vec<f32>> {
    let (tokens, used) = (ROWS, 2usize);
    // A view of a wider table, as a router's sorted choice is.
    let mut ids: Vec<i32> = (0..tokens as i32).flat_map(|t| [t % 2 * 3, 1, -1, -1]).collect();
    let mut choice =
        tensor(I32, [used as i64, tokens as i64, 1, 1], 4, 16, ids.as_mut_ptr().cast());
    let mut outs = Vec::new();
    for (name, each) in [("blk.0.ffn_up_exps.weight", 1), ("blk.0.ffn_down_exps.weight", used)] {
        let (k, n) = shape(tensors, name);
        let mut input = noise(k * each * tokens, 11);
        let mut rows = numbers([k as i64, each as i64, tokens as i64, 1], &mut input);
        let mut stack = weight(tensors, name, buffer, start);
        let mut out = vec![f32::NAN; n * used * tokens];
        let ne = [n as i64, used as i64, tokens as i64, 1];
        let mut node = product(MUL_MAT_ID, &mut [&mut stack, &mut rows, &mut choice], ne, &mut out);
        assert!(host.supports(&node), "{name}");
        assert_eq!(host.compute(vec![&mut node]), 0, "{:?}", log());
        let input = noise(k * each * tokens, 11);
        let mut wanted = Vec::new();
        for token in 0..tokens {
            for (pick, expert) in [token % 2 * 3, 1].into_iter().enumerate() {
                let row = token * each + pick % each;
                wanted.extend(exact(tensors, name, expert, &input[row * k..][..k]));
            }
        }
        assert_close(&out, &wanted);
        outs.push(out);
    }
    outs
}

#[test]
fn experts_get_the_rows_that_chose_them_and_others_are_not_loaded() {
    let wide = Shape { experts: 8, embedding: 512, feed_forward: 512, ..Shape::tiny() };
    let file = model(wide);
    let (tensors, map) = (Tensors::open(file.path()).unwrap(), map(file.path()));
    let start = tensors.header().data_start() as usize;
    let run = |budget| {
        let host = Host::new(Kind::V3, &[("ORK_WCACHE_BUDGET_MB", budget)]).unwrap();
        let buffer = host.wrap(&map[start..]).usage(1);
        let outs = chosen_pass(&host, &tensors, &buffer, start);
        (outs.iter().map(|out| bits(out)).collect::<Vec<_>>(), log())
    };
    let (wanted, lines) = run("64");
    let count = "6 of 16 experts chosen, 6 loads of weights";
    assert!(lines.iter().any(|line| line.contains(count)), "{lines:?}");
    let (streamed, lines) = run("3");
    assert!(streamed == wanted);
    assert!(!lines.concat().contains(" 0 MiB are streamed"), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains(count)), "{lines:?}");
}

#[test]
fn an_expert_that_is_not_there_is_an_error() {
    let file = model(Shape { experts: 4, ..Shape::tiny() });
    let host = Host::new(Kind::V3, &[]).unwrap();
    let (tensors, map) = (Tensors::open(file.path()).unwrap(), map(file.path()));
    let start = tensors.header().data_start() as usize;
    let buffer = host.wrap(&map[start..]).usage(1);
    for wrong in [4, -1] {
        let mut ids = vec![0; ROWS];
        ids[4] = wrong;
        let mut choice = tensor(I32, [1, ROWS as i64, 1, 1], 4, 4, ids.as_mut_ptr().cast());
        let (k, n) = shape(&tensors, "blk.0.ffn_up_exps.weight");
        let mut input = noise(k * ROWS, 11);
        let mut rows = numbers([k as i64, 1, ROWS as i64, 1], &mut input);
        let mut stack = weight(&tensors, "blk.0.ffn_up_exps.weight", &buffer, start);
        let mut out = vec![0.0; n * ROWS];
        let ne = [n as i64, 1, ROWS as i64, 1];
        let mut node = product(MUL_MAT_ID, &mut [&mut stack, &mut rows, &mut choice], ne, &mut out);
        assert_eq!(host.compute(vec![&mut node]), -1);
        assert!(log().iter().any(|line| line.contains("cannot compute: an expert ")));
    }
}

#[test]
fn what_is_not_ours_is_left() {
    let file = model(Shape::tiny());
    let host = Host::new(Kind::V2, &[]).unwrap();
    let (tensors, map) = (Tensors::open(file.path()).unwrap(), map(file.path()));
    let start = tensors.header().data_start() as usize;
    let buffer = host.wrap(&map[start..]).usage(1);
    let name = "blk.0.attn_q.weight";
    let ask = |change: &dyn Fn(
        &mut host_types::Tensor,
        &mut host_types::Tensor,
        &mut host_types::Tensor,
    )| {
        let (mut input, mut out) = (noise(ROWS * 256, 1), vec![0.0; ROWS * 256]);
        let mut q = weight(&tensors, name, &buffer, start);
        let mut rows = numbers([256, ROWS as i64, 1, 1], &mut input);
        let mut node =
            product(MUL_MAT, &mut [&mut q, &mut rows], [256, ROWS as i64, 1, 1], &mut out);
        change(&mut node, &mut q, &mut rows);
        host.supports(&node)
    };
    assert!(ask(&|_, _, _| {}));
    assert!(!ask(&|_, _, rows| rows.ne[1] = 31), "too few rows");
    assert!(!ask(&|node, _, _| node.op = 1), "a sum");
    assert!(!ask(&|node, _, _| node.op_params[1] = 1), "a Hadamard matrix");
    assert!(!ask(&|_, q, _| q.data = q.data.wrapping_byte_add(144)), "a row further on");
    assert!(!ask(&|_, q, _| q.kind = 14), "another type than the file's");
    assert!(!ask(&|_, q, _| q.ne[1] = 128), "half of a weight");
    let half = |node: &mut host_types::Tensor, q: &mut host_types::Tensor| {
        (q.ne[1], node.ne[0]) = (128, 128);
        node.nb = [4, 512, 512 * ROWS, 512 * ROWS];
    };
    assert!(!ask(&|node, q, _| half(node, q)), "half of a weight, and results for it");
    let halves =
        |q: &mut host_types::Tensor| (q.kind, q.nb) = (F16, [2, 512, 512 * 256, 512 * 256]);
    assert!(!ask(&|_, q, _| halves(q)), "another type, that lies as it should");
    assert!(!ask(&|_, q, _| q.buffer = std::ptr::null_mut()), "memory of others");
    assert!(!ask(&|_, _, rows| rows.nb[0] = 8), "every other value");
    assert!(!ask(&|_, _, rows| rows.ne[0] = 224), "rows of another weight");
    assert!(!ask(&|node, _, _| node.src[1] = std::ptr::null_mut()), "no rows");
    assert!(ask(&|node, _, _| node.op = 0), "nothing to do");

    // A loader asks with a buffer that has no bytes; other uses of memory are not weights.
    let (empty, compute) = (host.empty(), host.alloc(4096).usage(2));
    assert!(ask(&|_, q, _| q.buffer = empty.0.as_ptr()));
    assert!(!ask(&|_, q, _| q.buffer = compute.0.as_ptr()));

    // A graph that was never taken is refused, not computed wrongly.
    let (mut input, mut out) = (noise(ROWS * 256, 1), vec![0.0; ROWS * 256]);
    let mut q = weight(&tensors, name, &buffer, start);
    q.data = q.data.wrapping_byte_add(144);
    let mut rows = numbers([256, ROWS as i64, 1, 1], &mut input);
    let mut node = product(MUL_MAT, &mut [&mut q, &mut rows], [256, ROWS as i64, 1, 1], &mut out);
    assert_eq!(host.compute(vec![&mut node]), -1);
    assert!(log().iter().any(|line| line.contains("a weight that is not known")));
    // Results on what they are made of.
    let mut q = weight(&tensors, name, &buffer, start);
    let mut node = product(MUL_MAT, &mut [&mut q, &mut rows], [256, ROWS as i64, 1, 1], &mut out);
    node.data = rows.data.wrapping_byte_add(64);
    assert_eq!(host.compute(vec![&mut node]), -1);
    node.flags = 0;
    assert_eq!(host.compute(vec![&mut node]), 0, "a node that is not to be computed");
}

#[test]
fn any_product_is_taken_for_tests_of_ggmls() {
    let host = Host::new(Kind::V2, &[("ORK_TAKE_ALL", "1")]).unwrap();
    // Three matrices of 33 × 40, each for two of six batches of one row.
    let (k, n, stack, batches) = (40usize, 33usize, 3usize, 6usize);
    let values = noise(k * n * stack, 5);
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let buffer = host.alloc(bytes.len());
    let mut weight = tensor(F32, [k as i64, n as i64, stack as i64, 1], 4, k * 4, buffer.base());
    weight.buffer = buffer.0.as_ptr();
    buffer.set(&mut weight, &bytes);
    let mut input = noise(k * batches, 9);
    let mut rows = numbers([k as i64, 1, batches as i64, 1], &mut input);
    let ne = [n as i64, 1, batches as i64, 1];
    let mut out = vec![f32::NAN; n * batches];
    let mut node = product(MUL_MAT, &mut [&mut weight, &mut rows], ne, &mut out);
    assert!(host.supports(&node));
    assert_eq!(host.compute(vec![&mut node]), 0, "{:?}", log());
    let input = noise(k * batches, 9);
    let wanted: Vec<f32> = (0..batches)
        .flat_map(|batch| (0..n).map(move |channel| (batch, channel)))
        .map(|(batch, channel)| {
            let channel = &values[(batch / 2 * n + channel) * k..][..k];
            input[batch * k..][..k].iter().zip(channel).map(|(a, b)| a * b).sum()
        })
        .collect();
    assert_close(&out, &wanted);

    // Without the switch neither the question nor the graph is taken.
    let host = Host::new(Kind::V2, &[("ORK_MIN_ROWS", "1")]).unwrap();
    let buffer = host.alloc(bytes.len()).usage(1);
    (weight.buffer, weight.data) = (buffer.0.as_ptr(), buffer.base().cast());
    buffer.set(&mut weight, &bytes);
    let mut node = product(MUL_MAT, &mut [&mut weight, &mut rows], ne, &mut out);
    assert!(!host.supports(&node));
    assert_eq!(host.compute(vec![&mut node]), -1);
}

/// A sum of two inputs, and the product of the sum with `blk.0.attn_q`, as one graph with weights that a
/// buffer without a usage holds, called `name` there; the results of the product.
fn sum_and_product(host: &Host, file: &Tensors, bytes: &[u8], name: &str) -> (c_int, Vec<f32>) {
    let start = file.header().data_start() as usize;
    let buffer = host.alloc(bytes.len() - start);
    let entry = file.get("blk.0.attn_q.weight").unwrap();
    let mut q = weight(file, &entry.name, &buffer, start);
    q.name = [0; 64];
    q.name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from as _);
    buffer.set(&mut q, &bytes[entry.range().start as usize..entry.range().end as usize]);
    let ne = [256, ROWS as i64, 1, 1];
    let [mut a, mut b] = [1, 2].map(|seed| noise(ROWS * 256, seed));
    let [mut a, mut b] = [&mut a, &mut b].map(|values| numbers(ne, values));
    let (mut input, mut out) = (vec![f32::NAN; ROWS * 256], vec![f32::NAN; ROWS * 256]);
    let mut sum = product(ADD, &mut [&mut a, &mut b], ne, &mut input);
    let mut idle = numbers(ne, &mut out);
    let mut node = product(MUL_MAT, &mut [&mut q, &mut sum], ne, &mut out);
    let status = host.compute(vec![&mut sum, &mut idle, &mut node]);
    (status, out)
}

#[test]
fn a_whole_graph_is_computed_with_a_cpu_backend_behind_the_npu() {
    let file = model(Shape::tiny());
    let (tensors, bytes) =
        (Tensors::open(file.path()).unwrap(), std::fs::read(file.path()).unwrap());
    let asked = [("ORK_RPC", "1")];
    assert!(Host::new(Kind::WithCpu, &[]).unwrap().rpc.is_null(), "nobody asked");
    assert!(Host::new(Kind::V3, &asked).unwrap().rpc.is_null(), "no CPU backend to have behind it");
    assert!(log().concat().contains("ORK_RPC"));
    let host = Host::new(Kind::WithCpu, &asked).unwrap();
    assert_eq!(host.kind_and_memory(), (3, 0));
    let host = host.whole();
    // As a GPU it is what an RPC server offers.
    assert_eq!(host.kind_and_memory(), (1, 2 << 30));
    let (mut a, mut out) = (noise(64, 1), vec![0.0; 64]);
    let mut a = numbers([64, 1, 1, 1], &mut a);
    assert!(host.supports(&product(ADD, &mut [&mut a], [64, 1, 1, 1], &mut out)));
    assert!(!host.supports(&product(ROPE, &mut [&mut a], [64, 1, 1, 1], &mut out)));

    let (status, out) = sum_and_product(&host, &tensors, &bytes, "blk.0.attn_q.weight");
    assert_eq!((status, on_cpu()), (0, vec![ADD]), "{:?}", log());
    let (a, b) = (noise(ROWS * 256, 1), noise(ROWS * 256, 2));
    let sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    assert_close(&out, &exact(&tensors, "blk.0.attn_q.weight", 0, &sum));
    assert!(log().concat().contains("1 products of 40 rows"));
    // What is not called a weight may change without a word.
    let (status, out) = sum_and_product(&host, &tensors, &bytes, "cache_k_l0");
    assert_eq!((status, on_cpu()), (0, vec![ADD, MUL_MAT]));
    assert!(out.iter().all(|value| *value == 1.0));
    // Without an NPU all is the CPU's.
    let host = Host::new(Kind::WithCpu, &[("ORK_DEVICE", "/no/such/node"), asked[0]]).unwrap();
    let (status, _) = sum_and_product(&host.whole(), &tensors, &bytes, "blk.0.attn_q.weight");
    assert_eq!((status, on_cpu()), (0, vec![ADD, MUL_MAT]));
}

#[test]
fn what_the_npu_has_no_place_for_is_computed_by_the_cpu_and_said_once() {
    let file = model(Shape::tiny());
    let host = Host::new(Kind::WithCpu, &[]).unwrap();
    let (tensors, map) = (Tensors::open(file.path()).unwrap(), map(file.path()));
    let start = tensors.header().data_start() as usize;
    let buffer = host.wrap(&map[start..]).usage(1);
    let mut q = weight(&tensors, "blk.0.attn_q.weight", &buffer, start);
    let (mut input, mut out) = (noise(ROWS * 256, 1), vec![0.0; ROWS * 256]);
    let ne = [256, ROWS as i64, 1, 1];
    let mut rows = numbers(ne, &mut input);
    let mut node = product(MUL_MAT, &mut [&mut q, &mut rows], ne, &mut out);
    // The file gets shorter under its reader, before a weight was read.
    file.as_file().set_len(start as u64).unwrap();
    let statuses = [0, 1].map(|_| host.compute(vec![&mut node]));
    assert_eq!((statuses, on_cpu()), ([0, 0], vec![MUL_MAT; 2]));
    let lines = log();
    let said = lines.iter().filter(|line| line.contains("is left to the CPU")).count();
    assert_eq!(said, 1, "{lines:?}");
}

#[test]
fn a_changed_byte_of_a_pack_never_reaches_a_result() {
    let file = model(Shape::tiny());
    let folder = tempfile::tempdir().unwrap();
    let pack = folder.path().join("m.orkpack");
    let settings = [("ORK_PERSIST", pack.to_str().unwrap())];
    mapped_pass(&Host::new(Kind::V2, &settings).unwrap(), file.path());
    let opened = ork_weights::pack::Pack::open(&pack).unwrap();
    let name = "blk.0.attn_q.weight";
    let entry = opened.entries().iter().find(|entry| &*entry.name == name).unwrap();
    for range in [entry.blob_range(), entry.scales_range()] {
        let mut bytes = std::fs::read(&pack).unwrap();
        bytes[range.start as usize + 2] ^= 1;
        let damaged = folder.path().join("damaged.orkpack");
        std::fs::write(&damaged, bytes).unwrap();
        let settings = [("ORK_PERSIST", damaged.to_str().unwrap())];
        let host = Host::new(Kind::WithCpu, &settings).unwrap();
        let (tensors, map) = (Tensors::open(file.path()).unwrap(), map(file.path()));
        let start = tensors.header().data_start() as usize;
        let buffer = host.wrap(&map[start..]).usage(1);
        let mut q = weight(&tensors, name, &buffer, start);
        let (mut input, mut out) = (noise(ROWS * 256, 1), vec![0.0; ROWS * 256]);
        let ne = [256, ROWS as i64, 1, 1];
        let mut rows = numbers(ne, &mut input);
        let mut node = product(MUL_MAT, &mut [&mut q, &mut rows], ne, &mut out);
        assert_eq!((host.compute(vec![&mut node]), on_cpu()), (0, vec![MUL_MAT]));
        assert!(out.iter().all(|value| *value == 1.0));
        let lines = log().concat();
        assert!(lines.contains("checksum") && lines.contains(name), "{lines}");
        // The NPU computes with the others.
        let mut output = weight(&tensors, "blk.0.attn_output.weight", &buffer, start);
        let mut node = product(MUL_MAT, &mut [&mut output, &mut rows], ne, &mut out);
        assert_eq!((host.compute(vec![&mut node]), on_cpu()), (0, vec![]));
        let lines = log().concat();
        assert!(!lines.contains("the NPU has failed"), "{lines}");
        assert_close(&out, &exact(&tensors, "blk.0.attn_output.weight", 0, &noise(ROWS * 256, 1)));
    }
}

#[test]
fn other_hosts_are_refused_with_what_is_known() {
    let refused = |kind| Host::new(kind, &[]).err().expect("a refusal");
    let error = refused(Kind::V4);
    assert!(matches!(error, Refusal::Api(4)) && error.to_string().contains("2 and 3"));
    assert!(matches!(refused(Kind::OtherTensors), Refusal::Tensors { got: 376 }));
    let error = refused(Kind::Static).to_string();
    assert!(error.contains("ggml_tensor_overhead") && error.contains("shared"), "{error}");
}

#[test]
fn an_npu_that_cannot_be_used_leaves_all_to_the_cpu_and_says_so_once() {
    let file = model(Shape::tiny());
    let host = Host::new(Kind::V2, &[("ORK_DEVICE", "/no/such/node")]).unwrap();
    let (tensors, map) = (Tensors::open(file.path()).unwrap(), map(file.path()));
    let start = tensors.header().data_start() as usize;
    let (buffer, empty) = (host.wrap(&map[start..]).usage(1), host.empty());
    for owner in [&buffer, &empty] {
        let (mut input, mut out) = (noise(ROWS * 256, 1), vec![0.0; ROWS * 256]);
        let mut q = weight(&tensors, "blk.0.attn_q.weight", &buffer, start);
        q.buffer = owner.0.as_ptr();
        let mut rows = numbers([256, ROWS as i64, 1, 1], &mut input);
        let node = product(MUL_MAT, &mut [&mut q, &mut rows], [256, ROWS as i64, 1, 1], &mut out);
        assert!(!host.supports(&node));
    }
    let lines = log();
    let said = lines.iter().filter(|line| line.contains("the CPU computes all")).count();
    assert_eq!(said, 1, "{lines:?}");
}

#[test]
fn a_pack_is_made_on_the_way_and_loaded_by_the_next_run() {
    let file = model(Shape::tiny());
    let folder = tempfile::tempdir().unwrap();
    let pack = folder.path().join("m.orkpack");
    let settings = [("ORK_PERSIST", pack.to_str().unwrap())];
    let run = |settings: &[(&'static str, &str)]| {
        let outs = mapped_pass(&Host::new(Kind::V2, settings).unwrap(), file.path());
        (outs.iter().map(|out| bits(out)).collect::<Vec<_>>(), log().concat())
    };
    let (wanted, lines) = run(&[]);
    assert!(lines.contains("with ORK_PERSIST=1"), "{lines}");
    let (first, lines) = run(&settings);
    assert!(first == wanted && lines.contains("is complete"), "{lines}");
    let (second, lines) = run(&settings);
    assert!(second == wanted && lines.contains("weights are those of"), "{lines}");

    // A pack of another model is not used, and stays.
    let other = model(Shape { layers: 3, ..Shape::tiny() });
    let before = std::fs::read(&pack).unwrap();
    let host = Host::new(Kind::V2, &settings).unwrap();
    let (tensors, map) = (Tensors::open(other.path()).unwrap(), map(other.path()));
    let start = tensors.header().data_start() as usize;
    let buffer = host.wrap(&map[start..]).usage(1);
    let lines = log().concat();
    assert!(lines.contains("is left to the CPU") && lines.contains("m.orkpack"), "{lines}");
    drop(buffer);
    assert!(std::fs::read(&pack).unwrap() == before);
}
