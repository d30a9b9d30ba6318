//! A plan put to work: the weights a cache has to know, and the order in which they are streamed.

use rknpu_sys::layout::Layout;

use super::{Item, Place, Plan};
use crate::backend::Backend;
use crate::cache::Cache;
use crate::core::{Home, Limits, WeightSpec};
use crate::error::Result;
use crate::ids::{ClassId, WeightId};

/// The weights of a plan as a cache sees them: one for each part, numbered from `first`.
///
/// ```
/// # use ork_cache::plan::{Board, Item, Place, Plan};
/// # use rknpu_sys::layout::{Layout, Precision};
/// # let layout = Layout::new(1024, 1024, Precision::Int8)?;
/// # let items: Vec<Item> = (0..16).map(|i| Item::new(format!("blk.{i}.w"), layout)).collect();
/// # let plan = Plan::new("16 MiB", &items, &Board::single_window(8 << 20))?;
/// use ork_cache::WeightId;
///
/// let classes: Vec<_> = (0..plan.classes.len() as u32).map(ork_cache::ClassId).collect();
/// let applied = plan.expand(&items, WeightId(0), &classes);
/// assert_eq!((applied.parts.len(), applied.streamed.len()), (16, 12));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Parts in order of use.
    pub parts: Vec<Part>,
    /// For each item of the plan the range of its parts in `parts`; most have one.
    pub items: Vec<std::ops::Range<usize>>,
    /// What goes through slots, in order of use: what a prefetcher
    /// [follows](crate::prefetch::Prefetcher::follow).
    pub streamed: Vec<WeightId>,
    /// Experts that are best kept in their slots when passes use all of them: what
    /// [`PinnedRing`](crate::policy::PinnedRing) should pin. Evenly spread, a ring fewer than slots.
    pub kept: Vec<WeightId>,
    /// Ids of the plan's classes.
    pub classes: Vec<ClassId>,
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
    /// What the cache is told.
    pub spec: WeightSpec,
}

impl Applied {
    /// The part with this id; `None` for a weight of another model.
    ///
    /// ```
    /// use ork_cache::WeightId;
    /// use ork_cache::plan::{Board, Plan, Shape};
    ///
    /// let items = Shape::known("gemma-2-9b").expect("comes with the crate").items()?;
    /// let board = Board::known("rk3588-16g").expect("comes with the crate");
    /// let applied = Plan::new("9b", &items, &board)?.expand(&items, WeightId(100), &[]);
    /// assert_eq!(applied.part(WeightId(103)), applied.parts.get(3));
    /// assert_eq!(applied.part(WeightId(3)), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn part(&self, weight: WeightId) -> Option<&Part> {
        let first = self.parts.first()?.weight;
        self.parts.get(weight.index().checked_sub(first.index())?)
    }
}

impl Plan {
    /// Limits of a cache for this plan: what its weights and slots take in each domain.
    ///
    /// ```
    /// # use ork_cache::plan::{Board, Item, Place, Plan};
    /// # use rknpu_sys::layout::{Layout, Precision};
    /// # let layout = Layout::new(1024, 1024, Precision::Int8)?;
    /// # let items: Vec<Item> = (0..16).map(|i| Item::new(format!("blk.{i}.w"), layout)).collect();
    /// # let plan = Plan::new("16 MiB", &items, &Board::single_window(8 << 20))?;
    /// assert_eq!(plan.limits().total, 8 << 20); // four weights that stay, and four slots
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limits(&self) -> Limits {
        let domains: Vec<u64> = self.domains.iter().map(|d| d.pinned + d.slots).collect();
        Limits { total: domains.iter().sum(), domains }
    }

