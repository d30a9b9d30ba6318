//! Opening files that users name.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading. Anything else is refused at once: opening a pipe would wait for
/// a writer, and a device has no length.
///
/// ```
/// let error = ork_weights::open_regular("/dev/null".as_ref()).unwrap_err();
/// assert_eq!(error.to_string(), "it is a device, not a file");
/// ```
///
/// # Errors
/// Those of opening; [`io::ErrorKind::InvalidInput`] for anything that is no file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open(path).map(|(file, _)| file)
}

/// [`open_regular`], with what the system says of the file.
pub(crate) fn open(path: &Path) -> io::Result<(File, Metadata)> {
    // Not to wait, should the file become a pipe between the look and the opening.
    refuse_others(&std::fs::metadata(path)?)?;
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let stat = file.metadata()?;
    refuse_others(&stat)?;
    Ok((file, stat))
}

fn refuse_others(stat: &Metadata) -> io::Result<()> {
    let kind = stat.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let what = match kind {
        _ if kind.is_dir() => "a folder",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}, not a file")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, what) in [
            (folder.path(), "a folder"),
            (&pipe, "a pipe"),
            (&socket, "a socket"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            let error = open(path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(what), "{error}");
        }
        let file = folder.path().join("file");
        std::fs::write(&file, b"abc").unwrap();
        assert_eq!(open(&file).unwrap().1.len(), 3);
    }
}
