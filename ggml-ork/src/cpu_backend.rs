//! ggml's CPU backend, behind this library's devices: it computes the nodes that are not the NPU's.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{NonNull, null, null_mut};

use crate::ggml::{Backend, DEVICE_CPU, Device, FAILED, Registration, Status, Tensor};
use crate::host::{Resolve, function};

/// Functions of ggml for a backend behind this one.
#[derive(Debug)]
pub(crate) struct CpuFunctions {
    device_by_type: unsafe extern "C" fn(c_int) -> *mut Device,
    device_memory: unsafe extern "C" fn(*mut Device, *mut usize, *mut usize),
    device_supports: unsafe extern "C" fn(*mut Device, *const Tensor) -> bool,
    device_registration: unsafe extern "C" fn(*mut Device) -> *mut Registration,
    function_of: unsafe extern "C" fn(*mut Registration, *const c_char) -> *mut c_void,
    init: unsafe extern "C" fn(*mut Device, *const c_char) -> *mut Backend,
    free: unsafe extern "C" fn(*mut Backend),
    compute: unsafe extern "C" fn(*mut Backend, *mut c_void) -> Status,
    context: unsafe extern "C" fn(ContextParameters) -> *mut c_void,
    free_context: unsafe extern "C" fn(*mut c_void),
    graph_bytes: unsafe extern "C" fn(usize, bool) -> usize,
    new_graph: unsafe extern "C" fn(*mut c_void, usize, bool) -> *mut c_void,
    add_node: unsafe extern "C" fn(*mut c_void, *mut Tensor),
}

/// `struct ggml_init_params`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct ContextParameters {
    size: usize,
    memory: *mut c_void,
    no_data: bool,
}

impl CpuFunctions {
    /// `None` when one of them is missing.
    ///
    /// # Safety
    /// What `resolve` finds under a name of ggml's is ggml's function of that name, and stays.
    pub(crate) unsafe fn new(resolve: Resolve<'_>) -> Option<CpuFunctions> {
        // SAFETY: by the contract each name has ggml's function, whose declaration has this type.
        unsafe {
            Some(CpuFunctions {
                device_by_type: function(resolve(c"ggml_backend_dev_by_type")?),
                device_memory: function(resolve(c"ggml_backend_dev_memory")?),
                device_supports: function(resolve(c"ggml_backend_dev_supports_op")?),
                device_registration: function(resolve(c"ggml_backend_dev_backend_reg")?),
                function_of: function(resolve(c"ggml_backend_reg_get_proc_address")?),
                init: function(resolve(c"ggml_backend_dev_init")?),
                free: function(resolve(c"ggml_backend_free")?),
                compute: function(resolve(c"ggml_backend_graph_compute")?),
                context: function(resolve(c"ggml_init")?),
                free_context: function(resolve(c"ggml_free")?),
                graph_bytes: function(resolve(c"ggml_graph_overhead_custom")?),
                new_graph: function(resolve(c"ggml_new_graph_custom")?),
                add_node: function(resolve(c"ggml_graph_add_node")?),
            })
        }
    }

    fn device(&self) -> Option<NonNull<Device>> {
        // SAFETY: it looks into the registry.
        NonNull::new(unsafe { (self.device_by_type)(DEVICE_CPU) })
    }

    /// Bytes of the host's memory: free ones, and all.
    pub(crate) fn memory(&self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        if let Some(device) = self.device() {
            // SAFETY: the device is the registry's; it writes both numbers.
            unsafe { (self.device_memory)(device.as_ptr(), &mut free, &mut total) };
        }
        (free, total)
    }

    /// Whether the CPU backend computes an operation.
    ///
    /// # Safety
    /// `op` is ggml's, and stays as it is during the call.
    pub(crate) unsafe fn supports(&self, op: *const Tensor) -> bool {
        // SAFETY: the device is the registry's; the rest by the contract.
        self.device().is_some_and(|device| unsafe { (self.device_supports)(device.as_ptr(), op) })
    }

    /// A new backend; `None` when the process has no CPU backend.
    pub(crate) fn open(&'static self) -> Option<CpuBackend> {
        let device = self.device()?;
        // SAFETY: the device is the registry's, and takes no parameters.
        let backend = NonNull::new(unsafe { (self.init)(device.as_ptr(), null()) })?;
        Some(CpuBackend { functions: self, device, backend })
    }
}

/// A CPU backend of this library's own.
#[derive(Debug)]
pub(crate) struct CpuBackend {
    functions: &'static CpuFunctions,
    device: NonNull<Device>,
    backend: NonNull<Backend>,
}

// SAFETY: ggml's backends may be used by one thread after the other.
unsafe impl Send for CpuBackend {}

impl CpuBackend {
    pub(crate) fn set_threads(&mut self, threads: c_int) {
        const NAME: &CStr = c"ggml_backend_set_n_threads";
        // SAFETY: the device is the registry's, and so is what it belongs to.
        let found = unsafe {
            let registration = (self.functions.device_registration)(self.device.as_ptr());
            (self.functions.function_of)(registration, NAME.as_ptr())
        };
        if let Some(set) = NonNull::new(found) {
            // SAFETY: what is found under this name has this type.
            let set: unsafe extern "C" fn(*mut Backend, c_int) = unsafe { function(set) };
            // SAFETY: the backend is that device's.
            unsafe { set(self.backend.as_ptr(), threads) };
        }
    }

    /// Computes nodes in their order.
    ///
    /// # Safety
    /// They are nodes of a graph that is being computed, in its order, and what they are made of is there.
    pub(crate) unsafe fn compute(&mut self, nodes: &[NonNull<Tensor>]) -> Status {
        let functions = self.functions;
        // SAFETY: it computes a number.
        let size = unsafe { (functions.graph_bytes)(nodes.len(), false) };
        let parameters = ContextParameters { size, memory: null_mut(), no_data: true };
        // SAFETY: the context takes memory of its own.
        let Some(context) = NonNull::new(unsafe { (functions.context)(parameters) }) else {
            return FAILED;
        };
        // SAFETY: the context has room for just this graph, and the graph for all nodes, which are a part of
        // a graph in its order, by the contract; the context goes after its use.
        unsafe {
            let graph = (functions.new_graph)(context.as_ptr(), nodes.len(), false);
            for node in nodes {
                (functions.add_node)(graph, node.as_ptr());
            }
            let status = (functions.compute)(self.backend.as_ptr(), graph);
            (functions.free_context)(context.as_ptr());
            status
        }
    }
}

impl Drop for CpuBackend {
    fn drop(&mut self) {
        // SAFETY: it was made by `open`, and nobody else has it.
        unsafe { (self.functions.free)(self.backend.as_ptr()) };
    }
}
