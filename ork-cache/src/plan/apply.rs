//! A plan put into a cache.

use super::{Item, Place, Plan};
use crate::backend::Backend;
use crate::cache::Cache;
use crate::core::{Home, Limits, WeightSpec};
use crate::error::Result;
use crate::ids::{ClassId, WeightId};

/// Where the weights of a plan are in a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Ids of the parts of each weight, in order of use; most have one.
    pub weights: Vec<std::ops::Range<u32>>,
    /// What goes through slots, in order of use: what a prefetcher
    /// [follows](crate::prefetch::Prefetcher::follow).
    pub streamed: Vec<WeightId>,
    /// Ids of the plan's classes.
    pub classes: Vec<ClassId>,
}

impl Plan {
    /// Limits of a cache for this plan: what its weights and slots take in each domain.
    pub fn limits(&self) -> Limits {
        let domains: Vec<u64> = self.domains.iter().map(|d| d.pinned + d.slots).collect();
        Limits { total: domains.iter().sum(), domains }
    }

    /// Creates the plan's slots in `cache` and attaches its weights. `items` are those the plan
    /// was made of.
    ///
    /// # Errors
    /// What does not fit into the cache, or a device that refuses the slots.
    pub fn apply<B: Backend>(&self, items: &[Item], cache: &Cache<B>) -> Result<Applied> {
        let mut classes = Vec::with_capacity(self.classes.len());
        for class in &self.classes {
            classes.push(cache.add_class(class.domain, class.slot, class.slots as usize)?);
        }
        let mut specs = Vec::with_capacity(items.len());
        let mut weights = Vec::with_capacity(items.len());
        let mut streamed = Vec::new();
        for (item, place) in items.iter().zip(&self.places) {
            let start = specs.len() as u32;
            match *place {
                Place::Pinned(domain) => {
                    specs.push(WeightSpec { bytes: item.bytes(), domain, home: Home::Fixed });
                }
                Place::Slot(class, _) => {
                    let domain = self.classes[class.index()].domain;
                    let home = Home::Class(classes[class.index()]);
                    let parts = item.parts(self.classes[class.index()].slot);
                    for (_, layout) in parts.iter().flat_map(|p| p.iter()) {
                        streamed.push(WeightId(specs.len() as u32));
                        specs.push(WeightSpec { bytes: layout.bytes(), domain, home });
                    }
                }
            }
            weights.push(start..specs.len() as u32);
        }
        let first = cache.attach(&specs)?;
        for range in &mut weights {
            *range = first.0 + range.start..first.0 + range.end;
        }
        streamed.iter_mut().for_each(|w| w.0 += first.0);
        Ok(Applied { weights, streamed, classes })
    }
}
