//! Whether a weight that was written to a file and loaded again is the same, and how much faster that is: [`persist`].

use std::fmt;
use std::time::{Duration, Instant};

use crate::domain::Domain;
use crate::error::{Error, Result};

/// What [`persist`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PersistReport {
    /// Bytes of the weight.
    pub bytes: u64,
    /// First byte in which the two dumps differ, if one does.
    pub differs_at: Option<u64>,
    /// Making the weight, in the buffer.
    pub pack: Duration,
    /// Copying the dump into a buffer.
    pub load: Duration,
}

impl PersistReport {
    /// How many times faster loading was than packing.
    pub fn speed_up(&self) -> f64 {
        self.pack.as_secs_f64() / self.load.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

impl fmt::Display for PersistReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        write!(f, "{} bytes: packed in {:.2} ms, ", self.bytes, ms(self.pack))?;
        write!(f, "loaded in {:.2} ms, {:.1} times as fast; ", ms(self.load), self.speed_up())?;
        match self.differs_at {
            None => f.write_str("identical"),
            Some(at) => write!(f, "DIFFERENT from byte {at} on"),
        }
    }
}

/// Has `pack` write a weight of `len` bytes into a buffer, takes it back from the NPU and dumps it, loads
/// the dump into another buffer, and dumps that.
///
/// # Errors
/// What the calls meet.
///
/// ```
/// use rknpu::{Device, Layout, Precision, probe, reference};
///
/// let device = Device::simulated(Default::default())?;
/// let layout = Layout::new(256, 128, Precision::Int8)?;
/// let report = probe::persist(&device.domain(0)?, layout.bytes() as usize, |bytes| {
///     reference::tile_i8(layout, |k, n| (3 * k + n) as i8, bytes);
/// })?;
/// assert_eq!(report.differs_at, None);
/// # Ok::<(), rknpu::Error>(())
/// ```
pub fn persist(domain: &Domain, len: usize, pack: impl FnOnce(&mut [u8])) -> Result<PersistReport> {
    let mut pack = Some(pack);
    let mut round = |dump: Option<&[u8]>| -> Result<(Vec<u8>, Duration)> {
        let mut buffer = domain.alloc(len)?;
        // Otherwise the kernel's work of giving the pages would be counted.
        buffer.as_mut_slice().fill(0);
        let begin = Instant::now();
        match dump {
            Some(dump) => buffer.as_mut_slice().copy_from_slice(dump),
            None => {
                if let Some(pack) = pack.take() {
                    pack(buffer.as_mut_slice());
                }
            }
        }
        let time = begin.elapsed();
        let buffer = buffer.to_device().map_err(Error::from)?.to_host().map_err(Error::from)?;
        Ok((buffer.as_slice().to_vec(), time))
    };
    let (first, packed) = round(None)?;
    let (second, loaded) = round(Some(&first))?;
    let differs_at = first.iter().zip(&second).position(|(a, b)| a != b).map(|at| at as u64);
    Ok(PersistReport { bytes: len as u64, differs_at, pack: packed, load: loaded })
}
