//! ggml's memory as Rust may read and write it: tensors, their values, results.
//!
//! A [`View`] reads what a tensor says of itself; its numbers are checked before anything is derived from
//! them. A [`Node`] is a view of something that is being computed, whose values are there.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use ork_cache::Blocks;

use ork_weights::dequant::TensorType;

use crate::ggml::{Buffer, DIMENSIONS, NAME, TYPE_F16, TYPE_F32, TYPE_I32, Tensor};

/// What a tensor says of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a>(&'a Tensor);

impl<'a> View<'a> {
    /// # Safety
    /// `tensor` and all that it refers to are ggml's, and change no more while `'a` lasts; its data need
    /// not be there.
    pub(crate) unsafe fn new(tensor: *const Tensor) -> Option<View<'a>> {
        // SAFETY: by the contract.
        unsafe { tensor.as_ref() }.map(View)
    }

    pub(crate) fn kind(&self) -> c_int {
        self.0.kind
    }

    pub(crate) fn op(&self) -> c_int {
        self.0.op
    }

    pub(crate) fn flags(&self) -> i32 {
        self.0.flags
    }

    pub(crate) fn parameter(&self, index: usize) -> i32 {
        self.0.op_params.get(index).copied().unwrap_or(0)
    }

    /// Elements of each dimension, none of them zero.
    pub(crate) fn shape(&self) -> Option<[usize; DIMENSIONS]> {
        let mut shape = [0; DIMENSIONS];
        for (to, from) in shape.iter_mut().zip(self.0.ne) {
            *to = usize::try_from(from).ok().filter(|count| *count > 0)?;
        }
        Some(shape)
    }

    /// Bytes from one element to the next, in each dimension.
    pub(crate) fn strides(&self) -> [usize; DIMENSIONS] {
        self.0.nb
    }

    /// Whether elements of `size` bytes lie one after the other, without gaps.
    pub(crate) fn is_packed(&self, size: usize) -> bool {
        let Some(shape) = self.shape() else { return false };
        let mut expected = Some(size);
        shape.iter().zip(self.0.nb).all(|(count, stride)| {
            let fits = *count == 1 || expected == Some(stride);
            expected = expected.and_then(|bytes| bytes.checked_mul(*count));
            fits
        })
    }

    /// Bytes of a number of its type; `None` for types that come in blocks.
    pub(crate) fn element(&self) -> Option<usize> {
        match self.kind() {
            TYPE_F32 | TYPE_I32 => Some(4),
            TYPE_F16 => Some(2),
            _ => None,
        }
    }

    /// From the first byte to the last one, elements being `size` bytes wide.
    pub(crate) fn span(&self, size: usize) -> Option<usize> {
        self.shape()?.iter().zip(self.0.nb).try_fold(size, |bytes, (count, stride)| {
            bytes.checked_add((count - 1).checked_mul(stride)?)
        })
    }

    /// Whether it is a part of another tensor.
    pub(crate) fn is_view(&self) -> bool {
        !self.0.view_src.is_null()
    }

    pub(crate) fn address(&self) -> usize {
        self.0.data as usize
    }

    pub(crate) fn source(&self, index: usize) -> Option<View<'a>> {
        // SAFETY: what a tensor refers to is as good as itself, by the contract of `new`.
        unsafe { View::new(*self.0.src.get(index)?) }
    }

    pub(crate) fn buffer(&self) -> Option<&'a Buffer> {
        // SAFETY: a tensor's buffer is one of ggml's objects, by the contract of `new`.
        unsafe { self.0.buffer.as_ref() }
    }

    pub(crate) fn name(&self) -> Name {
        let mut bytes = self.0.name.map(|byte| u8::from_ne_bytes(byte.to_ne_bytes()));
        // Whatever stood there before a shorter name is none of it.
        if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            bytes[end..].fill(0);
        }
        Name(bytes)
    }

    /// Whether both are the same tensor.
    pub(crate) fn is(&self, other: &View<'_>) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

/// A tensor's name, which is a string where nothing is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name([u8; NAME]);

impl Name {
    /// Empty when it is none.
    pub(crate) fn text(&self) -> &str {
        let name = CStr::from_bytes_until_nul(&self.0).ok();
        name.and_then(|name| name.to_str().ok()).unwrap_or_default()
    }
}

/// A tensor that is being computed, or one that it is computed from: its values are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a>(View<'a>);

impl<'a> std::ops::Deref for Node<'a> {
    type Target = View<'a>;

    fn deref(&self) -> &View<'a> {
        &self.0
    }
}

