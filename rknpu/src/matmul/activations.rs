//! Activations where the NPU reads them: leased, written by the CPU, handed over.
//!
//! A matmul has one buffer of them, at an address that never changes: a core that is given another
//! address than in the submit before has been seen to multiply what it still had in CBUF. Rows lie
//! there as programs read them, each K slice's together, so nothing is copied between the caller
//! and the NPU.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rknpu_sys::layout::{Layout, Precision};

use super::element::Element;
use super::plan::{Capacity, k_ranges};
use crate::allocation::{Allocation, Request};
use crate::buffer::{Host, OnDevice, State};
use crate::domain::Domain;
use crate::driver::Object;
use crate::error::{Error, Result};
use crate::job::Rejected;
use crate::limits;

/// The memory for a [`Matmul`](super::Matmul)'s activations, made once with it; clones are the same.
///
/// [`Activations::lease`] gives it out as [`Rows`] of some shape, dropping those gives it back. One lease
/// at a time: the NPU must find a matmul's activations at one address, always.
///
/// ```
/// use rknpu::{Device, Error, Matmul, MatmulLimits};
///
/// let device = Device::simulated(Default::default())?;
/// let domain = device.domain(0)?;
/// let limits = MatmulLimits { rows: 4, k: 64, n: 32 };
/// let matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
/// let rows = matmul.activations().lease(4, 64)?;
/// assert!(matches!(matmul.activations().lease(1, 32), Err(Error::ActivationsLeased)));
/// drop(rows);
/// assert!(matmul.activations().lease(1, 32).is_ok());
/// # Ok::<(), Error>(())
/// ```
pub struct Activations<E: Element> {
    pool: Arc<Pool>,
    element: PhantomData<fn() -> E>,
}

struct Pool {
    capacity: Capacity,
    /// One or several side by side, each with the same rows.
    domains: Vec<Domain>,
    /// In each domain; absent while it is leased.
    memory: Mutex<Option<Box<[Allocation]>>>,
}

impl Pool {
    fn check(&self) -> Result<()> {
        self.domains.iter().try_for_each(|domain| domain.device().check())
    }

    fn memory(&self) -> MutexGuard<'_, Option<Box<[Allocation]>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Element> Activations<E> {
    pub(super) fn new(domains: &[Domain], capacity: Capacity) -> Result<Activations<E>> {
        let in_domain = |domain| {
            let memory = Allocation::create(domain, &Request::new(capacity.input))?;
            memory.sync_for_device(0..0)?;
            Ok(memory)
        };
        let memory = domains.iter().map(in_domain).collect::<Result<Box<[_]>>>()?;
        let (domains, memory) = (domains.to_vec(), Mutex::new(Some(memory)));
        let pool = Arc::new(Pool { capacity, domains, memory });
        Ok(Activations { pool, element: PhantomData })
    }

    /// Takes the memory as `m` rows of `k` inputs, for the CPU to write. They hold what was last
    /// written there: every row has to be written.
    ///
    /// ```
    /// # use rknpu::Error;
    /// # let (matmul, ..) = rknpu::doc::product()?;
    /// assert!(matmul.activations().lease(2, 64).is_ok());
    /// let odd = matmul.activations().lease(2, 33); // no multiple of 32
    /// assert!(matches!(odd, Err(Error::Layout(_))));
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Layout`] for a K that does not tile, [`Error::Shape`] for no rows or more than
    /// [`Activations::rows`]; [`Error::ActivationsLeased`] while they are leased.
    pub fn lease(&self, m: usize, k: u32) -> Result<Rows<E, Host>> {
        Layout::new(k, E::PRECISION.tile_width(), E::PRECISION)?;
        let limit = self.rows(k);
        if !(1..=limit).contains(&m) {
            return Err(Error::Shape { what: "M", value: m as u64, limit: limit as u64 });
        }
        if u64::from(limits::row_bytes(E::PRECISION, k)) > self.pool.capacity.input {
            let (what, value) = ("K", k.into());
            let limit = self.pool.capacity.input * 8 / u64::from(E::PRECISION.bits());
            return Err(Error::Shape { what, value, limit });
        }
        self.pool.check()?;
        let memory = self.pool.memory().take().ok_or(Error::ActivationsLeased)?;
        Ok(Rows::new(memory, Arc::clone(&self.pool), m, k))
    }

    /// Rows of `k` inputs that can be leased, and multiplied, at a time: at least as many as the matmul
    /// was made for, unless they take more than 4 MiB.
    ///
    /// ```
    /// # use rknpu::Error;
    /// # let (matmul, ..) = rknpu::doc::product()?;
    /// assert!(matmul.activations().rows(64) >= 2);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn rows(&self, k: u32) -> usize {
        self.pool.capacity.rows(k)
    }

    pub(super) fn owns<S: State>(&self, rows: &Rows<E, S>) -> bool {
        Arc::ptr_eq(&self.pool, &rows.pool)
    }
}

