//! What a tensor is for, which its name tells.

use super::names::{BIASES, ROWS, Scheme};

/// What a tensor is for.
///
/// ```
/// use ork_weights::model::Role;
///
/// assert_eq!(Role::of("blk.0.attn_q.weight"), Role::Linear);
/// assert_eq!(Role::of("model.layers.0.mlp.gate.weight"), Role::Router);
/// assert_eq!(Role::of("blk.0.ffn_gate_exps.bias"), Role::Bias);
/// assert_eq!(Role::of("something.else.weight"), Role::Unknown);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Role {
    /// A matrix of a multiplication.
    Linear,
    /// A matrix of an expert, or a stack of them.
    Expert,
    /// The output head: hidden state to scores of tokens.
    Head,
    /// A table that is looked up.
    Embedding,
    /// Chooses experts; stays in full precision.
    Router,
    /// Weights of a normalisation.
    Norm,
    /// Is added.
    Bias,
    /// Positions, rotary frequencies, relative positions.
    Position,
    /// Of a convolution.
    Convolution,
    /// Scales, states, masks and other things that no matrix multiplication uses.
    Other,
    /// The name is not known.
    Unknown,
}

impl Role {
    /// The role that a name tells.
    ///
    /// ```
    /// use ork_weights::model::Role;
    ///
    /// assert_eq!(Role::of("transformer.h.3.mlp.c_fc.weight"), Role::Linear);
    /// ```
    pub fn of(name: &str) -> Role {
        Place::of(name, None).role
    }

    /// The role for people.
    ///
    /// ```
    /// use ork_weights::model::Role;
    ///
    /// assert_eq!(Role::Head.name(), "output head");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Role::Linear => "linear",
            Role::Expert => "expert",
            Role::Head => "output head",
            Role::Embedding => "embedding",
            Role::Router => "router",
            Role::Norm => "norm",
            Role::Bias => "bias",
            Role::Position => "position",
            Role::Convolution => "convolution",
            Role::Other => "other",
            Role::Unknown => "unknown",
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Which of its block's activations a weight multiplies, where others of the block multiply the same.
///
/// ```
/// # use ork_weights::model::{Input, Model, OpenOptions};
/// # let file = ork_weights::doc::model()?;
/// let model = Model::open(file.path(), &OpenOptions::default())?;
/// let input = |name: &str| model.weight(name).and_then(|weight| weight.input);
/// assert_eq!(input("blk.0.attn_q.weight"), Some(Input::Attention));
/// assert_eq!(input("blk.0.attn_v.weight"), Some(Input::Attention)); // one product list with q
/// assert_eq!(input("blk.0.ffn_gate.weight"), Some(Input::FeedForward));
/// assert_eq!(input("blk.0.ffn_down.weight"), None); // alone
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Input {
    /// What attention, or what stands in its place, begins with: q, k, v and gates.
    Attention,
    /// What an encoder gave: k and v of attention to it.
    Encoder,
    /// What feed-forward layers begin with: gate and up, those of experts included.
    FeedForward,
}

impl Input {
    /// The input for people.
    ///
    /// ```
    /// assert_eq!(ork_weights::model::Input::FeedForward.name(), "feed-forward");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Input::Attention => "attention",
            Input::Encoder => "encoder",
            Input::FeedForward => "feed-forward",
        }
    }
}

/// What a name says of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place<'a> {
    pub(super) role: Role,
    /// The name in front of the block's number; empty where there is none.
    pub(super) tower: &'a str,
    pub(super) block: Option<u32>,
    /// Which expert, where each is a tensor of its own.
    pub(super) expert: Option<u32>,
    /// Place in a forward pass through its block.
    pub(super) step: u8,
}

impl<'a> Place<'a> {
    /// Which input it shares: the steps of the table say.
    pub(super) fn input(&self) -> Option<Input> {
        match (self.block?, self.step) {
            (_, 10 | 12 | 13 | 15..=18) => Some(Input::Attention),
            (_, 31 | 32) => Some(Input::Encoder),
            (_, 40 | 41 | 50 | 51 | 55 | 56) => Some(Input::FeedForward),
            _ => None,
        }
    }

