//! The device's IOMMU domains: a table of 16, one of them live, counted.

use crate::config::{Config, Domains};
use crate::engine::{BusFault, Finding};
use crate::hazard::Hazard;
use crate::iova::{PAGE, Space};
use crate::job::Core;
use crate::kernel::{Call, Channel, MS};
use crate::state::{SpaceMap, State};
use rustix::io::Errno;
use std::sync::Arc;

/// Domains of a device.
pub const DOMAINS: usize = 16;
/// How long the driver waits for the live domain to fall idle.
pub(crate) const SWITCH_WAIT: u64 = 6_000 * MS;
/// How often freeing an object tries to get its domain.
pub(crate) const FREE_TRIES: u32 = 3;

/// One domain's addresses and mappings.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) space: Space,
    pub(crate) map: Arc<SpaceMap>,
}

/// All domains.
#[derive(Debug)]
pub(crate) struct Table {
    domains: [Option<Domain>; DOMAINS],
    /// False for stub builds and drivers that know no domains.
    real: bool,
    pub(crate) iommu: bool,
    alignment: crate::config::Alignment,
    /// The live domain.
    pub(crate) current: i32,
    /// References to the live domain. The driver lets it go below zero.
    pub(crate) count: i64,
}

impl Table {
    pub(crate) fn new(config: &Config, real: bool) -> Table {
        let mut table = Table {
            domains: Default::default(),
            real,
            iommu: config.iommu,
            alignment: config.alignment,
            current: 0,
            count: 0,
        };
        table.make(0);
        table
    }

    pub(crate) fn preload(&mut self, domain: u8, count: u32, bytes: u64, gap: u64) {
        self.make(i32::from(domain).min(DOMAINS as i32 - 1));
        let slot = usize::from(domain).min(DOMAINS - 1);
        let Some(domain) = self.domains[slot].as_mut() else { return };
        for _ in 0..count {
            if domain.space.alloc_unaligned(bytes).is_none() {
                break;
            }
            // The gap is a range that is freed at once: the walk goes on below it.
            if gap > 0
                && let Some(hole) = domain.space.alloc_unaligned(gap)
            {
                domain.space.alloc_unaligned(PAGE);
                domain.space.free_unaligned(hole);
            }
        }
    }

    fn make(&mut self, id: i32) {
        let slot = &mut self.domains[id as usize];
        if slot.is_none() {
            let space = Space::new(self.alignment);
            let map = Arc::new(SpaceMap::new(id as usize));
            *slot = Some(Domain { space, map });
        }
    }

    /// The domain that an object of domain `id` lives in; stub builds have one for all.
    pub(crate) fn of(&mut self, id: i32) -> Option<&mut Domain> {
        let id = if self.real { id } else { 0 };
        usize::try_from(id).ok().and_then(|id| self.domains.get_mut(id)).and_then(Option::as_mut)
    }

    /// The domain that is live.
    pub(crate) fn live(&self) -> &Domain {
        let id = if self.real { self.current as usize } else { 0 };
        // The live domain and domain 0 were made before they became live.
        self.domains[id].as_ref().or(self.domains[0].as_ref()).expect("domain 0 is always made")
    }

    /// Domains made so far: id and domain.
    pub(crate) fn made(&self) -> impl Iterator<Item = (usize, &Domain)> {
        self.domains.iter().enumerate().filter_map(|(id, domain)| Some((id, domain.as_ref()?)))
    }

    /// A finding when what a job in domain `map` did not find mapped is mapped in another domain: its
    /// buffers are of both.
    pub(crate) fn elsewhere(&self, map: &Arc<SpaceMap>, fault: &BusFault) -> Option<Finding> {
        let holds = |domain: &Domain| domain.map.holds(fault.iova, fault.len);
        let (other, _) =
            self.made().find(|(_, domain)| !Arc::ptr_eq(&domain.map, map) && holds(domain))?;
        let (ran, _) = self.made().find(|(_, domain)| Arc::ptr_eq(&domain.map, map))?;
        Some(Finding::wrong(format!(
            "domains mixed: a job in domain {ran} uses IOVA {:#x}, which is mapped in domain {other} \
             only; all buffers of a job must be in its domain (recorded: the job times out)",
            fault.iova
        )))
    }

    /// Makes `id` the live domain. The hardware must be idle.
    fn switch(&mut self, id: i32, attach: Option<Errno>) -> Result<(), Errno> {
        if !(0..DOMAINS as i32).contains(&id) || !self.iommu {
            return Err(Errno::INVAL);
        }
        if let Some(errno) = attach {
            return Err(errno);
        }
        self.make(id);
        self.current = id;
        Ok(())
    }
}

impl State {
    /// Takes a reference to domain `id` if it is live or can be made so at once; `None` when the
    /// live one is in use.
    pub(crate) fn try_domain(&mut self, config: &Config, id: i32) -> Option<Result<(), Errno>> {
        if !self.domains.real {
            return Some(Ok(()));
        }
        let counted = config.version.counts_domain();
        if id != self.domains.current {
            if counted && self.domains.count != 0 {
                return None;
            }
            let runs = |core: &Core| core.slot.is_some() && !core.dangling;
            let busy = self.cores.iter().any(runs);
            let attach = self.faults.attach();
            if let Err(errno) = self.domains.switch(id, attach) {
                return Some(Err(errno));
            }
            if busy {
                self.hazard(config, Hazard::SwitchedUnderJob { domain: id });
            }
            self.time.wake(Channel::Domain);
        }
        if counted {
            self.domains.count += 1;
        }
        Some(Ok(()))
    }

    /// Gives a reference back, as often as the driver does: nothing stops it at zero.
    pub(crate) fn put_domain(&mut self, config: &Config) {
        if !self.domains.real || !config.version.counts_domain() {
            return;
        }
        self.domains.count -= 1;
        if self.domains.count < 0 {
            let count = self.domains.count;
            self.hazard(config, Hazard::CountBelowZero { count });
        }
        if self.domains.count == 0 {
            self.time.wake(Channel::Domain);
            self.retry_frees(config);
        }
    }
}

impl Call<'_> {
    /// Waits up to 6 s for domain `id`, and takes a reference to it.
    pub(crate) fn get_domain(&mut self, id: i32) -> Result<(), Errno> {
        let config = self.config();
        let deadline = self.time.now() + SWITCH_WAIT;
        loop {
            if let Some(got) = self.try_domain(config, id) {
                return got;
            }
            if self.time.now() >= deadline {
                return Err(Errno::INVAL);
            }
            self.wait(Channel::Domain, Some(deadline));
        }
    }
}

/// Whether domains are real in this build.
pub(crate) fn real(config: &Config) -> bool {
    config.domains == Domains::Real && config.version.has_domains()
}
