//! Where the pack of a model is kept for the next run.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use ork_cache::environment::Environment;
use ork_weights::pack::Identity;
use ork_weights::quantise::Tier;

use crate::error::{Error, Result};

/// What `ORK_PERSIST` says for the cache folder.
const YES: &str = "1";

/// Where packed weights are kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kept {
    Nowhere,
    /// In this pack.
    At(PathBuf),
    /// In the user's cache folder, under a name that the model and the tier give.
    InCache,
}

impl Kept {
    /// What `--persist` says, or else the environment.
    pub(crate) fn new(asked: Option<Option<&Path>>, environment: &Environment) -> Kept {
        match (asked, environment.pack.as_deref()) {
            (Some(Some(path)), _) => Kept::At(path.into()),
            (Some(None), _) => Kept::InCache,
            (None, Some(path)) if path == Path::new(YES) => Kept::InCache,
            (None, Some(path)) => Kept::At(path.into()),
            (None, None) => Kept::Nowhere,
        }
    }

    /// The pack of a model; makes the cache folder.
    pub(crate) fn path(&self, identity: &Identity, tier: Tier) -> Result<Option<PathBuf>> {
        match self {
            Kept::Nowhere => Ok(None),
            Kept::At(path) => Ok(Some(path.clone())),
            Kept::InCache => {
                let folder = cache_folder(env::var_os)?;
                fs::create_dir_all(&folder).map_err(Error::file("make the folder", &folder))?;
                Ok(Some(folder.join(name(identity, tier))))
            }
        }
    }
}

fn name(identity: &Identity, tier: Tier) -> String {
    let tier = tier.to_string().replace(':', "-");
    format!("{:032x}-{}-{tier}.orkpack", identity.sample_hash, identity.size)
}

/// The user's folder for what can be made again.
fn cache_folder(variable: impl Fn(&'static str) -> Option<OsString>) -> Result<PathBuf> {
    let set = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // The XDG specification has relative paths ignored.
    let folder = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    folder.map(|folder| folder.join("ork")).ok_or_else(|| {
        let reason = "neither XDG_CACHE_HOME nor HOME names a folder to keep the pack in: \
                      name one with --persist PACK";
        Error::Usage(reason.into())
    })
}

#[cfg(test)]
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
        assert_eq!(folder("", "").unwrap_err().exit_code(), 2);
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
