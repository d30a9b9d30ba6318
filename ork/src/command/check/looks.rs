//! What is looked at before the NPU is used: each with what is wanted, and what to do where it is not so.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rknpu::capabilities::Domains;
use rknpu::probe::available_memory;
use rknpu::{Error as Npu, OpenOptions};
use rustix::fs::OFlags;
use rustix::process::{Resource, getrlimit};

use super::record::Look;
use crate::device::{DeviceChoice, OpenDevice};
use crate::output::Report;
use crate::size::Size;

/// Descriptors that a program needs, whatever the model.
const FILES: u64 = 256;
/// Memory below which even a small model has no room.
const MEMORY: u64 = 1 << 30;
/// Lines of the kernel's messages that are taken over.
const LINES: usize = 20;

fn look(what: &str, found: impl Into<String>, wanted: &str, todo: Option<String>) -> Look {
    Look { what: what.to_owned(), found: found.into(), wanted: wanted.to_owned(), todo }
}

/// All of it.
pub(super) fn all(choice: &DeviceChoice, report: Report) -> Vec<Look> {
    let mut all = vec![kernel(), processors()];
    match choice.open_with(report, &OpenOptions::new()) {
        Ok(device) => all.extend(npu(&device)),
        Err(error) => all.push(unusable(&error)),
    }
    all.extend([memory(), files()]);
    all.extend(governors(Path::new("/")));
    all.push(messages());
    all
}

fn kernel() -> Look {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let found = format!("Linux {}, {}", release.trim(), std::env::consts::ARCH);
    look("kernel", found, "Linux on aarch64", None)
}

fn processors() -> Look {
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    look("processors", count.to_string(), "8 on an RK3588", None)
}

fn npu(device: &OpenDevice) -> Vec<Look> {
    let capabilities = device.capabilities();
    let node = if device.is_simulated() { "simulated" } else { device.node() };
    let driver = format!("{} {}", capabilities.driver, capabilities.version);
    let (domains, todo) = match capabilities.domains {
        Domains::Real | Domains::Files => (capabilities.domains.count().to_string(), None),
        Domains::Stub => (
            "1".to_owned(),
            Some(
                "models above 4 GiB are streamed: a kernel with CONFIG_NO_GKI has 16 domains"
                    .to_owned(),
            ),
        ),
        Domains::None => (
            "1".to_owned(),
            Some("models above 4 GiB are streamed: driver 0.9.8 has 16 domains".to_owned()),
        ),
    };
    let yes = |it: bool| if it { "yes" } else { "no" };
    vec![
        look("node", node, "a node of rknpu or rocket", None),
        look("driver", driver, "rknpu 0.9.8, or rocket", None),
        look("iommu", yes(capabilities.iommu), "yes", None),
        look("domains", domains, "16", todo),
    ]
}

/// Why the NPU can't be used, and what mends it.
fn unusable(error: &crate::error::Error) -> Look {
    let todo = match error {
        crate::error::Error::Device(Npu::Permission { path }) => Some(permission(path)),
        crate::error::Error::Device(Npu::NoDevice { .. }) => Some(
            "a kernel with the driver rknpu (the vendor's) or rocket (mainline since 6.18), and its module loaded"
                .to_owned(),
        ),
        _ => None,
    };
    look("node", ork_cache::chain(error), "a node of rknpu or rocket", todo)
}

fn permission(path: &Path) -> String {
    let accel = path.starts_with("/dev/accel");
    let rule = match accel {
        true => r#"SUBSYSTEM=="accel", GROUP="render", MODE="0660""#,
        false => r#"SUBSYSTEM=="drm", KERNEL=="card*|renderD*", GROUP="render", MODE="0660""#,
    };
    format!(
        "sudo usermod -aG render,video $USER, and log in again; if {} is root's alone: echo '{rule}' | sudo tee /etc/udev/rules.d/70-npu.rules && sudo udevadm control --reload && sudo udevadm trigger",
        path.display()
    )
}