    /// The weights of the plan with ids from `first` on, and `classes` for the plan's own. `items`
    /// are those that the plan was made of.
    ///
    /// ```
    /// # use ork_cache::plan::{Board, Item, Place, Plan};
    /// # use rknpu_sys::layout::{Layout, Precision};
    /// # let layout = Layout::new(1024, 1024, Precision::Int8)?;
    /// # let items: Vec<Item> = (0..16).map(|i| Item::new(format!("blk.{i}.w"), layout)).collect();
    /// # let plan = Plan::new("16 MiB", &items, &Board::single_window(8 << 20))?;
    /// use ork_cache::core::Home;
    /// use ork_cache::{ClassId, WeightId};
    ///
    /// let applied = plan.expand(&items, WeightId(100), &[ClassId(0)]);
    /// assert_eq!(applied.parts[0].weight, WeightId(100)); // a second model in a cache of 100 weights
    /// let fixed = applied.parts.iter().filter(|part| part.spec.home == Home::Fixed);
    /// assert_eq!(fixed.count(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expand(&self, items: &[Item], first: WeightId, classes: &[ClassId]) -> Applied {
        let mut applied = Applied {
            parts: Vec::with_capacity(items.len()),
            items: Vec::with_capacity(items.len()),
            streamed: Vec::new(),
            kept: Vec::new(),
            classes: classes.to_vec(),
        };
        let mut in_class = vec![Vec::new(); self.classes.len()];
        for (index, (item, &place)) in items.iter().zip(&self.places).enumerate() {
            let start = applied.parts.len();
            let domain = self.domain_of(place);
            let mut add = |column, layout: Layout, home| {
                let weight = WeightId(first.0 + applied.parts.len() as u32);
                let spec = WeightSpec { bytes: layout.bytes(), domain, home };
                applied.parts.push(Part { weight, item: index, column, layout, spec });
                weight
            };
            match place {
                Place::Pinned(_) => {
                    add(0, item.layout, Home::Fixed);
                }
                Place::Slot(class, count) => {
                    let home = Home::Class(classes[class.index()]);
                    let parts = item.parts(self.classes[class.index()].slot);
                    for (column, layout) in parts.iter().flat_map(|p| p.iter()) {
                        let weight = add(column, layout, home);
                        applied.streamed.push(weight);
                        if item.expert.is_some() && count == 1 {
                            in_class[class.index()].push(weight);
                        }
                    }
                }
            }
            applied.items.push(start..applied.parts.len());
        }
        let ring = self.board.ring_slots();
        for (class, members) in self.classes.iter().zip(in_class) {
            let (n, keep) = (members.len(), class.slots.saturating_sub(ring) as usize);
            let keep = if class.slots as usize >= n { n } else { keep };
            let due = |j: usize| (j + 1) * keep / n.max(1) > j * keep / n.max(1);
            let kept = members.iter().enumerate().filter(|(j, _)| due(*j)).map(|(_, w)| *w);
            applied.kept.extend(kept);
        }
        applied
    }

    /// Creates the plan's slots in `cache` and attaches its weights.
    ///
    /// ```
    /// # use ork_cache::plan::{Board, Item, Place, Plan};
    /// # use rknpu_sys::layout::{Layout, Precision};
    /// # let layout = Layout::new(1024, 1024, Precision::Int8)?;
    /// # let items: Vec<Item> = (0..16).map(|i| Item::new(format!("blk.{i}.w"), layout)).collect();
    /// # let plan = Plan::new("16 MiB", &items, &Board::single_window(8 << 20))?;
    /// use ork_cache::{Cache, fake::Fake, policy::PinnedRing};
    ///
    /// let cache = Cache::new(Fake::new(8 << 20), plan.limits(), Box::new(PinnedRing::new(&[])));
    /// let applied = plan.apply(&items, &cache)?;
    /// for part in &applied.parts {
    ///     assert_eq!(cache.acquire(part.weight)?.content(), Some(part.weight));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What does not fit into the cache, or a device that refuses the slots.
    pub fn apply<B: Backend>(&self, items: &[Item], cache: &Cache<B>) -> Result<Applied> {
        let mut classes = Vec::with_capacity(self.classes.len());
        for class in &self.classes {
            classes.push(cache.add_class(class.domain, class.slot, class.slots as usize)?);
        }
        let mut applied = self.expand(items, WeightId(0), &classes);
        let specs: Vec<WeightSpec> = applied.parts.iter().map(|p| p.spec).collect();
        let first = cache.attach(&specs)?.0;
        let shift = |w: &mut WeightId| w.0 += first;
        applied.parts.iter_mut().for_each(|p| shift(&mut p.weight));
        applied.streamed.iter_mut().chain(&mut applied.kept).for_each(shift);
        Ok(applied)
    }
}
