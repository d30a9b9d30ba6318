//! GEM objects: buffers, and what keeps them alive.

use crate::config::{Addresses, Config};
use crate::domain::{FREE_TRIES, SWITCH_WAIT};
use crate::hazard::Hazard;
use crate::kernel::{Call, cpu};
use crate::memory::Backing;
use crate::state::State;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Where made-up kernel addresses begin, and how far objects lie apart.
const FIRST_ADDRESS: u64 = 0xffff_8881_0000_0000;
const STRIDE: u64 = 0x400;

/// How an object came by its memory and its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// `rocket`'s only kind: pages, mapped in the address space of the open file that made it.
    Shmem {
        /// That file.
        owner: u32,
    },
    /// Pages, mapped through the DMA API.
    Pages,
    /// Pages, mapped by the driver's own allocator (flag 0x400).
    Unaligned,
    /// Contiguous memory; whether from the CMA region, at which physical address.
    Contiguous {
        /// Physical address.
        at: u64,
        /// From the CMA region.
        cma: bool,
    },
    /// Asked for as contiguous, made of pages after all: the object that mmap and free mishandle.
    Fallback,
    /// SRAM first, then pages.
    Sram {
        /// First chunk.
        chunk: usize,
        /// The pages came from the driver's own allocator.
        unaligned: bool,
    },
    /// A buffer of no bytes, made by a size that wrapped.
    Empty,
    /// Another driver's dma-buf.
    Imported {
        /// The domain that was live when it was mapped; it records 0.
        mapped_in: i32,
    },
}

/// A buffer.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) flags: u32,
    pub(crate) size: u64,
    pub(crate) sram_size: u64,
    /// The domain that it records; an import records 0 whatever was live.
    pub(crate) domain: i32,
    pub(crate) iova: u64,
    pub(crate) path: Path,
    pub(crate) backing: Option<Arc<Backing>>,
    /// The kernel has mapped it for itself.
    pub(crate) kernel_map: bool,
    /// Handles, mappings, dma-bufs and jobs.
    pub(crate) refs: u32,
    pub(crate) handles: u32,
    pub(crate) mappings: u32,
    pub(crate) offset: Option<u64>,
    /// Freed while something still refers to it, by a reference that was dropped twice.
    pub(crate) dangling: bool,
}

impl Object {
    /// Bytes of address space.
    pub(crate) fn span(&self) -> u64 {
        self.size + self.sram_size
    }

    /// Books a mapping and returns what is mapped.
    pub(crate) fn map(&mut self) -> Option<Arc<Backing>> {
        let backing = self.backing.clone()?;
        if self.cacheable() {
            backing.mapped_cacheable();
        }
        self.refs += 1;
        self.mappings += 1;
        Some(backing)
    }

    pub(crate) fn cacheable(&self) -> bool {
        self.flags & rknpu_sys::flags::MemFlags::CACHEABLE.bits() != 0
    }
}

/// All objects, by their kernel address.
#[derive(Debug)]
pub(crate) struct Objects {
    live: HashMap<u64, Object>,
    addresses: Addresses,
    next: u64,
    freed: Vec<u64>,
    /// Addresses by the names that GEM_FLINK gave.
    names: BTreeMap<u32, u64>,
    /// Objects whose last reference went where nothing can wait: freed when their domain can be had.
    waiting: Vec<(u64, u64)>,
}

impl Objects {
    pub(crate) fn new(addresses: Addresses) -> Objects {
        let (freed, names, waiting) = (Vec::new(), BTreeMap::new(), Vec::new());
        Objects { live: HashMap::new(), addresses, next: FIRST_ADDRESS, freed, names, waiting }
    }

    pub(crate) fn add(&mut self, object: Object) -> u64 {
        let address = match self.addresses {
            Addresses::Reused => self.freed.pop(),
            Addresses::Unique => None,
        };
        let address = address.unwrap_or_else(|| {
            self.next += STRIDE;
            self.next - STRIDE
        });
        self.live.insert(address, object);
        address
    }

    pub(crate) fn get(&self, address: u64) -> Option<&Object> {
        self.live.get(&address)
    }

    pub(crate) fn get_mut(&mut self, address: u64) -> Option<&mut Object> {
        self.live.get_mut(&address)
    }

    /// The name of an object: the one it has, or the lowest free one.
    pub(crate) fn name(&mut self, address: u64) -> u32 {
        let known = self.names.iter().find(|(_, of)| **of == address);
        if let Some((&name, _)) = known {
            return name;
        }
        let name = (1..).find(|name| !self.names.contains_key(name)).unwrap_or(u32::MAX);
        self.names.insert(name, address);
        name
    }

    /// The object of a name.
    pub(crate) fn named(&self, name: u32) -> Option<u64> {
        self.names.get(&name).copied()
    }

    /// Takes an object's name away.
    pub(crate) fn unname(&mut self, address: u64) {
        self.names.retain(|_, of| *of != address);
    }

