//! What ggml's tables look like in memory, at versions 2 and 3 of its backend interface.
//!
//! Field order and widths are those of `ggml.h`, `ggml-backend.h` and `ggml-backend-impl.h`. Between the
//! two versions only the table of buffer types differs. A callback that is never called, or only asked
//! whether it is there, is a `Hook`.

use std::ffi::{c_char, c_int, c_void};

use static_assertions::const_assert_eq;

/// Versions of the interface that these tables are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    V2,
    V3,
}

impl Api {
    pub(crate) const fn number(self) -> c_int {
        match self {
            Api::V2 => 2,
            Api::V3 => 3,
        }
    }
}

/// A callback of no use here: null.
pub(crate) type Hook = Option<unsafe extern "C" fn()>;

/// `enum ggml_status`.
pub(crate) type Status = c_int;
pub(crate) const SUCCESS: Status = 0;
pub(crate) const FAILED: Status = -1;

/// `enum ggml_backend_dev_type`.
pub(crate) const DEVICE_CPU: c_int = 0;
pub(crate) const DEVICE_GPU: c_int = 1;
pub(crate) const DEVICE_ACCELERATOR: c_int = 3;

/// `enum ggml_backend_buffer_usage`.
pub(crate) const USAGE_ANY: c_int = 0;
pub(crate) const USAGE_WEIGHTS: c_int = 1;
pub(crate) const USAGE_COMPUTE: c_int = 2;

/// `enum ggml_tensor_flag`: the node is to be computed.
pub(crate) const FLAG_COMPUTE: i32 = 16;

/// `enum ggml_op_hint`, in a product's second parameter: the weight is a Hadamard matrix.
pub(crate) const HINT_HADAMARD: i32 = 1;

/// `enum ggml_type`, of activations and indices.
pub(crate) const TYPE_F32: c_int = 0;
pub(crate) const TYPE_F16: c_int = 1;
pub(crate) const TYPE_I32: c_int = 26;

/// `enum ggml_log_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Level {
    Info = 2,
    Warn = 3,
    Error = 4,
}

pub(crate) const DIMENSIONS: usize = 4;
pub(crate) const SOURCES: usize = 10;
pub(crate) const NAME: usize = 64;

/// `struct ggml_tensor`.
#[derive(Debug)]
#[repr(C)]
pub struct Tensor {
    pub kind: c_int,
    pub buffer: *mut Buffer,
    /// Elements of each dimension.
    pub ne: [i64; DIMENSIONS],
    /// Bytes from one element to the next.
    pub nb: [usize; DIMENSIONS],
    pub op: c_int,
    pub op_params: [i32; 16],
    pub flags: i32,
    pub src: [*mut Tensor; SOURCES],
    pub view_src: *mut Tensor,
    pub view_offset: usize,
    pub data: *mut c_void,
    pub name: [c_char; NAME],
    pub extra: *mut c_void,
    pub padding: [u8; 8],
}

/// What `ggml_tensor_overhead` says when tensors are as above: an object's header and a tensor.
pub(crate) const TENSOR_OVERHEAD: usize = 32 + size_of::<Tensor>();

/// `struct ggml_backend_buffer_i`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BufferInterface {
    pub free: Option<unsafe extern "C" fn(*mut Buffer)>,
    pub get_base: Option<unsafe extern "C" fn(*mut Buffer) -> *mut c_void>,
    pub init_tensor: Option<unsafe extern "C" fn(*mut Buffer, *mut Tensor) -> Status>,
    pub memset: Option<unsafe extern "C" fn(*mut Buffer, *mut Tensor, u8, usize, usize)>,
    pub set: Option<unsafe extern "C" fn(*mut Buffer, *mut Tensor, *const c_void, usize, usize)>,
    pub get: Option<unsafe extern "C" fn(*mut Buffer, *const Tensor, *mut c_void, usize, usize)>,
    pub set_2d: Hook,
    pub get_2d: Hook,
    pub copy: Option<unsafe extern "C" fn(*mut Buffer, *const Tensor, *mut Tensor) -> bool>,
    pub clear: Option<unsafe extern "C" fn(*mut Buffer, u8)>,
    pub reset: Hook,
}

/// `struct ggml_backend_buffer`.
#[derive(Debug)]
#[repr(C)]
pub struct Buffer {
    pub interface: BufferInterface,
    pub buffer_type: *mut c_void,
    pub context: *mut c_void,
    pub size: usize,
    pub usage: c_int,
}

/// A buffer type as callbacks get it: which table it has depends on the version.
pub type AnyBufferType = *mut c_void;

/// `struct ggml_backend_buffer_type_i`, version 2.
#[derive(Debug)]
#[repr(C)]
pub struct BufferTypeInterface2 {
    pub get_name: Option<unsafe extern "C" fn(AnyBufferType) -> *const c_char>,
    pub alloc: Option<unsafe extern "C" fn(AnyBufferType, usize) -> *mut Buffer>,
    pub get_alignment: Option<unsafe extern "C" fn(AnyBufferType) -> usize>,
    pub get_max_size: Hook,
    pub get_alloc_size: Hook,
    pub is_host: Option<unsafe extern "C" fn(AnyBufferType) -> bool>,
}

