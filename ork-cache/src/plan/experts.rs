//! Mixtures: what every token needs is resident, experts share slots of their size.

use std::collections::BTreeMap;

use super::dense::{Ring, balance, least_slot};
use super::{Class, Item, Layout, Place, Room, groups};
use crate::ids::{ClassId, DomainId};

/// What every token needs stays, as far as it fits beside a ring of the smallest slots for
/// experts, and is streamed where it does not; each domain's experts go through slots in that
/// domain, as many as the room holds, one class for each size of expert.
pub(super) fn place(items: &[Item], room: &Room) -> Option<Layout> {
    // All the room is worth using: more slots, more hits.
    let most = (1..=u64::from(room.domains)).max_by_key(|&d| (room.in_domains(d), u64::MAX - d));
    let groups = groups(items);
    let sizes: Vec<u64> =
        groups.iter().map(|g| items[g.clone()].iter().map(Item::bytes).sum()).collect();
    let cuts = balance(&sizes, most.unwrap_or(1), sizes.iter().sum());
    let used = cuts.last().map_or(1, |d| d + 1);
    let each = (room.in_domains(used as u64) / used as u64).min(room.per_domain);

    let mut layout = Layout {
        domains: vec![room.share(); used],
        classes: Vec::new(),
        places: Vec::with_capacity(items.len()),
    };
    for domain in 0..used {
        let first = groups.iter().zip(&cuts).find(|(_, d)| **d == domain).map(|(g, _)| g.start);
        let end = groups.iter().zip(&cuts).rfind(|(_, d)| **d == domain).map(|(g, _)| g.end);
        if let (Some(first), Some(end)) = (first, end) {
            place_domain(&mut layout, domain, &items[first..end], each, room)?;
        }
    }
    Some(layout)
}

fn place_domain(
    layout: &mut Layout,
    domain: usize,
    items: &[Item],
    each: u64,
    room: &Room,
) -> Option<()> {
    let id = DomainId(domain as u8);
    let (dense, experts): (Vec<&Item>, Vec<&Item>) = items.iter().partition(|i| i.expert.is_none());
    let bytes: u64 = dense.iter().map(|i| i.bytes()).sum();
    let least = least_classes(&experts, room);
    let add_class = |layout: &mut Layout, slot, slots| {
        layout.classes.push(Class { domain: id, slot, slots });
        layout.domains[domain].slots += slot * u64::from(slots);
        ClassId(layout.classes.len() as u32 - 1)
    };
    // Places of the dense weights: all stay, or some go through a ring of their own.
    let dense_left = each.checked_sub(least)?;
    let dense_places: Vec<Place> = if bytes <= dense_left {
        layout.domains[domain].resident = bytes;
        vec![Place::Resident(id); dense.len()]
    } else {
        let ring = Ring::choose(&dense, dense_left, room)?;
        layout.domains[domain].resident = ring.kept_bytes;
        let class = add_class(layout, ring.slot, room.ring);
        let place = |p: &Option<u32>| p.map_or(Place::Resident(id), |n| Place::Slot(class, n));
        ring.parts.iter().map(place).collect()
    };
    let share = layout.domains[domain];
    let slots = slots(&experts, each - share.resident - share.slots, room)?;
    let mut classes = Vec::with_capacity(slots.len());
    for &(bytes, slot, count) in &slots {
        classes.push((bytes, slot, add_class(layout, slot, count)));
    }
    let mut dense_places = dense_places.into_iter();
    for item in items {
        let expert = item.expert.and_then(|_| classes.iter().find(|c| c.0 == item.bytes()));
        let place = match expert {
            None => dense_places.next().unwrap_or(Place::Resident(id)),
            Some(&(_, slot, class)) => Place::Slot(class, item.parts(slot)?.count()),
        };
        layout.places.push(place);
    }
    Some(())
}

/// Bytes of a ring for each size of expert.
fn least_classes(experts: &[&Item], room: &Room) -> u64 {
    let sizes: std::collections::BTreeSet<u64> = experts.iter().map(|i| i.bytes()).collect();
    sizes.iter().sum::<u64>() * u64::from(room.ring)
}

/// Bytes of the expert, bytes of its slot, slots: `left` shared out among the sizes of experts in
/// proportion to their bytes; none gets fewer slots than a ring, or more than it has experts.
fn slots(experts: &[&Item], left: u64, room: &Room) -> Option<Vec<(u64, u64, u32)>> {
    let mut sizes: BTreeMap<u64, u32> = BTreeMap::new();
    for item in experts {
        *sizes.entry(item.bytes()).or_default() += 1;
    }
    let all: u128 = sizes.iter().map(|(bytes, n)| u128::from(*bytes) * u128::from(*n)).sum();
    let page = rknpu_sys::layout::PAGE;
    let least = least_slot(experts);
    let mut result = Vec::with_capacity(sizes.len());
    for (bytes, n) in sizes {
        let of_all = u128::from(bytes) * u128::from(n);
        let share = (u128::from(left) * of_all / all) as u64;
        // An expert larger than its part of the share goes through in parts.
        let slot = bytes.min(share / u64::from(room.ring) / page * page);
        if slot < least {
            return None;
        }
        let most = if slot == bytes { n.max(room.ring) } else { room.ring };
        result.push((bytes, slot, (share / slot).min(most.into()) as u32));
    }
    Some(result)
}
