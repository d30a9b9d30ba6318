//! Carries the requests to the `rocket` driver of the running Linux kernel: opened node, ioctl, mmap.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use rknpu_sys::ioctl::Request;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::Advice;

use super::driver::{Channel, Files};
use crate::driver::vetted::Vetted;
use crate::driver::{carry, driver_name, map_node};
use crate::error::{Error, Result};
use crate::keeper::Keeper;
use crate::mapping::Mapping;

/// A node whose driver is `rocket` ([`driver_name`]).
#[derive(Debug)]
pub(crate) struct Node {
    path: PathBuf,
    name: String,
    /// Another process that gets each file.
    keeper: Option<Keeper>,
}

/// An open file of it.
#[derive(Debug)]
pub(crate) struct File(OwnedFd);

impl Node {
    /// The node at `path`, with its first file, which was asked for its driver's name.
    ///
    /// # Errors
    /// The file cannot be kept.
    pub(crate) fn new(path: PathBuf, fd: OwnedFd, keeper: Option<Keeper>) -> Result<(Node, File)> {
        let name = path.display().to_string();
        let node = Node { path, name, keeper };
        let file = node.kept(fd).map_err(|errno| {
            let what = "cannot hand a file to what keeps the NPU's files";
            Error::Os { what, source: errno.into() }
        })?;
        Ok((node, file))
    }

    fn kept(&self, fd: OwnedFd) -> Result<File, Errno> {
        self.keeper.as_ref().map_or(Ok(()), |keeper| keeper.keep(&fd))?;
        Ok(File(fd))
    }
}

impl Files for Node {
    type File = File;

    fn node(&self) -> &str {
        &self.name
    }

    fn open(&self) -> Result<File, Errno> {
        let fd = rustix::fs::open(&self.path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        // The path may lead elsewhere by now, where the numbers mean something else.
        match driver_name(&fd)? {
            name if name == rknpu_sys::rocket::DRIVER_NAME => self.kept(fd),
            _ => Err(Errno::NODEV),
        }
    }

    fn nothing_runs(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.end();
        }
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

impl Channel for File {
    fn call<T: Request>(&self, request: &mut Vetted<T>) -> Result<(), Errno> {
        carry(&self.0, request)
    }

    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        let mapping = map_node(&self.0, offset, len)?;
        // A child would hold the kernel's file, and write into what the NPU reads.
        mapping.advise(Advice::LinuxDontFork)?;
        Ok(mapping)
    }
}
