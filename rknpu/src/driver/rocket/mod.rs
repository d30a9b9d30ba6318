//! Mainline's `rocket` driver: an address space is an open file of its own. [`requests`] fills its structs,
//! [`linux`] carries them to the running kernel, `sim` to the simulator in this process.

mod linux;
mod marks;
mod places;
mod requests;
#[cfg(feature = "sim")]
mod sim;

pub(crate) use linux::Node;
pub(crate) use requests::Rocket;
#[cfg(feature = "sim")]
pub(super) use sim::simulated;
