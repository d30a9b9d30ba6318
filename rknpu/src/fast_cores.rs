//! Pins threads to the CPU's fast cores.

use std::path::Path;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Where Linux describes CPU cores.
const CPUS: &str = "/sys/devices/system/cpu";

/// Pins the calling thread to the `index`-th of the fast cores, so that threads with different indices
/// are on different ones. Without slow cores, or when it is not allowed, the thread stays as it is: that
/// costs speed and nothing else.
pub(crate) fn pin_to_fast(index: u32) {
    let fast = fast_cores(Path::new(CPUS));
    let Some(cpu) = fast.get(index as usize % fast.len().max(1)) else { return };
    let mut set = CpuSet::new();
    set.set(*cpu);
    // The scheduler's choice is good enough.
    let _ = sched_setaffinity(None, &set);
}

/// The cores of the largest capacity, when others have less; otherwise none.
fn fast_cores(cpus: &Path) -> Vec<usize> {
    let capacity = |cpu: usize| -> Option<u64> {
        let path = cpus.join(format!("cpu{cpu}/cpu_capacity"));
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    let all: Vec<(usize, u64)> =
        (0..CpuSet::MAX_CPU).map_while(|cpu| Some((cpu, capacity(cpu)?))).collect();
    let largest = all.iter().map(|(_, capacity)| *capacity).max();
    let fast = |(cpu, capacity): &(usize, u64)| (Some(*capacity) == largest).then_some(*cpu);
    let fast: Vec<usize> = all.iter().filter_map(fast).collect();
    if fast.len() == all.len() { Vec::new() } else { fast }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(capacities: &[&str]) -> Vec<usize> {
        let folder = tempfile::tempdir().unwrap();
        for (cpu, capacity) in capacities.iter().enumerate() {
            let cpu = folder.path().join(format!("cpu{cpu}"));
            std::fs::create_dir(&cpu).unwrap();
            std::fs::write(cpu.join("cpu_capacity"), capacity).unwrap();
        }
        fast_cores(folder.path())
    }

    #[test]
    fn the_fast_cores_are_those_of_the_largest_capacity() {
        let rk3588 = ["530\n", "530\n", "530\n", "530\n", "1024\n", "1024\n", "1024\n", "1024\n"];
        assert_eq!(cpus(&rk3588), [4, 5, 6, 7]);
        assert_eq!(cpus(&["1024\n"; 4]), [] as [usize; 0]);
        assert_eq!(cpus(&[]), [] as [usize; 0]);
        assert_eq!(cpus(&["530\n", "garbage", "1024\n"]), [] as [usize; 0]);
    }

    #[test]
    fn pinning_harms_nothing_where_it_is_impossible() {
        pin_to_fast(7);
    }
}
