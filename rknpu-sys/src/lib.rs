//! The user-space interface of the `rknpu` kernel driver and the register map of the RK3588 NPU.
//!
//! Nothing here has an opinion: structs, numbers, layouts and raw calls. What may be done with
//! them, and in which order, is the business of the `rknpu` crate.
//!
//! | module | what it holds |
//! |---|---|
//! | [`uapi`] | the structs that the driver reads and writes, each field's offset asserted at compile time |
//! | [`flags`] | memory, sync and job flags, core masks |
//! | [`action`] | the codes of `ACTION` |
//! | [`drm`] | the generic DRM and dma-buf structs used beside them |
//! | [`ioctl`] | request words and the raw calls |
//! | [`rocket`] | the calls of the mainline driver, an alternative to the five above except `drm` and `ioctl` |
//! | [`regs`] | blocks, registers and fields of the NPU, and how a register command is written |
//! | [`layout`] | where the NPU expects each weight: slices, tiles, offsets |
//!
//! The first six are the drivers, the last two the hardware. To write weights for the NPU, begin with
//! [`layout`]; to read a trace of a program that uses the driver, with [`uapi`]; to read what the NPU
//! executes, with [`regs`].
//!
//! The structs of [`uapi`] are those of the vendor driver 0.9.8 (2024-08-28), and the 40-byte
//! `MEM_CREATE` of the drivers before 0.9.6. They are the same on x86-64 and aarch64.
//!
//! ```
//! use rknpu_sys::{flags::MemFlags, ioctl, uapi::MemCreate};
//!
//! let create = MemCreate {
//!     flags: (MemFlags::NON_CONTIGUOUS | MemFlags::CACHEABLE).bits(),
//!     size: 4096,
//!     ..Default::default()
//! };
//! assert_eq!((size_of_val(&create), create.flags), (48, 3));
//! assert_eq!(ioctl::MEM_CREATE, 0xC030_6442);
//! ```
//!
//! # Safety
//!
//! Two functions are unsafe, [`ioctl::call`] and [`ioctl::prime`], and one trait,
//! [`ioctl::Request`]. That word and struct belong together is asserted at compile time; what a struct
//! says is the caller's to vouch for, because the driver dereferences `obj_addr` without a check and
//! uses task ranges as they come.
//!
//! The crate is `no_std`, has no features and allocates nothing.
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod action;
pub mod drm;
pub mod flags;
pub mod ioctl;
pub mod layout;
pub mod regs;
pub mod rocket;
pub mod uapi;