    /// By the rows of its architecture, if that is known for some, and those for all.
    pub(super) fn of(name: &'a str, scheme: Option<&Scheme>) -> Place<'a> {
        let (tower, block, rest) = split(name);
        let rest = rest.strip_suffix(".weight").unwrap_or(rest);
        let parts: Vec<&str> = rest.split('.').collect();
        let own = scheme.map_or(&[][..], |scheme| scheme.rows);
        let row = own.iter().chain(ROWS).find(|row| {
            (block.is_none() || row.role != Role::Head)
                && row.ends.iter().any(|end| fits(end, &parts))
        });
        let (mut role, step) = match row {
            Some(row) => (row.role, row.step),
            None if BIASES.iter().any(|end| rest.ends_with(end)) => (Role::Bias, 0),
            None => (Role::Unknown, 99),
        };
        let expert = expert(&parts);
        if role == Role::Linear && (expert.is_some() || parts.contains(&"experts")) {
            role = Role::Expert;
        }
        Place { role, tower, block, expert, step }
    }
}

/// Tower, block and the rest: `model.layers.7.mlp.up_proj` is block 7 of `model.layers`. A number with
/// nothing behind it but the kind of parameter is no block's: `mm.0.weight`.
fn split(name: &str) -> (&str, Option<u32>, &str) {
    let mut at = 0;
    for part in name.split('.') {
        let rest = name.get(at + part.len() + 1..).unwrap_or("");
        if at > 0
            && let Ok(block) = part.parse()
            && !matches!(rest, "weight" | "bias" | "")
        {
            return (&name[..at - 1], Some(block), rest);
        }
        at += part.len() + 1;
    }
    ("", None, name)
}

/// The number behind `experts`, or behind a matrix's own name as old conversions of Mixtral have it.
fn expert(parts: &[&str]) -> Option<u32> {
    parts.windows(2).find_map(|pair| match pair {
        ["experts" | "ffn_gate" | "ffn_up" | "ffn_down", number] => number.parse().ok(),
        _ => None,
    })
}

/// Whether one of `ends` is the end of a name.
pub(super) fn ends_with(name: &str, ends: &[&str]) -> bool {
    let parts: Vec<&str> = name.strip_suffix(".weight").unwrap_or(name).split('.').collect();
    ends.iter().any(|end| fits(end, &parts))
}

/// Whether `pattern` is the end of a name.
fn fits(pattern: &str, parts: &[&str]) -> bool {
    let mut parts = parts.iter().rev();
    pattern.rsplit('.').all(|pattern| match parts.next() {
        Some(part) if pattern == "N" => part.bytes().all(|byte| byte.is_ascii_digit()),
        Some(part) => crate::pattern::matches(pattern, part),
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let place = Place::of("model.layers.7.block_sparse_moe.experts.3.w2.weight", None);
        let (tower, block, expert) = ("model.layers", Some(7), Some(3));
        assert_eq!(place, Place { role: Role::Expert, tower, block, expert, step: 42 });
        let place = Place::of("blk.1.ffn_gate.5.weight", None);
        assert_eq!((place.role, place.block, place.expert), (Role::Expert, Some(1), Some(5)));
        let place = Place::of("decoder.block.2.layer.1.EncDecAttention.k.weight", None);
        assert_eq!((place.role, place.tower, place.step), (Role::Linear, "decoder.block", 31));
        for name in ["", ".", "7", "..weight", "blk.", "blk.4294967296.x", "a.0.weight", ".weight"]
        {
            let _ = Place::of(name, None); // whatever it is, no panic
        }
    }

    #[test]
    fn a_head_has_no_block() {
        assert_eq!(Role::of("output.weight"), Role::Head);
        assert_eq!(Role::of("lm_head.weight"), Role::Head);
        assert_ne!(Role::of("blk.0.output.weight"), Role::Head);
    }
}
