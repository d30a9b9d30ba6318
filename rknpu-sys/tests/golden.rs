//! The declarations against the figures that the public headers give when compiled.

use nix::{request_code_readwrite, request_code_write};
use rknpu_sys::{drm, ioctl, uapi};
use serde_json::Value;
use std::mem::{align_of, offset_of, size_of};

fn golden() -> Value {
    serde_json::from_str(include_str!("../../tests/golden/uapi.json")).unwrap()
}

macro_rules! same_layout {
    ($golden:expr, $name:literal, $ty:ty, [$($field:ident),* $(,)?]) => {{
        let entry = &$golden["structs"][$name];
        assert_eq!(entry["size"], size_of::<$ty>(), "{} size", $name);
        assert_eq!(entry["align"], align_of::<$ty>(), "{} align", $name);
        let ours = [$((stringify!($field), offset_of!($ty, $field))),*];
        let theirs: Vec<(&str, usize)> = entry["fields"].as_array().unwrap().iter()
            .map(|f| (f[0].as_str().unwrap(), f[2].as_u64().unwrap() as usize)).collect();
        assert_eq!(theirs, ours, "{} fields", $name);
    }};
}

#[test]
fn structs_match_the_headers() {
    let g = golden();
    same_layout!(g, "rknpu_action", uapi::Action, [flags, value]);
    same_layout!(
        g,
        "rknpu_mem_create",
        uapi::MemCreate,
        [handle, flags, size, obj_addr, dma_addr, sram_size, iommu_domain_id, core_mask]
    );
    same_layout!(
        g,
        "rknpu_mem_create_v40",
        uapi::MemCreateV40,
        [handle, flags, size, obj_addr, dma_addr, sram_size]
    );
    same_layout!(g, "rknpu_mem_map", uapi::MemMap, [handle, reserved, offset]);
    same_layout!(g, "rknpu_mem_destroy", uapi::MemDestroy, [handle, reserved, obj_addr]);
    same_layout!(g, "rknpu_mem_sync", uapi::MemSync, [flags, reserved, obj_addr, offset, size]);
    same_layout!(
        g,
        "rknpu_task",
        uapi::Task,
        [
            flags,
            op_idx,
            enable_mask,
            int_mask,
            int_clear,
            int_status,
            regcfg_amount,
            regcfg_offset,
            regcmd_addr
        ]
    );
    same_layout!(g, "rknpu_subcore_task", uapi::SubcoreTask, [task_start, task_number]);
    same_layout!(
        g,
        "rknpu_submit",
        uapi::Submit,
        [
            flags,
            timeout,
            task_start,
            task_number,
            task_counter,
            priority,
            task_obj_addr,
            iommu_domain_id,
            reserved,
            task_base_addr,
            hw_elapse_time,
            core_mask,
            fence_fd,
            subcore_task
        ]
    );
    assert_eq!(
        g["structs"].as_object().unwrap().len(),
        9,
        "a struct of the headers is not compared"
    );
}

#[test]
fn requests_match_the_headers_and_the_nix_macros() {
    let g = golden();
    let ours: [(&str, u32, u64); 11] = [
        ("ACTION", ioctl::ACTION, request_code_readwrite!(b'd', 0x40, size_of::<uapi::Action>())),
        ("SUBMIT", ioctl::SUBMIT, request_code_readwrite!(b'd', 0x41, size_of::<uapi::Submit>())),
        (
            "MEM_CREATE",
            ioctl::MEM_CREATE,
            request_code_readwrite!(b'd', 0x42, size_of::<uapi::MemCreate>()),
        ),
        (
            "MEM_CREATE_v40",
            ioctl::MEM_CREATE_V40,
            request_code_readwrite!(b'd', 0x42, size_of::<uapi::MemCreateV40>()),
        ),
        ("MEM_MAP", ioctl::MEM_MAP, request_code_readwrite!(b'd', 0x43, size_of::<uapi::MemMap>())),
        (
            "MEM_DESTROY",
            ioctl::MEM_DESTROY,
            request_code_readwrite!(b'd', 0x44, size_of::<uapi::MemDestroy>()),
        ),
        (
            "MEM_SYNC",
            ioctl::MEM_SYNC,
            request_code_readwrite!(b'd', 0x45, size_of::<uapi::MemSync>()),
        ),
        (
            "DRM_VERSION",
            ioctl::DRM_VERSION,
            request_code_readwrite!(b'd', 0x00, size_of::<drm::Version>()),
        ),
        (
            "GEM_CLOSE",
            ioctl::GEM_CLOSE,
            request_code_write!(b'd', 0x09, size_of::<drm::GemClose>()),
        ),
        (
            "PRIME_HANDLE_TO_FD",
            ioctl::PRIME_HANDLE_TO_FD,
            request_code_readwrite!(b'd', 0x2d, size_of::<drm::PrimeHandle>()),
        ),
        (
            "PRIME_FD_TO_HANDLE",
            ioctl::PRIME_FD_TO_HANDLE,
            request_code_readwrite!(b'd', 0x2e, size_of::<drm::PrimeHandle>()),
        ),
    ];
    let requests = g["requests"].as_object().unwrap();
    assert_eq!(requests.len(), ours.len());
    for (name, word, nix) in ours {
        let header = u32::from_str_radix(&requests[name].as_str().unwrap()[2..], 16).unwrap();
        assert_eq!(word, header, "{name} against the headers");
        assert_eq!(u64::from(word), nix, "{name} against nix");
    }
}
