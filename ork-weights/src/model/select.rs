//! Which tensors are weights of matrix multiplications, and in which order they are used.

use super::error::ModelError;
use super::{Skipped, Weight};
use crate::dequant::TensorType;
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
}

/// Names of embedding tables: a row per token is looked up, nothing is multiplied. The first
/// entries are those an output head may be tied to.
const EMBEDDINGS: [&str; 8] = [
    "token_embd.weight",
    "embed_tokens.weight",
    "wte.weight",
    "per_layer_token_embd.weight",
    "embed_tokens_per_layer.weight",
    "position_embd.weight",
    "token_types.weight",
    "wpe.weight",
];
const TIED: usize = 3;

/// Names of output heads.
const HEADS: [&str; 2] = ["output.weight", "lm_head.weight"];

/// Parts of the names of routers: small, and decisive for which experts run, so they stay as they are.
const ROUTERS: [&str; 4] =
    ["ffn_gate_inp", "mlp.gate.weight", "block_sparse_moe.gate.weight", "mlp.router.weight"];

/// Parts of names in the order in which a layer uses them.
const ROLES: [&[&str]; 8] = [
    &["attn_qkv", "attn_q", "q_proj", "query"],
    &["attn_k", "k_proj", "key"],
    &["attn_v", "v_proj", "value"],
    &["attn_output", "o_proj"],
    &["attn"],
    &["ffn_gate", "gate_proj", "w1.weight"],
    &["ffn_up", "up_proj", "w3.weight"],
    &["ffn_down", "down_proj", "w2.weight"],
];

/// The weights in order of use, and what was not taken.
pub(super) fn select(
    tensors: Vec<Candidate>,
    tied_head: bool,
) -> Result<(Vec<Weight>, Vec<Skipped>), ModelError> {
    let has_head = tensors.iter().any(|tensor| is_one_of(&tensor.name, &HEADS));
    let take_tied = tied_head && !has_head;
    let (mut weights, mut skipped) = (Vec::new(), Vec::new());
    for tensor in tensors {
        match look(&tensor, has_head, take_tied) {
            Err(reason) => skipped.push(Skipped { name: tensor.name, reason }),
            Ok(taken) => add(&mut weights, tensor, taken)?,
        }
    }
    // Sorting is stable: what the table of roles does not tell apart stays in the file's order.
    weights.sort_by_key(|weight| (stage(weight), role(&weight.name)));
    Ok((weights, skipped))
}

/// A tensor that is taken.
struct Taken {
    k: u32,
    n: u32,
    /// Number of matrices, when it is a stack of experts.
    experts: Option<u32>,
    tied: bool,
}

/// The shape of a matmul weight, or why the tensor is none.
fn look(tensor: &Candidate, has_head: bool, take_tied: bool) -> Result<Taken, String> {
    let name = &*tensor.name;
    // Trailing dimensions of 1 mean nothing.
    let rank = tensor.dimensions.iter().rposition(|&d| d != 1).map_or(1, |last| last + 1);
    if rank == 1 {
        return Err("one dimension: a norm or a bias".into());
    }
    let tied = is_one_of(name, &EMBEDDINGS[..TIED]);
    if tied && !take_tied || is_one_of(name, &EMBEDDINGS[TIED..]) {
        return Err(match tied && !has_head {
            true => "an embedding table that is looked up; the output head is tied to it and can \
                     be taken on request"
                .into(),
            false => "an embedding table that is only looked up".into(),
        });
    }
    if ROUTERS.iter().any(|router| name.contains(router)) {
        return Err("a router of experts, kept in full precision".into());
    }
    let experts = match rank {
        2 => None,
        3 if name.contains("_exps.") => Some(tensor.dimensions[2]),
        _ => return Err(format!("{rank} dimensions, and no stack of experts")),
    };
    let shape = || {
        let mut text = String::new();
        for dimension in &tensor.dimensions[..rank] {
            let separator = if text.is_empty() { "" } else { " × " };
            text = format!("{text}{separator}{dimension}");
        }
        text
    };
    let narrow =
        |value: u64| u32::try_from(value).map_err(|_| format!("{} exceeds 32 bits", shape()));
    let (k, n) = (narrow(tensor.dimensions[0])?, narrow(tensor.dimensions[1])?);
    let experts = experts.map(narrow).transpose()?;
    Layout::new(k, n, Precision::Int8).map_err(|error| error.to_string())?;
    Ok(Taken { k, n, experts, tied })
}

fn add(weights: &mut Vec<Weight>, tensor: Candidate, taken: Taken) -> Result<(), ModelError> {
    let kind = tensor
        .kind
        .map_err(|kind| ModelError::UnsupportedType { name: tensor.name.clone(), kind })?;
    let each = tensor.bytes / u64::from(taken.experts.unwrap_or(1)).max(1);
    let layer = layer(&tensor.name);
    let weight = |name, expert: Option<u32>| Weight {
        name,
        k: taken.k,
        n: taken.n,
        kind,
        bytes: each,
        layer,
        expert,
        tied: taken.tied,
        shard: tensor.shard,
        offset: tensor.offset + each * u64::from(expert.unwrap_or(0)),
    };
    match taken.experts {
        None => weights.push(weight(tensor.name.clone(), None)),
        Some(count) => weights.extend((0..count).map(|expert| {
            weight(format!("{}#{expert}", tensor.name).into_boxed_str(), Some(expert))
        })),
    }
    Ok(())
}

/// Whether the last parts of a dotted name are one of `names`.
fn is_one_of(name: &str, names: &[&str]) -> bool {
    names.iter().any(|end| {
        name.strip_suffix(end).is_some_and(|start| start.is_empty() || start.ends_with('.'))
    })
}

/// The layer number in a name: `blk.7.…`, `model.layers.7.…`, `h.7.…`.
fn layer(name: &str) -> Option<u32> {
    let mut parts = name.split('.');
    while let Some(part) = parts.next() {
        if matches!(part, "blk" | "layers" | "h" | "block") {
            return parts.next()?.parse().ok();
        }
    }
    None
}

/// Before the layers, in one, or the output head.
fn stage(weight: &Weight) -> (u8, u32) {
    match weight.layer {
        _ if weight.tied || is_one_of(&weight.name, &HEADS) => (2, 0),
        Some(layer) => (1, layer),
        None => (0, 0),
    }
}

/// Place in [`ROLES`].
fn role(name: &str) -> usize {
    ROLES.iter().position(|role| role.iter().any(|part| name.contains(part))).unwrap_or(ROLES.len())
}
