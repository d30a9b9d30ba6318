//! What the examples start from, so that each shows only what it is about. No part of the interface.

use rknpu_sys::uapi::{MemCreate, MemMap, SubcoreTask, Submit, Task};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::File;

/// A buffer of two pages, and the offset at which it is mapped.
///
/// # Errors
/// Those of the calls.
pub fn buffer(file: &File) -> Result<(MemCreate, u64), Errno> {
    create(file, 0x403, 8192)
}

/// A job of one program on core 0, its task array in a new buffer. Nothing but the program's address is
/// looked at before it is fetched.
///
/// # Errors
/// Those of the calls.
pub fn job(file: &File, program: u64) -> Result<Submit, Errno> {
    let (buffer, offset) = create(file, 0xb, 4096)?;
    let task =
        Task { int_mask: 0x300, regcfg_amount: 28, regcmd_addr: program, ..Default::default() };
    file.mmap(offset, 4096)?.write(0, task.as_bytes());
    Ok(Submit {
        flags: 5,
        timeout: 100,
        task_number: 1,
        task_obj_addr: buffer.obj_addr,
        core_mask: 1,
        fence_fd: -1,
        subcore_task: [SubcoreTask { task_start: 0, task_number: 1 }; 5],
        ..Default::default()
    })
}

fn create(file: &File, flags: u32, size: u64) -> Result<(MemCreate, u64), Errno> {
    let mut buffer = MemCreate { flags, size, ..Default::default() };
    file.call(&mut buffer)?;
    let mut map = MemMap { handle: buffer.handle, ..Default::default() };
    file.call(&mut map)?;
    Ok((buffer, map.offset))
}
