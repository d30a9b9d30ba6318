//! Which model a pack was made from.

use super::error::{PackError, Result};

/// What tells one model file from another: size, time and hashes.
///
/// For a model of several files, `size` is the sum, `modified_ns` the latest time, and the hashes run
/// over the files in order. `sample_hash` covers the header (names, shapes, types, metadata) and a
/// sample of the tensor data, so that a fine-tune with the same names and shapes differs.
///
/// ```
/// use ork_weights::pack::{Freshness, Identity};
///
/// let packed = Identity { size: 4096, modified_ns: 1, sample_hash: 7, full_hash: None };
/// let copied = Identity { modified_ns: 2, ..packed };
/// assert_eq!(packed.check(&copied)?, Freshness::Touched);
/// let tuned = Identity { sample_hash: 8, ..packed };
/// assert!(packed.check(&tuned).is_err());
/// # Ok::<(), ork_weights::pack::PackError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Bytes of the model's files.
    pub size: u64,
    /// Time of the last change, in nanoseconds since 1970; 0 when unknown.
    pub modified_ns: u64,
    /// XXH3-128 of the header and a sample of the data.
    pub sample_hash: u128,
    /// XXH3-128 of every byte, where somebody paid for it.
    pub full_hash: Option<u128>,
}

/// How well a model fits the identity in a pack.
///
/// ```
/// use ork_weights::pack::{Freshness, Identity};
///
/// let packed = Identity { size: 4096, modified_ns: 1, sample_hash: 7, full_hash: None };
/// assert_eq!(packed.check(&packed)?, Freshness::Same);
/// # Ok::<(), ork_weights::pack::PackError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The same, as far as both sides know.
    Same,
    /// The same size and hashes at another time: copied, or downloaded again.
    Touched,
}

impl Identity {
    /// Compares the identity kept in a pack (`self`) with that of a model at hand.
    ///
    /// Full hashes decide where both sides have one; otherwise size and sample hash do. The time
    /// alone never refuses a pack, since copying a file changes it.
    ///
    /// ```
    /// use ork_weights::pack::{Identity, PackError};
    ///
    /// let packed = Identity { size: 4096, modified_ns: 1, sample_hash: 7, full_hash: Some(9) };
    /// let tuned = Identity { full_hash: Some(10), ..packed };
    /// let error = packed.check(&tuned).unwrap_err();
    /// assert!(matches!(error, PackError::OtherModel { field: "full hash", .. }));
    /// // A side without a full hash does not ask for one.
    /// assert!(packed.check(&Identity { full_hash: None, ..packed }).is_ok());
    /// ```
    ///
    /// # Errors
    /// [`PackError::OtherModel`] with the first field that differs.
    pub fn check(&self, model: &Identity) -> Result<Freshness> {
        let differs =
            |field, pack: String, model: String| Err(PackError::OtherModel { field, pack, model });
        if self.size != model.size {
            return differs("size", self.size.to_string(), model.size.to_string());
        }
        if self.sample_hash != model.sample_hash {
            return differs("sample hash", hex(self.sample_hash), hex(model.sample_hash));
        }
        if let (Some(pack), Some(model)) = (self.full_hash, model.full_hash)
            && pack != model
        {
            return differs("full hash", hex(pack), hex(model));
        }
        let touched = self.modified_ns != model.modified_ns
            && self.modified_ns != 0
            && model.modified_ns != 0;
        Ok(if touched { Freshness::Touched } else { Freshness::Same })
    }
}

fn hex(hash: u128) -> String {
    format!("{hash:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Identity =
        Identity { size: 100, modified_ns: 5, sample_hash: 1, full_hash: Some(2) };

    fn field(pack: Identity, model: Identity) -> &'static str {
        match pack.check(&model) {
            Err(PackError::OtherModel { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn other_model_names_what_differs() {
        assert_eq!(field(BASE, Identity { size: 101, ..BASE }), "size");
        assert_eq!(field(BASE, Identity { sample_hash: 0, ..BASE }), "sample hash");
        assert_eq!(field(BASE, Identity { full_hash: Some(3), ..BASE }), "full hash");
    }

    #[test]
    fn a_full_hash_on_one_side_only_does_not_decide() {
        assert_eq!(BASE.check(&Identity { full_hash: None, ..BASE }).unwrap(), Freshness::Same);
    }

    #[test]
    fn time_alone_never_refuses() {
        let later = Identity { modified_ns: 6, ..BASE };
        assert_eq!(BASE.check(&later).unwrap(), Freshness::Touched);
        let unknown = Identity { modified_ns: 0, ..BASE };
        assert_eq!(BASE.check(&unknown).unwrap(), Freshness::Same);
    }
}
