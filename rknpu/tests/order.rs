//! In which order the driver is asked, where it matters and no result shows it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rknpu::capabilities::Capabilities;
use rknpu::driver::{
    self, Allocate, Completion, Driver, Import, MappedRange, Object, Part, Program, Refused,
    Submission, Usage,
};
use rknpu::sim::{CallKind, Machine};
use rknpu::{
    Buffer, Device, Domain, Layout, Matmul, MatmulLimits, OnDevice, OpenOptions, Precision,
    WeightRef,
};

/// A call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    Paused(Duration),
    Freed,
    Reset,
    SpacesChecked,
    SyncedForDevice,
    SyncedForCpu,
    Submitted,
}

/// The simulated driver, and what was asked of it.
#[derive(Debug)]
struct Recorded {
    inner: Arc<dyn Driver>,
    seen: Mutex<Vec<Seen>>,
    /// Addresses of the objects that the last submission used.
    used: Mutex<Vec<(u64, Usage)>>,
}

impl Recorded {
    fn on(machine: &Machine) -> Arc<Recorded> {
        let inner = driver::simulated(machine).unwrap();
        Arc::new(Recorded { inner, seen: Mutex::default(), used: Mutex::default() })
    }

    fn note(&self, seen: Seen) {
        self.seen.lock().unwrap().push(seen);
    }

    /// What was asked since the last time.
    fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

impl Driver for Recorded {
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

    fn sync_for_device(&self, part: &Part<'_>) -> Result<(), Refused> {
        self.note(Seen::SyncedForDevice);
        self.inner.sync_for_device(part)
    }

    fn sync_for_cpu(&self, part: &Part<'_>) -> Result<(), Refused> {
        self.note(Seen::SyncedForCpu);
        self.inner.sync_for_cpu(part)
    }

    fn free(&self, object: Object) -> Result<(), (Object, Refused)> {
        self.note(Seen::Freed);
        self.inner.free(object)
    }

    fn write_program(&self, entry: &mut [u8], program: &Program) {
        self.inner.write_program(entry, program);
    }

    fn submit(&self, submission: &Submission) -> Completion {
        self.note(Seen::Submitted);
        let used = submission.uses().iter().map(|(object, access)| (object.iova(), access));
        *self.used.lock().unwrap() = used.collect();
        self.inner.submit(submission)
    }

    fn fences(&self, submission: &Submission) -> Result<bool, Refused> {
        self.inner.fences(submission)
    }

    fn reset(&self) -> Result<(), Refused> {
        self.note(Seen::Reset);
        self.inner.reset()
    }

    fn check_spaces(&self) -> Result<(), Refused> {
        self.note(Seen::SpacesChecked);
        self.inner.check_spaces()
    }

    fn shut_down(&self) -> Vec<(u32, u64, Refused)> {
        self.inner.shut_down()
    }

    fn pause(&self, time: Duration) {
        self.note(Seen::Paused(time));
        self.inner.pause(time);
    }
}

const LAYOUT: (u32, u32) = (64, 32);

struct Multiplying {
    matmul: Matmul,
    weight: Buffer<OnDevice>,
}

impl Multiplying {
    fn in_domain(domain: &Domain) -> Multiplying {
        let (k, n) = LAYOUT;
        let cores = domain.device().cores().unwrap();
        let matmul = Matmul::int8(domain, &cores, MatmulLimits { rows: 1, k, n }).unwrap();
        let layout = Layout::new(k, n, Precision::Int8).unwrap();
        let weight = domain.alloc(layout.bytes() as usize).unwrap().to_device().unwrap();
        Multiplying { matmul, weight }
    }

