//! Files that a user names to be written.

use std::fs::{self, File, Permissions};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Refuses, before any work is done, to write a report over what is being read, over a model or a pack, into
/// a folder that is not there, or to what can be no file.
pub(crate) fn check_output(output: &Path, input: &Path) -> Result<()> {
    check_report(output)?;
    check_apart(output, input)
}

fn check_apart(output: &Path, input: &Path) -> Result<()> {
    check_place(output)?;
    let (Ok(a), Ok(b)) = (fs::metadata(output), fs::metadata(input)) else { return Ok(()) };
    if (a.dev(), a.ino()) != (b.dev(), b.ino()) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{} would be written over what is read, {}: name another output",
        output.display(),
        input.display()
    )))
}

/// As [`check_output`], for a pack, which may take another one's place.
pub(crate) fn check_pack_output(output: &Path, input: &Path) -> Result<()> {
    check_apart(output, input)
}

/// Refuses a report in the place of a model or of a pack: they take long to get.
pub(crate) fn check_report(output: &Path) -> Result<()> {
    check_place(output)?;
    match output.is_file() && has_extension(output, "orkpack") {
        true => Err(taken(output, "pack")),
        false => Ok(()),
    }
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

fn taken(output: &Path, by: &str) -> Error {
    let output = output.display();
    Error::Usage(format!("{output} is a {by}, and would be overwritten: name another output"))
}

fn is_model(path: &Path) -> bool {
    let mut start = [0; 4];
    let read = ork_weights::open_regular(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && (&start == b"GGUF" || has_extension(path, "safetensors"))
}

/// Refuses a place where no file can be made, and one where a model is.
pub(crate) fn check_place(output: &Path) -> Result<()> {
    if is_model(output) {
        return Err(taken(output, "model"));
    }
    let refuse = |kind: std::io::ErrorKind, what: &'static str| {
        Err(Error::file("write", output)(std::io::Error::new(kind, what)))
    };
    match fs::metadata(output) {
        Ok(stat) if stat.is_dir() => {
            return refuse(std::io::ErrorKind::IsADirectory, "it is a folder");
        }
        Err(_) if output.is_symlink() => {
            return refuse(std::io::ErrorKind::NotFound, "it is a link to nothing");
        }
        _ => {}
    }
    match fs::metadata(folder(output)) {
        Ok(stat) if stat.is_dir() => Ok(()),
        Ok(_) => refuse(std::io::ErrorKind::NotADirectory, "what it should lie in is no folder"),
        Err(error) => Err(Error::file("write", output)(error)),
    }
}

/// The folder a file lies in.
fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.into(),
        _ => ".".into(),
    }
}

/// Writes a file that is whole under its name or not there: `fill` writes a temporary one beside it,
/// which then takes its place. What is no file, as a pipe or /dev/stdout, is written straight.
pub(crate) fn write_file<T>(path: &Path, fill: impl FnOnce(&mut File) -> Result<T>) -> Result<T> {
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let found = fs::metadata(&place).ok();
    if let Some(stat) = &found {
        let kind = stat.file_type();
        if kind.is_fifo() || kind.is_char_device() || kind.is_socket() {
            let file = File::options().write(true).open(path);
            return fill(&mut file.map_err(Error::file("open", path))?);
        }
    }
    let permissions = found.map_or(Permissions::from_mode(0o666), |stat| stat.permissions());
    let mut temporary = tempfile::Builder::new()
        .prefix(".ork-")
        .permissions(permissions)
        .tempfile_in(folder(&place))
        .map_err(Error::file("write", path))?;
    let written = fill(temporary.as_file_mut())?;
    // Some file systems say only now that they are full.
    temporary.as_file().sync_all().map_err(Error::file("write", path))?;
    temporary.persist(&place).map_err(|e| Error::file("write", path)(e.error))?;
    Ok(written)
}

/// [`write_file`] of bytes.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    write_file(path, |file| {
        std::io::Write::write_all(file, bytes).map_err(Error::file("write", path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let failing = |file: &mut File| {
            std::io::Write::write_all(file, b"half").unwrap();
            Err::<(), _>(Error::Check("the disk is full".into()))
        };
        write_file(&path, failing).unwrap_err();
        assert!(!path.exists());
        write_bytes(&path, b"whole").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        write_file(&path, failing).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("x", &link).unwrap();
        write_bytes(&link, b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "something is left");
    }

    #[test]
    fn devices_stay_devices() {
        write_bytes(Path::new("/dev/null"), b"gone").unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    }

    #[test]
    fn places_where_no_file_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, b"").unwrap();
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        check_place(&file).unwrap();
        check_place(&folder.path().join("new")).unwrap();
        check_place(Path::new("new")).unwrap();
        for place in [folder.path(), &link, &file.join("x"), Path::new("/no/such/folder/x")] {
            assert!(matches!(check_place(place), Err(Error::File { .. })), "{}", place.display());
        }
    }
}
