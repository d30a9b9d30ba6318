//! Mainline's `rocket` driver: an address space is an open file of its own. [`requests`] fills its structs,
//! [`linux`] carries them to the running kernel, `sim` to the simulator in this process.

mod address_holes;
mod driver;
mod linux;
mod result_marks;
#[cfg(feature = "sim")]
mod sim;

pub(crate) use driver::Rocket;
pub(crate) use linux::Node;
#[cfg(feature = "sim")]
pub(super) use sim::simulated;
