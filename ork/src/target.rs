//! Files that a user names to be written.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::error::{Error, Result};

/// Refuses to write over what is being read.
pub(crate) fn check_output(output: &Path, input: &Path) -> Result<()> {
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

/// As [`check_output`], and refuses a target that is a model: what replaces a pack must not end one.
pub(crate) fn check_pack_output(output: &Path, input: &Path) -> Result<()> {
    check_output(output, input)?;
    let mut start = [0; 4];
    let read = File::open(output).and_then(|mut file| file.read_exact(&mut start));
    let extension = output.extension().and_then(|extension| extension.to_str());
    if read.is_ok() && (&start == b"GGUF" || extension == Some("safetensors")) {
        return Err(Error::Usage(format!(
            "{} is a model, and a pack would take its place: name another output",
            output.display()
        )));
    }
    Ok(())
}
