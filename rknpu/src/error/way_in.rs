//! How to get at an NPU that was not found, or that may not be opened.

use std::path::Path;

use rustix::system::uname;

/// The first release with the driver `rocket`.
const FIRST: (u32, u32) = (6, 18);

/// What to do where no NPU is, on the kernel that runs.
pub(super) fn to_a_driver() -> String {
    to_a_driver_on(&uname().release().to_string_lossy())
}

fn to_a_driver_on(release: &str) -> String {
    let numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    let numbers: Vec<u32> = numbers.take(2).collect();
    match numbers[..] {
        [major, minor] if (major, minor) < FIRST => format!(
            "this kernel, {release}, is too old for rocket, which came with 6.18: start a vendor's kernel, \
             which has rknpu, or a mainline one from 6.18 on, or use the simulated device"
        ),
        _ => format!(
            "this kernel, {release}, can have rocket: load the module (modprobe rocket; \
             CONFIG_DRM_ACCEL_ROCKET, and rockchip,rk3588-rknn-core in the device tree), or start a vendor's \
             kernel, which has rknpu, or use the simulated device"
        ),
    }
}

/// Who may open a node.
pub(super) fn to_permission(path: &Path) -> &'static str {
    if is_accel(path) {
        "nodes of accelerators are root's until udev decides; put SUBSYSTEM==\"accel\", KERNEL==\"accel*\", \
         GROUP=\"render\", MODE=\"0660\" into a file in /etc/udev/rules.d, run `udevadm trigger`, and join the \
         group render"
    } else {
        "join the group that owns it (video or render)"
    }
}

/// What to do where a node does not exist.
pub(super) fn to_a_node(path: &Path) -> String {
    let found = "`Device::open` finds the node, if there is one".to_owned();
    if is_accel(path) { format!("{found}; {}", to_a_driver()) } else { found }
}

fn is_accel(path: &Path) -> bool {
    path.starts_with("/dev/accel")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_is_told_from_one_without_the_module() {
        for (release, old) in [
            ("5.10.160-rockchip", true),
            ("6.1.75-vendor-rk35xx", true),
            ("6.17.13", true),
            ("6.18-rc1", false),
            ("6.18.0", false),
            ("7.3.4-generic", false),
            ("unknown", false),
        ] {
            let text = to_a_driver_on(release);
            assert!(text.contains(release) && text.contains("simulated"), "{text}");
            assert_eq!(text.contains("too old"), old, "{text}");
            assert_eq!(text.contains("modprobe rocket"), !old, "{text}");
        }
    }

    #[test]
    fn accelerators_have_their_own_rule() {
        let (accel, card) = (Path::new("/dev/accel/accel0"), Path::new("/dev/dri/card1"));
        assert!(to_permission(accel).contains("KERNEL==\"accel*\""));
        assert!(to_permission(card).contains("video"));
        assert!(to_a_node(accel).contains("kernel") && !to_a_node(card).contains("kernel"));
    }
}
