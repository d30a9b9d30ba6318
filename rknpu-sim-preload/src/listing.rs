//! Directories that hold simulated places: their entries come before those of the system's directory
//! of the same name, if there is one.

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::nodes::Entry;

/// An open directory.
#[derive(Debug)]
struct Listing {
    entries: Vec<Entry>,
    next: usize,
    /// Whether the system has such a directory, whose entries follow.
    real: bool,
    /// What the last call returned a pointer to.
    last: Box<libc::dirent>,
}

/// What the next call of readdir returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A simulated entry, valid until the next call for the same directory.
    Entry(*mut libc::dirent),
    /// What the system's directory has next.
    Real,
    /// Nothing.
    End,
}

/// Open directories, by the address of their stream.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    count: AtomicUsize,
    open: Mutex<HashMap<usize, Listing>>,
}

impl Listings {
    /// Books a stream of the directory at `path`.
    pub(crate) fn add(&self, stream: usize, entries: Vec<Entry>, real: bool) {
        let last = Box::new(dirent(Entry { name: "", kind: libc::DT_UNKNOWN }));
        self.lock().insert(stream, Listing { entries, next: 0, real, last });
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Whether any directory is open here. Cheap, and never waits.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Moves on in a stream.
    pub(crate) fn next(&self, stream: usize) -> Next {
        let mut open = self.lock();
        let Some(listing) = open.get_mut(&stream) else { return Next::Real };
        match listing.entries.get(listing.next) {
            Some(entry) => {
                listing.next += 1;
                *listing.last = dirent(*entry);
                Next::Entry(&raw mut *listing.last)
            }
            None if listing.real => Next::Real,
            None => Next::End,
        }
    }

    /// Whether an entry of the system's directory is hidden by a simulated one.
    pub(crate) fn hides(&self, stream: usize, name: &CStr) -> bool {
        let open = self.lock();
        open.get(&stream).is_some_and(|listing| {
            listing.entries.iter().any(|entry| entry.name.as_bytes() == name.to_bytes())
        })
    }

    /// Starts a stream again.
    pub(crate) fn rewind(&self, stream: usize) {
        if let Some(listing) = self.lock().get_mut(&stream) {
            listing.next = 0;
        }
    }

    /// Forgets a stream.
    pub(crate) fn remove(&self, stream: usize) {
        if self.lock().remove(&stream).is_some() {
            self.count.fetch_sub(1, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Listing>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn dirent(entry: Entry) -> libc::dirent {
    let mut name = [0; 256];
    for (to, from) in name.iter_mut().zip(entry.name.bytes().take(255)) {
        *to = from as c_char;
    }
    let reclen = size_of::<libc::dirent>() as u16;
    libc::dirent { d_ino: 1, d_off: 0, d_reclen: reclen, d_type: entry.kind, d_name: name }
}
