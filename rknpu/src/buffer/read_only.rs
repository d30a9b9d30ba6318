//! The state in which CPU and NPU may both read a buffer, and neither may write.

use super::{Buffer, Host, NpuReadable, State, Unchanged, sealed};

/// State of a buffer that CPU and NPU may read at the same time, and neither may write: weights.
///
/// The CPU's caches hold no line of it that memory does not, because it was synced for the device after
/// the last write. The NPU cannot write to it: a matmul writes to its own memory alone, and a
/// [`Job`](crate::Job) takes no buffer in this state, and touches none that it was not given.
///
/// ```
/// use rknpu::{Layout, Matmul, MatmulLimits, Precision, WeightRef, reference};
///
/// let device = rknpu::Device::simulated(Default::default())?;
/// let domain = device.domain(0)?;
/// let layout = Layout::new(64, 32, Precision::Int8)?;
/// let mut buffer = domain.alloc(layout.bytes() as usize)?;
/// reference::tile_i8(layout, |_, n| n as i8, buffer.as_mut_slice());
/// let buffer = buffer.to_read_only()?;
///
/// let limits = MatmulLimits { rows: 1, k: 64, n: 32 };
/// let mut matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
/// let mut out = [0; 32];
/// matmul.run(&WeightRef::new(&buffer, 0, layout)?, &[1; 64], &mut out)?;
/// let codes = &buffer.as_slice()[7 * 32..][..32]; // of channel 7, where the NPU has them
/// assert_eq!(out[7], 2 * codes.iter().map(|code| *code as i32).sum::<i32>());
/// # Ok::<(), rknpu::Error>(())
/// ```
///
/// Nobody writes while somebody may read:
///
/// ```compile_fail,E0599
/// # fn f(buffer: rknpu::Buffer<rknpu::buffer::ReadOnly>) {
/// let mut buffer = buffer;
/// buffer.as_mut_slice().fill(0);
/// # }
/// ```
///
/// and it can be no result of a job:
///
/// ```compile_fail,E0308
/// # fn f(domain: &rknpu::Domain, buffer: rknpu::Buffer<rknpu::buffer::ReadOnly>) {
/// let job = rknpu::Job::new(domain, &[], vec![buffer]);
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum ReadOnly {}

impl State for ReadOnly {}
impl NpuReadable for ReadOnly {}

impl sealed::Sealed for ReadOnly {
    const NAME: &'static str = "ReadOnly";
}

impl Buffer<Host> {
    /// Lets both sides read it: syncs all of it for the device.
    ///
    /// # Errors
    /// As [`Buffer::to_device`].
    pub fn to_read_only(self) -> Result<Buffer<ReadOnly>, Unchanged<Host>> {
        self.to_device().map(Buffer::into_state)
    }

    /// As [`Buffer::to_read_only`], for a buffer of which only the first `len` bytes have been written
    /// since the NPU could last read it: syncs only those.
    ///
    /// # Errors
    /// As [`Buffer::to_device_up_to`].
    pub fn to_read_only_up_to(self, len: u64) -> Result<Buffer<ReadOnly>, Unchanged<Host>> {
        self.to_device_up_to(len).map(Buffer::into_state)
    }
}

impl Buffer<ReadOnly> {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.backing.bytes().get(..self.len).unwrap_or_default()
    }

    /// Takes it back to write it anew: the NPU reads it no more, since whoever multiplies borrows it.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let slot = device.domain(0)?.alloc(4096)?.to_read_only()?;
    /// let mut slot = slot.reclaim()?;
    /// slot.as_mut_slice().fill(1);
    /// assert_eq!(slot.to_read_only()?.as_slice()[4095], 1);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Buffer::<OnDevice>::reclaim`](Buffer::reclaim).
    pub fn reclaim(self) -> Result<Buffer<Host>, Unchanged<ReadOnly>> {
        self.into_host()
    }
}