/// `struct ggml_backend_buffer_type_i`, version 3.
#[derive(Debug)]
#[repr(C)]
pub struct BufferTypeInterface3 {
    pub get_name: Option<unsafe extern "C" fn(AnyBufferType) -> *const c_char>,
    pub alloc: Option<unsafe extern "C" fn(AnyBufferType, usize) -> *mut Buffer>,
    pub alloc_n: Hook,
    pub get_alignment: Option<unsafe extern "C" fn(AnyBufferType) -> usize>,
    pub get_max_size: Hook,
    pub get_alloc_size: Hook,
    pub get_alloc_size_n: Hook,
    pub is_host: Option<unsafe extern "C" fn(AnyBufferType) -> bool>,
}

/// `struct ggml_backend_buffer_type`.
#[derive(Debug)]
#[repr(C)]
pub struct BufferType<I> {
    pub interface: I,
    pub device: *mut Device,
    pub context: *mut c_void,
}

/// `struct ggml_backend_i`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BackendInterface {
    pub get_name: Option<unsafe extern "C" fn(*mut Backend) -> *const c_char>,
    pub free: Option<unsafe extern "C" fn(*mut Backend)>,
    pub set_async: Hook,
    pub get_async: Hook,
    pub set_2d_async: Hook,
    pub get_2d_async: Hook,
    pub copy_async: Hook,
    pub synchronize: Hook,
    pub plan_create: Hook,
    pub plan_free: Hook,
    pub plan_update: Hook,
    pub plan_compute: Hook,
    pub graph_compute: Option<unsafe extern "C" fn(*mut Backend, *mut c_void) -> Status>,
    pub event_record: Hook,
    pub event_wait: Hook,
    pub graph_optimize: Hook,
}

/// `struct ggml_backend`.
#[derive(Debug)]
#[repr(C)]
pub struct Backend {
    pub guid: *const [u8; 16],
    pub interface: BackendInterface,
    pub device: *mut Device,
    pub context: *mut c_void,
}

/// `struct ggml_backend_dev_caps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Capabilities {
    pub asynchronous: bool,
    pub host_buffer: bool,
    pub buffer_from_host_ptr: bool,
    pub events: bool,
    pub mmap_support: bool,
}

/// `struct ggml_backend_dev_props`.
#[derive(Debug)]
#[repr(C)]
pub struct Properties {
    pub name: *const c_char,
    pub description: *const c_char,
    pub memory_free: usize,
    pub memory_total: usize,
    pub kind: c_int,
    pub device_id: *const c_char,
    pub capabilities: Capabilities,
}

/// `struct ggml_backend_device_i`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeviceInterface {
    pub get_name: Option<unsafe extern "C" fn(*mut Device) -> *const c_char>,
    pub get_description: Option<unsafe extern "C" fn(*mut Device) -> *const c_char>,
    pub get_memory: Option<unsafe extern "C" fn(*mut Device, *mut usize, *mut usize)>,
    pub get_type: Option<unsafe extern "C" fn(*mut Device) -> c_int>,
    pub get_props: Option<unsafe extern "C" fn(*mut Device, *mut Properties)>,
    pub init_backend: Option<unsafe extern "C" fn(*mut Device, *const c_char) -> *mut Backend>,
    pub get_buffer_type: Option<unsafe extern "C" fn(*mut Device) -> AnyBufferType>,
    pub get_host_buffer_type: Hook,
    pub buffer_from_host_ptr:
        Option<unsafe extern "C" fn(*mut Device, *mut c_void, usize, usize) -> *mut Buffer>,
    pub supports_op: Option<unsafe extern "C" fn(*mut Device, *const Tensor) -> bool>,
    pub supports_buffer_type: Option<unsafe extern "C" fn(*mut Device, AnyBufferType) -> bool>,
    pub offload_op: Hook,
    pub event_new: Hook,
    pub event_free: Hook,
    pub event_synchronize: Hook,
}

/// `struct ggml_backend_device`.
#[derive(Debug)]
#[repr(C)]
pub struct Device {
    pub interface: DeviceInterface,
    pub registration: *mut Registration,
    pub context: *mut c_void,
}

/// `struct ggml_backend_reg_i`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RegistrationInterface {
    pub get_name: Option<unsafe extern "C" fn(*mut Registration) -> *const c_char>,
    pub get_device_count: Option<unsafe extern "C" fn(*mut Registration) -> usize>,
    pub get_device: Option<unsafe extern "C" fn(*mut Registration, usize) -> *mut Device>,
    pub get_proc_address:
        Option<unsafe extern "C" fn(*mut Registration, *const c_char) -> *mut c_void>,
}

/// `struct ggml_backend_reg`.
#[derive(Debug)]
#[repr(C)]
pub struct Registration {
    pub api_version: c_int,
    pub interface: RegistrationInterface,
    pub context: *mut c_void,
}

const_assert_eq!(size_of::<Tensor>(), 336);
const_assert_eq!(std::mem::offset_of!(Tensor, src), 152);
const_assert_eq!(std::mem::offset_of!(Tensor, data), 248);
const_assert_eq!(std::mem::offset_of!(Tensor, name), 256);
const_assert_eq!(size_of::<BufferInterface>(), 11 * 8);
const_assert_eq!(size_of::<Buffer>(), 11 * 8 + 4 * 8);
const_assert_eq!(size_of::<BufferType<BufferTypeInterface2>>(), (6 + 2) * 8);
const_assert_eq!(size_of::<BufferType<BufferTypeInterface3>>(), (8 + 2) * 8);
const_assert_eq!(size_of::<Backend>(), (1 + 16 + 2) * 8);
const_assert_eq!(size_of::<Properties>(), 7 * 8);
const_assert_eq!(size_of::<Device>(), (15 + 2) * 8);
const_assert_eq!(size_of::<Registration>(), (1 + 4 + 1) * 8);
