//! The ggml that loaded this library: its functions, found by name when the library is loaded, so that
//! none is left undefined.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::mem::transmute_copy;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use crate::cpu_backend::CpuFunctions;
use crate::ggml::{
    AnyBufferType, Api, Buffer, BufferInterface, Level, Registration, TENSOR_OVERHEAD, Tensor,
};

/// Functions of ggml that this library calls.
#[derive(Debug)]
pub(crate) struct Host {
    api: Api,
    log: Option<Log>,
    buffer_init: BufferInit,
    is_host: unsafe extern "C" fn(AnyBufferType) -> bool,
    nodes: unsafe extern "C" fn(*mut c_void) -> c_int,
    node: unsafe extern "C" fn(*mut c_void, c_int) -> *mut Tensor,
    pub(crate) ops: Ops,
    /// For a CPU backend behind this library's; `None` when this ggml lacks one of them.
    pub(crate) cpu: Option<CpuFunctions>,
}

type Log = unsafe extern "C" fn(c_int, *const c_char, ...);
type BufferInit =
    unsafe extern "C" fn(AnyBufferType, BufferInterface, *mut c_void, usize) -> *mut Buffer;

/// Numbers of the operations that matter here; they move from version to version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ops {
    pub(crate) none: c_int,
    pub(crate) mul_mat: c_int,
    pub(crate) mul_mat_id: c_int,
    /// What moves no data.
    pub(crate) views: [c_int; 4],
}

/// Why this library does nothing in a process.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The interface is of another version.
    #[error(
        "llama.cpp's backend interface has version {0}; this library knows 2 and 3: take one that is made for it"
    )]
    Api(c_int),
    /// A function is missing.
    #[error(
        "this process has no function {0}: ggml must be in shared libraries (as llama.cpp's releases, or built \
         with BUILD_SHARED_LIBS=ON)"
    )]
    Missing(String),
    /// Tensors look otherwise.
    #[error("ggml's tensors take {got} bytes, those that this library knows {TENSOR_OVERHEAD}")]
    Tensors {
        /// What ggml says.
        got: usize,
    },
}

/// Finds a function of ggml.
pub type Resolve<'a> = &'a dyn Fn(&CStr) -> Option<NonNull<c_void>>;

impl Host {
    /// # Errors
    /// [`Refusal`].
    ///
    /// # Safety
    /// What `resolve` finds under a name of ggml's is ggml's function of that name, and stays.
    pub(crate) unsafe fn new(resolve: Resolve<'_>) -> Result<Host, Refusal> {
        let missing = |name: &CStr| Refusal::Missing(name.to_string_lossy().into_owned());
        let find = |name: &CStr| resolve(name).ok_or_else(|| missing(name));
        // SAFETY: by the contract each name has ggml's function, whose declaration has this type.
        let overhead: unsafe extern "C" fn() -> usize =
            unsafe { function(find(c"ggml_tensor_overhead")?) };
        // SAFETY: it takes nothing and gives a number.
        let got = unsafe { overhead() };
        if got != TENSOR_OVERHEAD {
            return Err(Refusal::Tensors { got });
        }
        // SAFETY: as above.
        let op_name: unsafe extern "C" fn(c_int) -> *const c_char =
            unsafe { function(find(c"ggml_op_name")?) };
        let api = version(resolve)?;
        // SAFETY: as above, each with the type of its declaration.
        unsafe {
            Ok(Host {
                api,
                log: resolve(c"ggml_log_internal").map(|log| function(log)),
                buffer_init: function(find(c"ggml_backend_buffer_init")?),
                is_host: function(find(c"ggml_backend_buft_is_host")?),
                nodes: function(find(c"ggml_graph_n_nodes")?),
                node: function(find(c"ggml_graph_node")?),
                ops: Ops::find(op_name).ok_or_else(|| missing(c"ggml_op_name: MUL_MAT"))?,
                cpu: CpuFunctions::new(resolve),
            })
        }
    }

    /// The version of the interface.
    pub(crate) fn api(&self) -> Api {
        self.api
    }

    /// Writes a line to llama.cpp's log, or to standard error where there is none.
    pub(crate) fn log(&self, level: Level, text: &str) {
        let line = format!("ork: {text}\n").replace('\0', " ");
        match (self.log, CString::new(line)) {
            (Some(log), Ok(line)) => {
                // SAFETY: as printf, a format and the one string that it names, both ended by zero; it
                // keeps neither.
                unsafe { log(level as c_int, c"%s".as_ptr(), line.as_ptr()) };
            }
            _ => eprintln!("ork: {text}"),
        }
    }

    /// Makes ggml's object for a buffer.
    ///
    /// # Safety
    /// `buffer_type` is this library's table; the callbacks of `interface` take `context`.
    pub(crate) unsafe fn new_buffer(
        &self,
        buffer_type: AnyBufferType,
        interface: BufferInterface,
        context: *mut c_void,
        size: usize,
    ) -> *mut Buffer {
        // SAFETY: ggml stores what it is given.
        unsafe { (self.buffer_init)(buffer_type, interface, context, size) }
    }