fn memory() -> Look {
    let found = available_memory();
    let text = found.map_or("unknown".to_owned(), |bytes| Size(bytes).to_string());
    let todo = found.is_some_and(|bytes| bytes < MEMORY);
    let todo = todo.then(|| "end other programs: models need memory".to_owned());
    look("available memory", text, "the model's weights and 1.5 GiB", todo)
}

fn files() -> Look {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let todo = (limit < FILES).then(|| format!("ulimit -n {FILES}"));
    look("open files", limit.to_string(), "256 or more", todo)
}

/// What clocks are ruled by: that of the memory counts most.
fn governors(root: &Path) -> Vec<Look> {
    let mut found = Vec::new();
    let mut add = |what: &str, path: PathBuf| {
        let Ok(text) = fs::read_to_string(&path) else { return };
        let text = text.trim();
        let shown = Path::new("/").join(path.strip_prefix(root).unwrap_or(&path));
        let todo = (text != "performance")
            .then(|| format!("echo performance | sudo tee {}", shown.display()));
        let what = format!("governor of {what}");
        if !found.iter().any(|known: &Look| known.what == what && known.found == text) {
            found.push(look(&what, text, "performance", todo));
        }
    };
    for folder in fs::read_dir(root.join("sys/class/devfreq")).into_iter().flatten().flatten() {
        let name = folder.file_name().to_string_lossy().into_owned();
        match &*name {
            "dmc" => add("memory", folder.path().join("governor")),
            name if name.ends_with("npu") => add("the NPU", folder.path().join("governor")),
            _ => {}
        }
    }
    let processors = root.join("sys/devices/system/cpu/cpufreq");
    let mut policies: Vec<PathBuf> =
        fs::read_dir(processors).into_iter().flatten().flatten().map(|f| f.path()).collect();
    policies.sort();
    policies.into_iter().for_each(|policy| add("processors", policy.join("scaling_governor")));
    found
}

/// What the kernel says of the NPU, if it may be read.
fn messages() -> Look {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let opened = fs::File::options().read(true).custom_flags(flags).open("/dev/kmsg");
    let Ok(mut kmsg) = opened else {
        return look("kernel messages", "not readable", "nothing of errors", None);
    };
    let (mut lines, mut line) = (Vec::new(), [0; 8192]);
    // A message each time, and an error behind the last one.
    while let Ok(bytes @ 1..) = kmsg.read(&mut line) {
        let text = String::from_utf8_lossy(&line[..bytes]).into_owned();
        let text = text.split_once(';').map_or("", |(_, text)| text).lines().next().unwrap_or("");
        let lower = text.to_lowercase();
        if ["rknpu", "rocket", "fdab0000"].iter().any(|name| lower.contains(name)) {
            lines.push(text.to_owned());
        }
    }
    let from = lines.len().saturating_sub(LINES);
    let found = match lines.is_empty() {
        true => "nothing of the NPU".to_owned(),
        false => lines[from..].join("\n"),
    };
    look("kernel messages", found, "nothing of errors", None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn governors_that_are_not_as_wanted_come_with_a_command() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("sys/class/devfreq/dmc/governor", "dmc_ondemand\n"),
            ("sys/class/devfreq/fdab0000.npu/governor", "performance\n"),
            ("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "ondemand\n"),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = governors(root.path());
        let todo = |what: &str| {
            found
                .iter()
                .find(|look| look.what == format!("governor of {what}"))
                .unwrap()
                .todo
                .clone()
        };
        let memory = "echo performance | sudo tee /sys/class/devfreq/dmc/governor";
        assert_eq!(todo("memory").as_deref(), Some(memory));
        assert_eq!(todo("the NPU"), None);
        assert!(todo("processors").unwrap().ends_with("policy0/scaling_governor"));
    }

    #[test]
    fn a_node_that_is_root_s_comes_with_a_rule() {
        let error =
            crate::error::Error::Device(Npu::Permission { path: "/dev/accel/accel0".into() });
        let todo = unusable(&error).todo.unwrap();
        assert!(todo.contains("SUBSYSTEM==\"accel\"") && todo.contains("udevadm"), "{todo}");
    }
}
