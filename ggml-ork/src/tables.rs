//! ggml's tables, and the functions in them: each takes what ggml gives, asks the safe code, and lets no
//! panic out.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;

use crate::buffers::{Held, behind};
use crate::computing::Computing;
use crate::ggml::{
    AnyBufferType, Api, Backend, BackendInterface, Buffer, BufferInterface, BufferType,
    BufferTypeInterface2, BufferTypeInterface3, Capabilities, DEVICE_ACCELERATOR, DEVICE_GPU,
    Device, DeviceInterface, FAILED, Level, Properties, Registration, RegistrationInterface,
    SUCCESS, Status, Tensor, USAGE_COMPUTE,
};
use crate::graph::{self, Owner};
use crate::guard::guarded;
use crate::host::{Host, Refusal, Resolve, resolve_loaded};
use crate::memory::{ALIGNMENT, HostMemory, Node, View};
use crate::plugin::Plugin;
use crate::settings::Settings;

const NAME: *const c_char = c"ORK".as_ptr();
const NAMES: [*const c_char; 2] = [NAME, c"ORK-RPC".as_ptr()];
const DESCRIPTIONS: [*const c_char; 2] =
    [c"RK3588 NPU".as_ptr(), c"RK3588 NPU, with the CPU behind it".as_ptr()];

/// Numbers of the devices: one leaves to the CPU backend what is not the NPU's, the other, of a process that
/// asks for it, takes whole graphs.
const ACCELERATOR: usize = 0;
const RPC: usize = 1;

/// Tells this library's backends from others'.
static GUIDS: [[u8; 16]; 2] = [*b"ork RK3588 NPU 1", *b"ork RK3588 RPC 1"];

/// The tables of a process.
pub(crate) struct Tables {
    pub(crate) plugin: Plugin,
    registration: Registration,
    devices: [Device; 2],
    buffer_types: [AnyBufferType; 2],
}

/// Makes the tables for the process that `resolve` finds ggml's functions in. They stay for good, as ggml
/// wants it.
///
/// # Errors
/// [`Refusal`].
///
/// # Safety
/// What `resolve` finds under a name of ggml's is ggml's function of that name, and stays.
pub unsafe fn start(
    resolve: Resolve<'_>,
    settings: Settings,
) -> Result<*mut Registration, Refusal> {
    // SAFETY: by the contract.
    let host = unsafe { Host::new(resolve)? };
    let api = host.api();
    let interface = RegistrationInterface {
        get_name: Some(registration_name),
        get_device_count: Some(device_count),
        get_device: Some(device),
        get_proc_address: Some(function_of),
    };
    let device = || Device { interface: DEVICE, registration: null_mut(), context: null_mut() };
    let tables = Box::leak(Box::new(Tables {
        plugin: Plugin::new(host, settings),
        registration: Registration { api_version: api.number(), interface, context: null_mut() },
        devices: [device(), device()],
        buffer_types: [null_mut(); 2],
    }));
    let context: *mut Tables = tables;
    let context = context.cast::<c_void>();
    // SAFETY: the tables were leaked just now and nobody else has them; every pointer below stays good, and
    // is only read once `start` has returned.
    unsafe {
        let tables = context.cast::<Tables>();
        (*tables).registration.context = context;
        for number in [ACCELERATOR, RPC] {
            let device = &raw mut (*tables).devices[number];
            (*device).context = context;
            (*device).registration = &raw mut (*tables).registration;
            (*tables).buffer_types[number] = match api {
                Api::V2 => buffer_type(INTERFACE_2, device, context),
                Api::V3 => buffer_type(INTERFACE_3, device, context),
            };
        }
        Ok(&raw mut (*tables).registration)
    }
}

const DEVICE: DeviceInterface = DeviceInterface {
    get_name: Some(device_name),
    get_description: Some(device_description),
    get_memory: Some(device_memory),
    get_type: Some(device_type),
    get_props: Some(device_properties),
    init_backend: Some(init_backend),
    get_buffer_type: Some(device_buffer_type),
    get_host_buffer_type: None,
    buffer_from_host_ptr: Some(buffer_from_host_ptr),
    supports_op: Some(supports_op),
    supports_buffer_type: Some(supports_buffer_type),
    offload_op: None,
    event_new: None,
    event_free: None,
    event_synchronize: None,
};

