//! Weights that are all used in every pass.

use rknpu_sys::layout::PAGE;

use super::keep::keep;
use super::{Class, Item, Layout, Place, Room, groups};
use crate::ids::{ClassId, DomainId};

/// Everything resident, if RAM and domains hold it: the fewest domains, evenly filled.
pub(super) fn resident(items: &[Item], room: &Room) -> Option<Layout> {
    let groups = groups(items);
    let sizes: Vec<u64> =
        groups.iter().map(|g| items[g.clone()].iter().map(Item::bytes).sum()).collect();
    let total: u64 = sizes.iter().sum();
    let domains =
        (1..=u64::from(room.domains)).find(|&d| cut(&sizes, room.per_domain, d).is_some())?;
    if total > room.in_domains(domains) {
        return None;
    }
    let cuts = balance(&sizes, domains, room.per_domain);
    let mut shares = vec![room.share(); domains as usize];
    let mut places = Vec::with_capacity(items.len());
    for (group, domain) in groups.iter().zip(cuts) {
        shares[domain].resident += items[group.clone()].iter().map(Item::bytes).sum::<u64>();
        places.extend(group.clone().map(|_| Place::Resident(DomainId(domain as u8))));
    }
    Some(Layout { domains: shares, classes: Vec::new(), places })
}

/// The domain of each group when every domain takes at most `limit` bytes and no more than
/// `domains` are used; `None` when that is not possible.
fn cut(sizes: &[u64], limit: u64, domains: u64) -> Option<Vec<usize>> {
    let (mut domain, mut used) = (0, 0u64);
    let mut result = Vec::with_capacity(sizes.len());
    for &size in sizes {
        if size > limit {
            return None;
        }
        if used + size > limit {
            domain += 1;
            used = 0;
        }
        used += size;
        result.push(domain);
    }
    (domain < domains as usize).then_some(result)
}

/// As [`cut`], with the smallest limit that works, so that the fullest domain is as empty as can be.
pub(super) fn balance(sizes: &[u64], domains: u64, limit: u64) -> Vec<usize> {
    let (mut low, mut high) = (sizes.iter().sum::<u64>() / domains.max(1), limit);
    while low < high {
        let middle = low + (high - low) / 2;
        if cut(sizes, middle, domains).is_some() { high = middle } else { low = middle + 1 }
    }
    cut(sizes, high, domains).unwrap_or_else(|| vec![0; sizes.len()])
}

/// A part resident, the rest through a ring in the last domain. The domains before it hold whole
/// layers from the start of the pass; in the last one resident and streamed weights alternate.
pub(super) fn mixed(items: &[Item], room: &Room) -> Option<Layout> {
    (1..=u64::from(room.domains))
        .filter_map(|domains| mixed_in(items, room, domains))
        .min_by_key(|(cuts, streamed, layout)| (*cuts, *streamed, layout.domains.len()))
        .map(|(_, _, layout)| layout)
}

/// The layout over exactly `domains` domains, whether it cuts weights of layers, and the bytes it streams.
/// `None` as well where the last domain is not needed.
fn mixed_in(items: &[Item], room: &Room, domains: u64) -> Option<(bool, u64, Layout)> {
    let last = (domains - 1) as usize;
    let mut shares = vec![room.share(); domains as usize];
    let mut places = Vec::with_capacity(items.len());
    let mut left = room.in_domains(domains);
    let mut domain = 0;
    for group in groups(items) {
        let size: u64 = items[group.clone()].iter().map(Item::bytes).sum();
        while domain < last && shares[domain].resident + size > room.per_domain {
            domain += 1;
        }
        if domain == last {
            break;
        }
        if size > left {
            // Fewer domains have this room in one piece: for whole slots, and for what stays to lie between them.
            return None;
        }
        shares[domain].resident += size;
        left -= size;
        places.extend(group.map(|_| Place::Resident(DomainId(domain as u8))));
    }
    if shares[..last].iter().any(|s| s.resident == 0) {
        // Fewer domains do the same.
        return None;
    }
    let rest: Vec<&Item> = items[places.len()..].iter().collect();
    let ring = Ring::choose(&rest, left.min(room.per_domain), room)?;
    let id = DomainId(last as u8);
    shares[last].resident += ring.kept_bytes;
    shares[last].slots = ring.slot * u64::from(room.ring);
    places.extend(ring.parts.iter().map(|parts| match parts {
        None => Place::Resident(id),
        Some(parts) => Place::Slot(ClassId(0), *parts),
    }));
    let class = Class { domain: id, slot: ring.slot, slots: room.ring };
    let streamed = rest.iter().map(|i| i.bytes()).sum::<u64>() - ring.kept_bytes;
    Some((ring.cuts, streamed, Layout { domains: shares, classes: vec![class], places }))
}

