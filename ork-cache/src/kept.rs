//! Packs that are kept for the next run: where they are, and stores that load or make them.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ork_weights::convert::{ConvertError, writer_options};
use ork_weights::model::{Model, ModelError};
use ork_weights::pack::{Freshness, Identity, Pack, PackError, PackWriter, WriterOptions};
use ork_weights::quantise::Tier;

use crate::environment::Environment;
use crate::store::{Store, StoreError};

/// What `ORK_PERSIST` says for the cache folder.
const YES: &str = "1";
/// What it says for no pack, as if it were not set.
const NO: &str = "0";

/// Where packed weights are kept.
///
/// ```
/// use ork_cache::kept::{Kept, Way};
/// use ork_weights::model::{Model, OpenOptions, synth::Shape};
/// use ork_weights::quantise::Tier;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("model.gguf");
/// Shape::tiny().write(std::fs::File::create(&path)?)?; // made up; bring your own
/// let model = || Model::open(&path, &OpenOptions::default());
/// let kept = Kept::At(folder.path().join("model.orkpack"));
///
/// let first = kept.open(model()?, Tier::Int8)?; // quantised as they are used, and added to a pack
/// assert!(matches!(first.way, Way::Building(_)));
/// first.store.finish()?;
/// let second = kept.open(model()?, Tier::Int8)?;
/// assert!(matches!(second.way, Way::Loaded { .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Weights are quantised in every run.
    Nowhere,
    /// In this pack, which is made where there is none.
    At(PathBuf),
    /// In this pack, which is there.
    In(PathBuf),
    /// In the user's cache folder, under a name that the model and the tier give.
    InCache,
}

/// A model's weights, and where they come from.
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened {
    /// The weights.
    pub store: Store,
    /// Where they come from.
    pub way: Way,
}

/// How the weights of a model are had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Quantised when they are used, and not kept.
    Made,
    /// Quantised when they are used, and added to this pack.
    Building(PathBuf),
    /// Read from a pack.
    Loaded {
        /// The pack.
        pack: PathBuf,
        /// Whether it says which model it was made from. Otherwise names and shapes are all that is
        /// checked.
        names_model: bool,
        /// Whether the model's file has another time than that which the pack was made of: it was copied, or
        /// changed where no sample of its content was taken.
        touched: bool,
    },
}

/// Why a model has no store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeptError {
    /// There is no folder for what can be made again.
    #[error(
        "neither XDG_CACHE_HOME nor HOME names a folder to keep the pack in: name the pack (ORK_PERSIST=PACK)"
    )]
    NoFolder,
    /// The user's cache folder cannot be made.
    #[error("cannot make the folder {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The pack cannot be used, or is of another model.
    #[error("{}", path.display())]
    Pack {
        /// The pack.
        path: PathBuf,
        /// Why.
        source: PackError,
    },
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A weight does not suit the tier.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// A weight does not suit the tier.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Kept {
    /// What an argument says (`Some(None)`: in the cache folder), or else the environment.
    pub fn new(asked: Option<Option<&Path>>, environment: &Environment) -> Kept {
        match (asked, environment.pack.as_deref()) {
            (Some(Some(path)), _) => Kept::At(path.into()),
            (Some(None), _) => Kept::InCache,
            (None, Some(path)) if path == Path::new(YES) => Kept::InCache,
            (None, Some(path)) if path != Path::new(NO) => Kept::At(path.into()),
            (None, _) => Kept::Nowhere,
        }
    }

    /// The weights of a model: those of its pack where that is there, in the form that it has, otherwise
    /// quantised as they are used, and added to a new pack if one is to be kept. What an interrupted run left
    /// there goes on, or is started over if it was of something else.
    ///
    /// # Errors
    /// [`KeptError`]. A pack of another model is never used and never overwritten.
    pub fn open(&self, model: Model, tier: Tier) -> Result<Opened, KeptError> {
        let identity = model.identity(false)?;
        let Some(target) = self.path(&identity, tier)? else {
            let store = Store::from_model(model, tier, None)?;
            return Ok(Opened { store, way: Way::Made });
        };
        let refuse = |source| KeptError::Pack { path: target.clone(), source };
        if matches!(self, Kept::In(_)) || target.exists() {
            let pack = Pack::open(&target).map_err(refuse)?;
            let mut touched = false;
            if let Some(packed) = pack.identity() {
                let ours = model.identity(packed.full_hash.is_some())?;
                let same = packed.check(&ours).map_err(refuse)?;
                touched = same == Freshness::Touched && packed.full_hash.is_none();
            }
            let names_model = pack.identity().is_some();
            let store = Store::from_pack(pack);
            return Ok(Opened { store, way: Way::Loaded { pack: target, names_model, touched } });
        }
        let options = writer_options(&model, tier)?;
        let create = |replace| {
            PackWriter::create(&target, &identity, WriterOptions { replace, ..options.clone() })
        };
        let writer = match create(false) {
            Err(PackError::PartialDiffers { .. }) => {
                // Not kept: it would also replace a pack that is put there meanwhile.
                create(true).and_then(PackWriter::abandon).map_err(refuse)?;
                create(false)
            }
            created => created,
        };
        let writer = writer.map_err(refuse)?;
        let store = Store::from_model(model, tier, Some(writer))?;
        Ok(Opened { store, way: Way::Building(target) })
    }

    /// The pack of a model; makes the cache folder.
    fn path(&self, identity: &Identity, tier: Tier) -> Result<Option<PathBuf>, KeptError> {
        match self {
            Kept::Nowhere => Ok(None),
            Kept::At(path) | Kept::In(path) => Ok(Some(path.clone())),
            Kept::InCache => {
                let path = cache_folder(env::var_os).ok_or(KeptError::NoFolder)?;
                match fs::create_dir_all(&path) {
                    Ok(()) => Ok(Some(path.join(name(identity, tier)))),
                    Err(source) => Err(KeptError::Folder { path, source }),
                }
            }
        }
    }
}