impl<E: Element> Clone for Activations<E> {
    fn clone(&self) -> Activations<E> {
        Activations { pool: Arc::clone(&self.pool), element: PhantomData }
    }
}

impl<E: Element> fmt::Debug for Activations<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pool { capacity, domains, .. } = &*self.pool;
        let state = if self.pool.memory().is_some() { "free" } else { "leased" };
        let domains: Vec<u32> = domains.iter().map(Domain::index).collect();
        write!(f, "Activations({} bytes in {domains:?}, {state})", capacity.input)
    }
}

/// Rows of activations in device memory, in one of two states as a [`Buffer`](crate::Buffer): the
/// CPU's ([`Host`]), to be written, or the NPU's ([`OnDevice`]), to be multiplied, any number of times.
///
/// ```
/// use rknpu::{Device, Matmul, MatmulLimits};
///
/// let device = Device::simulated(Default::default())?;
/// let domain = device.domain(0)?;
/// let limits = MatmulLimits { rows: 2, k: 1056, n: 32 };
/// let matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
/// let mut rows = matmul.activations().lease(2, 1056)?;
/// // From values that are there already …
/// rows.write_row(0, &[3; 1056])?;
/// // … or made in place. The NPU takes K in slices, so a row has one run of memory for each.
/// for (inputs, run) in rows.row_mut(1)? {
///     run.iter_mut().zip(inputs).for_each(|(to, k)| *to = k as i8);
/// }
/// let rows = rows.to_device()?; // cleaned: the NPU sees them
/// assert_eq!(rows.m(), 2);
/// # Ok::<(), rknpu::Error>(())
/// ```
///
/// The CPU cannot write what the NPU may read:
///
/// ```compile_fail,E0599
/// # use rknpu::{Device, Matmul, MatmulLimits};
/// # let device = Device::simulated(Default::default())?;
/// # let limits = MatmulLimits { rows: 2, k: 32, n: 32 };
/// # let matmul = Matmul::int8(&device.domain(0)?, &device.cores()?, limits)?;
/// let rows = matmul.activations().lease(2, 32)?.to_device()?;
/// rows.write_row(0, &[0; 32])?; // not in this state; `reclaim` it first
/// # Ok::<(), rknpu::Error>(())
/// ```
///
/// nor keep them after handing them over:
///
/// ```compile_fail,E0382
/// # use rknpu::{Device, Matmul, MatmulLimits};
/// # let device = Device::simulated(Default::default())?;
/// # let limits = MatmulLimits { rows: 2, k: 32, n: 32 };
/// # let matmul = Matmul::int8(&device.domain(0)?, &device.cores()?, limits)?;
/// let mut rows = matmul.activations().lease(2, 32)?;
/// let on_device = rows.to_device()?;
/// rows.write_row(0, &[0; 32])?; // moved
/// # Ok::<(), rknpu::Error>(())
/// ```
#[must_use = "dropping rows gives them back"]
pub struct Rows<E: Element, S: State = Host> {
    /// Absent only while they are dropped or change their state.
    memory: Option<Box<[Allocation]>>,
    pool: Arc<Pool>,
    m: usize,
    k: u32,
    kind: PhantomData<fn() -> (E, S)>,
}

