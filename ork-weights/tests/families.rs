//! Models of many families, small: which tensors are packed, as what, with which K and N, in which
//! order of use, and which share an input. `families/` has a file for each: where its names and
//! dimensions are from, what it says of its architecture, and its tensors. Sizes are made up.

mod common;

use common::files::{Tensor, gguf, safetensors};
use ork_weights::model::{Model, OpenOptions, Role};
use ork_weights::quantise::{Recipe, Tier};
use std::fs;
use std::path::{Path, PathBuf};

/// A line is a tensor: `+` packed or `-` not, its role, its name, and its dimensions as the file has
/// them, in GGUF K first, in safetensors last. Packed ones stand in their order of use, with K, N and the
/// input that they share behind `=`; of a stack each matrix.
struct Family {
    name: String,
    source: String,
    /// `architecture` of a GGUF, or the text of a config.json.
    says: String,
    lines: Vec<Line>,
}

struct Line {
    packed: Option<(u32, u32, Option<String>)>,
    role: String,
    name: String,
    dimensions: Vec<u64>,
}

fn line(text: &str) -> Line {
    let (tensor, packed) = text.split_once('=').unwrap_or((text, ""));
    let mut words = tensor.split_whitespace();
    let sign = words.next().unwrap();
    let (role, name) = (words.next().unwrap().into(), words.next().unwrap().into());
    let dimensions = words.map(|word| word.parse().unwrap()).collect();
    let mut words = packed.split_whitespace();
    let packed = (sign == "+").then(|| {
        let mut number = || words.next().unwrap().parse().unwrap();
        (number(), number(), words.next().map(Into::into))
    });
    Line { packed, role, name, dimensions }
}

fn families() -> Vec<Family> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/families");
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let family = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        let (source, says) = (lines.next().unwrap(), lines.next().unwrap());
        Family {
            name: path.file_stem().unwrap().to_str().unwrap().into(),
            source: source.strip_prefix("# ").unwrap().into(),
            says: says.split_once(' ').unwrap().1.into(),
            lines: lines.map(line).collect(),
        }
    };
    files.iter().map(family).collect()
}

impl Family {
    fn is_hub(&self) -> bool {
        self.name.ends_with(".hub")
    }

    /// The file or folder, its tensors by name.
    fn write(&self, folder: &Path) -> PathBuf {
        let mut tensors: Vec<Tensor<'_>> =
            self.lines.iter().map(|line| (&*line.name, &*line.dimensions)).collect();
        tensors.sort();
        if self.is_hub() {
            fs::write(folder.join("model.safetensors"), safetensors(&tensors)).unwrap();
            fs::write(folder.join("config.json"), &self.says).unwrap();
            return folder.to_owned(); // as it is downloaded
        }
        let path = folder.join("model.gguf");
        fs::write(&path, gguf(&self.says, &tensors)).unwrap();
        path
    }
}

/// Roles that have two words, by the first.
fn name(role: Role) -> &'static str {
    role.name().split(' ').next().unwrap()
}

#[test]
fn every_family_is_packed_as_it_is_used() {
    for family in families() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::open(family.write(folder.path()), &OpenOptions::default())
            .unwrap_or_else(|error| panic!("{}: {error}", family.name));
        let mut expected = Vec::new();
        for line in &family.lines {
            let Some((k, n, input)) = &line.packed else { continue };
            let mut one = |name| expected.push((name, line.role.clone(), *k, *n, input.clone()));
            let stack =
                if family.is_hub() { line.dimensions.first() } else { line.dimensions.last() };
            match (line.dimensions.len(), stack) {
                (3, Some(stack)) => (0..*stack).for_each(|e| one(format!("{}#{e}", line.name))),
                _ if line.dimensions.iter().product::<u64>() > u64::from(k * n) => {
                    let stack = line.dimensions[0] * line.dimensions[1] / u64::from(k * n);
                    (0..stack).for_each(|e| one(format!("{}#{e}", line.name)));
                }
                _ => one(line.name.clone()),
            }
        }
        let found: Vec<_> = model
            .weights()
            .iter()
            .map(|w| {
                let input = w.input.map(|input| input.name().to_owned());
                (w.name.to_string(), name(w.role).to_owned(), w.k, w.n, input)
            })
            .collect();
        assert_eq!(found, expected, "{}", family.name);
        for line in family.lines.iter().filter(|line| line.packed.is_none()) {
            let skipped = model.skipped().iter().find(|skipped| *skipped.name == *line.name);
            let skipped = skipped.unwrap_or_else(|| panic!("{}: {}", family.name, line.name));
            assert_eq!(name(skipped.role), line.role, "{}: {}", family.name, line.name);
            assert!(!skipped.reason.is_empty());
        }
    }
}

