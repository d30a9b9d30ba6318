//! A driver that does nothing, so that what is measured is this crate.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rknpu::capabilities::Capabilities;
use rknpu::driver::{
    self, Allocate, Completion, Driver, Import, MappedRange, Object, Part, Program, Refused,
    Submission,
};
use rknpu::sim::Machine;

/// Memory is the simulator's; syncs and submits return at once.
#[derive(Debug)]
pub(crate) struct NoOp {
    inner: Arc<dyn Driver>,
    /// A core, and how many submits to it are still to go wrong.
    wrong: Mutex<(u32, u32, Wrong)>,
}

/// What becomes of a submit.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "not every test needs each")]
pub(crate) enum Wrong {
    /// It panics.
    Panics,
    /// It times out with an interrupt of another job.
    ForeignStatus,
}

#[allow(dead_code, reason = "not every test needs each")]
impl NoOp {
    /// On a machine of its own.
    pub(crate) fn driver() -> Arc<dyn Driver> {
        NoOp::failing(0, 0, Wrong::Panics)
    }

    /// One whose first submits to a core go wrong.
    pub(crate) fn failing(core: u32, times: u32, wrong: Wrong) -> Arc<dyn Driver> {
        let inner = driver::simulated(&Machine::new(Default::default())).unwrap();
        Arc::new(NoOp { inner, wrong: Mutex::new((core, times, wrong)) })
    }
}

impl Driver for NoOp {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn allocate(&self, request: &Allocate) -> Result<Object, Refused> {
        self.inner.allocate(request)
    }

    fn import(&self, from: &Import<'_>) -> Result<Object, Refused> {
        self.inner.import(from)
    }

    fn map(&self, object: &mut Object) -> Result<MappedRange, Refused> {
        self.inner.map(object)
    }

    fn sync_for_device(&self, _: &Part<'_>) -> Result<(), Refused> {
        Ok(())
    }

    fn sync_for_cpu(&self, _: &Part<'_>) -> Result<(), Refused> {
        Ok(())
    }

    fn free(&self, object: Object) -> Result<(), (Object, Refused)> {
        self.inner.free(object)
    }

    fn write_program(&self, entry: &mut [u8], program: &Program) {
        self.inner.write_program(entry, program);
    }

    fn submit(&self, submission: &Submission) -> Completion {
        let mut wrong = self.wrong.lock().unwrap();
        let busy = Duration::from_micros(1);
        if wrong.0 == submission.core() && wrong.1 > 0 {
            wrong.1 -= 1;
            let kind = wrong.2;
            drop(wrong);
            let errno = Some(rknpu::Errno::TIMEDOUT);
            match kind {
                Wrong::Panics => panic!("a driver that is not sound"),
                Wrong::ForeignStatus => {
                    return Completion { errno, foreign_status: Some(1), ..Default::default() };
                }
            }
        }
        drop(wrong);
        let programs_done = submission.programs().len() as u32;
        Completion { programs_done, busy, ..Completion::default() }
    }

    fn fences(&self, _: &Submission) -> Result<bool, Refused> {
        Ok(false)
    }

    fn reset(&self) -> Result<(), Refused> {
        self.inner.reset()
    }

    fn check_spaces(&self) -> Result<(), Refused> {
        self.inner.check_spaces()
    }

    fn shut_down(&self) -> Vec<(u32, u64, Refused)> {
        self.inner.shut_down()
    }

    fn pause(&self, _: Duration) {}
}