const INTERFACE_2: BufferTypeInterface2 = BufferTypeInterface2 {
    get_name: Some(buffer_type_name),
    alloc: Some(alloc::<BufferTypeInterface2>),
    get_alignment: Some(alignment),
    get_max_size: None,
    get_alloc_size: None,
    is_host: Some(is_host),
};

const INTERFACE_3: BufferTypeInterface3 = BufferTypeInterface3 {
    get_name: Some(buffer_type_name),
    alloc: Some(alloc::<BufferTypeInterface3>),
    alloc_n: None,
    get_alignment: Some(alignment),
    get_max_size: None,
    get_alloc_size: None,
    get_alloc_size_n: None,
    is_host: Some(is_host),
};

const BUFFER: BufferInterface = BufferInterface {
    free: Some(free_buffer),
    get_base: Some(buffer_base),
    init_tensor: Some(init_tensor),
    memset: Some(memset_tensor),
    set: Some(set_tensor),
    get: Some(get_tensor),
    set_2d: None,
    get_2d: None,
    copy: Some(copy_tensor),
    clear: Some(clear_buffer),
    reset: None,
};

const BACKEND: BackendInterface = BackendInterface {
    get_name: Some(backend_name),
    free: Some(free_backend),
    set_async: None,
    get_async: None,
    set_2d_async: None,
    get_2d_async: None,
    copy_async: None,
    synchronize: None,
    plan_create: None,
    plan_free: None,
    plan_update: None,
    plan_compute: None,
    graph_compute: Some(graph_compute),
    event_record: None,
    event_wait: None,
    graph_optimize: None,
};

fn buffer_type<I>(interface: I, device: *mut Device, context: *mut c_void) -> AnyBufferType {
    let table = Box::leak(Box::new(BufferType { interface, device, context }));
    (table as *mut BufferType<I>).cast()
}

/// The tables behind a context of theirs.
///
/// # Safety
/// `context` is that of a table of [`start`]'s.
unsafe fn tables(context: *mut c_void) -> &'static Tables {
    // SAFETY: contexts of tables point at them; they stay, and nobody changes them.
    unsafe { &*context.cast::<Tables>() }
}

/// # Safety
/// As [`tables`], for a device's table.
unsafe fn of_device(device: *mut Device) -> &'static Tables {
    // SAFETY: ggml gives back the table that it got.
    unsafe { tables((*device).context) }
}

/// A device's tables, and its number.
///
/// # Safety
/// As [`tables`], for a device's table.
unsafe fn numbered(device: *mut Device) -> (&'static Tables, usize) {
    // SAFETY: by the contract.
    let tables = unsafe { of_device(device) };
    let is_rpc = std::ptr::eq(device, &raw const tables.devices[RPC]);
    (tables, if is_rpc { RPC } else { ACCELERATOR })
}

/// What a buffer of this library's holds.
///
/// # Safety
/// `buffer` is one, and not freed while `'a` lasts.
unsafe fn held<'a>(buffer: *mut Buffer) -> &'a Held {
    // SAFETY: the context is what `new_buffer` was given; it goes with the buffer.
    unsafe { &*(*buffer).context.cast::<Held>() }
}

/// Whose buffer a tensor is in.
pub(crate) fn owner(tables: &Tables, tensor: &View<'_>) -> Owner {
    match tensor.buffer().filter(|buffer| tables.buffer_types.contains(&buffer.buffer_type)) {
        None => Owner::Other,
        // ggml makes buffers without bytes on its own.
        Some(buffer) if buffer.context.is_null() => Owner::Nobody,
        // SAFETY: a buffer of this type was made here, with such a context, which stays as long as
        // tensors are in it; what is asked of it ends with the callback.
        Some(buffer) => Owner::Held(unsafe { &*buffer.context.cast::<Held>() }),
    }
}

unsafe extern "C" fn registration_name(_: *mut Registration) -> *const c_char {
    NAME
}

unsafe extern "C" fn device_count(registration: *mut Registration) -> usize {
    // SAFETY: ggml gives back the table that it got.
    let plugin = unsafe { &tables((*registration).context).plugin };
    if !plugin.engine.settings.rpc {
        return 1;
    }
    if plugin.host.cpu.is_none() {
        plugin.say.line(Level::Warn, "ORK_RPC: this ggml cannot have a CPU backend behind another");
        return 1;
    }
    2
}

unsafe extern "C" fn function_of(_: *mut Registration, name: *const c_char) -> *mut c_void {
    // SAFETY: a name is a string.
    if !name.is_null() && unsafe { CStr::from_ptr(name) } == c"ggml_backend_set_n_threads" {
        return set_threads as *mut c_void;
    }
    null_mut()
}

