//! A plan put to work: the weights that a cache has to know, and the order in which they are streamed.

use rknpu_sys::layout::Layout;

use super::item::Parts;
use super::{Item, Place, Plan};
use crate::backend::Backend;
use crate::cache::Cache;
use crate::error::Result;
use crate::ids::{ClassId, DomainId, WeightId};
use crate::residency::{Home, Limits, WeightSpec};

/// The weights of a plan as a cache sees them: one for each part, numbered from `first`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Parts in order of use.
    pub parts: Vec<Part>,
    /// For each item of the plan the range of its parts in `parts`; most have one.
    pub items: Vec<std::ops::Range<usize>>,
    /// What goes through slots, in order of use: what a prefetcher
    /// [follows](crate::prefetch::Prefetcher::follow).
    pub streamed: Vec<WeightId>,
    /// Experts that are best kept in their slots when passes use all of them: what
    /// [`PinnedRing`](crate::policy::PinnedRing) should pin. Evenly spread, a ring fewer than slots.
    pub(crate) kept: Vec<WeightId>,
}

/// One part of a weight: a range of its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its id in the cache.
    pub weight: WeightId,
    /// The item that it belongs to, by place in the plan.
    pub item: usize,
    /// First column.
    pub column: u32,
    /// Shape and precision.
    pub layout: Layout,
    /// The domain it is used in.
    pub domain: DomainId,
    pub(crate) home: Home,
}

impl Part {
    /// Whether it stays in device memory once it is loaded, until somebody needs the room if the cache
    /// has no plan; otherwise it goes through a slot.
    pub fn is_resident(&self) -> bool {
        !matches!(self.home, Home::Class(_))
    }

    /// What a cache has to know of it.
    pub(crate) fn spec(&self) -> WeightSpec {
        WeightSpec { bytes: self.layout.bytes(), domain: self.domain, home: self.home }
    }
}

impl Placed {
    /// The part with this id; `None` for a weight of another model.
    pub fn part(&self, weight: WeightId) -> Option<&Part> {
        let first = self.parts.first()?.weight;
        self.parts.get(weight.index().checked_sub(first.index())?)
    }

    /// The parts of an item that are multiplied at the same time, each in a domain of its own: where domains
    /// work side by side there are several, elsewhere each is alone.
    ///
    /// ```
    /// # use ork_cache::plan::Placed;
    /// # fn f(placed: &Placed) {
    /// for together in placed.together(0) {
    ///     assert!(together.windows(2).all(|pair| pair[0].domain < pair[1].domain));
    /// }
    /// # }
    /// ```
    pub fn together(&self, item: usize) -> impl Iterator<Item = &[Part]> {
        let parts = self.items.get(item).and_then(|range| self.parts.get(range.clone()));
        parts.unwrap_or_default().chunk_by(|one, next| one.domain < next.domain)
    }

    /// Bytes of the parts that are streamed.
    pub fn streamed_bytes(&self) -> u64 {
        let parts = self.streamed.iter().filter_map(|&weight| self.part(weight));
        parts.map(|part| part.layout.bytes()).sum()
    }
}

impl Plan {
    /// Limits of a cache for this plan: what its weights and slots take in each domain.
    pub(crate) fn limits(&self) -> Limits {
        let domains: Vec<u64> = self.domains.iter().map(|d| d.resident + d.slots).collect();
        Limits { total: domains.iter().sum(), domains }
    }

    /// The weights of the plan with ids from `first` on, and `classes` for the plan's own. `items`
    /// are those that the plan was made of.
    pub(crate) fn place(&self, items: &[Item], first: WeightId, classes: &[ClassId]) -> Placed {
        let mut placed = Placed {
            parts: Vec::with_capacity(items.len()),
            items: Vec::with_capacity(items.len()),
            streamed: Vec::new(),
            kept: Vec::new(),
        };
        let mut in_class = vec![Vec::new(); self.classes.len()];
        for (index, (item, &place)) in items.iter().zip(&self.places).enumerate() {
            let start = placed.parts.len();
            let lanes = self.board.lanes.max(1);
            let in_lanes = || (0..lanes).filter_map(|lane| Some((lane, item.lane(lane, lanes)?)));
            let first_domain = self.domain_of(place);
            let mut add = |lane, column, layout: Layout, home| {
                let weight = WeightId(first.0 + placed.parts.len() as u32);
                let domain = DomainId(first_domain.0 + lane);
                placed.parts.push(Part { weight, item: index, column, layout, domain, home });
                weight
            };
            match place {
                Place::Resident(_) => in_lanes().for_each(|(lane, (column, layout))| {
                    add(lane, column, layout, Home::Fixed);
                }),
                Place::Slot(class, count) => {
                    let slot = self.classes[class.index()].slot;
                    // What is used at the same time stands together.
                    for (part, (lane, (column, whole))) in
                        (0..count).flat_map(|part| in_lanes().map(move |lane| (part, lane)))
                    {
                        let cut = Parts::new(whole, slot).and_then(|parts| parts.get(part));
                        let Some((at, layout)) = cut else { continue };
                        let class = class.index() + usize::from(lane);
                        let weight = add(lane, column + at, layout, Home::Class(classes[class]));
                        placed.streamed.push(weight);
                        if item.expert.is_some() && count == 1 {
                            in_class[class].push(weight);
                        }
                    }
                }
            }
            placed.items.push(start..placed.parts.len());
        }
        let ring = self.board.ring_slots();
        for (class, members) in self.classes.iter().zip(in_class) {
            let (n, keep) = (members.len(), class.slots.saturating_sub(ring) as usize);
            let keep = if class.slots as usize >= n { n } else { keep };
            let due = |j: usize| (j + 1) * keep / n.max(1) > j * keep / n.max(1);
            let kept = members.iter().enumerate().filter(|(j, _)| due(*j)).map(|(_, w)| *w);
            placed.kept.extend(kept);
        }
        placed
    }

