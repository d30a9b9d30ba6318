//! Which tensors are weights of matrix multiplications.

use super::config::Known;
use super::error::ModelError;
use super::names::EXPERTS_IN_ROWS;
use super::order::{Use, order};
use super::roles::{Input, Place, Role, ends_with};
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
const TIED: [&str; 8] = [
    "token_embd",
    "embed_tokens",
    "wte",
    "tok_embeddings",
    "word_embeddings",
    "shared",
    "embeddings",
    "embed_in",
];

/// Values of a matrix of a stack at least.
const LEAST_OF_STACK: u64 = 256;

/// What the names of all tensors together say.
struct Model {
    known: Known,
    has_head: bool,
    take_tied: bool,
    /// Whether linear layers are kept as GPT-2's are, a row for each input.
    conv1d: bool,
    /// Whether fused experts are.
    fused_by_input: bool,
}

impl Model {
    fn of(tensors: &[Candidate], known: Known, tied_head: bool) -> Model {
        let is_head = |name: &str| Place::of(name, known.scheme).role == Role::Head;
        let has_head = tensors.iter().any(|tensor| is_head(&tensor.name));
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
        Model {
            known,
            has_head,
            take_tied: tied_head && !has_head && !known.headless,
            conv1d,
            fused_by_input,
        }
    }

    /// Whether a tensor has a row for each input instead of each output. Where the architecture does not
    /// say, the shapes of all do.
    fn is_by_input(&self, name: &str) -> bool {
        let as_shapes_say = match self.known.scheme {
            Some(scheme) => ends_with(name, scheme.by_input),
            None => self.conv1d && ends_with(name, &["c_attn", "c_proj", "c_fc"]),
        };
        as_shapes_say
            || self.fused_by_input
                && ends_with(name, &["experts.gate_up_proj", "experts.down_proj"])
    }

    /// Takes experts apart that are rows of one matrix.
    fn apart(&self, tensor: &mut Candidate) {
        if let (Some(experts), [k, rows]) = (self.known.experts, &tensor.dimensions[..])
            && experts > 0
            && rows.is_multiple_of(experts.into())
            && ends_with(&tensor.name, &EXPERTS_IN_ROWS)
        {
            tensor.dimensions = vec![*k, rows / u64::from(experts), experts.into()];
        }
    }
}

/// The weights in order of use, and what was not taken.
pub(super) fn select(
    tensors: Vec<Candidate>,
    known: Known,
    options: &OpenOptions,
) -> Result<(Vec<Weight>, Vec<Skipped>), ModelError> {
    let model = Model::of(&tensors, known, options.tied_head);
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
    for mut tensor in tensors {
        if let Some(reason) = tensor.side {
            skipped.push(Skipped { name: tensor.name, role: Role::Other, reason });
            continue;
        }
        model.apart(&mut tensor);
        let name = tensor.name.clone();
        let mut place = Place::of(&name, known.scheme);
        if place.role == Role::Linear && tensor.shape().len() > 3 {
            place.role = Role::Convolution; // of one point, called like a matrix
        }
        let role = place.role;
        let looked = match any(&options.exclude, &tensor.name) {
            true => Err("left out on request".into()),
            false => look(&tensor, &place, &model, any(&options.include, &tensor.name)),
        };
        match looked {
            Err(reason) => skipped.push(Skipped { name, role, reason }),
            Ok(taken) => {
                let at = order(&name, &place, taken.role, known);
                match add(&mut weights, tensor, taken, &at) {
                    Err(unreadable) if options.list => {
                        skipped.push(Skipped { name, role, reason: unreadable.to_string() });
                    }
                    added => added?,
                }
            }
        }
    }
    // Sorting is stable: what the names do not tell apart stays in the file's order.
    weights.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok((weights.into_iter().map(|(_, weight)| weight).collect(), skipped))
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
    let mut tied = false;
    match place.role {
        _ if included && shape.len() > 1 => {}
        Role::Linear | Role::Expert | Role::Head | Role::Unknown if shape.len() == 1 => {
            return Err("one dimension: a norm or a bias".into());
        }
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
        [_, _, experts] if place.role == Role::Expert => Some(narrow(experts)?),
        [_, _, heads] if is_by_head(&tensor.name) || is_altup(&tensor.name) => Some(narrow(heads)?),
        [_, _] if place.role == Role::Expert && ends_with(&tensor.name, &EXPERTS_IN_ROWS) => {
            return Err("all experts in one matrix, and config.json does not say how many".into());
        }
        [_, _] => None,
        _ => return Err(format!("{} dimensions, and no stack of experts or heads", shape.len())),
    };
    // Stacks of crumbs would be more weights than bytes.
    if stack.is_some() && shape[0].saturating_mul(shape[1]) < LEAST_OF_STACK {
        return Err(format!("a stack of matrices of fewer than {LEAST_OF_STACK} values"));
    }
    let by_input = model.is_by_input(&tensor.name);
    let across = |what: &str| Err(format!("it has a row for each input, and {what} across them"));
    match &tensor.kind {
        Ok(kind) if by_input && kind.block_elements() != 1 => return across("blocks"),
        Ok(_) if by_input && tensor.scaling.is_some() => return across("scales"),
        _ => {}
    }
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

/// Whether a tensor is a stack of matrices, one for each further state of a hidden state that is altered.
fn is_altup(name: &str) -> bool {
    ends_with(name, &["altup_proj", "altup_unembd_proj"])
}

fn add(
    weights: &mut Vec<(Use, Weight)>,
    tensor: Candidate,
    taken: Taken,
    at: &Use,
) -> Result<(), ModelError> {
    let kind = tensor
        .kind
        .map_err(|kind| ModelError::UnsupportedType { name: tensor.name.clone(), kind })?;
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
    // Other stacks are used whole.
    let taken_at = |expert| match taken.role {
        Role::Expert => at.of_stack(expert),
        _ => at.clone(),
    };
    match taken.stack {
        None => weights.push((at.clone(), weight(tensor.name.clone(), None))),
        Some(count) => weights.extend((0..count).map(|expert| {
            let name = format!("{}#{expert}", tensor.name).into_boxed_str();
            (taken_at(expert), weight(name, Some(expert)))
        })),
    }
    Ok(())
}
