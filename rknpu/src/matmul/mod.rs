//! Matrix multiplication on the NPU.

mod activations;
mod element;
mod outputs;
pub(crate) mod plan;
mod product;
mod scratch;

use std::fmt;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use rknpu_sys::layout::{Layout, Precision};
use rknpu_sys::regs::ATOM_BYTES;

pub use activations::{Activations, Rows};
pub use element::{Element, Fp16, Int4, Int8};
pub use outputs::{Outputs, Segment};
pub use product::Product;

use crate::buffer::{Buffer, NpuReadable, OnDevice};
use crate::cores::Cores;
use crate::domain::Domain;
use crate::driver::Object;
use crate::error::{Error, Result};
use crate::limits;
use plan::Capacity;
use product::Weights;
use scratch::Scratch;

/// A weight on the device: where it starts in a buffer, and how it lies there.
///
/// Nothing is allocated for it, so a buffer or an arena's part can hold any number of weights.
///
/// ```
/// use rknpu::{Layout, Precision, WeightRef};
///
/// let device = rknpu::Device::simulated(Default::default())?;
/// let layout = Layout::new(64, 32, Precision::Int8)?;
/// let buffer = device.domain(0)?.alloc(layout.bytes() as usize)?.to_device()?;
/// let weight = WeightRef::new(&buffer, 0, layout)?;
/// assert_eq!((weight.layout().k(), weight.layout().n()), (64, 32));
/// # Ok::<(), rknpu::Error>(())
/// ```
///
/// A buffer that the CPU may write is none:
///
/// ```compile_fail,E0277
/// use rknpu::{Layout, Precision, WeightRef};
///
/// let device = rknpu::Device::simulated(Default::default())?;
/// let layout = Layout::new(64, 32, Precision::Int8)?;
/// let buffer = device.domain(0)?.alloc(layout.bytes() as usize)?; // still the CPU's
/// let weight = WeightRef::new(&buffer, 0, layout)?;
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WeightRef<'a> {
    domain: &'a Domain,
    object: Option<&'a Arc<Object>>,
    iova: u64,
    layout: Layout,
}

impl<'a> WeightRef<'a> {
    /// The weight whose tiles start `offset` bytes into `buffer`.
    ///
    /// ```
    /// use rknpu::{Error, WeightRef};
    ///
    /// # use rknpu::{Layout, Precision};
    /// # let device = rknpu::Device::simulated(Default::default())?;
    /// # let domain = device.domain(3)?;
    /// let layout = Layout::new(64, 32, Precision::Int8)?;
    /// let buffer = domain.alloc(8192)?.to_device()?; // of two weights
    /// let second = WeightRef::new(&buffer, 4096, layout)?;
    /// assert_eq!(second.layout(), layout);
    /// assert!(matches!(WeightRef::new(&buffer, 8192, layout), Err(Error::Range { .. })));
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Range`] when it does not lie in the buffer, or its start is no multiple of 16.
    pub fn new(
        buffer: &'a Buffer<impl NpuReadable>,
        offset: u64,
        layout: Layout,
    ) -> Result<WeightRef<'a>> {
        let (len, size) = (layout.bytes(), buffer.len() as u64);
        let aligned = offset.is_multiple_of(ATOM_BYTES.into());
        if !aligned || offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(Error::Range { offset, len, size });
        }
        let (domain, object) = (buffer.domain(), buffer.object());
        Ok(WeightRef { domain, object, iova: buffer.iova() + offset, layout })
    }

    /// Whether it lies in this domain.
    pub(crate) fn is_in(&self, domain: &Domain) -> bool {
        self.domain.is(domain)
    }

    /// Whether both lie in one buffer.
    pub(crate) fn shares_buffer(&self, other: &WeightRef<'_>) -> bool {
        match (self.object, other.object) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// How it lies there.
    ///
    /// ```
    /// use rknpu::WeightRef;
    ///
    /// # use rknpu::{Layout, Precision};
    /// # let device = rknpu::Device::simulated(Default::default())?;
    /// # let domain = device.domain(3)?;
    /// let layout = Layout::new(64, 32, Precision::Int8)?;
    /// let buffer = domain.alloc(8192)?.to_device()?; // of two weights
    /// assert_eq!(WeightRef::new(&buffer, 0, layout)?.layout(), layout);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// First address at which the NPU sees it.
    pub(crate) fn iova(&self) -> u64 {
        self.iova
    }
}