    /// Creates the plan's slots in `cache` and attaches its weights.
    ///
    /// # Errors
    /// What does not fit into the cache, or a device that refuses the slots.
    pub(crate) fn apply<B: Backend>(&self, items: &[Item], cache: &Cache<B>) -> Result<Placed> {
        let mut classes = Vec::with_capacity(self.classes.len());
        for class in &self.classes {
            classes.push(cache.add_class(class.domain, class.slot, class.slots as usize)?);
        }
        let mut placed = self.place(items, WeightId(0), &classes);
        let specs: Vec<WeightSpec> = placed.parts.iter().map(Part::spec).collect();
        let first = cache.attach(&specs)?.0;
        let shift = |w: &mut WeightId| w.0 += first;
        placed.parts.iter_mut().for_each(|p| shift(&mut p.weight));
        placed.streamed.iter_mut().chain(&mut placed.kept).for_each(shift);
        Ok(placed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rknpu_sys::layout::Precision;

    use super::*;
    use crate::Prefetcher;
    use crate::backend::fake::Fake;
    use crate::plan::{Board, Mode};
    use crate::policy::PinnedRing;

    /// Layers of one weight of so many KiB each.
    fn layers(kib: &[u32]) -> Vec<Item> {
        let item = |(i, &kib): (usize, &u32)| {
            let layout = Layout::new(1024, kib, Precision::Int8).unwrap();
            Item::new(format!("blk.{i}.w"), layout)
        };
        kib.iter().enumerate().map(item).collect()
    }

    #[test]
    fn a_plan_runs_and_loads_what_it_said() {
        let items = layers(&[64, 32, 64, 96, 64, 64, 32, 64, 64, 96, 64, 64]);
        let plan = Plan::new("mixed", &items, &Board::single_domain(500 << 10)).unwrap();
        assert_eq!(plan.mode, Mode::Mixed);
        assert!(plan.limits().total <= plan.device_bytes());
        let device = Fake::new(plan.limits().total);
        let watch = device.watch();
        let cache = Cache::new(device, plan.limits(), Box::new(PinnedRing::new(&[])));
        let placed = plan.apply(&items, &cache).unwrap();
        let prefetcher = Prefetcher::new(&cache).unwrap();
        prefetcher.follow(&placed.streamed);
        let pass = || {
            for w in placed.parts.iter().map(|p| p.weight) {
                assert_eq!(cache.acquire(w).unwrap().content(), Some(w));
            }
        };
        (0..3).for_each(|_| pass());
        drop(prefetcher);
        // Whatever the worker still fetched ahead is at most the ring.
        let before = watch.ledger().copies;
        (0..10).for_each(|_| pass());
        let loads = watch.ledger().copies - before;
        let expected = 10 * plan.cost.loads_per_pass;
        assert!(loads <= expected && loads + 4 >= expected, "{loads} loads, {expected} planned");
        drop(cache);
        assert_eq!(watch.ledger().broken, [""; 0]);
        assert!(watch.ledger().peak <= plan.limits().total);
    }

    #[test]
    fn ids_of_a_second_model_begin_where_the_first_ended() {
        let items = layers(&[1024; 16]);
        let plan = Plan::new("16 MiB", &items, &Board::single_domain(8 << 20)).unwrap();
        assert_eq!(plan.limits().total, 8 << 20); // four weights that stay, and four slots
        let placed = plan.place(&items, WeightId(100), &[ClassId(0)]);
        assert_eq!((placed.parts.len(), placed.streamed.len()), (16, 12));
        assert_eq!(placed.parts.iter().filter(|part| part.is_resident()).count(), 4);
        assert_eq!(placed.part(WeightId(103)), placed.parts.get(3));
        assert_eq!(placed.part(WeightId(3)), None);
        assert_eq!(placed.part(WeightId(116)), None);
    }
}