    /// Whether the CPU may read a buffer type's memory.
    ///
    /// # Safety
    /// `buffer_type` is one of ggml's.
    pub(crate) unsafe fn is_host(&self, buffer_type: AnyBufferType) -> bool {
        // SAFETY: it asks the type's own table.
        unsafe { (self.is_host)(buffer_type) }
    }

    /// The nodes of a graph, in order.
    ///
    /// # Safety
    /// `graph` is a graph of ggml's, which does not change while the result lives.
    pub(crate) unsafe fn nodes<'a>(
        &'a self,
        graph: *mut c_void,
    ) -> impl Iterator<Item = NonNull<Tensor>> + Clone + 'a {
        // SAFETY: by the contract.
        let count = unsafe { (self.nodes)(graph) };
        // SAFETY: the number is one of those that there are.
        (0..count).filter_map(move |i| NonNull::new(unsafe { (self.node)(graph, i) }))
    }
}

impl Ops {
    /// Asks for the names of all numbers that an operation may have.
    fn find(op_name: unsafe extern "C" fn(c_int) -> *const c_char) -> Option<Ops> {
        // The names stand in a table that ends with the last operation: what lies behind it must not
        // be read, and this is always in it.
        const NONE: c_int = 0;
        const LAST: c_int = 60;
        let find = |wanted: &str| {
            (NONE..LAST).find(|op| {
                // SAFETY: fewer operations than these have never been.
                let name = unsafe { op_name(*op) };
                // SAFETY: names are strings that stay.
                !name.is_null() && unsafe { CStr::from_ptr(name) }.to_bytes() == wanted.as_bytes()
            })
        };
        Some(Ops {
            none: find("NONE")?,
            mul_mat: find("MUL_MAT")?,
            mul_mat_id: find("MUL_MAT_ID")?,
            views: [find("RESHAPE")?, find("VIEW")?, find("PERMUTE")?, find("TRANSPOSE")?],
        })
    }
}

/// The function at an address.
///
/// # Safety
/// There is a function of type `F` there, which is a pointer to a function.
pub(crate) unsafe fn function<F: Copy>(address: NonNull<c_void>) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: pointers to functions and to data are of one size here, and by the contract it is one.
    unsafe { transmute_copy(&address) }
}

/// The version of the interface: that of a backend which the process has taken already (the CPU's comes
/// before those of other files), else by a function that came with version 3.
fn version(resolve: Resolve<'_>) -> Result<Api, Refusal> {
    type Count = unsafe extern "C" fn() -> usize;
    type Get = unsafe extern "C" fn(usize) -> *const Registration;
    let both = resolve(c"ggml_backend_reg_count").zip(resolve(c"ggml_backend_reg_get"));
    if let Some((count, get)) = both {
        // SAFETY: ggml's functions of these names; the registry is made before it loads anything.
        let (count, get): (Count, Get) = unsafe { (function(count), function(get)) };
        // SAFETY: the first of them is there if any is, and stays.
        let first = unsafe { if count() > 0 { get(0).as_ref() } else { None } };
        if let Some(first) = first {
            return match first.api_version {
                2 => Ok(Api::V2),
                3 => Ok(Api::V3),
                other => Err(Refusal::Api(other)),
            };
        }
    }
    Ok(match resolve(c"ggml_backend_buft_alloc_buffer_n") {
        Some(_) => Api::V3,
        None => Api::V2,
    })
}

/// Finds functions in the libraries of ggml that the process has loaded, whatever they are called and
/// wherever they lie.
pub(crate) fn resolve_loaded() -> impl Fn(&CStr) -> Option<NonNull<c_void>> {
    let handles: Vec<_> = libraries().iter().filter_map(|path| opened(path)).collect();
    move |name| {
        let global = std::iter::once(libc::RTLD_DEFAULT);
        let handles = handles.iter().map(|handle| handle.as_ptr());
        handles.chain(global).find_map(|handle| {
            // SAFETY: the handle is dlopen's, which is never closed, or the global one.
            NonNull::new(unsafe { libc::dlsym(handle, name.as_ptr()) })
        })
    }
}

/// Files of ggml among what the process has mapped.
fn libraries() -> Vec<std::path::PathBuf> {
    let maps = fs::read("/proc/self/maps").unwrap_or_default();
    let mut found: Vec<std::path::PathBuf> = Vec::new();
    for mapping in crate::maps::parse(&maps) {
        let name = mapping.path.file_name().unwrap_or_default().as_bytes();
        if name.starts_with(b"libggml") && !found.contains(&mapping.path) {
            found.push(mapping.path);
        }
    }
    found
}

/// A library that is loaded already.
fn opened(path: &Path) -> Option<NonNull<c_void>> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: RTLD_NOLOAD runs nothing: it finds what is there.
    NonNull::new(unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) })
}