/// The largest shapes that a [`Matmul`] keeps scratch memory for.
///
/// ```
/// use rknpu::{Device, Matmul, MatmulLimits};
///
/// // One matmul for the layers of a model: the widest decides.
/// let device = Device::simulated(Default::default())?;
/// let limits = MatmulLimits { rows: 128, k: 2816, n: 2816 };
/// let matmul = Matmul::int8(&device.domain(0)?, &device.cores()?, limits)?;
/// assert_eq!(matmul.limits(), limits);
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulLimits {
    /// Rows that it usually sees; more are run in blocks.
    pub rows: u32,
    /// Largest K, at most [`limits::K`].
    pub k: u32,
    /// Largest N.
    pub n: u32,
}

impl MatmulLimits {
    /// Bytes that a [`Matmul`] of these limits maps in each of its domains for register commands, tasks,
    /// activations and results: what a budget has to leave beside the weights. `cores` of the NPU work in a
    /// domain at a time ([`Spaces::cores`](crate::driver::Spaces::cores)).
    ///
    /// ```
    /// use rknpu::{Device, Matmul, MatmulLimits, Precision};
    ///
    /// let device = Device::simulated(Default::default())?;
    /// let domain = device.domain(0)?;
    /// let limits = MatmulLimits { rows: 256, k: 4096, n: 4096 };
    /// let matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
    /// let cores = device.capabilities().spaces.cores;
    /// assert_eq!(domain.stats().used, limits.scratch_bytes(Precision::Int8, cores)?);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Layout`] and [`Error::Shape`] for impossible limits.
    pub fn scratch_bytes(&self, precision: Precision, cores: u32) -> Result<u64> {
        Ok(Capacity::new(precision, *self, cores as usize)?.mapped())
    }
}

/// What a matmul took.
///
/// ```
/// # let (mut matmul, weight, _) = rknpu::doc::product()?;
/// # let weight = weight.get()?; // each channel's number
/// matmul.run(&weight, &[1; 64], &mut [0; 32])?; // fresh memory: it is submitted twice
/// let stats = matmul.run(&weight, &[1; 64], &mut [0; 32])?;
/// assert_eq!((stats.cores, stats.submits, stats.retries), (1, 1, 0)); // too small to split
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobStats {
    /// Cores that it was split over at most.
    pub cores: u32,
    /// Submits, on all cores together.
    pub submits: u32,
    /// Register programs in them.
    pub programs: u32,
    /// Time that the driver reports for them, summed over the cores.
    pub busy: Duration,
    /// Runs in vain before the one that counts, ended by a reset of the NPU.
    pub retries: u32,
}

impl JobStats {
    fn add(&mut self, other: &JobStats) {
        self.cores = self.cores.max(other.cores);
        self.submits += other.submits;
        self.programs += other.programs;
        self.busy += other.busy;
        self.retries += other.retries;
    }
}

/// Multiplies activations with weights on the NPU: `out[m][n] = Σ activations[m][k] · weight[k][n]`.
///
/// Made once for a domain and the largest shapes, then used for every weight in that domain; a run
/// allocates nothing. Where only one core works in a domain, [`Matmul::side_by_side`] takes several.
/// Results are exact for int8 and int4, where sums within a K slice stay in the
/// hardware's range, and the same whatever the number of cores.
///
/// ```
/// use rknpu::{Device, Layout, Matmul, MatmulLimits, Precision, WeightRef, reference};
///
/// let device = Device::simulated(Default::default())?;
/// let domain = device.domain(0)?;
///
/// // A weight of K=64 inputs and N=32 outputs, tiled as the NPU reads it.
/// let layout = Layout::new(64, 32, Precision::Int8)?;
/// let mut buffer = domain.alloc(layout.bytes() as usize)?;
/// reference::tile_i8(layout, |k, n| (k + n) as i8 % 5, buffer.as_mut_slice());
/// let buffer = buffer.to_device()?;
///
/// let limits = MatmulLimits { rows: 8, k: 64, n: 32 };
/// let mut matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
/// let activations = [1i8; 2 * 64];
/// let mut out = [0i32; 2 * 32];
/// matmul.run(&WeightRef::new(&buffer, 0, layout)?, &activations, &mut out)?;
/// assert_eq!(out[0], (0..64).map(|k| k % 5).sum::<i32>());
/// # Ok::<(), rknpu::Error>(())
/// ```
pub struct Matmul<E: Element = Int8> {
    /// Weights lie in one of them; those in different ones are multiplied at the same time.
    domains: Vec<Domain>,
    cores: Cores,
    max: MatmulLimits,
    activations: Activations<E>,
    /// One for each domain.
    scratch: Vec<Scratch>,
}