impl<'a> Node<'a> {
    /// # Safety
    /// As [`View::new`]. The memory of the tensor and of its sources is there, as far as shapes and
    /// strides say; while `'a` lasts nobody writes the sources, and nobody but this thread touches the
    /// tensor's own.
    pub(crate) unsafe fn new(tensor: NonNull<Tensor>) -> Option<Node<'a>> {
        // SAFETY: by the contract.
        unsafe { View::new(tensor.as_ptr()) }.map(Node)
    }

    /// ggml's object.
    pub(crate) fn tensor(&self) -> NonNull<Tensor> {
        NonNull::from(self.0.0)
    }

    /// A source, whose values can be read.
    pub(crate) fn operand(&self, index: usize) -> Option<Node<'a>> {
        self.0.source(index).map(Node)
    }

    /// The bytes of a source of numbers. Not for a node whose results are being written: see
    /// [`outputs`].
    pub(crate) fn bytes(&self) -> Option<&'a [u8]> {
        let span = self.span(self.element()?)?;
        let start = NonNull::new(self.0.0.data.cast::<u8>())?;
        // SAFETY: so much is there and nobody writes it, by the contract of `new`.
        Some(unsafe { slice::from_raw_parts(start.as_ptr(), span) })
    }

    /// The bytes of a source whose rows are blocks, which lie one after the other in a row.
    pub(crate) fn blocks(&self) -> Option<&'a [u8]> {
        let (shape, strides) = (self.shape()?, self.strides());
        let kind = TensorType::from_ggml(u32::try_from(self.kind()).ok()?)?;
        let row = usize::try_from(kind.row_bytes(u64::try_from(shape[0]).ok()?)?).ok()?;
        if strides[0] != kind.block_bytes() {
            return None;
        }
        let mut counts = shape.iter().zip(strides).skip(1);
        let span = counts.try_fold(row, |bytes, (count, stride)| {
            bytes.checked_add((count - 1).checked_mul(stride)?)
        })?;
        let start = NonNull::new(self.0.0.data.cast::<u8>())?;
        // SAFETY: as above: a row of blocks is as wide as the type and the shape say.
        Some(unsafe { slice::from_raw_parts(start.as_ptr(), span) })
    }

    fn addresses(&self) -> Option<Range<usize>> {
        let start = self.address();
        Some(start..start.checked_add(self.span(self.element()?)?)?)
    }
}

/// The places of the results of at most `MOST` nodes, f32 without gaps, which lie apart from each other and
/// from the bytes that are read; `None` if they do not.
pub(crate) fn outputs<'n, 'a: 'n, const MOST: usize>(
    nodes: impl Iterator<Item = &'n Node<'a>>,
    reads: [Option<&Node<'a>>; 2],
) -> Option<[Option<&'a mut [f32]>; MOST]> {
    let mut read = [0..0, 0..0];
    for (range, node) in read.iter_mut().zip(reads.into_iter().flatten()) {
        *range = node.addresses()?;
    }
    let mut taken = [const { 0..0 }; MOST];
    let mut out = [const { None }; MOST];
    for (i, node) in nodes.enumerate() {
        let range = node.addresses()?;
        let apart = |other: &Range<usize>| other.end <= range.start || range.end <= other.start;
        let start = NonNull::new(node.0.0.data.cast::<f32>())?;
        let is_sound = node.kind() == TYPE_F32 && node.is_packed(4) && start.is_aligned();
        if !is_sound || !read.iter().all(apart) || !taken.iter().all(apart) {
            return None;
        }
        let count = range.len() / 4;
        *taken.get_mut(i)? = range;
        // SAFETY: the memory is there and only this thread's, by the contract of `Node::new`; it is
        // aligned, any bits are an f32, and it is apart from all other slices made here.
        *out.get_mut(i)? = Some(unsafe { slice::from_raw_parts_mut(start.as_ptr(), count) });
    }
    Some(out)
}

/// Bytes of a buffer that the host reads and writes as it likes.
#[derive(Debug)]
pub(crate) struct HostMemory {
    start: NonNull<u8>,
    size: usize,
    /// What is freed with it.
    own: Option<Vec<u8>>,
    /// Of each [`HostBlocks`] in it: whether it may still be read.
    lent: Mutex<Vec<Arc<RwLock<bool>>>>,
}