/// What stays and what goes through a ring in one domain.
pub(super) struct Ring {
    pub(super) slot: u64,
    pub(super) kept_bytes: u64,
    /// Whether the room is too small for whole weights of layers: reads are then small, and jobs many.
    pub(super) cuts: bool,
    /// For each item the parts in which it is streamed; `None` when it stays.
    pub(super) parts: Vec<Option<u32>>,
}

/// Sizes of slots that are tried at most.
const CANDIDATES: usize = 16;

impl Ring {
    /// The slot size and the choice of what stays that stream the fewest bytes in `left` bytes.
    ///
    /// A slot holds a whole weight of a layer; whatever is larger must stay. Only weights without
    /// a layer, above all the output head, go through in parts; when the room is so small that no
    /// such choice exists, all do. `None` when not even a tile of columns fits a slot.
    pub(super) fn choose(items: &[&Item], left: u64, room: &Room) -> Option<Ring> {
        let slots = u64::from(room.ring);
        let mut sizes: Vec<u64> = {
            let of_layers = items.iter().filter(|i| i.layer.is_some()).map(|i| i.bytes());
            of_layers.collect()
        };
        if sizes.is_empty() {
            sizes = items.iter().map(|i| i.bytes()).collect();
        }
        sizes.sort_unstable();
        sizes.dedup();
        let step = sizes.len().div_ceil(CANDIDATES).max(1);
        let tried = sizes.iter().rev().step_by(step);
        let best = tried
            .filter_map(|&slot| Ring::with_slot(items, left, slot, room))
            .max_by_key(|ring| (ring.kept_bytes, u64::MAX - ring.slot));
        best.or_else(|| {
            let slot = left / slots / PAGE * PAGE;
            let parts = items.iter().map(|i| i.parts(slot).map(|p| Some(p.count())));
            Some(Ring { slot, kept_bytes: 0, cuts: true, parts: parts.collect::<Option<_>>()? })
        })
    }

    fn with_slot(items: &[&Item], left: u64, slot: u64, room: &Room) -> Option<Ring> {
        let must_stay = |i: &Item| i.layer.is_some() && i.bytes() > slot;
        let forced: u64 = items.iter().filter(|i| must_stay(i)).map(|i| i.bytes()).sum();
        let left = left.checked_sub(slot.checked_mul(room.ring.into())?)?.checked_sub(forced)?;
        let sizes: Vec<u64> = items.iter().filter(|i| !must_stay(i)).map(|i| i.bytes()).collect();
        let mut kept = keep(&sizes, left).into_iter();
        let (mut kept_bytes, mut parts) = (0, Vec::with_capacity(items.len()));
        for item in items {
            if must_stay(item) || kept.next()? {
                kept_bytes += item.bytes();
                parts.push(None);
            } else {
                parts.push(Some(item.parts(slot)?.count()));
            }
        }
        Some(Ring { slot, kept_bytes, cuts: false, parts })
    }
}

/// The smallest slot through which every item goes, one tile of columns at a time.
pub(super) fn least_slot(items: &[&Item]) -> u64 {
    let tile = |i: &&Item| {
        let p = i.layout.precision();
        let column = rknpu_sys::layout::Layout::new(i.layout.k(), p.tile_width(), p);
        column.map_or(i.bytes(), |l| l.bytes().next_multiple_of(PAGE))
    };
    items.iter().map(tile).max().unwrap_or(0)
}
