//! Carries the requests to the simulator, in this process.

use std::sync::Arc;
use std::time::Duration;

use rknpu_sim::{File, Machine};
use rknpu_sys::ioctl::Request;
use rustix::io::Errno;

use super::driver::{Channel, Files, Rocket};
use crate::driver::Driver;
use crate::driver::vendor::{carry_simulated, map_simulated};
use crate::driver::vetted::Vetted;
use crate::error::Result as OpenResult;
use crate::mapping::Mapping;

/// A simulated machine whose driver is `rocket`.
#[derive(Debug)]
struct Simulated(Machine);

/// The driver on a simulated machine.
pub(in crate::driver) fn simulated(machine: &Machine) -> OpenResult<Arc<dyn Driver>> {
    Ok(Arc::new(Rocket::open(Simulated(machine.clone()), machine.open())?))
}

impl Files for Simulated {
    type File = File;

    fn node(&self) -> &str {
        "sim:rocket"
    }

    fn open(&self) -> Result<File, Errno> {
        Ok(self.0.open())
    }

    fn pause(&self, time: Duration) {
        self.0.sleep(time);
    }
}

impl Channel for File {
    fn call<T: Request>(&self, request: &mut Vetted<T>) -> Result<(), Errno> {
        carry_simulated(self, request)
    }

    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        map_simulated(self, offset, len)
    }
}
