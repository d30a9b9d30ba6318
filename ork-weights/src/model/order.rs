//! In which order a pass uses a model's weights.

use super::config::Known;
use super::names::BEHIND;
use super::roles::{Place, Role};

/// Parts of the names of towers that a pass goes through before the language model.
const ENCODERS: [&str; 8] = ["vis", "aud", "enc", "vit", "vpm", "siglip", "conformer", "wav2vec"];

/// A place in a pass, which compares as places follow each other: encoders, what leads from them, other
/// towers, what comes behind, the head; within a tower what comes before its blocks, block by block, and
/// in a block step by step, experts one after the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Use {
    stage: Stage,
    tower: Box<str>,
    /// Blocks from 1 on, so that something is before the first.
    block: u64,
    step: u8,
    expert: u32,
}

impl Use {
    /// That of a matrix of a stack.
    pub(super) fn of_stack(&self, expert: u32) -> Use {
        Use { expert, ..self.clone() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    BeforeEncoders,
    Encoders,
    BehindEncoders,
    Between,
    Towers,
    Behind,
    Head,
}

/// Where a weight of this name is used.
pub(super) fn order(name: &str, place: &Place<'_>, role: Role, known: Known) -> Use {
    let decoder = known.scheme.and_then(|scheme| scheme.decoder);
    let is_decoder = decoder.is_some_and(|decoder| name.starts_with(decoder));
    let in_encoder = |path: &str| {
        let encoder = |part: &str| {
            matches!(part, "v" | "a") || ENCODERS.iter().any(|start| part.starts_with(start))
        };
        !is_decoder && !path.starts_with("mm.") && path.split('.').any(encoder)
    };
    // A matrix's own name says nothing of a tower.
    let own = name.strip_suffix(".weight").unwrap_or(name);
    let path = own.rsplit_once('.').map_or("", |(path, _)| path);
    let stage = match place.block {
        _ if role == Role::Head => Stage::Head,
        None if place.step == BEHIND => Stage::Behind,
        None if in_encoder(path) && place.step == 0 => Stage::BeforeEncoders,
        None if in_encoder(path) => Stage::BehindEncoders,
        None => Stage::Between,
        Some(_) if in_encoder(place.tower) => Stage::Encoders,
        Some(_) => Stage::Towers,
    };
    Use {
        stage,
        tower: place.tower.into(),
        block: place.block.map_or(0, |block| u64::from(block) + 1),
        step: place.step,
        expert: place.expert.unwrap_or(0),
    }
}
