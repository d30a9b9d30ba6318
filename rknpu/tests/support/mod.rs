//! A kernel that does nothing, so that what is measured is this crate.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rknpu::driver::{self, Completion, Create, Driver, Mapping, Object, Submission};
use rknpu::sim::Machine;
use rustix::io::Errno;

/// Memory is the simulator's; syncs and submits return at once.
#[derive(Debug)]
pub(crate) struct NoOp {
    inner: Arc<dyn Driver>,
    /// How many submits to a core are still to panic.
    panics: Mutex<(u32, u32)>,
}

impl NoOp {
    /// On a machine of its own.
    pub(crate) fn driver() -> Arc<dyn Driver> {
        NoOp::panicking(0, 0)
    }

    /// One whose first submits to a core panic.
    pub(crate) fn panicking(core: u32, times: u32) -> Arc<dyn Driver> {
        let inner = driver::simulated(&Machine::new(Default::default()));
        Arc::new(NoOp { inner, panics: Mutex::new((core, times)) })
    }
}

impl Driver for NoOp {
    fn node(&self) -> &str {
        "no-op"
    }

    fn action(&self, code: u32, value: u32) -> Result<u32, Errno> {
        self.inner.action(code, value)
    }

    fn create(&self, create: &Create) -> Result<Object, Errno> {
        self.inner.create(create)
    }

    fn map(&self, object: &Object) -> Result<Mapping, Errno> {
        self.inner.map(object)
    }

    fn sync(
        &self,
        _: &Object,
        _: rknpu_sys::flags::SyncFlags,
        _: u64,
        _: u64,
    ) -> Result<(), Errno> {
        Ok(())
    }

    fn destroy(&self, object: Object) -> Result<(), (Object, Errno)> {
        self.inner.destroy(object)
    }

    fn abandon(&self, object: &Object) -> Result<(), Errno> {
        self.inner.abandon(object)
    }

    fn submit(&self, submission: &Submission<'_>) -> (Completion, Result<(), Errno>) {
        let mut panics = self.panics.lock().unwrap();
        if panics.0 == submission.core && panics.1 > 0 {
            panics.1 -= 1;
            drop(panics);
            panic!("a driver that is not sound");
        }
        drop(panics);
        let busy = Duration::from_micros(1);
        (Completion { tasks_done: submission.count, busy }, Ok(()))
    }

    fn fences(&self, _: &Submission<'_>) -> Result<bool, Errno> {
        Ok(false)
    }

    fn import(&self, dma_buf: BorrowedFd<'_>) -> Result<Object, Errno> {
        self.inner.import(dma_buf)
    }

    fn pause(&self, _: Duration) {}
}