impl Matmul<Int8> {
    /// int8 activations and weights, i32 results.
    ///
    /// ```
    /// use rknpu::{Device, Error, Matmul, MatmulLimits};
    ///
    /// let device = Device::simulated(Default::default())?;
    /// let (domain, cores) = (device.domain(0)?, device.cores()?);
    /// let limits = MatmulLimits { rows: 1, k: 64, n: 32 };
    /// assert!(Matmul::int8(&domain, &cores, limits).is_ok());
    /// assert!(Matmul::int8(&domain, &cores, MatmulLimits { n: 33, ..limits }).is_err());
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Layout`] and [`Error::Shape`] for impossible limits; [`Error::ForeignDomain`] when domain and
    /// cores belong to different devices; what allocating the scratch buffers meets.
    pub fn int8(domain: &Domain, cores: &Cores, max: MatmulLimits) -> Result<Matmul<Int8>> {
        Matmul::side_by_side(slice::from_ref(domain), cores, max)
    }
}

impl Matmul<Fp16> {
    /// Half-float activations and weights, f32 results.
    ///
    /// ```
    /// use rknpu::{Device, Layout, Matmul, MatmulLimits, Precision, WeightRef, f16, reference};
    ///
    /// let device = Device::simulated(Default::default())?;
    /// let domain = device.domain(0)?;
    /// let layout = Layout::new(32, 16, Precision::Fp16)?;
    /// let mut buffer = domain.alloc(layout.bytes() as usize)?;
    /// let one = |k, n| if k == n { f16::ONE } else { f16::ZERO };
    /// reference::tile_f16(layout, one, buffer.as_mut_slice());
    /// let buffer = buffer.to_device()?;
    ///
    /// let limits = MatmulLimits { rows: 1, k: 32, n: 16 };
    /// let mut matmul = Matmul::fp16(&domain, &device.cores()?, limits)?;
    /// let mut out = [0f32; 16];
    /// matmul.run(&WeightRef::new(&buffer, 0, layout)?, &[f16::from_f32(1.5); 32], &mut out)?;
    /// assert_eq!(out, [1.5; 16]);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Matmul::int8`].
    pub fn fp16(domain: &Domain, cores: &Cores, max: MatmulLimits) -> Result<Matmul<Fp16>> {
        Matmul::side_by_side(slice::from_ref(domain), cores, max)
    }
}