/// The CPU's threads for what is not the NPU's.
unsafe extern "C" fn set_threads(backend: *mut Backend, threads: c_int) {
    // SAFETY: the backend is one of these tables', and ggml uses it here alone.
    let computing = unsafe { &mut *(*backend).context.cast::<Computing>() };
    computing.set_threads(threads);
}

unsafe extern "C" fn device(registration: *mut Registration, index: usize) -> *mut Device {
    // SAFETY: ggml gives back the table that it got.
    if index >= unsafe { device_count(registration) } {
        return null_mut();
    }
    // SAFETY: as above, and the number is checked; the address alone is taken of what is behind.
    unsafe { &raw mut (*(*registration).context.cast::<Tables>()).devices[index] }
}

unsafe extern "C" fn device_name(device: *mut Device) -> *const c_char {
    // SAFETY: the device is of these tables.
    NAMES[unsafe { numbered(device) }.1]
}

unsafe extern "C" fn device_description(device: *mut Device) -> *const c_char {
    // SAFETY: the device is of these tables.
    DESCRIPTIONS[unsafe { numbered(device) }.1]
}

/// Free bytes, and all.
fn memory(tables: &Tables, device: usize) -> (usize, usize) {
    match &tables.plugin.host.cpu {
        // Another machine's layers go into this one's memory.
        Some(cpu) if device == RPC => cpu.memory(),
        // What an accelerator keeps beside the host's memory is not the host's to plan with.
        _ => (0, 0),
    }
}

unsafe extern "C" fn device_memory(device: *mut Device, free: *mut usize, total: *mut usize) {
    // SAFETY: the device is of these tables.
    let (tables, number) = unsafe { numbered(device) };
    // SAFETY: ggml wants both numbers written.
    unsafe { (*free, *total) = memory(tables, number) };
}

unsafe extern "C" fn device_type(device: *mut Device) -> c_int {
    // SAFETY: the device is of these tables.
    match unsafe { numbered(device) }.1 {
        // As such, an RPC server takes it.
        RPC => DEVICE_GPU,
        _ => DEVICE_ACCELERATOR,
    }
}

unsafe extern "C" fn device_properties(device: *mut Device, properties: *mut Properties) {
    // SAFETY: the device is of these tables.
    let (tables, number) = unsafe { numbered(device) };
    let (memory_free, memory_total) = memory(tables, number);
    let capabilities = Capabilities {
        asynchronous: false,
        host_buffer: false,
        buffer_from_host_ptr: true,
        events: false,
        mmap_support: true,
    };
    // SAFETY: ggml wants the properties written.
    unsafe {
        properties.write(Properties {
            name: NAMES[number],
            description: DESCRIPTIONS[number],
            memory_free,
            memory_total,
            // SAFETY: the device is of these tables.
            kind: device_type(device),
            device_id: null(),
            capabilities,
        });
    }
}

unsafe extern "C" fn init_backend(device: *mut Device, _: *const c_char) -> *mut Backend {
    // SAFETY: the device is of these tables.
    let (tables, number) = unsafe { numbered(device) };
    let computing = Box::new(Computing::new(tables, number));
    let context = Box::into_raw(computing).cast();
    let guid = &GUIDS[number];
    Box::into_raw(Box::new(Backend { guid, interface: BACKEND, device, context }))
}

unsafe extern "C" fn device_buffer_type(device: *mut Device) -> AnyBufferType {
    // SAFETY: the device is of these tables.
    let (tables, number) = unsafe { numbered(device) };
    tables.buffer_types[number]
}

unsafe extern "C" fn buffer_from_host_ptr(
    device: *mut Device,
    start: *mut c_void,
    size: usize,
    _largest: usize,
) -> *mut Buffer {
    // SAFETY: the device is of these tables.
    let (tables, number) = unsafe { numbered(device) };
    guarded(Some(&tables.plugin), null_mut(), || {
        // SAFETY: the host keeps its memory as long as the buffer, and computes from it only.
        let Some(memory) = (unsafe { HostMemory::foreign(start, size) }) else { return null_mut() };
        let held = behind(&tables.plugin, memory, size);
        new_buffer(tables, tables.buffer_types[number], held, size)
    })
}

