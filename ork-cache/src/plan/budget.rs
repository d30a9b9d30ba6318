//! The one rule for budgets: how many rows a block has, and what the smallest budget is.

use rknpu_sys::layout::PAGE;

use super::{Board, Item};

/// Scratch takes at most this part of a budget, unless nothing else works.
const SCRATCH_SHARE: u64 = 4;

/// Bytes of weights that are planned at most; sums and products of plans stay far from 2^64.
const MOST_BYTES: u64 = 1 << 52;

/// Why there is no plan.
///
/// ```
/// use ork_cache::plan::{Board, Plan, PlanError};
///
/// # let items = ork_cache::doc::items();
/// let error = Plan::new("16 MiB", &items, &Board::single_domain(1 << 16)).unwrap_err();
/// let PlanError::Budget { smallest, .. } = error else { panic!("{error}") };
/// assert!(Plan::new("16 MiB", &items, &Board::single_domain(smallest)).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No weights.
    #[error("there is no weight to plan")]
    Empty,
    /// More bytes than any machine has.
    #[error("the weights take more than {MOST_BYTES} bytes")]
    TooLarge,
    /// The budget does not hold the smallest set of slots beside the scratch.
    #[error(
        "a budget of {budget} bytes is too small: the smallest that works is {smallest} bytes, {scratch} of them for register commands, activations and results"
    )]
    Budget {
        /// The budget.
        budget: u64,
        /// The smallest that works.
        smallest: u64,
        /// Bytes of scratch in the smallest.
        scratch: u64,
    },
    /// As `Budget`, and no budget helps: it is the board's memory that is short.
    #[error(
        "a board with {ram} bytes of memory, {reserve} of them for the system, is too small: weights and scratch need {need} bytes at the least"
    )]
    Memory {
        /// Memory of the board.
        ram: u64,
        /// What the system keeps.
        reserve: u64,
        /// Bytes that the smallest plan takes.
        need: u64,
    },
    /// As `Budget`, and no budget helps: a domain maps too little.
    #[error(
        "a domain of {domain_bytes} bytes, {headroom} of them left free, is too small for the largest weight beside {scratch} bytes of scratch"
    )]
    Domain {
        /// What a domain can map.
        domain_bytes: u64,
        /// What is left free of it.
        headroom: u64,
        /// Bytes of scratch for one row.
        scratch: u64,
    },
}

/// What a board and its budget allow: what `place(total, rows, scratch)` finds for `total` bytes of device memory,
/// with the most rows of a block for which scratch is no more than a quarter of them. Fewer rows at a time are
/// better than fewer weights that stay, and than none.
///
/// # Errors
/// No plan for the smallest block either: what the smallest budget is.
pub(crate) fn fit<T>(
    board: &Board,
    items: &[Item],
    place: impl Fn(u64, u32, u64) -> Option<T>,
) -> Result<T, PlanError> {
    if items.is_empty() {
        return Err(PlanError::Empty);
    }
    let sum = items.iter().try_fold(0u64, |sum, item| sum.checked_add(item.bytes()));
    let bytes = sum.filter(|&sum| sum <= MOST_BYTES).ok_or(PlanError::TooLarge)?;
    let placed = |total| {
        let mut rows = board.rows;
        loop {
            let scratch = board.scratch(items, rows);
            let fits = rows <= 1 || scratch <= total / SCRATCH_SHARE;
            match fits.then(|| place(total, rows, scratch)).flatten() {
                None if rows > 1 => rows /= 2,
                placed => return placed,
            }
        }
    };
    let scratch = board.scratch(items, board.rows.min(1));
    placed(board.total())
        .ok_or_else(|| too_small(board, bytes, scratch, |total| placed(total).is_some()))
}

fn too_small(board: &Board, bytes: u64, scratch: u64, works: impl Fn(u64) -> bool) -> PlanError {
    // More domains than one take scratch in each; what works in one needs it once.
    let smallest = smallest(bytes.saturating_add(scratch), &works);
    if !works(smallest) {
        let &Board { domain_bytes, headroom, .. } = board;
        return PlanError::Domain { domain_bytes, headroom, scratch };
    }
    let &Board { ram, reserve, budget, .. } = board;
    match budget.filter(|_| smallest <= board.left()) {
        Some(budget) => PlanError::Budget { budget, smallest, scratch },
        None => PlanError::Memory { ram, reserve, need: smallest },
    }
}

/// The smallest number of whole pages up to `most` for which `works`, in bytes.
pub(super) fn smallest(most: u64, works: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, most.div_ceil(PAGE));
    while low < high {
        let middle = low + (high - low) / 2;
        if works(middle * PAGE) { high = middle } else { low = middle + 1 }
    }
    high * PAGE
}