    fn run(&mut self) {
        let layout = Layout::new(LAYOUT.0, LAYOUT.1, Precision::Int8).unwrap();
        let weight = WeightRef::new(&self.weight, 0, layout).unwrap();
        self.matmul.run(&weight, &[1; 64], &mut [0; 32]).unwrap();
    }
}

fn settled(seen: &[Seen]) -> bool {
    let submitted = seen.iter().position(|call| *call == Seen::Submitted).unwrap();
    let paused = |call: &Seen| matches!(call, Seen::Paused(time) if !time.is_zero());
    seen[..submitted].iter().any(paused)
}

/// The NPU multiplies wrongly right after a switch of domain: it is given time before the first job, and only
/// then. A free switches as well.
#[test]
fn the_npu_settles_after_every_switch() {
    let recorded = Recorded::on(&Machine::new(Default::default()));
    let device = Device::with_driver(recorded.clone(), &OpenOptions::new()).unwrap();
    let (here, there) = (device.domain(0).unwrap(), device.domain(1).unwrap());
    let mut one = Multiplying::in_domain(&here);
    let mut other = Multiplying::in_domain(&there);
    let spare = there.alloc(4096).unwrap();
    one.run();
    assert!(settled(&recorded.take()));
    one.run();
    assert!(!settled(&recorded.take()), "it was in this domain already");
    other.run();
    assert!(settled(&recorded.take()));
    one.run();
    let switches = device.stats().domain_switches;
    recorded.take();
    drop(spare);
    assert_eq!(recorded.take(), [Seen::Freed]);
    assert_eq!(device.stats().domain_switches, switches + 1, "a free is a switch");
    one.run();
    assert!(settled(&recorded.take()), "the free left the driver in the other domain");
    assert_eq!(device.stats().domain_switches, switches + 2);
}

/// What a new object's pages left in the caches would overwrite the NPU's results later, and a single sync has
/// been seen to wedge the next submit.
#[test]
fn a_new_object_is_cleaned_whole_and_twice() {
    let machine = Machine::new(Default::default());
    let device = Device::simulated_on(&machine).unwrap();
    let syncs = || {
        let report = machine.report();
        let calls = report.calls.get(&CallKind::MemSync).map_or(0, |calls| calls.ok);
        (calls, report.to_device, report.from_device)
    };
    let buffer = device.domain(0).unwrap().alloc(3 * 4096).unwrap();
    let (calls, to, from) = syncs();
    // Whatever part is wanted.
    let buffer = buffer.to_device_up_to(64).unwrap();
    assert_eq!(syncs(), (calls + 2, to + 2 * 3 * 4096, from + 3 * 4096));
    // From then on once, and only the part.
    let buffer = buffer.to_host().unwrap();
    let (calls, to, from) = syncs();
    drop(buffer.to_device_up_to(64).unwrap());
    assert_eq!(syncs(), (calls + 1, to + 64, from));
}

/// After a job that hung: quiet, a reset, quiet again, and a look whether domains still switch, before the job
/// is run again.
#[test]
fn a_reset_stands_between_a_job_that_hung_and_its_repetition() {
    let machine = Machine::new(Default::default());
    let recorded = Recorded::on(&machine);
    let device = Device::with_driver(recorded.clone(), &OpenOptions::new()).unwrap();
    let mut one = Multiplying::in_domain(&device.domain(0).unwrap());
    one.run();
    recorded.take();
    machine.inject(rknpu::sim::Fault::Hang { core: None, after: 0, times: 1 });
    one.run();
    let seen = recorded.take();
    let kinds = |call: &Seen| match call {
        Seen::Paused(_) => 'p',
        Seen::Reset => 'r',
        Seen::SpacesChecked => 'c',
        Seen::Submitted => 's',
        Seen::SyncedForCpu => 'o',
        Seen::SyncedForDevice => 'i',
        Seen::Freed => 'f',
    };
    let told: String = seen.iter().map(kinds).collect();
    assert!(told.contains("sprpc"), "{told}");
    assert_eq!(told.matches('s').count(), 2, "{told}");
    assert!(told.rfind('s') > told.find('c') && told.ends_with('o'), "{told}");
}

/// Whoever lets go of a weight while it is multiplied with must not free it: the submission has it as well.
#[test]
fn a_chain_holds_each_of_its_weights() {
    let recorded = Recorded::on(&Machine::new(Default::default()));
    let device = Device::with_driver(recorded.clone(), &OpenOptions::new()).unwrap();
    let domain = device.domain(0).unwrap();
    let (k, n) = LAYOUT;
    let layout = Layout::new(k, n, Precision::Int8).unwrap();
    let weight = || domain.alloc(layout.bytes() as usize).unwrap().to_device().unwrap();
    let buffers = [weight(), weight(), weight()];
    let weights = buffers.each_ref().map(|buffer| WeightRef::new(buffer, 0, layout).unwrap());
    let limits = MatmulLimits { rows: 1, k, n: 3 * n };
    let mut matmul = Matmul::int8(&domain, &device.cores().unwrap(), limits).unwrap();
    let rows = matmul.activations().lease(1, k).unwrap().to_device().unwrap();
    let mut product = matmul.multiply_all(&weights, &rows).unwrap();
    while product.next_columns().unwrap().is_some() {}
    let used = recorded.used.lock().unwrap().clone();
    for buffer in &buffers {
        assert!(used.contains(&(buffer.iova(), Usage::Read)), "{buffer:?} in {used:x?}");
    }
    assert!(used.len() > buffers.len() + 1, "programs and rows as well: {used:x?}");
    assert_eq!(used.iter().filter(|(_, access)| *access == Usage::Write).count(), 1, "the results");
}

/// The first output that an NPU writes into new memory has been seen to be stale: each core's part of a matmul's
/// results is computed twice, once.
#[test]
fn the_first_results_in_new_memory_are_computed_twice() {
    let recorded = Recorded::on(&Machine::new(Default::default()));
    let device = Device::with_driver(recorded.clone(), &OpenOptions::new()).unwrap();
    let mut one = Multiplying::in_domain(&device.domain(0).unwrap());
    let mut submits = || {
        recorded.take();
        one.run();
        recorded.take().into_iter().filter(|call| *call == Seen::Submitted).count()
    };
    assert_eq!([submits(), submits(), submits()], [2, 1, 1]);
}

/// A create that the driver cannot map costs address space until reboot.
#[test]
fn what_has_no_room_is_refused_before_the_driver_is_asked() {
    let machine = Machine::new(Default::default());
    let device = Device::simulated_on(&machine).unwrap();
    let domain = device.domain(0).unwrap();
    let most = domain.stats().largest_free;
    let first = domain.alloc((most / 2) as usize).unwrap();
    let error = domain.alloc((most / 2 + 8192) as usize).unwrap_err();
    assert!(matches!(error, rknpu::Error::IovaExhausted { errno: None, .. }), "{error}");
    let creates = machine.report().calls[&CallKind::MemCreate];
    assert_eq!((creates.ok, creates.failed), (1, 0));
    drop(first);
}
