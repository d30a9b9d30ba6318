//! Measurements of a device, real or simulated: how much it maps, whether it gives everything back,
//! which cores work, how fast the CPU fills its buffers.
//!
//! Each is a function that returns a report of plain numbers, whose `Display` is a line or a table for
//! people. They allocate what they say and free it again; on a board they want to be alone with the NPU.
//!
//! ```
//! use rknpu::{Device, probe};
//!
//! let device = Device::simulated(Default::default())?;
//! let report = probe::cores(&device)?;
//! assert!(report.cores.iter().all(|core| core.works()));
//! println!("{report}");
//! # Ok::<(), rknpu::Error>(())
//! ```

mod available_memory;
mod capacity;
mod cores;
mod domains;
mod fill_rate;
mod persist;
mod stream;

pub use available_memory::available_memory;
pub use capacity::{Bound, CapacityReport, capacity};
pub use cores::{CoreOutcome, CoresReport, cores};
pub use domains::{DomainsReport, domains};
pub use fill_rate::{FillRate, FillReport, fill};
pub use persist::{PersistReport, persist};
pub use stream::{StreamReport, stream};

use std::time::Duration;

/// Bytes per second in units of 10⁹; 0 when no time has passed.
fn gb_per_s(bytes: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { bytes as f64 / 1e9 / seconds } else { 0.0 }
}
