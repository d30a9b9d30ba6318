//! That what the driver refuses is explained by what is really the cause.

use rknpu::sim::config::{Domains as Built, Taken, Version};
use rknpu::sim::{CallKind, Config, Fault, Machine};
use rknpu::sys::action;
use rknpu::sys::uapi::{Action, MemCreate, SubcoreTask, Submit};
use rknpu::{Device, Errno, Error};

/// A job for a domain that does not exist: it takes the driver's count of users to -1.
fn lose_the_count(machine: &Machine, live: u32) {
    let file = machine.open();
    let mut buffer = MemCreate { flags: 0xb, size: 4096, ..Default::default() };
    file.call(&mut buffer).unwrap();
    let flags = action::SET_IOMMU_DOMAIN_ID;
    file.call(&mut Action { flags, value: live }).unwrap();
    let mut job = Submit {
        flags: 5,
        timeout: 100,
        task_number: 1,
        task_obj_addr: buffer.obj_addr,
        iommu_domain_id: 99,
        core_mask: 1,
        fence_fd: -1,
        subcore_task: [SubcoreTask { task_start: 0, task_number: 1 }; 5],
        ..Default::default()
    };
    assert_eq!(file.call(&mut job), Err(Errno::INVAL));
    assert_eq!(machine.report().domain_count, -1);
}

#[test]
fn a_driver_that_lost_its_count_is_known_when_it_is_opened() {
    // Whichever domain is live: a switch to that one alone would still succeed.
    for live in [0, 1, 7] {
        let machine = Machine::new(Config::default());
        lose_the_count(&machine, live);
        let error = Device::simulated_on(&machine).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::DomainsStuck { errno: Errno::INVAL, .. }), "{text}");
        assert!(text.contains("only a reboot helps") && text.contains("6 s"), "{text}");
    }
}

#[test]
fn a_program_without_a_lock_is_named_as_the_other_cause() {
    let machine = Machine::new(Config::default());
    machine.inject(Fault::BusyDomain { domain: 0, for_ms: 60_000 });
    let text = Device::simulated_on(&machine).unwrap_err().to_string();
    assert!(text.contains("does not take this crate's lock (end it)"), "{text}");
}

#[test]
fn no_room_is_only_said_of_what_has_none() {
    // An earlier process has lost all but a MiB of the domain.
    let taken = vec![Taken { domain: 0, count: 1, bytes: (4 << 30) - (2 << 20), gap: 0 }];
    let device = Device::simulated(Config { taken, ..Config::default() }).unwrap();
    let domain = device.domain(0).unwrap();
    let held = domain.alloc(1 << 20).unwrap();
    let error = domain.alloc(8 << 20).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::IovaExhausted { errno: Some(Errno::FAULT), .. }), "{text}");
    assert!(
        text.contains("only 1048576 of 4294963200 in use") && text.contains("reboot"),
        "{text}"
    );
    assert!(!text.contains("largest gap"), "{text}");
    drop(held);

    // The whole space is this process's own.
    let device = Device::simulated(Config::default()).unwrap();
    let domain = device.domain(0).unwrap();
    let _held = domain.alloc(3 << 30).unwrap();
    let text = domain.alloc(2 << 30).unwrap_err().to_string();
    assert!(text.contains("largest gap is 1073737728"), "{text}");

    // A driver that aligns: 1280 MiB fit once, at a multiple of 2 GiB.
    let old = Config { version: Version::V0_9_6, ..Config::default() };
    let device = Device::simulated(old).unwrap();
    let domain = device.domain(0).unwrap();
    let _held = domain.alloc(1280 << 20).unwrap();
    let text = domain.alloc(1280 << 20).unwrap_err().to_string();
    assert!(text.contains("multiple of 2147483648") && text.contains("0.9.7"), "{text}");
}

#[test]
fn contiguous_memory_is_named_where_there_is_no_iommu() {
    let machine = Machine::new(Config { iommu: false, ..Config::default() });
    let device = Device::simulated_on(&machine).unwrap();
    let domain = device.domain(0).unwrap();
    let errno = Errno::INVAL;
    machine.inject(Fault::Call { kind: CallKind::MemCreate, after: 0, times: 1, errno });
    let error = domain.alloc(1 << 20).unwrap_err();
    assert!(matches!(error, Error::NoContiguousMemory { requested: 1_048_576, .. }), "{error}");
    assert!(error.is_out_of_memory() && error.errno() == Some(errno));
}

#[test]
fn drivers_with_one_domain_say_why() {
    let stub = Config { domains: Built::Stub, ..Config::default() };
    let old = Config { version: Version::V0_9_7, ..Config::default() };
    for (config, why) in [(stub, "CONFIG_NO_GKI"), (old, "driver 0.9.8")] {
        let device = Device::simulated(config).unwrap();
        let text = device.domain(1).unwrap_err().to_string();
        assert!(text.contains("no domain 1") && text.contains(why), "{text}");
        let _only = device.new_domain().unwrap();
        let text = device.new_domain().unwrap_err().to_string();
        assert!(text.contains("one, number 0") && text.contains(why), "{text}");
    }
}

#[test]
fn refused_calls_are_explained() {
    let cases = [
        (CallKind::MemCreate, Errno::INVAL, "6 s"),
        (CallKind::MemCreate, Errno::NOMEM, "MemAvailable"),
        (CallKind::MemCreate, Errno::NOSPC, "handles"),
        (CallKind::MemMap, Errno::NOENT, "no longer knows"),
        (CallKind::Mmap, Errno::NOMEM, "vm.max_map_count"),
        (CallKind::Mmap, Errno::NXIO, "update the driver"),
        (CallKind::MemSync, Errno::INVAL, "only a reboot helps"),
        (CallKind::MemSync, Errno::NODEV, "the device is gone"),
    ];
    for (kind, errno, words) in cases {
        let machine = Machine::new(Config::default());
        let device = Device::simulated_on(&machine).unwrap();
        let domain = device.domain(2).unwrap();
        machine.inject(Fault::Call { kind, after: 0, times: 1, errno });
        let made = domain.alloc(4096).and_then(|buffer| Ok(buffer.to_device()?));
        let error = made.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(words) && text.contains("domain 2"), "{kind:?} {errno}: {text}");
        assert_eq!(error.errno(), Some(errno));
    }
}

/// Set in the process that the test below starts.
const CHILD: &str = "RKNPU_TEST_OPEN_FILES";

/// Not a test of its own: the other process of the next one.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    use rustix::process::{Resource, Rlimit, setrlimit};
    setrlimit(Resource::Nofile, Rlimit { current: Some(40), maximum: Some(40) }).unwrap();
    let device = Device::simulated(Default::default()).unwrap();
    let domain = device.domain(0).unwrap();
    let mut held = Vec::new();
    let error = loop {
        match domain.alloc(4096) {
            Ok(buffer) => held.push(buffer),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::OpenFiles { limit: 40, .. }), "{error}");
    assert!(error.is_out_of_memory());
    // One that is given back can be had again.
    held.pop();
    assert!(domain.alloc(4096).is_ok());
    println!("\n{error}");
}

#[test]
fn open_files_are_named_when_they_are_what_is_used_up() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{text}{}", String::from_utf8_lossy(&child.stderr));
    assert!(text.contains("MEM_CREATE of 4096 bytes") && text.contains("40 of 40 files"), "{text}");
}