// SAFETY: it is an address; what is done through it says so itself.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

/// Where a buffer begins: on a cache line, as vectors want it.
pub(crate) const ALIGNMENT: usize = 64;

impl HostMemory {
    /// New memory, of zeros, for the host, which keeps to the contract of [`HostMemory::foreign`].
    pub(crate) fn new(size: usize) -> Option<HostMemory> {
        let bytes = size.checked_add(ALIGNMENT)?;
        let mut own = Vec::new();
        own.try_reserve_exact(bytes).ok()?;
        own = vec![0u8; bytes];
        let first = own.as_mut_ptr();
        let start = NonNull::new(first.wrapping_add(first.align_offset(ALIGNMENT)))?;
        Some(HostMemory { start, size, own: Some(own), lent: Mutex::default() })
    }

    /// Memory of somebody else.
    ///
    /// # Safety
    /// The memory is there until the value goes. The host writes weights in it before it computes with
    /// them, and afterwards only once [`HostBlocks::end`] has been called.
    pub(crate) unsafe fn foreign(start: *mut c_void, size: usize) -> Option<HostMemory> {
        let start = NonNull::new(start.cast())?;
        Some(HostMemory { start, size, own: None, lent: Mutex::default() })
    }

    pub(crate) fn start(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }

    /// Whether it was made here.
    pub(crate) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Where an address lies in it.
    pub(crate) fn offset(&self, address: usize) -> Option<usize> {
        let offset = address.checked_sub(self.start.as_ptr() as usize)?;
        (offset < self.size).then_some(offset)
    }

    /// # Safety
    /// The memory is still there and nobody else touches it meanwhile.
    pub(crate) unsafe fn fill(&self, value: u8) {
        // SAFETY: by the contract.
        unsafe { self.start.as_ptr().write_bytes(value, self.size) };
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let lent = self.lent.get_mut().unwrap_or_else(PoisonError::into_inner);
        lent.iter().for_each(|there| end(there));
    }
}

/// Weights in a buffer of the host's, readable until it says otherwise.
#[derive(Debug)]
pub(crate) struct HostBlocks {
    /// Start and bytes of each weight.
    weights: Vec<(NonNull<u8>, usize)>,
    there: Arc<RwLock<bool>>,
}

// SAFETY: weights are read only, under the lock, and only while the memory is there.
unsafe impl Send for HostBlocks {}
// SAFETY: as above.
unsafe impl Sync for HostBlocks {}

impl HostBlocks {
    /// Weights at offsets in a buffer's memory; `None` if one of them leaves it.
    pub(crate) fn new(memory: &HostMemory, weights: &[Range<usize>]) -> Option<HostBlocks> {
        let place = |range: &Range<usize>| {
            let len = range.end.checked_sub(range.start).filter(|_| range.end <= memory.size)?;
            // SAFETY: the range lies in the memory.
            Some((unsafe { memory.start.add(range.start) }, len))
        };
        let weights = weights.iter().map(place).collect::<Option<_>>()?;
        let there = Arc::new(RwLock::new(true));
        let mut lent = memory.lent.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that ended are nobody's any more.
        lent.retain(|there| Arc::strong_count(there) > 1);
        lent.push(there.clone());
        Some(HostBlocks { weights, there })
    }

    /// From now on nobody reads them; waits for those that do.
    pub(crate) fn end(&self) {
        end(&self.there);
    }
}

fn end(there: &RwLock<bool>) {
    *there.write().unwrap_or_else(PoisonError::into_inner) = false;
}

impl Blocks for HostBlocks {
    fn with(&self, weight: usize, work: &mut dyn FnMut(&[u8])) -> bool {
        let there = self.there.read().unwrap_or_else(PoisonError::into_inner);
        let Some((start, len)) = self.weights.get(weight).filter(|_| *there) else { return false };
        // SAFETY: the memory is there until `end`, which waits for the lock and which the memory calls
        // before it goes; nobody writes it, by the contract of `HostMemory::foreign`.
        work(unsafe { slice::from_raw_parts(start.as_ptr(), *len) });
        true
    }
}

/// The same blocks, for a store.
#[derive(Debug)]
pub(crate) struct SharedBlocks(pub(crate) Arc<HostBlocks>);

impl Blocks for SharedBlocks {
    fn with(&self, weight: usize, work: &mut dyn FnMut(&[u8])) -> bool {
        self.0.with(weight, work)
    }
}
