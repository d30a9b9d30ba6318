//! Memory that a process can still have: the machine's, and what its control groups leave it.

use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes that this process can have without others being stopped or swapped out; `None` when the system does not
/// say. Pages of files that can be dropped count as free.
///
/// ```
/// if let Some(bytes) = rknpu::probe::available_memory() {
///     assert!(bytes > 0);
/// }
/// ```
pub fn available_memory() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_machine(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = of_groups(&groups, Path::new(GROUPS));
    machine.into_iter().chain(groups).min()
}

fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What the tightest of the process's groups, and of those around them, leaves.
fn of_groups(own: &str, root: &Path) -> Option<u64> {
    let of_line = |line: &str| -> Option<u64> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        // The second version has one tree, and names no controller.
        let (tree, names) = match controllers {
            "" => (root.to_owned(), ["memory.max", "memory.current", "inactive_file "]),
            names if names.split(',').any(|name| name == "memory") => (
                root.join("memory"),
                ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "],
            ),
            _ => return None,
        };
        let inside = tree.join(path.trim_start_matches('/'));
        let around = inside.ancestors().take_while(|group| group.starts_with(&tree));
        around.filter_map(|group| left(group, names)).min()
    };
    own.lines().filter_map(of_line).min()
}

/// What one group leaves; `None` where it has no limit.
fn left(group: &Path, [limit, usage, droppable]: [&str; 3]) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let path: PathBuf = group.join(name);
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    // The first version writes a number near 2^63 for none.
    let limit = number(limit).filter(|limit| *limit < 1 << 60)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let droppable = stat.lines().find_map(|line| line.strip_prefix(droppable)?.trim().parse().ok());
    let used = number(usage)?.saturating_sub(droppable.unwrap_or(0));
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_decides() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let own = "4:memory:/a/b\n3:cpuset:/\n0::/c\n";
        assert_eq!(of_groups(own, root.path()), None);
        put("memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
        put("memory/a/b/memory.usage_in_bytes", "5000\n");
        assert_eq!(of_groups(own, root.path()), None, "no limit");
        put("memory/a/memory.limit_in_bytes", "100000\n");
        put("memory/a/memory.usage_in_bytes", "70000\n");
        assert_eq!(of_groups(own, root.path()), Some(30_000));
        put("memory/a/memory.stat", "cache 1\ntotal_inactive_file 20000\n");
        assert_eq!(of_groups(own, root.path()), Some(50_000));
        put("c/memory.max", "max\n");
        put("c/memory.current", "10\n");
        assert_eq!(of_groups(own, root.path()), Some(50_000));
        put("c/memory.max", "4096\n");
        assert_eq!(of_groups(own, root.path()), Some(4086));
        put("c/memory.current", "5000\n");
        assert_eq!(of_groups(own, root.path()), Some(0));
    }

    #[test]
    fn the_machine_s_is_in_kibibytes() {
        assert_eq!(of_machine("MemTotal: 9 kB\nMemAvailable:   12 kB\n"), Some(12 << 10));
        assert_eq!(of_machine("MemTotal: 9 kB\n"), None);
    }
}