/// ggml's object for what is held; null if there is none.
fn new_buffer(
    tables: &'static Tables,
    buffer_type: AnyBufferType,
    held: Held,
    size: usize,
) -> *mut Buffer {
    let context = Box::into_raw(Box::new(held)).cast::<c_void>();
    // SAFETY: the type is this library's, and the callbacks of `BUFFER` take a `Held`.
    let buffer = unsafe { tables.plugin.host.new_buffer(buffer_type, BUFFER, context, size) };
    if buffer.is_null() {
        // SAFETY: nobody got it.
        drop(unsafe { Box::from_raw(context.cast::<Held>()) });
    }
    buffer
}

unsafe extern "C" fn supports_op(device: *mut Device, op: *const Tensor) -> bool {
    // SAFETY: the device is of these tables.
    let (tables, number) = unsafe { numbered(device) };
    guarded(Some(&tables.plugin), false, || {
        // SAFETY: the tensor is ggml's, and stays as it is during the call.
        let Some(node) = (unsafe { View::new(op) }) else { return false };
        match (&tables.plugin.host.cpu, number) {
            // SAFETY: as above.
            (Some(cpu), RPC) => unsafe { cpu.supports(op) },
            _ => {
                let answer = graph::takes(&tables.plugin, &node, |tensor| owner(tables, tensor));
                answer.map_err(|why| tables.plugin.tally.left(why)).is_ok()
            }
        }
    })
}

unsafe extern "C" fn supports_buffer_type(device: *mut Device, other: AnyBufferType) -> bool {
    // SAFETY: the device is of these tables.
    let tables = unsafe { of_device(device) };
    // SAFETY: ggml asks about one of its types.
    tables.buffer_types.contains(&other) || unsafe { tables.plugin.host.is_host(other) }
}

unsafe extern "C" fn buffer_type_name(_: AnyBufferType) -> *const c_char {
    NAME
}

/// `I` is the interface of the table's version, behind which its context is.
unsafe extern "C" fn alloc<I>(buffer_type: AnyBufferType, size: usize) -> *mut Buffer {
    // SAFETY: ggml gives back the table that it got, which is of this version.
    let tables = unsafe { tables((*buffer_type.cast::<BufferType<I>>()).context) };
    guarded(Some(&tables.plugin), null_mut(), || match HostMemory::new(size) {
        Some(memory) => new_buffer(tables, buffer_type, Held::loose(&tables.plugin, memory), size),
        None => {
            let line = format!("there is no memory for a buffer of {size} bytes");
            tables.plugin.say.line(Level::Error, &line);
            null_mut()
        }
    })
}

unsafe extern "C" fn alignment(_: AnyBufferType) -> usize {
    ALIGNMENT
}

unsafe extern "C" fn is_host(_: AnyBufferType) -> bool {
    true
}

unsafe extern "C" fn free_buffer(buffer: *mut Buffer) {
    // SAFETY: ggml frees a buffer once; its context was made by `new_buffer`.
    let held = unsafe { Box::from_raw((*buffer).context.cast::<Held>()) };
    let plugin = held.plugin;
    guarded(Some(plugin), (), || {
        // An RPC server frees no backends: its clients come and go with their weights.
        if plugin.engine.settings.rpc && held.is_multiplied_with() {
            plugin.summary();
        }
        drop(held);
    });
}

unsafe extern "C" fn buffer_base(buffer: *mut Buffer) -> *mut c_void {
    // SAFETY: the buffer is this library's.
    unsafe { held(buffer) }.memory.start()
}

unsafe extern "C" fn init_tensor(buffer: *mut Buffer, tensor: *mut Tensor) -> Status {
    // SAFETY: the buffer is this library's; its usage is a number.
    let (held, usage) = unsafe { (held(buffer), (*buffer).usage) };
    guarded(Some(held.plugin), SUCCESS, || {
        // SAFETY: the tensor is ggml's, and stays as it is during the call.
        if let Some(tensor) = unsafe { View::new(tensor) }
            && usage != USAGE_COMPUTE
            && !tensor.is_view()
            && tensor.op() == held.plugin.host.ops.none
        {
            held.declare(&tensor);
        }
        SUCCESS
    })
}

/// The place of some bytes of a tensor's data.
///
/// # Safety
/// `tensor` is ggml's, with data of its own that has so many bytes.
unsafe fn part(tensor: *const Tensor, offset: usize) -> *mut u8 {
    // SAFETY: by the contract.
    unsafe { (*tensor).data.cast::<u8>().add(offset) }
}

