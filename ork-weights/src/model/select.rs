//! Which tensors are weights of matrix multiplications, and in which order they are used.

use super::error::ModelError;
use super::roles::{BEHIND, Input, Place, Role};
use super::scaled::Scaling;
use super::{OpenOptions, Skipped, Weight};
use crate::dequant::TensorType;
use crate::pattern::{any, nearest};
use rknpu_sys::layout::{Layout, Precision};

/// A tensor of any source.
pub(super) struct Candidate {
    pub(super) name: Box<str>,
    /// The contiguous dimension first.
    pub(super) dimensions: Vec<u64>,
    pub(super) kind: Result<TensorType, String>,
    pub(super) shard: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Where the scales of its codes are, if they are another tensor's.
    pub(super) scaling: Option<Scaling>,
    /// What it serves, where it is only that: scales of another tensor.
    pub(super) side: Option<String>,
}

impl Candidate {
    /// Dimensions without trailing ones, which mean nothing.
    fn shape(&self) -> &[u64] {
        let rank = self.dimensions.iter().rposition(|&d| d != 1).map_or(1, |last| last + 1);
        self.dimensions.get(..rank).unwrap_or_default()
    }
}

/// Tables that an output head may be tied to.
const TIED: [&str; 6] =
    ["token_embd", "embed_tokens", "wte", "tok_embeddings", "word_embeddings", "shared"];

/// Values of a matrix of a stack at least.
const LEAST_OF_STACK: u64 = 256;

/// What the names of all tensors together say.
struct Model {
    has_head: bool,
    take_tied: bool,
    /// Whether linear layers are kept as GPT-2's are, a row for each input.
    conv1d: bool,
    /// Whether fused experts are.
    fused_by_input: bool,
}

impl Model {
    fn of(tensors: &[Candidate], tied_head: bool) -> Model {
        let has_head = tensors.iter().any(|tensor| Role::of(&tensor.name) == Role::Head);
        let find = |end: &str| tensors.iter().find(|tensor| tensor.name.ends_with(end));
        let conv1d = find("attn.c_attn.weight")
            .is_some_and(|tensor| matches!(tensor.shape(), [wide, narrow] if wide > narrow));
        // Both matrices of an expert together tell which way they lie.
        let fused_by_input = match (find("experts.gate_up_proj"), find("experts.down_proj")) {
            (Some(up), Some(down)) => match (up.shape(), down.shape()) {
                ([up0, up1, _], [down0, down1, _]) => *up0 == 2 * down1 && up1 == down0,
                _ => false,
            },
            _ => false,
        };
        Model { has_head, take_tied: tied_head && !has_head, conv1d, fused_by_input }
    }

    /// Whether a tensor has a row for each input instead of each output.
    fn is_by_input(&self, name: &str) -> bool {
        let ends = |end: &str| name.ends_with(end);
        self.conv1d && [".c_attn.weight", ".c_proj.weight", ".c_fc.weight"].into_iter().any(ends)
            || self.fused_by_input
                && ["experts.gate_up_proj", "experts.down_proj"].into_iter().any(ends)
    }
}

/// The weights in order of use, and what was not taken.
pub(super) fn select(
    tensors: Vec<Candidate>,
    options: &OpenOptions,
) -> Result<(Vec<Weight>, Vec<Skipped>), ModelError> {
    let model = Model::of(&tensors, options.tied_head);
    for pattern in options.include.iter().chain(&options.exclude) {
        let names = || tensors.iter().map(|tensor| &*tensor.name);
        if !names().any(|name| any(std::slice::from_ref(pattern), name)) {
            let nearest = nearest(pattern, names()).join(", ");
            let nearest =
                if nearest.is_empty() { nearest } else { format!("; like it are {nearest}") };
            return Err(ModelError::Pattern { pattern: pattern.as_str().into(), nearest });
        }
    }
    let (mut weights, mut skipped) = (Vec::new(), Vec::new());
    for tensor in tensors {
        if let Some(reason) = tensor.side {
            skipped.push(Skipped { name: tensor.name, role: Role::Other, reason });
            continue;
        }
        let place = Place::of(&tensor.name);
        let role = place.role;
        let looked = match any(&options.exclude, &tensor.name) {
            true => Err("left out on request".into()),
            false => look(&tensor, &place, &model, any(&options.include, &tensor.name)),
        };
        match looked {
            Err(reason) => skipped.push(Skipped { name: tensor.name, role, reason }),
            Ok(taken) => {
                let name = tensor.name.clone();
                match add(&mut weights, tensor, taken) {
                    Err(unreadable) if options.list => {
                        skipped.push(Skipped { name, role, reason: unreadable.to_string() });
                    }
                    added => added?,
                }
            }
        }
    }
    // Sorting is stable: what the names do not tell apart stays in the file's order.
    weights.sort_by_cached_key(order);
    Ok((weights, skipped))
}

/// A tensor that is taken.
struct Taken {
    role: Role,
    k: u32,
    n: u32,
    layer: Option<u32>,
    input: Option<Input>,
    /// Which expert it is, where each is a tensor of its own.
    expert: Option<u32>,
    /// Number of matrices, when it is a stack of experts.
    stack: Option<u32>,
    tied: bool,
    by_input: bool,
}