#[test]
fn every_family_that_is_promised_is_there_with_its_source() {
    let families = families();
    for family in &families {
        assert!(
            family.source.contains("PyPI") || family.source.contains("GitHub"),
            "{}",
            family.name
        );
        assert!(family.lines.iter().any(|line| line.packed.is_some()), "{}", family.name);
        // Nothing is taken for its shape alone.
        assert!(family.lines.iter().all(|line| line.role != "unknown"), "{}", family.name);
    }
    let there = |name: String| families.iter().any(|family| family.name == name);
    let both = "llama-3 llama-4 qwen2 qwen2.5-vl qwen3 qwen3-moe qwen3-next gemma-2 gemma-3 gemma-3n phi-3 \
                mistral mixtral deepseek-v2 deepseek-v3 glm-4 chatglm internlm2 falcon gpt-2 gpt-neox bert t5 \
                mamba mamba-2 jamba falcon-h1 granite-hybrid gpt-oss olmoe";
    for name in both.split_whitespace() {
        assert!(there(format!("{name}.gguf")) && there(format!("{name}.hub")), "{name}");
    }
    for name in ["llama-2.hub", "whisper.hub", "mixtral-split.gguf"] {
        assert!(there(name.into()), "{name}");
    }
}

/// Values of `name` in the only file of `folder`, as they lie there.
fn values(folder: &Path, name: &str) -> Vec<u8> {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let (header, tensors) = safetensors_header(&bytes);
    let range = &tensors[name]["data_offsets"];
    let at = |i: usize| range[i].as_u64().unwrap() as usize;
    bytes[header + at(0)..header + at(1)].to_vec()
}

fn safetensors_header(bytes: &[u8]) -> (usize, serde_json::Value) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (8 + length, serde_json::from_slice(&bytes[8..8 + length]).unwrap())
}

/// Matrices that have a row for each input come out turned: the whole, and some channels alone.
#[test]
fn a_row_for_each_input_is_turned() {
    let turned = [
        ("gpt-2.hub", "transformer.h.0.mlp.c_fc.weight", 0),
        ("gpt-2.hub", "transformer.h.0.attn.c_proj.weight", 0), // a square, which shapes do not tell
        ("gemma-3.hub", "multi_modal_projector.mm_input_projection_weight", 0),
        ("gpt-oss.hub", "model.layers.0.mlp.experts.down_proj#1", 1),
        ("llama-4.hub", "language_model.model.layers.1.feed_forward.experts.gate_up_proj#1", 1),
        ("dbrx.hub", "transformer.blocks.0.ffn.experts.mlp.w2#1", 1),
    ];
    let families = families();
    for (family, name, index) in turned {
        let family = families.iter().find(|there| there.name == family).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let model = Model::open(family.write(folder.path()), &OpenOptions::default()).unwrap();
        let weight = model.weight(name).unwrap();
        let (k, n) = (weight.k as usize, weight.n as usize);
        let layout = Tier::Fp16.layout(weight.k, weight.n).unwrap();
        let mut tiles = vec![0; layout.bytes() as usize];
        model.quantise(weight, &Tier::Fp16, &mut tiles, &mut []).unwrap();
        let mut rows = vec![0; 2 * k * n];
        ork_weights::tile::untile(&layout, &tiles, &mut rows).unwrap();
        let data = values(folder.path(), name.split('#').next().unwrap());
        let data = &data[2 * k * n * index..];
        for input in 0..k {
            for output in 0..n {
                let (ours, theirs) = (2 * (output * k + input), 2 * (input * n + output));
                assert_eq!(
                    rows[ours..ours + 2],
                    data[theirs..theirs + 2],
                    "{name} {input} {output}"
                );
            }
        }
        let part = Tier::Fp16.layout(weight.k, 32).unwrap();
        let mut alone = vec![0; part.bytes() as usize];
        let recipe = Recipe::new(Tier::Fp16);
        model.quantise_channels(weight, 32..64, &recipe, &mut alone, &mut []).unwrap();
        let mut some = vec![0; 2 * k * 32];
        ork_weights::tile::untile(&part, &alone, &mut some).unwrap();
        assert_eq!(some, rows[2 * k * 32..2 * k * 64], "{name}");
    }
}

/// Without a config.json names and shapes decide, for architectures that need none.
#[test]
fn an_architecture_that_is_not_known_is_decided_by_names_and_shapes() {
    let family = families().into_iter().find(|family| family.name == "gpt-2.hub").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = family.write(folder.path());
    fs::write(folder.path().join("config.json"), r#"{"model_type": "a_new_one"}"#).unwrap();
    let model = Model::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(model.architecture(), Some("a_new_one"));
    let wide = model.weight("transformer.h.0.mlp.c_fc.weight").unwrap();
    assert_eq!((wide.k, wide.n), (64, 256));
    fs::remove_file(folder.path().join("config.json")).unwrap();
    let model = Model::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!((model.architecture(), model.weights()[0].n), (None, 192));
}
