//! A host in Rust that drives the library through ggml's tables, as llama.cpp does.
#![allow(clippy::undocumented_unsafe_blocks, reason = "all of it is what a host does")]
#![allow(dead_code, reason = "each test takes what it needs")]

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};

use ggml_ork::ggml::{
    Backend, Buffer, BufferInterface, BufferType, BufferTypeInterface2, BufferTypeInterface3,
    Device, Registration, Tensor,
};
use ggml_ork::{Refusal, Settings, tables};
use ork_weights::model::gguf::Tensors;

pub(crate) const F32: c_int = 0;
pub(crate) const F16: c_int = 1;
pub(crate) const I32: c_int = 26;
pub(crate) const NONE: c_int = 0;
pub(crate) const ADD: c_int = 1;
pub(crate) const ROPE: c_int = 9;
pub(crate) const MUL_MAT: c_int = 7;
pub(crate) const MUL_MAT_ID: c_int = 8;
const OPS: [&CStr; 14] = [
    c"NONE",
    c"ADD",
    c"MUL",
    c"RESHAPE",
    c"VIEW",
    c"PERMUTE",
    c"TRANSPOSE",
    c"MUL_MAT",
    c"MUL_MAT_ID",
    c"ROPE",
    c"NORM",
    c"SCALE",
    c"SUM",
    c"DUP",
];

thread_local! {
    /// Operations that the CPU backend behind the library has computed.
    static ON_CPU: RefCell<Vec<c_int>> = const { RefCell::new(Vec::new()) };
    static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Lines that this thread's calls have logged.
pub(crate) fn log() -> Vec<String> {
    LOG.with(|log| log.take())
}

/// Operations that the CPU backend behind the library has computed since the last call.
pub(crate) fn on_cpu() -> Vec<c_int> {
    ON_CPU.with(|ops| ops.take())
}

/// A CPU backend: it adds, and writes ones for every other operation.
mod cpu {
    use super::*;

    pub(super) extern "C" fn device(_: c_int) -> *mut c_void {
        NonNull::dangling().as_ptr()
    }

    pub(super) extern "C" fn memory(_: *mut c_void, free: *mut usize, total: *mut usize) {
        unsafe { (*free, *total) = (1 << 30, 2 << 30) };
    }

    pub(super) extern "C" fn supports(_: *mut c_void, op: *const Tensor) -> bool {
        unsafe { (*op).op != ROPE }
    }

    pub(super) extern "C" fn function_of(_: *mut c_void, _: *const c_char) -> *mut c_void {
        null_mut()
    }

    pub(super) extern "C" fn init(_: *mut c_void, _: *const c_char) -> *mut c_void {
        NonNull::dangling().as_ptr()
    }

    pub(super) extern "C" fn free(_: *mut c_void) {}

    pub(super) extern "C" fn compute(_: *mut c_void, graph: *mut c_void) -> c_int {
        let graph: &Vec<*mut Tensor> = unsafe { &*graph.cast() };
        for node in graph.iter().map(|node| unsafe { &**node }) {
            ON_CPU.with(|ops| ops.borrow_mut().push(node.op));
            let count = node.ne.iter().product::<i64>() as usize;
            for i in 0..count {
                let of = |tensor: &Tensor| unsafe { *tensor.data.cast::<f32>().add(i) };
                let sum = || node.src[..2].iter().map(|src| of(unsafe { &**src })).sum();
                let value = if node.op == ADD { sum() } else { 1.0 };
                unsafe { *node.data.cast::<f32>().add(i) = value };
            }
        }
        0
    }

    #[repr(C)]
    pub(super) struct Parameters([usize; 3]);

    /// A context is the one graph that will be in it.
    pub(super) extern "C" fn context(_: Parameters) -> *mut c_void {
        Box::into_raw(Box::new(Vec::<*mut Tensor>::new())).cast()
    }

    pub(super) extern "C" fn free_context(context: *mut c_void) {
        drop(unsafe { Box::from_raw(context.cast::<Vec<*mut Tensor>>()) });
    }

    pub(super) extern "C" fn graph_bytes(nodes: usize, _: bool) -> usize {
        nodes
    }

    pub(super) extern "C" fn new_graph(context: *mut c_void, _: usize, _: bool) -> *mut c_void {
        context
    }

    pub(super) extern "C" fn add_node(graph: *mut c_void, node: *mut Tensor) {
        unsafe { (*graph.cast::<Vec<*mut Tensor>>()).push(node) };
    }
}

extern "C" fn overhead() -> usize {
    368
}

extern "C" fn overhead_of_others() -> usize {
    376
}

extern "C" fn op_name(op: c_int) -> *const c_char {
    OPS.get(op as usize).map_or(c"?".as_ptr(), |name| name.as_ptr())
}

extern "C" fn nodes(graph: *mut c_void) -> c_int {
    unsafe { (*graph.cast::<Vec<*mut Tensor>>()).len() as c_int }
}

extern "C" fn node(graph: *mut c_void, index: c_int) -> *mut Tensor {
    unsafe { (&(*graph.cast::<Vec<*mut Tensor>>()))[index as usize] }
}

extern "C" fn buffer_init(
    buffer_type: *mut c_void,
    interface: BufferInterface,
    context: *mut c_void,
    size: usize,
) -> *mut Buffer {
    Box::into_raw(Box::new(Buffer { interface, buffer_type, context, size, usage: 0 }))
}

extern "C" fn is_host(_: *mut c_void) -> bool {
    true
}

/// The arguments of a call with a format and one string lie as if they were declared.
extern "C" fn write_log(_: c_int, _format: *const c_char, line: *const c_char) {
    let line = unsafe { CStr::from_ptr(line) }.to_string_lossy().into_owned();
    LOG.with(|log| log.borrow_mut().push(line));
}

extern "C" fn nothing() {}

extern "C" fn one() -> usize {
    1
}

extern "C" fn registration_of_4(_: usize) -> *const c_int {
    &4
}

/// What a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    V2,
    V3,
    V4,
    /// Of version 3, with a CPU backend.
    WithCpu,
    Static,
    OtherTensors,
}

