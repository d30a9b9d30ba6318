//! Where weights go that do not come in their order.

use std::collections::HashMap;

use rknpu_sys::layout::PAGE;

use super::WeightHeader;
use crate::pack::error::{PackError, Result};
use crate::pack::format::sizes;

/// The place of every weight in a pack that is made while something else decides which comes first: the file
/// is then the same as if they had come in this order.
///
/// ```
/// use ork_weights::pack::{Dtype, PackWriter, Places, WeightHeader, WriterOptions};
///
/// let folder = tempfile::tempdir()?;
/// let header = |name| WeightHeader { name, k: 64, n: 64, dtype: Dtype::Int8 };
/// let places = Places::new([(header("a"), 64), (header("b"), 64)])?;
/// let make = |file, order: [&str; 2]| {
///     let path = folder.path().join(file);
///     let options = WriterOptions { places: Some(places.clone()), ..Default::default() };
///     let mut writer = PackWriter::create(&path, None, options)?;
///     for name in order {
///         writer.add(name, 64, 64, Dtype::Int8, &[name.as_bytes()[0]; 4096], &[0.5; 64])?;
///     }
///     writer.finish()?;
///     Ok::<_, Box<dyn std::error::Error>>(std::fs::read(path)?)
/// };
/// assert!(make("1", ["a", "b"])? == make("2", ["b", "a"])?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places(HashMap<Box<str>, u64>);

impl Places {
    /// Places one behind the other, for weights and the number of scales behind each.
    ///
    /// # Errors
    /// [`PackError::Shape`] for one that no layout holds, [`PackError::DuplicateName`].
    pub fn new<'a>(weights: impl IntoIterator<Item = (WeightHeader<'a>, usize)>) -> Result<Places> {
        let (mut places, mut end) = (HashMap::new(), 0u64);
        for (WeightHeader { name, k, n, dtype }, scales) in weights {
            let blob = sizes::bytes(k, n, dtype);
            let blob = blob.map_err(|source| PackError::Shape { name: name.into(), source })?;
            let at = end.next_multiple_of(PAGE);
            end = at.saturating_add(blob).saturating_add(4 * scales as u64);
            if places.insert(name.into(), at).is_some() {
                return Err(PackError::DuplicateName { name: name.into() });
            }
        }
        Ok(Places(places))
    }

    /// Number of weights.
    pub(super) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    pub(super) fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }
}
