//! The folder through which programs of one user find each other.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// `$XDG_RUNTIME_DIR/ork`, or `ork-UID` in the folder for temporary files: made when it is not there,
/// for this user alone.
///
/// # Errors
/// The folder cannot be made, or is not ours alone.
pub(super) fn ours() -> io::Result<PathBuf> {
    let uid = user()?;
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let path = match runtime.filter(|path| path.is_absolute()) {
        Some(folder) => folder.join("ork"),
        None => std::env::temp_dir().join(format!("ork-{uid}")),
    };
    private(&path, uid)?;
    Ok(path)
}

/// The user whose rights this process has.
fn user() -> io::Result<u32> {
    Ok(fs::metadata("/proc/self")?.uid())
}

/// Makes the folder `path` for user `uid` alone, or checks that it is so.
///
/// In a folder that all can write to, somebody else may have been there first with a folder of his
/// own or a link to one of ours. Neither passes; and what passes nobody else can move away or put
/// files into.
fn private(path: &Path, uid: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // The link itself, not what it points to.
    let found = fs::symlink_metadata(path)?;
    if found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    let text = format!(
        "{} is not a folder of user {uid} alone (mode {:o}, owner {}): remove it",
        path.display(),
        found.mode() & 0o7777,
        found.uid()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_a_folder_of_ours_alone_will_do() {
        let root = tempfile::tempdir().unwrap();
        let (uid, at) = (user().unwrap(), |name: &str| root.path().join(name));
        private(&at("new"), uid).unwrap();
        assert_eq!(fs::metadata(at("new")).unwrap().mode() & 0o7777, 0o700);
        private(&at("new"), uid).unwrap();

        symlink(at("new"), at("link")).unwrap();
        fs::write(at("file"), "").unwrap();
        fs::create_dir(at("open")).unwrap();
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o777)).unwrap();
        for name in ["link", "file", "open"] {
            let error = private(&at(name), uid).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{name}");
            assert!(error.to_string().contains(name), "{error}");
        }
        let other = private(&at("new"), uid.wrapping_add(1)).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::PermissionDenied);
        assert!(private(&at("no/such"), uid).is_err());
    }
}
