//! The vendor's `rknpu` driver: [`requests`] fills its structs, [`linux`] carries them to the running kernel,
//! `sim` to the simulator in this process.

mod driver;
mod linux;
#[cfg(feature = "sim")]
mod sim;

pub(crate) use driver::Rknpu;
pub(crate) use linux::{
    Linux, allocate_dma_buf, carry, driver_name, map_dma_buf, map_node, sync_dma_buf,
};
#[cfg(feature = "sim")]
pub(super) use sim::{carry_simulated, map_simulated, simulated};
