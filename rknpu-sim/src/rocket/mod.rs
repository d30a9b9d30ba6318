//! The driver `rocket` of mainline kernels: one address space for each open file, jobs that the kernel
//! spreads over the cores, and what an ordinary program can do to the kernel with it.
//!
//! Objects, handles, mappings and dma-bufs are the DRM core's and shared with the other driver's model;
//! here is what differs. Source: the driver of Linux 7.3 as observed, and five of its places as they were
//! first merged for 6.18 ([`Form`](crate::config::Form)).

mod calls;
mod close;
mod jobs;
mod space;
mod submit;
mod user;

pub(crate) use calls::handler;
pub(crate) use close::{closing, postclose};
pub(crate) use jobs::Jobs;
pub(crate) use space::Space;

use crate::config::{Config, Driver};
use crate::report::DomainUse;
use std::collections::BTreeMap;

/// What this driver knows beside objects and files.
#[derive(Debug, Default)]
pub(crate) struct Rocket {
    /// It is the machine's driver.
    pub(crate) present: bool,
    /// Address spaces, by the file that has them.
    pub(crate) spaces: BTreeMap<u32, Space>,
    pub(crate) jobs: Jobs,
    /// Those whose file has gone: of jobs that still run, or lost for good.
    pub(crate) gone: BTreeMap<u32, Space>,
}

impl Rocket {
    /// An open file's address space.
    pub(crate) fn open(&mut self, file: u32) {
        self.spaces.insert(file, Space::new(file));
    }

    /// What each address space holds.
    pub(crate) fn uses(&self) -> impl Iterator<Item = DomainUse> {
        let all: BTreeMap<_, _> = self.spaces.iter().chain(&self.gone).collect();
        all.into_iter().map(|(file, space)| space.as_use(*file))
    }

    /// A file's address space, also after the file has gone.
    fn space_of(&mut self, file: u32) -> Option<&mut Space> {
        self.spaces.get_mut(&file).or_else(|| self.gone.get_mut(&file))
    }

    /// Domains that are never freed.
    pub(crate) fn lost_domains(&self) -> usize {
        self.gone.values().filter(|space| space.leaked).count()
    }
}

/// Whether a machine has this driver.
pub(crate) fn is(config: &Config) -> bool {
    matches!(config.driver, Driver::Rocket(_))
}
