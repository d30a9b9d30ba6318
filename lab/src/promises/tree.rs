//! A copy of the workspace in which faults are planted.

use std::io;
use std::path::{Path, PathBuf};

use super::Promise;

/// The workspace's folder.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}

/// A copy of the sources, kept with its build from run to run.
pub(super) struct Tree {
    folder: PathBuf,
}

impl Tree {
    /// Copies what differs, so that a second run builds little.
    pub(super) fn copy() -> io::Result<Tree> {
        let folder = root().join("target/promises/tree");
        same(&root(), &folder, true)?;
        Ok(Tree { folder })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Puts the fault in; the file is as it was when the guard goes.
    pub(super) fn plant(&self, promise: &Promise) -> io::Result<Planted> {
        let path = self.folder.join(promise.file);
        let text = std::fs::read_to_string(&path)?;
        if text.matches(promise.right).count() != 1 {
            let problem = format!("{}: not once there: {}", promise.file, promise.right);
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        std::fs::write(&path, text.replacen(promise.right, promise.wrong, 1))?;
        Ok(Planted { path, text })
    }
}

/// A fault in the tree.
pub(super) struct Planted {
    path: PathBuf,
    text: String,
}

impl Drop for Planted {
    fn drop(&mut self) {
        // The next copy puts right what could not be written here.
        let _ = std::fs::write(&self.path, &self.text);
    }
}

/// Makes `to` what `from` is, without what is built and what git keeps.
fn same(from: &Path, to: &Path, top: bool) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    let entries = |folder: &Path| std::fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>();
    for entry in entries(from)? {
        let name = entry.file_name();
        if top && (name == "target" || name == ".git") {
            continue;
        }
        let (source, copy) = (entry.path(), to.join(&name));
        match entry.file_type()? {
            kind if kind.is_dir() => same(&source, &copy, false)?,
            kind if kind.is_file() => {
                let bytes = std::fs::read(&source)?;
                if std::fs::read(&copy).ok().as_ref() != Some(&bytes) {
                    std::fs::write(&copy, bytes)?;
                }
            }
            _ => {}
        }
    }
    for entry in entries(to)? {
        if !from.join(entry.file_name()).exists() {
            match entry.file_type()?.is_dir() {
                true => std::fs::remove_dir_all(entry.path())?,
                false => std::fs::remove_file(entry.path())?,
            }
        }
    }
    Ok(())
}
