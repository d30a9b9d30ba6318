//! What two packs have in common and where they differ.

use super::Dtype;
use super::entry::Entry;
use super::error::Result;
use super::reader::Pack;
use super::source::Source;

/// How two packs differ; see [`diff`].
///
/// ```
/// use ork_weights::pack::{Pack, diff};
///
/// # use ork_weights::pack::{Dtype, PackWriter, WriterOptions};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("small.orkpack");
/// # let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
/// # writer.add("blk.0.ffn_up.weight", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
/// # writer.finish()?;
/// let pack = Pack::open(&path)?;
/// let same = diff(&pack, &pack, |_| {})?;
/// assert_eq!((same.equal, same.different.len()), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Diff {
    /// Weights of the first pack only.
    pub only_first: Vec<Box<str>>,
    /// Weights of the second pack only.
    pub only_second: Vec<Box<str>>,
    /// Weights in both with the same shape, form, codes and scales.
    pub equal: usize,
    /// Weights in both that differ.
    pub different: Vec<Difference>,
}

impl Diff {
    /// Whether both packs hold the same weights.
    ///
    /// ```
    /// use ork_weights::pack::Diff;
    ///
    /// assert!(Diff::default().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.only_first.is_empty() && self.only_second.is_empty() && self.different.is_empty()
    }
}

/// How one weight differs between two packs.
///
/// ```
/// use ork_weights::pack::{Pack, diff};
///
/// # use ork_weights::pack::{Dtype, PackWriter, WriterOptions};
/// # let folder = tempfile::tempdir()?;
/// let pack = |name: &str, code: u8| {
///     let path = folder.path().join(name);
///     let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
///     writer.add("w", 64, 64, Dtype::Int8, &[code; 4096], &[0.5; 64])?;
///     writer.finish()?;
///     Pack::open(&path)
/// };
/// let difference = diff(&pack("a", 1)?, &pack("b", 3)?, |_| {})?;
/// let weight = &difference.different[0];
/// assert_eq!(&*weight.name, "w");
/// assert!(weight.codes.is_some() && weight.scales.is_none() && weight.shape.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Difference {
    /// The weight.
    pub name: Box<str>,
    /// K and N in each, if they differ. Nothing else is compared then.
    pub shape: Option<[(u32, u32); 2]>,
    /// Storage forms, if they differ. Codes of two forms are not comparable.
    pub dtype: Option<[Dtype; 2]>,
    /// Codes that differ; `None` when they are equal or not comparable.
    pub codes: Option<Spread>,
    /// Scales that differ; `None` when they are equal or their numbers differ (see `groups`).
    pub scales: Option<Spread>,
    /// Groups along K in each, if they differ.
    pub groups: Option<[u32; 2]>,
}

/// How many values differ, and how far.
///
/// ```
/// use ork_weights::pack::{Pack, diff};
///
/// # use ork_weights::pack::{Dtype, PackWriter, WriterOptions};
/// # let folder = tempfile::tempdir()?;
/// let pack = |name: &str, code: u8| {
///     let path = folder.path().join(name);
///     let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
///     writer.add("w", 64, 64, Dtype::Int8, &[code; 4096], &[0.5; 64])?;
///     writer.finish()?;
///     Pack::open(&path)
/// };
/// let difference = diff(&pack("a", 1)?, &pack("b", 3)?, |_| {})?;
/// let codes = difference.different[0].codes.ok_or("codes differ")?;
/// assert_eq!((codes.different, codes.total, codes.largest), (4096, 4096, 2.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Spread {
    /// Values that differ.
    pub different: u64,
    /// Values compared.
    pub total: u64,
    /// Largest difference: of codes absolute, of scales relative to the larger one.
    pub largest: f64,
}

impl Spread {
    /// `None` when all are equal.
    fn over(pairs: impl ExactSizeIterator<Item = (f64, f64)>, relative: bool) -> Option<Spread> {
        let mut spread = Spread { different: 0, total: pairs.len() as u64, largest: 0.0 };
        for (a, b) in pairs.filter(|(a, b)| a != b) {
            let unit = if relative { a.max(b) } else { 1.0 };
            spread.different += 1;
            spread.largest = spread.largest.max((a - b).abs() / unit);
        }
        (spread.different != 0).then_some(spread)
    }
}

/// Compares the weights of two packs: names, shapes, forms, codes and scales. How they are stored
/// (version, stamps, second copies, places) does not count. `progress` is called with every weight
/// that was compared.
///
/// ```
/// use ork_weights::pack::{Pack, diff};
///
/// # use ork_weights::pack::{Dtype, PackWriter, WriterOptions};
/// # let folder = tempfile::tempdir()?;
/// let pack = |name: &str, code: u8| {
///     let path = folder.path().join(name);
///     let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
///     writer.add("w", 64, 64, Dtype::Int8, &[code; 4096], &[0.5; 64])?;
///     writer.finish()?;
///     Pack::open(&path)
/// };
/// let difference = diff(&pack("a", 1)?, &pack("b", 3)?, |_| {})?;
/// assert_eq!((difference.equal, difference.different.len()), (0, 1));
/// assert!(difference.only_first.is_empty() && difference.only_second.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// What loading a weight refuses.
pub fn diff<A: Source, B: Source>(
    first: &Pack<A>,
    second: &Pack<B>,
    mut progress: impl FnMut(&Entry),
) -> Result<Diff> {
    let mut diff = Diff::default();
    for entry in second.entries().iter().filter(|entry| first.get(&entry.name).is_none()) {
        diff.only_second.push(entry.name.clone());
    }
    for entry in first.entries() {
        match second.get(&entry.name) {
            None => diff.only_first.push(entry.name.clone()),
            Some(other) => match compare(first, entry, second, other)? {
                None => diff.equal += 1,
                Some(difference) => diff.different.push(difference),
            },
        }
        progress(entry);
    }
    Ok(diff)
}

fn compare<A: Source, B: Source>(
    first: &Pack<A>,
    a: &Entry,
    second: &Pack<B>,
    b: &Entry,
) -> Result<Option<Difference>> {
    let shapes = [(a.k, a.n), (b.k, b.n)];
    let mut found = Difference {
        name: a.name.clone(),
        shape: (shapes[0] != shapes[1]).then_some(shapes),
        dtype: (a.dtype != b.dtype).then_some([a.dtype, b.dtype]),
        codes: None,
        scales: None,
        groups: (a.groups() != b.groups()).then_some([a.groups(), b.groups()]),
    };
    if found.shape.is_none() && found.dtype.is_none() {
        let (ours, theirs) = (first.codes(a)?, second.codes(b)?);
        let pairs = ours.iter().zip(&theirs);
        found.codes = Spread::over(pairs.map(|(a, b)| (f64::from(*a), f64::from(*b))), false);
    }
    if found.shape.is_none() && found.groups.is_none() {
        let (ours, theirs) = (first.scales(a)?, second.scales(b)?);
        let pairs = ours.iter().zip(&theirs);
        found.scales = Spread::over(pairs.map(|(a, b)| (f64::from(*a), f64::from(*b))), true);
    }
    let differs = found.shape.is_some()
        || found.dtype.is_some()
        || found.groups.is_some()
        || found.codes.is_some()
        || found.scales.is_some();
    Ok(differs.then_some(found))
}
