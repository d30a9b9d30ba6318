//! Open files and their handles.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Which node was opened.
///
/// ```
/// use rknpu_sim::{Config, Machine, Node};
///
/// let machine = Machine::new(Config::default());
/// let (card, render) = (machine.open_node(Node::Card), machine.open());
/// assert_eq!(machine.report().files, 2);
/// # drop((card, render));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Node {
    /// `cardN`: also CREATE_DUMB.
    Card,
    /// `accelN` of `rocket`, the only node that it has.
    Accel,
    /// `renderDN`.
    #[default]
    Render,
}

/// Handles of one file: from 1, the lowest free one first.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    objects: Vec<Option<u64>>,
    free: BinaryHeap<Reverse<usize>>,
    len: usize,
}

impl Handles {
    pub(crate) fn add(&mut self, object: u64) -> u32 {
        self.len += 1;
        let slot = match self.free.pop() {
            Some(Reverse(slot)) => {
                self.objects[slot] = Some(object);
                slot
            }
            None => {
                self.objects.push(Some(object));
                self.objects.len() - 1
            }
        };
        u32::try_from(slot + 1).unwrap_or(u32::MAX)
    }

    pub(crate) fn get(&self, handle: u32) -> Option<u64> {
        let slot = (handle as usize).checked_sub(1)?;
        self.objects.get(slot).copied().flatten()
    }

    /// Takes a handle's object away. Its number stays taken until [`Handles::retire`].
    pub(crate) fn take(&mut self, handle: u32) -> Option<u64> {
        let slot = (handle as usize).checked_sub(1)?;
        let object = self.objects.get_mut(slot)?.take()?;
        self.len -= 1;
        Some(object)
    }

    /// Lets the number of a handle that was taken away be used again.
    pub(crate) fn retire(&mut self, handle: u32) {
        if let Some(slot) = (handle as usize).checked_sub(1) {
            self.free.push(Reverse(slot));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Handles and their objects, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        let all = self.objects.iter().enumerate();
        all.filter_map(|(slot, object)| Some((u32::try_from(slot + 1).ok()?, (*object)?)))
    }

    pub(crate) fn holds(&self, object: u64) -> bool {
        self.objects.contains(&Some(object))
    }
}

/// One open file.
#[derive(Debug, Default)]
pub(crate) struct OpenFile {
    pub(crate) node: Node,
    pub(crate) handles: Handles,
    /// dma-bufs by inode, and the handle each has in this file.
    pub(crate) primes: HashMap<u64, u32>,
    /// The descriptor and every mapping hold the file.
    pub(crate) refs: u32,
    /// Root has opened it.
    pub(crate) privileged: bool,
    /// It may name objects: root's, the master's, and whom the master vouched for.
    pub(crate) authenticated: bool,
    pub(crate) was_master: bool,
    /// It has asked for a number to be vouched for by.
    pub(crate) magic: bool,
}

/// All open files.
#[derive(Debug, Default)]
pub(crate) struct Files {
    open: HashMap<u32, OpenFile>,
    next: u32,
    /// The file that is the card's master.
    pub(crate) master: Option<u32>,
    /// Whether the card's bus id was asked for.
    pub(crate) unique: bool,
}

impl Files {
    pub(crate) fn open(&mut self, node: Node, privileged: bool) -> u32 {
        self.next += 1;
        let authenticated = privileged;
        let file = OpenFile { node, refs: 1, privileged, authenticated, ..OpenFile::default() };
        self.open.insert(self.next, file);
        if node == Node::Card && self.master.is_none() {
            self.make_master(self.next);
        }
        self.next
    }

    /// Makes a file the card's master.
    pub(crate) fn make_master(&mut self, id: u32) {
        self.master = Some(id);
        if let Some(file) = self.open.get_mut(&id) {
            (file.was_master, file.authenticated) = (true, true);
        }
    }

    pub(crate) fn get(&self, id: u32) -> Option<&OpenFile> {
        self.open.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut OpenFile> {
        self.open.get_mut(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &OpenFile> {
        self.open.values()
    }

    /// Drops one reference; the file itself when it was the last.
    pub(crate) fn put(&mut self, id: u32) -> Option<OpenFile> {
        let file = self.open.get_mut(&id)?;
        file.refs = file.refs.saturating_sub(1);
        if file.refs > 0 {
            return None;
        }
        self.master = self.master.filter(|master| *master != id);
        self.open.remove(&id)
    }
}
