//! A kernel that does nothing, so that what is measured is this crate.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rknpu::kernel::{self, Completion, Create, Kernel, Mapping, Object, Submission};
use rknpu::sim::Machine;
use rustix::io::Errno;

/// Memory is the simulator's; syncs and submits return at once.
#[derive(Debug)]
pub(crate) struct NoOp(Arc<dyn Kernel>);

impl NoOp {
    /// On a machine of its own.
    pub(crate) fn kernel() -> Arc<dyn Kernel> {
        Arc::new(NoOp(kernel::simulated(&Machine::new(Default::default()))))
    }
}

impl Kernel for NoOp {
    fn node(&self) -> &str {
        "no-op"
    }

    fn action(&self, code: u32, value: u32) -> Result<u32, Errno> {
        self.0.action(code, value)
    }

    fn create(&self, create: &Create) -> Result<Object, Errno> {
        self.0.create(create)
    }

    fn map(&self, object: &Object) -> Result<Mapping, Errno> {
        self.0.map(object)
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
        self.0.destroy(object)
    }

    fn abandon(&self, object: &Object) -> Result<(), Errno> {
        self.0.abandon(object)
    }

    fn submit(&self, submission: &Submission<'_>) -> (Completion, Result<(), Errno>) {
        let busy = Duration::from_micros(1);
        (Completion { tasks_done: submission.count, busy }, Ok(()))
    }

    fn fences(&self, _: &Submission<'_>) -> Result<bool, Errno> {
        Ok(false)
    }

    fn import(&self, dma_buf: BorrowedFd<'_>) -> Result<Object, Errno> {
        self.0.import(dma_buf)
    }

    fn pause(&self, _: Duration) {}
}