unsafe extern "C" fn memset_tensor(
    buffer: *mut Buffer,
    tensor: *mut Tensor,
    value: u8,
    offset: usize,
    size: usize,
) {
    // SAFETY: the buffer is this library's.
    unsafe { held(buffer) }.written();
    // SAFETY: ggml names bytes of the tensor's, which nobody reads any more.
    unsafe { part(tensor, offset).write_bytes(value, size) };
}

unsafe extern "C" fn set_tensor(
    buffer: *mut Buffer,
    tensor: *mut Tensor,
    data: *const c_void,
    offset: usize,
    size: usize,
) {
    // SAFETY: the buffer is this library's.
    let held = unsafe { held(buffer) };
    guarded(Some(held.plugin), (), || {
        held.written();
        // SAFETY: the tensor is ggml's, and stays as it is during the call.
        if let Some(tensor) = unsafe { View::new(tensor) }.filter(|tensor| !tensor.is_view()) {
            held.declare(&tensor);
        }
    });
    // SAFETY: ggml names bytes of the tensor's, which nobody reads any more, and bytes of its own.
    unsafe { part(tensor, offset).copy_from(data.cast(), size) };
}

unsafe extern "C" fn get_tensor(
    _: *mut Buffer,
    tensor: *const Tensor,
    data: *mut c_void,
    offset: usize,
    size: usize,
) {
    // SAFETY: ggml names bytes of the tensor's, and room for them.
    unsafe { part(tensor, offset).copy_to(data.cast(), size) };
}

unsafe extern "C" fn copy_tensor(_: *mut Buffer, _: *const Tensor, _: *mut Tensor) -> bool {
    // ggml then copies through `get` and `set`.
    false
}

unsafe extern "C" fn clear_buffer(buffer: *mut Buffer, value: u8) {
    // SAFETY: the buffer is this library's.
    let held = unsafe { held(buffer) };
    held.written();
    if held.memory.is_own() {
        // SAFETY: nobody reads it any more, and ggml is the only one to write it.
        unsafe { held.memory.fill(value) };
    }
}

unsafe extern "C" fn backend_name(backend: *mut Backend) -> *const c_char {
    // SAFETY: the backend is one of these tables'.
    NAMES[unsafe { (*(*backend).context.cast::<Computing>()).device }]
}

unsafe extern "C" fn free_backend(backend: *mut Backend) {
    // SAFETY: ggml frees a backend once; both were made by `init_backend`.
    let computing = unsafe {
        let backend = Box::from_raw(backend);
        Box::from_raw(backend.context.cast::<Computing>())
    };
    let plugin = &computing.tables.plugin;
    guarded(Some(plugin), (), || {
        plugin.summary();
        drop(computing);
    });
}

unsafe extern "C" fn graph_compute(backend: *mut Backend, graph: *mut c_void) -> Status {
    // SAFETY: the backend is one of these tables', and ggml computes with it here alone.
    let computing = unsafe { &mut *(*backend).context.cast::<Computing>() };
    let tables = computing.tables;
    guarded(Some(&tables.plugin), FAILED, || {
        // SAFETY: the graph is ggml's and stays as it is during the call.
        let tensors = unsafe { tables.plugin.host.nodes(graph) };
        // SAFETY: while a graph is computed its memory is there, nobody writes operands, and results
        // are the computing backend's.
        let nodes = tensors.filter_map(|tensor: NonNull<Tensor>| unsafe { Node::new(tensor) });
        // SAFETY: they are all nodes of the graph, in its order.
        unsafe {
            match computing.device {
                RPC => computing.whole(nodes),
                _ => computing.products(nodes),
            }
        }
    })
}

/// What ggml calls when it has loaded this library: the tables, or null.
///
/// # Safety
/// ggml calls it, from a process whose libraries stay loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ggml_backend_init() -> *mut Registration {
    static MADE: OnceLock<usize> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        guarded(None, 0, || {
            let refuse = |error: &dyn std::error::Error| {
                eprintln!("ork: {}", ork_cache::chain(error));
                0
            };
            let settings = match Settings::from_lookup(std::env::var_os) {
                Ok(settings) => settings,
                Err(bad) => return refuse(&bad),
            };
            let resolve = resolve_loaded();
            // SAFETY: what the process's ggml has under these names is what its headers declare.
            match unsafe { start(&resolve, settings) } {
                Ok(registration) => registration as usize,
                Err(refusal) => refuse(&refusal),
            }
        })
    });
    *made as *mut Registration
}