/// A host that has loaded the library.
pub(crate) struct Host {
    pub(crate) device: *mut Device,
    /// Null for a process that did not ask for it.
    pub(crate) rpc: *mut Device,
    pub(crate) kind: Kind,
}

impl Host {
    /// Loads the library, with settings.
    pub(crate) fn new(kind: Kind, settings: &[(&'static str, &str)]) -> Result<Host, Refusal> {
        let settings = Settings::from_lookup(|name| {
            let set = settings.iter().find(|(known, _)| *known == name);
            let device = (name == "ORK_DEVICE").then(|| "sim".into());
            set.map(|(_, value)| (*value).into()).or(device)
        });
        let resolve = |name: &CStr| {
            let address = match name.to_str().unwrap() {
                _ if kind == Kind::Static => return None,
                "ggml_tensor_overhead" if kind == Kind::OtherTensors => {
                    overhead_of_others as *const ()
                }
                "ggml_tensor_overhead" => overhead as *const (),
                "ggml_op_name" => op_name as *const (),
                "ggml_graph_n_nodes" => nodes as *const (),
                "ggml_graph_node" => node as *const (),
                "ggml_backend_buffer_init" => buffer_init as *const (),
                "ggml_backend_buft_is_host" => is_host as *const (),
                "ggml_log_internal" => write_log as *const (),
                "ggml_backend_buft_alloc_buffer_n" if kind != Kind::V2 => nothing as *const (),
                "ggml_backend_reg_count" if kind == Kind::V4 => one as *const (),
                "ggml_backend_reg_get" if kind == Kind::V4 => registration_of_4 as *const (),
                _ if kind != Kind::WithCpu => return None,
                "ggml_backend_dev_by_type" => cpu::device as *const (),
                "ggml_backend_dev_memory" => cpu::memory as *const (),
                "ggml_backend_dev_supports_op" => cpu::supports as *const (),
                "ggml_backend_dev_backend_reg" => cpu::device as *const (),
                "ggml_backend_reg_get_proc_address" => cpu::function_of as *const (),
                "ggml_backend_dev_init" => cpu::init as *const (),
                "ggml_backend_free" => cpu::free as *const (),
                "ggml_backend_graph_compute" => cpu::compute as *const (),
                "ggml_init" => cpu::context as *const (),
                "ggml_free" => cpu::free_context as *const (),
                "ggml_graph_overhead_custom" => cpu::graph_bytes as *const (),
                "ggml_new_graph_custom" => cpu::new_graph as *const (),
                "ggml_graph_add_node" => cpu::add_node as *const (),
                _ => return None,
            };
            NonNull::new(address.cast_mut().cast())
        };
        let registration: *mut Registration =
            unsafe { tables::start(&resolve, settings.unwrap())? };
        let (version, get) =
            unsafe { ((*registration).api_version, (*registration).interface.get_device.unwrap()) };
        assert_eq!(version, if kind == Kind::V2 { 2 } else { 3 });
        let [device, rpc] = [0, 1].map(|number| unsafe { get(registration, number) });
        Ok(Host { device, rpc, kind })
    }

    /// The same host, using the device for whole graphs.
    pub(crate) fn whole(&self) -> Host {
        Host { device: NonNull::new(self.rpc).expect("a second device").as_ptr(), ..*self }
    }

    /// Number of the device's kind, and the bytes of its memory.
    pub(crate) fn kind_and_memory(&self) -> (c_int, usize) {
        let (mut free, mut total) = (0, 0);
        unsafe { self.interface().get_memory.unwrap()(self.device, &mut free, &mut total) };
        (unsafe { self.interface().get_type.unwrap()(self.device) }, total)
    }

    fn interface(&self) -> &ggml_ork::ggml::DeviceInterface {
        unsafe { &(*self.device).interface }
    }

    /// Memory of the library's.
    pub(crate) fn alloc(&self, size: usize) -> Buf {
        let buffer_type = unsafe { self.interface().get_buffer_type.unwrap()(self.device) };
        let alloc = match self.kind {
            Kind::V2 => unsafe {
                (*buffer_type.cast::<BufferType<BufferTypeInterface2>>()).interface.alloc
            },
            _ => unsafe {
                (*buffer_type.cast::<BufferType<BufferTypeInterface3>>()).interface.alloc
            },
        };
        Buf(NonNull::new(unsafe { alloc.unwrap()(buffer_type, size) }).expect("memory"))
    }

    /// A buffer without memory, as loaders ask with.
    pub(crate) fn empty(&self) -> Buf {
        let buffer_type = unsafe { self.interface().get_buffer_type.unwrap()(self.device) };
        let interface = BufferInterface {
            free: None,
            get_base: None,
            init_tensor: None,
            memset: None,
            set: None,
            get: None,
            set_2d: None,
            get_2d: None,
            copy: None,
            clear: None,
            reset: None,
        };
        Buf(NonNull::new(buffer_init(buffer_type, interface, null_mut(), 0)).unwrap())
    }

    /// A buffer over memory of the host's.
    pub(crate) fn wrap(&self, bytes: &[u8]) -> Buf {
        let from = self.interface().buffer_from_host_ptr.unwrap();
        let start = bytes.as_ptr().cast_mut().cast();
        Buf(NonNull::new(unsafe { from(self.device, start, bytes.len(), 0) }).expect("a buffer"))
    }

    pub(crate) fn supports(&self, op: &Tensor) -> bool {
        unsafe { self.interface().supports_op.unwrap()(self.device, op) }
    }

    /// Computes nodes again and again, with one backend; `each` is told before every time.
    pub(crate) fn compute_often(
        &self,
        graph: Vec<*mut Tensor>,
        times: usize,
        each: impl Fn(usize),
    ) {
        let backend: *mut Backend =
            unsafe { self.interface().init_backend.unwrap()(self.device, null()) };
        let mut graph = graph;
        for i in 0..times {
            each(i);
            let graph = (&raw mut graph).cast();
            assert_eq!(unsafe { (*backend).interface.graph_compute.unwrap()(backend, graph) }, 0);
        }
        each(times);
        unsafe { (*backend).interface.free.unwrap()(backend) };
    }

    /// Computes nodes; gives the status.
    pub(crate) fn compute(&self, graph: Vec<*mut Tensor>) -> c_int {
        let backend: *mut Backend =
            unsafe { self.interface().init_backend.unwrap()(self.device, null()) };
        let mut graph = graph;
        let status = unsafe {
            (*backend).interface.graph_compute.unwrap()(backend, (&raw mut graph).cast())
        };
        unsafe { (*backend).interface.free.unwrap()(backend) };
        status
    }
}

/// A buffer, freed as ggml does it.
pub(crate) struct Buf(pub(crate) NonNull<Buffer>);

impl Buf {
    pub(crate) fn usage(self, usage: c_int) -> Buf {
        unsafe { (*self.0.as_ptr()).usage = usage };
        self
    }

    pub(crate) fn base(&self) -> *mut u8 {
        let buffer = self.0.as_ptr();
        unsafe { (*buffer).interface.get_base.unwrap()(buffer) }.cast()
    }

    /// Declares a tensor and writes its bytes.
    pub(crate) fn set(&self, tensor: &mut Tensor, bytes: &[u8]) {
        let buffer = self.0.as_ptr();
        unsafe {
            (*buffer).interface.init_tensor.unwrap()(buffer, tensor);
            (*buffer).interface.set.unwrap()(buffer, tensor, bytes.as_ptr().cast(), 0, bytes.len());
        }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let buffer = self.0.as_ptr();
        unsafe {
            if let Some(free) = (*buffer).interface.free {
                free(buffer);
            }
            drop(Box::from_raw(buffer));
        }
    }
}

/// A tensor of `kind`, without gaps: `row` bytes for each row.
pub(crate) fn tensor(kind: c_int, ne: [i64; 4], first: usize, row: usize, data: *mut u8) -> Tensor {
    let (n1, n2) = (ne[1] as usize, ne[2] as usize);
    Tensor {
        kind,
        buffer: null_mut(),
        ne,
        nb: [first, row, row * n1, row * n1 * n2],
        op: NONE,
        op_params: [0; 16],
        flags: 0,
        src: [null_mut(); 10],
        view_src: null_mut(),
        view_offset: 0,
        data: data.cast(),
        name: [0; 64],
        extra: null_mut(),
        padding: [0; 8],
    }
}

pub(crate) fn numbers(ne: [i64; 4], values: &mut [f32]) -> Tensor {
    assert_eq!(ne.iter().product::<i64>() as usize, values.len());
    tensor(F32, ne, 4, ne[0] as usize * 4, values.as_mut_ptr().cast())
}

/// A product of sources, to be written to `out`.
pub(crate) fn product(
    op: c_int,
    sources: &mut [&mut Tensor],
    ne: [i64; 4],
    out: &mut [f32],
) -> Tensor {
    let mut node = numbers(ne, out);
    (node.op, node.flags) = (op, 16);
    for (place, source) in node.src.iter_mut().zip(sources) {
        *place = *source;
    }
    node
}

/// A weight of a GGUF file, in a buffer that begins at `base` with the file's byte `start`.
pub(crate) fn weight(file: &Tensors, name: &str, buffer: &Buf, start: usize) -> Tensor {
    let entry = file.get(name).unwrap_or_else(|| panic!("no {name}"));
    let kind = entry.kind().unwrap();
    let mut ne = [1; 4];
    for (to, from) in ne.iter_mut().zip(entry.dimensions.iter()) {
        *to = *from as i64;
    }
    let row = kind.row_bytes(ne[0] as u64).unwrap() as usize;
    let data = buffer.base().wrapping_add(entry.range().start as usize - start);
    let mut tensor = tensor(kind.ggml().unwrap_or(0) as c_int, ne, kind.block_bytes(), row, data);
    tensor.buffer = buffer.0.as_ptr();
    for (to, from) in tensor.name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    tensor
}

/// A file that is mapped, as llama.cpp does it.
pub(crate) fn map(path: &Path) -> memmap2::Mmap {
    unsafe { memmap2::Mmap::map(&std::fs::File::open(path).unwrap()) }.unwrap()
}

/// Values that are alike nowhere, from -1 to 1.
pub(crate) fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mix = |i: u32| {
        let mixed = (i ^ seed).wrapping_add(1).wrapping_mul(0x9e37_79b1);
        (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca77) as i32 as f32 / 2f32.powi(31)
    };
    (0..count as u32).map(mix).collect()
}
