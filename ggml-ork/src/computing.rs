//! A backend at work: products on the NPU, the rest of a whole graph on a CPU backend behind it.
#![allow(unsafe_code)]

use std::ffi::c_int;

use crate::cpu_backend::{CpuBackend, CpuFunctions};
use crate::ggml::{FAILED, Level, SUCCESS, Status};
use crate::graph;
use crate::memory::Node;
use crate::tables::{Tables, owner};

/// What a backend of ggml's stands for.
pub(crate) struct Computing {
    pub(crate) tables: &'static Tables,
    /// Number of its device.
    pub(crate) device: usize,
    threads: Option<c_int>,
    /// Opened when something is first computed by it.
    cpu: Option<CpuBackend>,
}

impl Computing {
    pub(crate) fn new(tables: &'static Tables, device: usize) -> Computing {
        Computing { tables, device, threads: None, cpu: None }
    }

    /// The CPU's threads for what is not the NPU's.
    pub(crate) fn set_threads(&mut self, threads: c_int) {
        if self.threads.replace(threads) != Some(threads)
            && let Some(cpu) = &mut self.cpu
        {
            cpu.set_threads(threads);
        }
    }

    /// Computes products on the NPU; what the NPU or its weights fail to, the CPU does, as said once.
    ///
    /// # Safety
    /// The nodes are a part of the graph that is being computed, in its order, and what they are made of is
    /// there.
    pub(crate) unsafe fn products<'a>(
        &mut self,
        nodes: impl Iterator<Item = Node<'a>> + Clone,
    ) -> Status {
        let tables = self.tables;
        let plugin = &tables.plugin;
        let Err(error) = graph::compute(plugin, nodes.clone(), |tensor| owner(tables, tensor))
        else {
            return SUCCESS;
        };
        let line = ork_cache::chain(&error);
        if error.leaves_to_cpu() && plugin.host.cpu.is_some() {
            plugin.left("what the NPU should compute", &line);
            // SAFETY: by the contract.
            return unsafe { self.on_cpu(nodes) };
        }
        plugin.say.line(Level::Error, &format!("cannot compute: {line}"));
        FAILED
    }

    /// Computes a whole graph: the NPU its products, the CPU the rest.
    ///
    /// # Safety
    /// As [`Computing::products`].
    pub(crate) unsafe fn whole<'a>(&mut self, nodes: impl Iterator<Item = Node<'a>>) -> Status {
        let tables = self.tables;
        let nodes = graph::sorted(&tables.plugin, nodes, |tensor| owner(tables, tensor));
        for run in nodes.chunk_by(|a, b| a.0 == b.0) {
            let nodes = run.iter().map(|(_, node)| *node);
            // SAFETY: by the contract; what one run is made of, those before it have computed.
            let status = unsafe {
                match run.first() {
                    Some((true, _)) => self.products(nodes),
                    _ => self.on_cpu(nodes),
                }
            };
            if status != SUCCESS {
                return status;
            }
        }
        SUCCESS
    }

    /// # Safety
    /// As [`Computing::products`].
    unsafe fn on_cpu<'a>(&mut self, nodes: impl Iterator<Item = Node<'a>>) -> Status {
        if self.cpu.is_none() {
            self.cpu = self.tables.plugin.host.cpu.as_ref().and_then(CpuFunctions::open);
            if let (Some(cpu), Some(threads)) = (&mut self.cpu, self.threads) {
                cpu.set_threads(threads);
            }
        }
        let Some(cpu) = &mut self.cpu else {
            let line = "there is no CPU backend for what is not the NPU's";
            self.tables.plugin.say.line(Level::Error, line);
            return FAILED;
        };
        let nodes: Vec<_> = nodes.map(|node| node.tensor()).collect();
        // SAFETY: by the contract.
        unsafe { cpu.compute(&nodes) }
    }
}
