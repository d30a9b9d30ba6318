//! The file at the final name: who may write it, and what may be overwritten.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::WriterOptions;
use crate::pack::entry::Entry;
use crate::pack::error::{PackError, Result};
use crate::pack::{Identity, Pack};

/// Where a pack goes, and the two files beside it while it is made.
#[derive(Debug)]
pub(crate) struct Paths {
    pub(crate) target: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) partial: PathBuf,
    pub(crate) journal: PathBuf,
}

impl Paths {
    /// A target that is a link is replaced where the link points.
    pub(crate) fn new(target: &Path) -> Result<Paths> {
        let target = match fs::canonicalize(target) {
            Ok(real) => real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if target.is_symlink() {
                    let error = io::Error::new(error.kind(), "it is a link to nothing");
                    return Err(PackError::io("write", target)(error));
                }
                target.to_owned()
            }
            Err(error) => return Err(PackError::io("find", target)(error)),
        };
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        let beside = |suffix: &str| {
            let mut name = target.clone().into_os_string();
            name.push(suffix);
            PathBuf::from(name)
        };
        Ok(Paths { folder, partial: beside(".partial"), journal: beside(".journal"), target })
    }

    /// Opens and locks the partial file; its lock is what keeps a second writer out.
    pub(crate) fn lock(&self) -> Result<File> {
        loop {
            let file = open(&self.partial)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(
                |errno| match errno {
                    rustix::io::Errno::WOULDBLOCK => {
                        PackError::Locked { path: self.partial.clone() }
                    }
                    other => PackError::io("lock", &self.partial)(other.into()),
                },
            )?;
            // The holder may have renamed or removed the file between our open and our lock.
            let ours = file.metadata().map_err(PackError::io("stat", &self.partial))?;
            match fs::metadata(&self.partial) {
                Ok(named) if (named.dev(), named.ino()) == (ours.dev(), ours.ino()) => {
                    return Ok(file);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(PackError::io("stat", &self.partial)(error)),
            }
        }
    }
}

/// Opens for reading and writing, keeps what is there.
pub(crate) fn open(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).map_err(PackError::io("create", path))
}

/// What stood at the target when writing began, and may be replaced.
#[derive(Debug)]
pub(crate) struct Existing {
    file: Stamp,
    shapes: Vec<(Box<str>, u32, u32)>,
}

/// Tells one state of a file from another.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    dev: u64,
    ino: u64,
    bytes: u64,
    modified: (i64, i64),
}

/// The file at `path`; `None` when there is none.
fn stamp(path: &Path) -> Result<Option<Stamp>> {
    match fs::metadata(path) {
        Ok(stat) => Ok(Some(Stamp {
            dev: stat.dev(),
            ino: stat.ino(),
            bytes: stat.len(),
            modified: (stat.mtime(), stat.mtime_nsec()),
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(PackError::io("stat", path)(error)),
    }
}

/// Whether what stands at `target` may be replaced by a pack of `identity`.
pub(crate) fn existing(
    target: &Path,
    identity: Option<&Identity>,
    options: &WriterOptions,
) -> Result<Option<Existing>> {
    let Some(file) = stamp(target)? else { return Ok(None) };
    let stat = fs::metadata(target).map_err(PackError::io("stat", target))?;
    if !stat.is_file() {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        return Err(PackError::io("replace", target)(error));
    }
    // A rename would not ask, and root may write anything: whoever took the bits away meant it.
    if stat.permissions().readonly() {
        let error = io::Error::new(io::ErrorKind::PermissionDenied, "the file is read-only");
        return Err(PackError::io("replace", target)(error));
    }
    if options.replace {
        return Ok(Some(Existing { file, shapes: Vec::new() }));
    }
    let refuse = |what: String| PackError::TargetExists { path: target.to_owned(), what };
    let pack = Pack::open(target)
        .map_err(|error| refuse(format!("is no pack that can be compared ({error})")))?;
    match (pack.identity(), identity) {
        (Some(theirs), Some(ours)) => {
            theirs.check(ours).map_err(|error| match error {
                PackError::OtherModel { field, pack, model } => refuse(format!(
                    "belongs to another model (its {field} is {pack}, this model's is {model})"
                )),
                other => other,
            })?;
        }
        (None, _) => return Err(refuse("does not say which model it was made from".into())),
        (_, None) => return Err(refuse("the new pack names no model to compare with".into())),
    }
    if pack.recipe() != Some(options.recipe) {
        return Err(refuse("was made with other settings".into()));
    }
    let shapes = pack.entries().iter().map(|e| (e.name.clone(), e.k, e.n)).collect();
    Ok(Some(Existing { file, shapes }))
}

/// Whether the target is still as it was when writing began, and no weight changes its shape.
pub(crate) fn still_replaceable<'a>(
    target: &Path,
    existing: Option<&Existing>,
    find: impl Fn(&str) -> Option<&'a Entry>,
) -> Result<()> {
    let refuse = |what: String| PackError::TargetExists { path: target.to_owned(), what };
    let now = stamp(target)?;
    let Some(existing) = existing else {
        return match now {
            None => Ok(()),
            Some(_) => Err(refuse("was put there while this pack was made".into())),
        };
    };
    if now.is_some_and(|now| now != existing.file) {
        return Err(refuse("was changed while this pack was made".into()));
    }
    for (name, k, n) in &existing.shapes {
        if let Some(entry) = find(name)
            && (entry.k, entry.n) != (*k, *n)
        {
            let (new_k, new_n) = (entry.k, entry.n);
            return Err(refuse(format!(
                "has weight {name:?} as K={k} N={n}, the new pack as K={new_k} N={new_n}"
            )));
        }
    }
    Ok(())
}
