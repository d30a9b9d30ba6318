//! Safe access to the NPU of the RK3588: IOMMU domains, buffers, cores, and matrix multiplication.
//!
//! This crate drives the vendor's `rknpu` kernel driver directly: no closed runtime, no daemon. What would
//! corrupt, hang or lose something in the driver does not compile, or is refused before the driver hears
//! of it. It knows matmuls in int8, fp16 and int4; it is no model runtime, converts no weights
//! (`ork-weights` does) and decides nothing about what stays in memory (`ork-cache` does).
//!
//! Every example on this page runs on the simulated device of the feature `sim`, so anywhere. With
//! [`Device::open`] instead of `Device::simulated` it runs on a board.
//!
//! The sections are in the order in which they are best read: [a first matmul](#a-first-matmul),
//! [domains](#domains), [buffers](#buffers-and-their-states),
//! [cores and jobs](#cores-and-jobs), [errors](#errors-and-recovery); then
//! [what the driver can do to you](#what-the-driver-can-do-to-you), which is why all this is so.
//!
//! # A first matmul
//!
//! ```
//! use rknpu::{Device, Layout, Matmul, MatmulLimits, Precision, WeightRef, reference};
//!
//! // The NPU. On a board: `Device::open()?`.
//! let device = Device::simulated(Default::default())?;
//!
//! // An address space, and in it a weight of 1024 inputs and 256 outputs, tiled as the NPU reads it.
//! let domain = device.domain(0)?;
//! let layout = Layout::new(1024, 256, Precision::Int8)?;
//! let mut buffer = domain.alloc(layout.bytes() as usize)?;
//! reference::tile_i8(layout, |k, n| ((k * 3 + n) % 11) as i8 - 5, buffer.as_mut_slice());
//! let tiled = buffer.as_slice().to_vec();
//!
//! // From the CPU to the NPU: the buffer is consumed, the caches are cleaned.
//! let buffer = buffer.to_device()?;
//! let weight = WeightRef::new(&buffer, 0, layout)?;
//!
//! // Scratch memory for shapes up to these, made once; then any number of runs.
//! let limits = MatmulLimits { rows: 32, k: 1024, n: 256 };
//! let mut matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
//! let activations = vec![2i8; 32 * 1024];
//! let mut out = vec![0i32; 32 * 256];
//! matmul.run(&weight, &activations, &mut out)?;
//!
//! assert_eq!(out, reference::matmul_i8(layout, &tiled, &activations));
//! # Ok::<(), rknpu::Error>(())
//! ```
//!
//! # Domains
//!
//! The NPU sees memory through an IOMMU with 32-bit addresses (IOVAs). An IOMMU domain, here a [`Domain`], is
//! one such address space, of 4 GiB − 4 KiB (address 0 is never given out), and a buffer takes part of it as
//! long as it exists. When it is full, [`Domain::alloc`] says how full, and what the largest gap is:
//!
//! ```
//! use rknpu::{Device, Error};
//!
//! let device = Device::simulated(Default::default())?;
//! let domain = device.domain(0)?;
//! let _three = domain.alloc(3 << 30)?;
//! let error = domain.alloc(2 << 30).unwrap_err();
//! let Error::IovaExhausted { used, largest_free, .. } = error else { panic!() };
//! assert_eq!((used, largest_free), (3 << 30, (1 << 30) - 4096));
//! # Ok::<(), rknpu::Error>(())
//! ```
//!
//! That is told from this process's own books before the driver is asked, because a failing driver first
//! allocates and zeroes every page. An [`Arena`] cuts one large buffer into parts, so that many small
//! weights need neither a GEM handle nor an IOVA range of their own.
//!
//! The driver (0.9.8 and later, where its kernel was built for it) has 16 domains, so up to 64 GiB can
//! be resident. But one domain is current at a time, for all three cores: every call that names another makes
//! the driver switch, and wait up to 6 s, then fail, while anything still runs. So
//!
//! * a domain is leased ([`Device::domain`], [`Device::new_domain`]): one index, one owner; clones share it;
//! * every call enters its domain first. Work in one domain runs side by side, a change waits until all of
//!   it has ended, and whoever came first goes first;
//! * [`Domain::enter`] keeps a domain active for a batch of jobs, so that it costs one switch;
//! * what is dropped while another domain is active is freed as soon as that ends.
//!
//! ```
//! let device = rknpu::Device::simulated(Default::default())?;
//! let (a, b) = (device.domain(0)?, device.domain(1)?);
//! let in_a = a.alloc(4096)?;
//! let in_b = b.alloc(4096)?.to_device()?;
//! // The same address in both: they are different spaces.
//! assert_eq!(in_a.to_device()?.iova(), in_b.iova());
//! # Ok::<(), rknpu::Error>(())
//! ```
//!
//! # Buffers and their states
//!
//! The CPU's caches know nothing of the NPU. A [`Buffer<Host>`](Buffer) is the CPU's: it gives slices, and no
//! address. A [`Buffer<OnDevice>`] is the NPU's: it gives an address, and no slices. Going from
//! one to the other consumes the buffer and does the cache maintenance ([`Buffer::to_device`],
//! [`Buffer::to_host`]); [`Buffer::reclaim`] takes a buffer back to be overwritten, without; [`Buffer::free`]
//! gives it back and says whether that worked. A change that
//! fails gives the buffer back with the error.
//!
//! Owned handles borrow nothing: a buffer keeps its domain leased and its device open by itself, and can
//! stand beside both in one struct.
//!
//! # Cores and jobs
//!
//! There is one [`Core`] token for each of the three cores, and a job needs one, so the driver never has
//! to queue. [`Device::cores`] makes a pool of them that several [`Matmul`]s share: each run takes what is
//! free and worth taking, splits the columns over them, and gives them back.
//!
//! A [`Job`] is the layer below: register programs of the caller's own, with every buffer that they touch.
//! It is checked command by command before the NPU sees it, runs on the caller's thread or its core's,
//! and gives the buffers back when it has ended. Forgetting a running one leaks its memory and never frees
//! it under the NPU.
//!
//! # Capabilities
//!
//! [`Device::capabilities`] says what this driver has; [`probe::cores`] runs a tiny job on each core to see
//! which work and whether fences were built in.
//!
//! | feature | needs |
//! |---|---|
//! | one domain, int8, fp16, int4 | driver 0.8 |
//! | addresses given page by page, not aligned to powers of two | driver 0.9.7, IOMMU |
//! | 16 domains | driver 0.9.8, IOMMU, kernel with `CONFIG_NO_GKI` |
//!
//! # Errors and recovery
//!
//! An [`Error`] says the operation, the numbers and the way out. What happens where nothing can be
//! returned, in `Drop` above all, is counted in [`Device::health`], the first with its details.
//!
//! When a job does not run to its end, or the driver reports success for one that did not run, the NPU is
//! reset as soon as nothing of this process runs, the driver is asked whether domains still switch, and the
//! job is run once more. If that fails, too, the device is *wedged*: it takes no more work, and keeps its
//! buffers until the process ends, because the NPU may still write to them. The error is a
//! [`health::PostMortem`]:
//!
//! ```
//! use rknpu::sim::{Fault, Machine};
//! use rknpu::{Device, Error, probe};
//!
//! let machine = Machine::new(Default::default());
//! let device = Device::simulated_on(&machine)?;
//! machine.inject(Fault::Hang { core: Some(1), after: 0, times: 1 });
//! let report = probe::cores(&device)?;
//! assert!(report.cores[0].works() && !report.cores[1].works());
//! let failure = device.health().last_failure.expect("the job on core 1");
//! assert_eq!((failure.core, failure.programs_done), (1, 0));
//! println!("{failure}");
//! # Ok::<(), Error>(())
//! ```
//!
//! # What the driver can do to you
//!
//! All of this is within reach of an ordinary program that opens the node. Observed on the driver itself,
//! on Linux 6.1, or reported by the authors of public drivers from their boards.
//!
//! | what happens | when | what this crate does |
//! |---|---|---|
//! | the kernel reads or writes freed memory | sync or submit with the address of a destroyed object | the address is private to an object that only `destroy` consumes |
//! | it reads and writes beside the task array | a task range outside its buffer, or of 0 tasks | ranges are checked; all five entries are filled |
//! | it follows a null pointer | tasks in imported, SRAM or unmapped memory; a sync of a buffer of 2⁶⁴ bytes | tasks have a buffer of their own; sizes are bounded before the call |
//! | domains never switch again, until a reboot | a job that ends within 100 ms after its timeout; a submit with a wrong domain id | generous timeouts; domain ids only from leases; a check after every timeout |
//! | a wait that never succeeds | a timeout with its top bit set, or of 0 | [`OpenOptions::timeout`] takes 1 ms to 2³¹ − 1 ms |
//! | 6 s, then EINVAL | a call for another domain while jobs run | domains are entered in turn |
//! | a job freed while the queue still points to it | one that times out waiting for its core | one job in flight on a core |
//! | jobs of others killed | a non-blocking submit that finds an older job | blocking submits only, on threads |
//! | a core's slot that names a job that is gone | an interrupt whose status is not its job's; no reset clears it | the core takes no more jobs |
//! | an object freed under another that is the same | a dma-buf imported twice | the second import is refused |
//! | another buffer's memory torn out | freeing a foreign dma-buf that was imported outside domain 0 | [`Domain::import`] is for domain 0, which it switches to first |
//! | address space lost until a reboot | contiguous buffers; a kill while jobs run; unmapping after destroying | pages only; [`cleanup::clean_up_on_signals`]; unmap, then destroy |
//! | the NPU reads stale memory | a missing sync; a fresh buffer synced once | states; the first sync of a buffer is a double one |
//! | stale results | the first submit into a fresh output buffer | it is made twice |
//! | a hang | the first int8 job of a cold NPU, and after int4 | a reset before it, with nothing running |
//! | two processes starve or reset each other | both open the device | an advisory lock, which names its holder |
//!
//! # Boards, kernels, drivers
//!
//! What was seen to work, and by whom. This crate itself has run on the simulator, in process and, through
//! its Linux half, on the preloadable one (which sees programs built with `--cfg rustix_use_libc`); on a
//! board not yet. Reports from boards are welcome.
//!
//! | SoC and kernel | driver | what works |
//! |---|---|---|
//! | RK3588, vendor 6.1 (Armbian and others) | 0.9.8 | matmul on three cores, 16 domains; fences are usually not built in (C project, on boards) |
//! | x86-64, Linux 6.1 with the vendor driver over software cores | 0.9.8 | every call, flag and errno that this crate relies on (recorded traces) |
//! | RK3588, vendor 5.10 | 0.8 to 0.9.7 | one domain; the card node opened with the 40-byte `MEM_CREATE` (public programs, on boards) |
//! | any, `CONFIG_ROCKCHIP_RKNPU_DMA_HEAP` | any | nothing: `/dev/rknpu` is another interface, which opening names |
//! | RK3588, mainline port of the vendor driver | 0.9.8 | not with an IOMMU: its `MEM_SYNC` leaves most of a buffer out and reports success |
//! | RK3588, mainline `rocket` | – | nothing yet: another interface; [`driver::Driver`] is where it would come in |
//!
//! # Layers
//!
//! | module | what it holds |
//! |---|---|
//! | [`driver`] | the boundary to the driver: Linux, the simulator, or one wrapped around either |
//! | [`domain_turns`] | the rule "nothing of domain B while A works", for whoever orders work above a device |
//! | [`matmul`] | activations and results in place, products column by column |
//! | [`import`] | memory of other drivers |
//! | [`health`], [`error`] | what went wrong, and the way out |
//! | [`buffer`] | buffers and their states |
//! | [`program`], [`limits`] | register programs, and what one of them can do |
//! | [`reference`](mod@reference) | the same arithmetic on the CPU |
//! | [`probe`] | measurements of a device |
//! | [`sys`] | the driver's structs and flags, registers and layouts, re-exported |
//! | `sim` | the simulator, re-exported (feature `sim`) |
//!
//! # Safety
//!
//! Programs need no `unsafe`, and no safe call makes the driver touch memory that is not the program's.
//! Nothing public is unsafe: objects come from the drivers of this crate alone, and a driver of one's own wraps
//! one of those.
//!
//! Unsafe code is in three files: the two that carry structs to a driver, and `mapping`, whose three types carry
//! the proofs. What the compiler refuses stands as an example beside its type; what is refused at run time
//! is in `tests/boundary.rs`. Minimum Rust: 1.88.
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(target_endian = "big")]
compile_error!("the NPU is little-endian, and buffers are shared with it as they are");

mod allocation;
mod arena;
pub mod buffer;
pub mod capabilities;
pub mod chains;
pub mod cleanup;
mod cores;
pub mod device;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod doc;
pub mod domain;
pub mod domain_turns;
pub mod driver;
pub mod error;
mod fast_cores;
pub mod health;
pub mod import;
pub mod job;
pub mod keeper;
pub mod limits;
mod lock;
mod mapping;
pub mod matmul;
mod npu_turns;
pub mod open;
pub mod probe;
pub mod program;
pub mod reference;
mod worker;

// In the order in which a program comes to them; everything else is in the modules.
pub use device::Device;
pub use open::OpenOptions;

pub use domain::Domain;

pub use arena::Arena;
pub use buffer::{Buffer, Host, OnDevice};
pub use rknpu_sys::layout::{Layout, Precision};

pub use crate::cores::{Core, Cores};
pub use matmul::{Matmul, MatmulLimits, WeightRef};

pub use job::Job;

pub use error::{Error, Result};

pub use half::f16;
#[cfg(feature = "sim")]
pub use rknpu_sim as sim;
pub use rknpu_sys as sys;
pub use rustix::io::Errno;