/// The shape of a matmul weight, or why the tensor is none.
///
/// An `included` one is taken whatever its name says.
fn look(
    tensor: &Candidate,
    place: &Place<'_>,
    model: &Model,
    included: bool,
) -> Result<Taken, String> {
    let shape = tensor.shape();
    if shape.len() == 1 {
        return Err("one dimension: a norm or a bias".into());
    }
    let mut tied = false;
    match place.role {
        _ if included => {}
        Role::Linear | Role::Expert | Role::Head => {}
        Role::Unknown => {
            if let Err(kind) = &tensor.kind {
                return Err(format!("its name is not known, and its type {kind} is no weight's"));
            }
        }
        Role::Embedding => {
            let last = tensor.name.trim_end_matches(".weight").rsplit('.').next();
            let may = place.block.is_none() && last.is_some_and(|last| TIED.contains(&last));
            tied = may && model.take_tied;
            if !tied {
                return Err(match may && !model.has_head {
                    true => {
                        "an embedding table that is looked up; the output head that is tied to it \
                             was not asked for"
                            .into()
                    }
                    false => "an embedding table that is only looked up".into(),
                });
            }
        }
        Role::Router => return Err("a router of experts, kept in full precision".into()),
        Role::Norm => return Err("a norm".into()),
        Role::Bias => return Err("a bias, or a mask: it is added".into()),
        Role::Position => {
            return Err("positions: looked up or computed with, not multiplied".into());
        }
        Role::Convolution => return Err("of a convolution".into()),
        Role::Other => return Err("no matrix of a multiplication".into()),
    }
    let narrow = |value: u64| {
        let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
        u32::try_from(value).map_err(|_| format!("{} exceeds 32 bits", shape.join(" × ")))
    };
    let stack = match *shape {
        [_, _] => None,
        [_, _, experts] if place.role == Role::Expert => Some(narrow(experts)?),
        [_, _, heads] if is_by_head(&tensor.name) => Some(narrow(heads)?),
        _ => return Err(format!("{} dimensions, and no stack of experts or heads", shape.len())),
    };
    // Stacks of crumbs would be more weights than bytes.
    if stack.is_some() && shape[0].saturating_mul(shape[1]) < LEAST_OF_STACK {
        return Err(format!("a stack of matrices of fewer than {LEAST_OF_STACK} values"));
    }
    let by_input = model.is_by_input(&tensor.name);
    let (k, n) = match by_input {
        false => (narrow(shape[0])?, narrow(shape[1])?),
        true => (narrow(shape[1])?, narrow(shape[0])?),
    };
    // A shape is all that tells of what no name is known of.
    let layout = if place.role == Role::Unknown { Layout::new } else { Layout::padded };
    layout(k, n, Precision::Int8).map_err(|error| error.to_string())?;
    let role = match place.role {
        _ if tied => Role::Head,
        role @ (Role::Linear | Role::Expert | Role::Head | Role::Unknown) => role,
        _ => Role::Linear, // included
    };
    let (layer, expert) = (place.block, place.expert);
    // Each head has rows of its own.
    let input = if is_by_head(&tensor.name) { None } else { place.input() };
    Ok(Taken { role, k, n, layer, input, expert, stack, tied, by_input })
}

/// Whether a tensor is a stack of matrices, one for each head of latent attention.
fn is_by_head(name: &str) -> bool {
    ["attn_k_b.weight", "attn_v_b.weight"].into_iter().any(|end| name.ends_with(end))
}

fn add(weights: &mut Vec<Weight>, tensor: Candidate, taken: Taken) -> Result<(), ModelError> {
    let kind = tensor
        .kind
        .map_err(|kind| ModelError::UnsupportedType { name: tensor.name.clone(), kind })?;
    if taken.by_input && kind.block_elements() != 1 {
        return Err(ModelError::UnsupportedType {
            name: tensor.name,
            kind: format!("{}, in blocks across the outputs", kind.name()),
        });
    }
    if taken.by_input && tensor.scaling.is_some() {
        let kind = format!("{}, with scales across the outputs", kind.name());
        return Err(ModelError::UnsupportedType { name: tensor.name, kind });
    }
    let each = tensor.bytes / u64::from(taken.stack.unwrap_or(1)).max(1);
    let weight = |name, of_stack: Option<u32>| Weight {
        name,
        k: taken.k,
        n: taken.n,
        kind,
        bytes: each,
        role: taken.role,
        layer: taken.layer,
        input: taken.input,
        expert: of_stack.filter(|_| taken.role == Role::Expert).or(taken.expert),
        tied: taken.tied,
        by_input: taken.by_input,
        scaling: tensor.scaling.map(|scaling| scaling.of_stack(of_stack.unwrap_or(0), taken.n)),
        shard: tensor.shard,
        offset: tensor.offset + each * u64::from(of_stack.unwrap_or(0)),
    };
    match taken.stack {
        None => weights.push(weight(tensor.name.clone(), None)),
        Some(count) => weights.extend((0..count).map(|expert| {
            weight(format!("{}#{expert}", tensor.name).into_boxed_str(), Some(expert))
        })),
    }
    Ok(())
}

/// Parts of the names of towers that a pass goes through before the language model.
const ENCODERS: [&str; 7] = ["vis", "aud", "enc", "vit", "vpm", "siglip", "conformer"];

/// Where in a pass a weight is used: encoders, what leads from them, other towers, what comes behind,
/// the head; within a tower block by block, and in a block step by step, experts one after the other.
fn order(weight: &Weight) -> (u8, Box<str>, u32, u8, u32) {
    let place = Place::of(weight.name.split('#').next().unwrap_or_default());
    let encoder =
        |part: &str| part == "v" || part == "a" || ENCODERS.iter().any(|e| part.starts_with(e));
    let stage = match place.block {
        _ if weight.role == Role::Head => 5,
        None if place.step == BEHIND => 4,
        None => 2,
        Some(_) if place.tower.split('.').any(encoder) => 1,
        Some(_) => 3,
    };
    let expert = weight.expert.unwrap_or(0);
    (stage, place.tower.into(), place.block.unwrap_or(0), place.step, expert)
}