impl<E: Element, S: State> Rows<E, S> {
    fn new(memory: Box<[Allocation]>, pool: Arc<Pool>, m: usize, k: u32) -> Rows<E, S> {
        Rows { memory: Some(memory), pool, m, k, kind: PhantomData }
    }

    fn into_state<T: State>(mut self) -> Rows<E, T> {
        let (memory, pool, kind) = (self.memory.take(), Arc::clone(&self.pool), PhantomData);
        Rows { memory, pool, m: self.m, k: self.k, kind }
    }

    /// Rows.
    ///
    /// ```
    /// # use rknpu::Error;
    /// # let (matmul, ..) = rknpu::doc::product()?;
    /// assert_eq!(matmul.activations().lease(2, 64)?.m(), 2);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn m(&self) -> usize {
        self.m
    }

    /// Inputs of each.
    pub(crate) fn k(&self) -> u32 {
        self.k
    }

    /// Bytes of all rows.
    fn bytes(&self) -> u64 {
        self.m as u64 * u64::from(limits::row_bytes(E::PRECISION, self.k))
    }

    /// Where the NPU reads them in the matmul's domain number `lane`.
    pub(super) fn iova(&self, lane: usize) -> u64 {
        self.memory(lane).map_or(0, Allocation::iova)
    }

    /// The object that they lie in there.
    pub(super) fn object(&self, lane: usize) -> Option<&Arc<Object>> {
        self.memory(lane).and_then(Allocation::object)
    }

    fn memory(&self, lane: usize) -> Option<&Allocation> {
        self.memory.as_ref()?.get(lane)
    }
}

/// Where inputs `range`, a K slice, of row `row` of `m` lie.
fn run(precision: Precision, m: usize, row: usize, range: &Range<u32>) -> Range<usize> {
    let bytes = |k| limits::row_bytes(precision, k) as usize;
    let len = bytes(range.end - range.start);
    let start = m * bytes(range.start) + row * len;
    start..start + len
}

impl<E: Element> Rows<E, Host> {
    /// Copies one row: `inputs` has K elements.
    ///
    /// ```
    /// # use rknpu::Error;
    /// # let (matmul, ..) = rknpu::doc::product()?;
    /// let mut rows = matmul.activations().lease(1, 64)?;
    /// rows.write_row(0, &[3; 64])?;
    /// assert!(matches!(rows.write_row(0, &[3; 63]), Err(Error::Length { .. })));
    /// assert!(matches!(rows.write_row(1, &[3; 64]), Err(Error::Shape { .. }))); // there is one
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for a row that does not exist, [`Error::Length`], [`Error::Int4Range`].
    pub fn write_row(&mut self, row: usize, inputs: &[E::Input]) -> Result<()> {
        let (k, got) = (self.k, inputs.len());
        if got != k as usize {
            let what = "a row of activations";
            return Err(Error::Length { what, got, want: k as usize, m: 1, k, n: 0 });
        }
        E::check(inputs, k as usize).map_err(|error| match error {
            Error::Int4Range { value, column, .. } => Error::Int4Range { value, row, column },
            error => error,
        })?;
        self.copy_row(row, inputs)
    }

    /// As [`Rows::write_row`], of inputs that have been checked.
    pub(super) fn copy_row(&mut self, row: usize, inputs: &[E::Input]) -> Result<()> {
        for (range, bytes) in self.runs(row)? {
            let inputs = inputs.get(range.start as usize..range.end as usize);
            E::write(inputs.unwrap_or_default(), bytes);
        }
        Ok(())
    }

    /// A row to be written in place: for each K slice, which inputs, and where they lie.
    ///
    /// ```
    /// # use rknpu::Error;
    /// # let (matmul, ..) = rknpu::doc::product()?;
    /// let mut rows = matmul.activations().lease(1, 64)?;
    /// for (inputs, run) in rows.row_mut(0)? {
    ///     assert_eq!(run.len(), inputs.len()); // one element an input in int8
    ///     run.fill(3);
    /// }
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for a row that does not exist.
    pub fn row_mut(
        &mut self,
        row: usize,
    ) -> Result<impl Iterator<Item = (Range<u32>, &mut [E::Stored])>> {
        Ok(self.runs(row)?.filter_map(|(range, bytes)| Some((range, E::stored(bytes)?))))
    }