    /// Whether an object once was at an address.
    pub(crate) fn was(&self, address: u64) -> bool {
        (FIRST_ADDRESS..self.next).contains(&address) && address.is_multiple_of(STRIDE)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Object)> {
        self.live.iter().map(|(address, object)| (*address, object))
    }

    pub(crate) fn remove(&mut self, address: u64) -> Option<Object> {
        let object = self.live.remove(&address);
        if object.is_some() && self.addresses == Addresses::Reused {
            self.freed.push(address);
        }
        object
    }
}

impl State {
    /// Drops one reference where nothing can wait. Freeing is put off while the domain is in use.
    pub(crate) fn put_object_now(&mut self, config: &Config, address: u64) {
        if self.is_shmem(address) {
            return self.put_shmem(address);
        }
        if self.unref(address) {
            let until = self.time.now() + SWITCH_WAIT * u64::from(FREE_TRIES);
            self.objects.waiting.push((address, until));
            self.retry_frees(config);
        }
    }

    /// Frees what waits for its domain; what has waited too long leaks.
    pub(crate) fn retry_frees(&mut self, config: &Config) {
        for (address, until) in std::mem::take(&mut self.objects.waiting) {
            let Some(object) = self.objects.get(address) else { continue };
            let domain = object.domain;
            if self.time.now() > until {
                self.leak(config, address);
                continue;
            }
            match self.try_domain(config, domain) {
                Some(Ok(())) => {
                    self.release(config, address);
                    self.put_domain(config);
                }
                Some(Err(_)) => self.leak(config, address),
                None => self.objects.waiting.push((address, until)),
            }
        }
    }

    /// Drops one reference; whether it was the last.
    fn is_shmem(&self, address: u64) -> bool {
        self.objects.get(address).is_some_and(|object| matches!(object.path, Path::Shmem { .. }))
    }

    fn unref(&mut self, address: u64) -> bool {
        let Some(object) = self.objects.get_mut(address) else { return false };
        object.refs = object.refs.saturating_sub(1);
        object.refs == 0
    }

    /// Frees an object's memory and addresses. Its domain is live.
    fn release(&mut self, config: &Config, address: u64) {
        if let Some(core) = self.job_using(self.objects.get(address)) {
            self.hazard(config, Hazard::FreedUnderJob { address, core });
        }
        let Some(object) = self.objects.remove(address) else { return };
        self.report.released(&object);
        if let Some(offset) = object.offset {
            self.offsets.remove(offset);
        }
        self.memory -= object.size;
        let bytes = object.span();
        match object.path {
            // It is unmapped by physical address, which is nobody's: addresses and mappings stay.
            Path::Fallback => self.hazard(config, Hazard::FallbackFreed { address, bytes }),
            Path::Imported { mapped_in } if mapped_in != 0 => {
                let iova = object.iova;
                self.hazard(config, Hazard::ForeignUnmapped { iova, bytes, mapped_in });
                self.release_place(&object);
            }
            _ => self.release_place(&object),
        }
    }

    /// Gives an object's addresses and what else it holds back.
    pub(crate) fn release_place(&mut self, object: &Object) {
        let span = object.span();
        match object.path {
            Path::Empty | Path::Fallback => return,
            Path::Contiguous { at, cma } => {
                self.physical.give_back(at, object.size, cma);
                if let Some(backing) = object.backing.clone().filter(|_| !self.domains.iommu) {
                    self.physical.leave(at, backing);
                }
            }
            Path::Sram { chunk, .. } => self.sram.give_back(chunk, object.sram_size),
            Path::Imported { .. } if !self.domains.iommu => {
                self.physical.give_back(object.iova, object.size, false);
            }
            Path::Pages | Path::Unaligned | Path::Imported { .. } | Path::Shmem { .. } => {}
        }
        let physical = !self.domains.iommu;
        let Some(domain) = self.domains.of(object.domain) else { return };
        domain.map.unmap(object.iova, span);
        match object.path {
            Path::Unaligned | Path::Sram { unaligned: true, .. } => {
                domain.space.free_unaligned(object.iova);
            }
            _ if physical => {}
            _ => domain.space.free_aligned(object.iova, span, cpu()),
        }
    }

    /// Gives an object up: nothing reaches it any more, its pages and addresses stay taken.
    fn leak(&mut self, config: &Config, address: u64) {
        let Some(object) = self.objects.remove(address) else { return };
        let (domain, bytes) = (object.domain, object.span());
        self.hazard(config, Hazard::Leaked { address, domain, bytes });
    }
}

impl Call<'_> {
    /// Drops one reference. The last one waits for the object's domain, three times 6 s, and leaks
    /// the object when it cannot be had.
    pub(crate) fn put_object(&mut self, address: u64) {
        if self.is_shmem(address) {
            return self.put_shmem(address);
        }
        if !self.unref(address) {
            return;
        }
        let Some(domain) = self.objects.get(address).map(|object| object.domain) else { return };
        let config = self.config();
        for _ in 0..FREE_TRIES {
            if self.get_domain(domain).is_ok() {
                self.release(config, address);
                self.put_domain(config);
                return;
            }
        }
        self.leak(config, address);
    }
}
