//! Models put on a device for their products.

use std::sync::Arc;

use ork_cache::plan::Item;
use ork_cache::{Cache, Placed, Prefetcher, Store};
use ork_weights::pack::Dtype;
use rknpu::{Cores, Device, Matmul, Precision};
use rknpu_sys::regs::CORES;

use super::Layers;
use super::npu::Npu;
use super::routed::Routed;
use crate::cpu::Cpu;
use crate::error::{Error, Result};
use crate::rows::{Depth, QuantisedRows, Transform};

/// From how many rows on the NPU computes: below, a job costs more than what it saves.
pub const NPU_ROWS: usize = 32;

/// How the products of models are to be computed.
///
/// ```
/// use ork_linear::{Depth, Setup};
///
/// let setup = Setup { depth: Depth::Bits8, ..Setup::new(1 << 30) };
/// assert_eq!(setup.npu_rows, ork_linear::NPU_ROWS);
/// ```
#[derive(Clone, Debug)]
pub struct Setup {
    /// Budget, largest batch, and what evicts.
    pub cache: ork_cache::Setup,
    /// How finely rows are quantised.
    pub depth: Depth,
    /// From how many rows on the NPU computes; `usize::MAX` leaves all to the CPU.
    pub npu_rows: usize,
    /// Cores of the NPU at most; `usize::MAX` takes all there are.
    pub cores: usize,
}

impl Setup {
    /// Rows in two planes, within `budget` bytes of device memory.
    pub fn new(budget: u64) -> Setup {
        let cache = ork_cache::Setup::new(budget);
        Setup { cache, depth: Depth::Bits16, npu_rows: NPU_ROWS, cores: usize::MAX }
    }
}

/// Puts models on a device, within one budget, as [`ork_cache::open`] does; loads nothing.
///
/// ```
/// use std::sync::Arc;
///
/// use ork_cache::Store;
/// use ork_linear::{Product, Setup};
/// # use ork_weights::model::{Model, OpenOptions, synth::Shape};
/// # use ork_weights::quantise::Tier;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.gguf");
/// # Shape::tiny().write(std::fs::File::create(&path)?)?;
/// # let model = Model::open(&path, &OpenOptions::default())?;
/// let store = Arc::new(Store::from_model(model, Tier::Int8, None)?); // or from a pack
/// let device = rknpu::Device::simulated(Default::default())?; // on a board: Device::open()?
/// let mut models = ork_linear::open(&device, &[store], &Setup::new(64 << 20))?;
/// let layers = &mut models[0];
///
/// let up = layers.find("blk.0.ffn_up.weight").ok_or("no such weight")?;
/// let (k, n) = layers.shape(up).ok_or("no such weight")?;
/// let (k, n) = (k as usize, n as usize);
/// let (prompt, token) = (vec![0.5; 40 * k], vec![0.5; k]);
/// let (mut many, mut one) = (vec![0.0; 40 * n], vec![0.0; n]);
/// layers.multiply(40, &prompt, [Product { weight: up, out: &mut many }])?; // on the NPU
/// layers.multiply(1, &token, [Product { weight: up, out: &mut one }])?; // on the CPU
/// assert_eq!(many[..n], one); // bit for bit
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Stored`] for a weight of a form that is not multiplied; [`Error::Cache`], [`Error::Device`];
/// [`Error::Thread`].
pub fn open(device: &Device, stores: &[Arc<Store>], setup: &Setup) -> Result<Vec<Layers>> {
    let transforms: Vec<_> = stores.iter().map(|store| transforms(store)).collect::<Result<_>>()?;
    let planes = setup.depth.planes() as u32;
    let cache =
        ork_cache::Setup { rows: setup.cache.rows.saturating_mul(planes), ..setup.cache.clone() };
    let opened = ork_cache::open(device, stores, &cache)?;
    let cores = match setup.cores {
        ..CORES => {
            let some = (0..setup.cores.max(1) as u32).map(|core| device.core(core));
            Cores::new(some.collect::<rknpu::Result<_>>()?)?
        }
        _ => device.cores()?,
    };
    let matmul = |(group, domains)| match opened.limits(group, Precision::Int8) {
        Some(limits) => Matmul::side_by_side(domains, &cores, limits).map(Some),
        None => Ok(None),
    };
    let matmuls = opened.groups().enumerate().map(matmul).collect::<rknpu::Result<_>>()?;
    let npu = Arc::new(Npu::new(opened.cache.clone(), opened.lanes, matmuls));
    let (notes, reading): (Arc<[_]>, _) = (opened.notes.into(), Arc::new(opened.reading));
    let models = stores.iter().zip(opened.models).zip(transforms);
    models
        .map(|((store, placed), transforms)| {
            Ok(Layers {
                npu: npu.clone(),
                prefetcher: prefetcher(&opened.cache, store, &placed, setup)?,
                routed: Routed::new(&opened.cache, store, &placed)?,
                numbers: (0..).zip(store.items()).map(|(i, item)| (item.name.clone(), i)).collect(),
                store: store.clone(),
                placed,
                transforms,
                npu_rows: setup.npu_rows,
                notes: notes.clone(),
                reading: reading.clone(),
                rows: QuantisedRows::new(setup.depth),
                padded: Vec::new(),
                cpu: Cpu::default(),
                tiles: Vec::new(),
            })
        })
        .collect()
}

/// How each weight's rows are transformed.
fn transforms(store: &Store) -> Result<Vec<Transform>> {
    let items = store.items().iter().enumerate();
    let transform = |(i, item): (usize, &Item)| {
        let dtype = store.dtype(i).unwrap_or(Dtype::Int8);
        match dtype {
            // The NPU's sums of int4 saturate.
            Dtype::Int4 => Err(Error::Stored { name: item.name.clone(), dtype }),
            _ if dtype.is_rotated() => Ok(Transform::Hadamard),
            _ => Ok(Transform::None),
        }
    };
    items.map(transform).collect()
}

/// Follows what every pass streams in the same order: not what a router decides.
fn prefetcher(
    cache: &Cache,
    store: &Store,
    placed: &Placed,
    setup: &Setup,
) -> Result<Option<Prefetcher>> {
    if placed.streamed.is_empty() {
        return Ok(None);
    }
    let prefetcher = Prefetcher::new(cache)?;
    let of_expert = |weight| {
        let item = placed.part(weight).and_then(|part| store.items().get(part.item));
        item.is_some_and(|item| item.expert.is_some())
    };
    let streamed = placed.streamed.iter().copied();
    let order: Vec<_> =
        streamed.filter(|weight| !setup.cache.routed || !of_expert(*weight)).collect();
    prefetcher.follow(&order);
    Ok(Some(prefetcher))
}
