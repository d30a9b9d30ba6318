//! Whether packs and models are read through the system's page cache or past it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rknpu::probe::available_memory;
use serde::Serialize;

use crate::store::Store;

/// How the weights of packs and models are read.
///
/// ```
/// use ork_cache::Access;
///
/// assert_eq!("direct".parse(), Ok(Access::Direct));
/// assert_eq!(Access::default().to_string(), "auto");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Through the page cache where the files fit into available memory beside the budget, past it
    /// where they do not.
    #[default]
    Auto,
    /// Through the page cache.
    Buffered,
    /// Past it (O_DIRECT): the disk writes a pack's weights into device memory, and a model's to where
    /// they are quantised. What the kernel refuses is read through the page cache, and [`DirectReads`](ork_weights::pack::DirectReads) counts it.
    Direct,
}

/// A text that names no access.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no way to read weights: auto, buffered or direct")]
#[non_exhaustive]
pub struct ParseAccessError {
    /// The text.
    pub text: Box<str>,
}

impl FromStr for Access {
    type Err = ParseAccessError;

    fn from_str(text: &str) -> Result<Access, ParseAccessError> {
        match text {
            "auto" => Ok(Access::Auto),
            "buffered" => Ok(Access::Buffered),
            "direct" => Ok(Access::Direct),
            _ => Err(ParseAccessError { text: text.into() }),
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Auto => "auto",
            Access::Buffered => "buffered",
            Access::Direct => "direct",
        })
    }
}

/// How weights are read in a run, and why so.
///
/// ```
/// use ork_cache::Reading;
///
/// let reading = Reading { direct: true, bytes: 30 << 30, available: Some(12 << 30), ..Reading::default() };
/// assert_eq!(
///     reading.to_string(),
///     "weights are read past the page cache: 30720 MiB of files, 12288 MiB of memory beside the budget"
/// );
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// Past the page cache.
    pub direct: bool,
    /// Bytes of files that a pass over all weights reads.
    pub bytes: u64,
    /// Bytes of available memory that the budget leaves, if that decided.
    pub available: Option<u64>,
    /// Why weights are not read past the page cache, though they should be.
    pub refused: Option<Box<str>>,
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.direct { "past" } else { "through" };
        write!(f, "weights are read {way} the page cache")?;
        match (&self.refused, self.available) {
            (Some(refused), _) => write!(f, ", since direct reads are refused here: {refused}"),
            (None, Some(available)) => write!(
                f,
                ": {} MiB of files, {} MiB of memory beside the budget",
                self.bytes >> 20,
                available >> 20
            ),
            (None, None) => f.write_str(", as asked for"),
        }
    }
}

/// Has the weights of `stores` read as `access` says. `mapped` bytes of device memory are still to be taken.
pub(super) fn choose(access: Access, stores: &[Arc<Store>], mapped: u64) -> Reading {
    let bytes = stores.iter().map(|store| store.file_bytes()).fold(0, u64::saturating_add);
    let available = match access {
        Access::Auto => available_memory().map(|memory| memory.saturating_sub(mapped)),
        _ => None,
    };
    let mut reading =
        Reading { direct: past(access, bytes, available), bytes, available, refused: None };
    for store in stores.iter().filter(|_| reading.direct) {
        if let Err(error) = store.read_directly() {
            reading.refused = Some(error.to_string().into());
        }
    }
    reading.direct &= reading.refused.is_none();
    reading
}

fn past(access: Access, bytes: u64, available: Option<u64>) -> bool {
    match access {
        Access::Direct => true,
        Access::Buffered => false,
        Access::Auto => available.is_some_and(|available| bytes > available),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn files_that_do_not_fit_memory_are_read_past_the_cache() {
        assert!(past(Access::Auto, 5 << 30, Some(4 << 30)));
        assert!(!past(Access::Auto, 4 << 30, Some(4 << 30)));
        assert!(!past(Access::Auto, 4 << 30, None), "nobody knows");
        assert!(past(Access::Direct, 1, Some(u64::MAX)));
        assert!(!past(Access::Buffered, u64::MAX, Some(0)));
    }

    #[test]
    fn names_are_parsed_as_they_are_shown() {
        for access in [Access::Auto, Access::Buffered, Access::Direct] {
            assert_eq!(access.to_string().parse(), Ok(access));
        }
        assert!(
            "mmap".parse::<Access>().unwrap_err().to_string().contains("auto, buffered or direct")
        );
    }
}