impl Matmul<Int4> {
    /// int4 activations and weights, i32 results.
    ///
    /// ```
    /// use rknpu::{Device, Error, Layout, Matmul, MatmulLimits, Precision, WeightRef, reference};
    ///
    /// let device = Device::simulated(Default::default())?;
    /// let domain = device.domain(0)?;
    /// let layout = Layout::new(32, 64, Precision::Int4)?;
    /// let mut buffer = domain.alloc(layout.bytes() as usize)?;
    /// reference::tile_i4(layout, |_, _| -8, buffer.as_mut_slice());
    /// let buffer = buffer.to_device()?;
    /// let weight = WeightRef::new(&buffer, 0, layout)?;
    ///
    /// let limits = MatmulLimits { rows: 1, k: 32, n: 64 };
    /// let mut matmul = Matmul::int4(&domain, &device.cores()?, limits)?;
    /// let mut out = [0i32; 64];
    /// matmul.run(&weight, &[7; 32], &mut out)?;
    /// assert_eq!(out, [-8 * 7 * 32; 64]);
    /// assert!(matches!(matmul.run(&weight, &[8; 32], &mut out), Err(Error::Int4Range { .. })));
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Matmul::int8`].
    pub fn int4(domain: &Domain, cores: &Cores, max: MatmulLimits) -> Result<Matmul<Int4>> {
        Matmul::side_by_side(slice::from_ref(domain), cores, max)
    }
}

impl<E: Element> Matmul<E> {
    /// For weights in any of several domains, of which those in different ones are multiplied at the same time,
    /// each domain's on a core: for drivers where one core works in a domain at a time, and none excludes
    /// another ([`Spaces::lanes`](crate::driver::Spaces::lanes) says how many domains all cores need). A weight
    /// is split by columns, and each part is a weight in its domain; rows are written once, and copied to each
    /// domain when they are handed over.
    ///
    /// ```
    /// use rknpu::sim::config::{Config, Driver, Form};
    /// use rknpu::{Device, Layout, Matmul, MatmulLimits, Precision, WeightRef, reference};
    ///
    /// let config = Config { driver: Driver::Rocket(Form::Later), ..Config::default() };
    /// let device = Device::simulated(config)?;
    /// let domains = [device.new_domain()?, device.new_domain()?];
    /// let part = Layout::new(64, 32, Precision::Int8)?;
    /// let bytes = part.bytes() as usize;
    /// let mut buffers = [domains[0].alloc(bytes)?, domains[1].alloc(bytes)?];
    /// reference::tile_i8(part, |_, n| n as i8, buffers[0].as_mut_slice());
    /// reference::tile_i8(part, |_, n| 32 + n as i8, buffers[1].as_mut_slice());
    /// let [left, right] = buffers;
    /// let (left, right) = (left.to_device()?, right.to_device()?);
    ///
    /// let limits = MatmulLimits { rows: 1, k: 64, n: 32 };
    /// let mut matmul: Matmul = Matmul::side_by_side(&domains, &device.cores()?, limits)?;
    /// let mut rows = matmul.activations().lease(1, 64)?;
    /// rows.write_row(0, &[1; 64])?;
    /// let rows = rows.to_device()?;
    /// let parts = [WeightRef::new(&left, 0, part)?, WeightRef::new(&right, 0, part)?];
    /// let mut out = [[0; 32]; 2];
    /// let mut product = matmul.multiply_all(&parts, &rows)?;
    /// while let Some(outputs) = product.next_columns()? {
    ///     outputs.copy_to(&mut out[outputs.weight()])?;
    /// }
    /// assert_eq!((product.stats().cores, out[0][1], out[1][1]), (2, 64, 33 * 64));
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Matmul::int8`]; [`Error::Shape`] for no domains, one twice, or more than all cores need.
    pub fn side_by_side(domains: &[Domain], cores: &Cores, max: MatmulLimits) -> Result<Matmul<E>> {
        let spaces = cores.device().capabilities().spaces;
        let first = |(i, domain): &(usize, &Domain)| !domains.iter().take(*i).any(|d| d.is(domain));
        let limit = domains.iter().enumerate().filter(first).count().clamp(1, spaces.lanes());
        if domains.len() != limit {
            let (what, value, limit) = ("domains side by side", domains.len() as u64, limit as u64);
            return Err(Error::Shape { what, value, limit });
        }
        if let Some(domain) = domains.iter().find(|domain| !domain.device().is(cores.device())) {
            let want = domain.index();
            return Err(Error::ForeignDomain { what: "another device's cores", got: want, want });
        }
        let capacity = Capacity::new(E::PRECISION, max, spaces.cores as usize)?;
        let scratch = domains.iter().map(|domain| Scratch::new(domain, capacity));
        Ok(Matmul {
            activations: Activations::new(domains, capacity)?,
            scratch: scratch.collect::<Result<_>>()?,
            domains: domains.to_vec(),
            cores: cores.clone(),
            max,
        })
    }

    /// The domains that weights must be in: one, or those [side by side](Matmul::side_by_side).
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// The largest K and N.
    pub fn limits(&self) -> MatmulLimits {
        self.max
    }

    /// Memory for activations, to be leased, written in place and multiplied.
    pub fn activations(&self) -> &Activations<E> {
        &self.activations
    }

    /// Multiplies rows that lie in the device's memory, where results stay to be read in place:
    /// [`Product::next_columns`] runs the columns for which there is memory and gives their results.
    /// Nothing is run before the first call of it.
    ///
    /// ```
    /// use rknpu::{Device, Layout, Matmul, MatmulLimits, Precision, WeightRef, reference};
    ///
    /// let device = Device::simulated(Default::default())?;
    /// let domain = device.domain(0)?;
    /// let layout = Layout::new(64, 32, Precision::Int8)?;
    /// let mut weight = domain.alloc(layout.bytes() as usize)?;
    /// reference::tile_i8(layout, |k, n| (k == n) as i8, weight.as_mut_slice());
    /// let weight = weight.to_device()?;
    /// let weight = WeightRef::new(&weight, 0, layout)?;
    ///
    /// let limits = MatmulLimits { rows: 2, k: 64, n: 32 };
    /// let mut matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
    /// let mut rows = matmul.activations().lease(2, 64)?;
    /// rows.write_row(0, &[1; 64])?;
    /// rows.write_row(1, &[2; 64])?;
    /// let rows = rows.to_device()?;
    /// let mut sum = 0;
    /// let mut product = matmul.multiply(&weight, &rows)?;
    /// while let Some(outputs) = product.next_columns()? {
    ///     sum += outputs.row(1).flat_map(|segment| segment.iter()).sum::<i32>();
    /// }
    /// assert_eq!((sum, product.stats().submits), (2 * 32, 2)); // a fresh buffer is written twice
    /// // The same rows, by another weight: they need not be written again.
    /// let again = matmul.multiply(&weight, &rows)?;
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// Rows that the CPU may still write are not multiplied:
    ///
    /// ```compile_fail,E0308
    /// # fn f(matmul: &mut rknpu::Matmul, weight: rknpu::WeightRef<'_>) -> rknpu::Result<()> {
    /// let rows = matmul.activations().lease(2, 64)?; // still the CPU's
    /// let product = matmul.multiply(&weight, &rows)?;
    /// # Ok(()) }
    /// ```
    ///
    /// and no second job can write over results that are still read:
    ///
    /// ```compile_fail,E0499
    /// # fn f(matmul: &mut rknpu::Matmul, weight: rknpu::WeightRef<'_>) -> rknpu::Result<()> {
    /// let rows = matmul.activations().lease(2, 64)?.to_device()?;
    /// let mut product = matmul.multiply(&weight, &rows)?;
    /// let outputs = product.next_columns()?;
    /// let second = matmul.multiply(&weight, &rows)?;
    /// println!("{outputs:?}");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Precision`], [`Error::ForeignDomain`],
    /// [`Error::ForeignActivations`].
    pub fn multiply<'a>(
        &'a mut self,
        weight: &WeightRef<'a>,
        rows: &'a Rows<E, OnDevice>,
    ) -> Result<Product<'a, E>> {
        self.check(weight)?;
        self.check_rows(weight, rows)?;
        Ok(Product::new(self, Weights::One([*weight]), rows))
    }

    /// As [`Matmul::multiply`], by several weights that share their input, such as q, k and v, or gate and
    /// up: their results come one weight after the other, as [`Outputs::weight`] says. What a chain may hold
    /// ([`Chains`](crate::chains::Chains)) is one submit on each core, where each costs the same
    /// whatever it does; the results are those of one by one.
    ///
    /// ```
    /// # use rknpu::{Layout, Matmul, MatmulLimits, Precision, WeightRef, reference};
    /// # let device = rknpu::Device::simulated(Default::default())?;
    /// # let domain = device.domain(0)?;
    /// # let layout = Layout::new(64, 32, Precision::Int8)?;
    /// # let mut buffer = domain.alloc(2 * 4096)?;
    /// # reference::tile_i8(layout, |_, n| n as i8, &mut buffer.as_mut_slice()[..2048]);
    /// # reference::tile_i8(layout, |_, n| -(n as i8), &mut buffer.as_mut_slice()[4096..][..2048]);
    /// # let buffer = buffer.to_device()?;
    /// # let limits = MatmulLimits { rows: 2, k: 64, n: 32 };
    /// let gate = WeightRef::new(&buffer, 0, layout)?; // each channel's number
    /// let up = WeightRef::new(&buffer, 4096, layout)?; // and its negative
    /// let mut matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
    /// let mut rows = matmul.activations().lease(1, 64)?;
    /// rows.write_row(0, &[1; 64])?;
    /// let rows = rows.to_device()?;
    /// let mut out = [[0; 32]; 2];
    /// let weights = [gate, up];
    /// let mut product = matmul.multiply_all(&weights, &rows)?;
    /// while let Some(outputs) = product.next_columns()? {
    ///     outputs.copy_to(&mut out[outputs.weight()])?;
    /// }
    /// assert_eq!((out[0][5], out[1][5]), (64 * 5, -64 * 5));
    /// assert_eq!(product.stats().submits, 2); // one, made twice into fresh memory
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Matmul::multiply`], of any of the weights: nothing was run.
    pub fn multiply_all<'a>(
        &'a mut self,
        weights: &'a [WeightRef<'a>],
        rows: &'a Rows<E, OnDevice>,
    ) -> Result<Product<'a, E>> {
        for weight in weights {
            self.check(weight)?;
            self.check_rows(weight, rows)?;
        }
        Ok(Product::new(self, Weights::Several(weights), rows))
    }

    /// As [`Matmul::multiply`], with activations copied from a slice and results copied into one:
    /// `activations` is row-major `[M][K]`, `out` row-major `[M][N]`; M is what their lengths give, 0
    /// does nothing, and more than fit are multiplied in blocks.
    ///
    /// Waits until the domain may be entered and a core is free. When the NPU does not run the job, it is
    /// reset and the job run once more.
    ///
    /// ```
    /// use rknpu::Error;
    /// # let (mut matmul, weight, _) = rknpu::doc::product()?;
    /// # let weight = weight.get()?; // each channel's number
    /// let mut out = [0; 2 * 32];
    /// matmul.run(&weight, &[1; 2 * 64], &mut out)?; // two rows
    /// assert_eq!((out[1], out[32 + 31]), (64, 64 * 31));
    /// assert!(matches!(matmul.run(&weight, &[1; 63], &mut out), Err(Error::Length { .. })));
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Matmul::multiply`], [`Error::Length`], [`Error::Int4Range`],
    /// [`Error::ActivationsLeased`]: nothing was run. [`Error::Driver`]: a cache could not be synced.
    /// [`Error::JobFailed`]: it failed twice; the device takes no more work. After an error the
    /// contents of `out` are unspecified.
    pub fn run(
        &mut self,
        weight: &WeightRef<'_>,
        activations: &[E::Input],
        out: &mut [E::Output],
    ) -> Result<JobStats> {
        self.check(weight)?;
        let (k, n) = (weight.layout.k(), weight.layout.n());
        let m = activations.len() / k as usize;
        for (what, got, width) in [("activations", activations.len(), k), ("out", out.len(), n)] {
            let want = m.saturating_mul(width as usize);
            if got != want {
                return Err(Error::Length { what, got, want, m: m as u64, k, n });
            }
        }
        E::check(activations, k as usize)?;
        let block = self.activations.rows(k);
        let inputs = activations.chunks(block * k as usize);
        let mut stats = JobStats::default();
        for (inputs, out) in inputs.zip(out.chunks_mut(block * n as usize)) {
            let mut rows = self.activations.lease(inputs.len() / k as usize, k)?;
            for (row, inputs) in inputs.chunks_exact(k as usize).enumerate() {
                rows.copy_row(row, inputs)?;
            }
            let rows = rows.to_device()?;
            let mut product = self.multiply(weight, &rows)?;
            while let Some(outputs) = product.next_columns()? {
                outputs.copy_to(out)?;
            }
            stats.add(&product.stats());
        }
        Ok(stats)
    }

    fn check_rows(&self, weight: &WeightRef<'_>, rows: &Rows<E, OnDevice>) -> Result<()> {
        if !self.activations.owns(rows) {
            return Err(Error::ForeignActivations);
        }
        if rows.k() != weight.layout.k() {
            let (what, k, n) = ("a row of activations", weight.layout.k(), weight.layout.n());
            let (got, want, m) = (rows.k() as usize, k as usize, rows.m() as u64);
            return Err(Error::Length { what, got, want, m, k, n });
        }
        Ok(())
    }

    fn check(&self, weight: &WeightRef<'_>) -> Result<()> {
        let layout = weight.layout;
        if layout.precision() != E::PRECISION {
            return Err(Error::Precision { weights: layout.precision(), matmul: E::PRECISION });
        }
        if !self.domains.iter().any(|domain| weight.domain.is(domain)) {
            let (got, want) =
                (weight.domain.index(), self.domains.first().map_or(0, Domain::index));
            return Err(Error::ForeignDomain { what: "the weight", got, want });
        }
        for (what, value, limit) in [("K", layout.k(), self.max.k), ("N", layout.n(), self.max.n)] {
            if value > limit {
                return Err(Error::Shape { what, value: value.into(), limit: limit.into() });
            }
        }
        Ok(())
    }
}

impl<E: Element> fmt::Debug for Matmul<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MatmulLimits { k, n, .. } = self.max;
        let domains: Vec<u32> = self.domains.iter().map(Domain::index).collect();
        write!(f, "Matmul({:?} up to K={k} N={n} in {domains:?})", E::PRECISION)
    }
}

const _: () = assert!(limits::CHAIN <= rknpu_sys::regs::pc::TASKS_PER_COMMIT);