    fn runs(&mut self, row: usize) -> Result<impl Iterator<Item = (Range<u32>, &mut [u8])>> {
        let (m, k) = (self.m, self.k);
        if row >= m {
            let limit = m.saturating_sub(1) as u64;
            return Err(Error::Shape { what: "row", value: row as u64, limit });
        }
        // The others get theirs when they are handed over.
        let first = self.memory.as_mut().and_then(|memory| memory.first_mut());
        let mut rest = first.map(Allocation::bytes_mut).unwrap_or_default();
        let mut at = 0;
        Ok(k_ranges(E::PRECISION, k).map_while(move |range| {
            let place = run(E::PRECISION, m, row, &range);
            let (_, from) = std::mem::take(&mut rest).split_at_mut_checked(place.start - at)?;
            let (bytes, behind) = from.split_at_mut_checked(place.len())?;
            (rest, at) = (behind, place.end);
            Some((range, bytes))
        }))
    }

    /// Hands them to the NPU: cleans the CPU's caches over all rows, which the matmul's other domains get
    /// copies of.
    ///
    /// ```
    /// # use rknpu::Error;
    /// # let (matmul, ..) = rknpu::doc::product()?;
    /// let mut rows = matmul.activations().lease(1, 64)?;
    /// rows.write_row(0, &[3; 64])?;
    /// let rows = rows.to_device()?; // for any number of products
    /// assert_eq!(rows.m(), 1);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// The rows back and the reason, as [`Buffer::to_device`](crate::Buffer::to_device).
    pub fn to_device(mut self) -> Result<Rows<E, OnDevice>, Rejected<Rows<E, Host>>> {
        match self.show() {
            Ok(()) => Ok(self.into_state()),
            Err(error) => Err(Rejected { kept: self, error }),
        }
    }

    /// Copies the rows to the other domains, and shows the NPU all of them.
    fn show(&mut self) -> Result<()> {
        let bytes = self.bytes();
        let Some((first, others)) = self.memory.as_mut().and_then(|all| all.split_first_mut())
        else {
            return Ok(());
        };
        for other in &mut *others {
            let rows = first.bytes().get(..bytes as usize).unwrap_or_default();
            let place = other.bytes_mut().get_mut(..rows.len()).unwrap_or_default();
            place.iter_mut().zip(rows).for_each(|(to, byte)| *to = *byte);
            other.sync_for_device(0..bytes)?;
        }
        first.sync_for_device(0..bytes)
    }
}

impl<E: Element> Rows<E, OnDevice> {
    /// Takes them back to write other values: no call to the driver. The NPU has only read them, so rows
    /// that are not written keep their values.
    ///
    /// ```
    /// # use rknpu::Error;
    /// # let (matmul, ..) = rknpu::doc::product()?;
    /// let mut rows = matmul.activations().lease(2, 64)?;
    /// rows.write_row(0, &[1; 64])?;
    /// rows.write_row(1, &[2; 64])?;
    /// let mut rows = rows.to_device()?.reclaim()?;
    /// rows.write_row(1, &[3; 64])?; // the first row stays
    /// let rows = rows.to_device()?;
    /// # assert_eq!(rows.m(), 2);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// The rows back and [`Error::Wedged`]: a job that has not been proven ended may still use them.
    pub fn reclaim(self) -> Result<Rows<E, Host>, Rejected<Rows<E, OnDevice>>> {
        match self.pool.check() {
            Ok(()) => Ok(self.into_state()),
            Err(error) => Err(Rejected { kept: self, error }),
        }
    }
}

impl<E: Element, S: State> Drop for Rows<E, S> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            *self.pool.memory() = Some(memory);
        }
    }
}

impl<E: Element, S: State> fmt::Debug for Rows<E, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (m, k) = (self.m, self.k);
        let domains: Vec<u32> = self.pool.domains.iter().map(Domain::index).collect();
        write!(f, "Rows<{:?}, {}>({m} of {k} in {domains:?})", E::PRECISION, S::NAME)
    }
}