fn name(identity: &Identity, tier: Tier) -> String {
    let tier = tier.to_string().replace(':', "-");
    format!("{:032x}-{}-{tier}.orkpack", identity.sample_hash, identity.size)
}

/// The user's folder for what can be made again.
fn cache_folder(variable: impl Fn(&'static str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // The XDG specification has relative paths ignored.
    let folder = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    folder.map(|folder| folder.join("ork"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_before_the_environment() {
        let with = |value: Option<&str>| {
            let value = value.map(OsString::from);
            Environment::from_lookup(|name| value.clone().filter(|_| name == "ORK_PERSIST"))
                .unwrap()
        };
        let path = Path::new("p");
        for (asked, set, kept) in [
            (None, None, Kept::Nowhere),
            (None, Some("1"), Kept::InCache),
            (None, Some("0"), Kept::Nowhere),
            (None, Some("p"), Kept::At(path.into())),
            (Some(None), Some("q"), Kept::InCache),
            (Some(Some(path)), Some("1"), Kept::At(path.into())),
        ] {
            assert_eq!(Kept::new(asked, &with(set)), kept, "{asked:?} {set:?}");
        }
    }

    #[test]
    fn the_cache_folder_is_where_the_specification_has_it() {
        let folder = |xdg: &'static str, home: &'static str| {
            cache_folder(move |name| Some(if name == "HOME" { home } else { xdg }.into()))
        };
        assert_eq!(folder("/x", "/h").unwrap(), Path::new("/x/ork"));
        assert_eq!(folder("", "/h").unwrap(), Path::new("/h/.cache/ork"));
        assert_eq!(folder("x", "/h").unwrap(), Path::new("/h/.cache/ork"));
        assert_eq!(folder("", ""), None);
    }

    #[test]
    fn every_model_and_tier_has_a_name_of_its_own() {
        let one = Identity { size: 4096, modified_ns: 1, sample_hash: 7, full_hash: None };
        let later = Identity { modified_ns: 2, ..one };
        assert_eq!(name(&one, Tier::Int8), name(&later, Tier::Int8));
        let grouped = Tier::RotatedInt8 { group: Some(64) };
        let names = [
            name(&one, Tier::Int8),
            name(&one, grouped),
            name(&Identity { size: 1, ..one }, Tier::Int8),
            name(&Identity { sample_hash: 8, ..one }, Tier::Int8),
        ];
        let different: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "{names:?}");
        assert!(!names[1].contains(':'), "{names:?}");
    }
}
