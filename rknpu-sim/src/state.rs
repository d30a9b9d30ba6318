//! Everything that the driver and the cores know, behind the kernel's one lock.

use crate::calls::DmaBufs;
use crate::config::{Config, Domains};
use crate::domain::Table;
use crate::fault::Faults;
use crate::fence::Fences;
use crate::files::Files;
use crate::iova::PAGE;
use crate::job::{CORES, Core, Jobs};
use crate::object::Objects;
use crate::offsets::Offsets;
use crate::physical::Physical;
use crate::report::Books;
use crate::rocket::Rocket;
use crate::sram::Sram;
use crate::time::Time;

pub(crate) use crate::bus::SpaceMap;

/// The state of a machine.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) time: Time,
    pub(crate) files: Files,
    pub(crate) objects: Objects,
    pub(crate) offsets: Offsets,
    pub(crate) domains: Table,
    pub(crate) cores: [Core; CORES],
    pub(crate) jobs: Jobs,
    pub(crate) fences: Fences,
    pub(crate) rocket: Rocket,
    pub(crate) sram: Sram,
    pub(crate) physical: Physical,
    /// Bytes of memory in buffers.
    pub(crate) memory: u64,
    /// A soft reset is under way, or one has failed.
    pub(crate) resetting: bool,
    /// A thread is inside the soft reset.
    pub(crate) reset_locked: bool,
    /// When the driver's last call ended, which keeps the power on for a while.
    pub(crate) powered_ns: Option<u64>,
    /// What SET_PROC_NICE was last told.
    pub(crate) nice: i32,
    pub(crate) faults: Faults,
    pub(crate) dma_bufs: DmaBufs,
    pub(crate) report: Books,
}

impl State {
    pub(crate) fn new(config: &Config) -> State {
        let real = config.domains == Domains::Real && config.version.has_domains();
        let mut domains = Table::new(config, real);
        for taken in &config.taken {
            let bytes = taken.bytes.next_multiple_of(PAGE);
            domains.preload(taken.domain, taken.count, bytes, taken.gap.next_multiple_of(PAGE));
        }
        State {
            time: Time::new(config.noise),
            files: Files::default(),
            objects: Objects::new(config.addresses),
            offsets: Offsets::new(),
            domains,
            cores: Default::default(),
            jobs: Jobs::default(),
            fences: Fences::default(),
            rocket: Rocket { present: crate::rocket::is(config), ..Rocket::default() },
            sram: Sram::new(config.sram),
            physical: Physical::new(config.cma),
            memory: 0,
            resetting: false,
            reset_locked: false,
            powered_ns: None,
            nice: 0,
            faults: Faults::default(),
            dma_bufs: DmaBufs::default(),
            report: Books::default(),
        }
    }
}
