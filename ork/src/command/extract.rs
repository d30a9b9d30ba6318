//! `ork extract`: one weight as .npy files, or the embedded skeleton of the source GGUF.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use ork_weights::pack::{Pack, PackError, PackFile};
use serde::Serialize;

use crate::cli::ExtractArgs;
use crate::error::{Error, Result};
use crate::input::open_pack;
use crate::output::{Report, plain};
use crate::target::{check_place, write_file, write_new};

#[derive(Serialize)]
struct View {
    files: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// [`Error::Usage`] for a weight that the pack does not have, with the names that come close.
pub(super) fn run(args: &ExtractArgs, report: Report) -> Result<()> {
    let pack = open_pack(&args.pack)?;
    let files = match &args.weight {
        Some(name) => weight(&pack, args, name)?,
        None => vec![stub(&pack, args)?],
    };
    let view = View { files: files.iter().map(|f| f.display().to_string()).collect() };
    report.print(&view, || view.files.join("\n"))
}

fn weight(pack: &Pack<PackFile>, args: &ExtractArgs, name: &str) -> Result<Vec<PathBuf>> {
    let Some(entry) = pack.get(name) else {
        let near: Vec<&str> =
            pack.entries().iter().map(|e| &*e.name).filter(|n| n.contains(name)).take(5).collect();
        let hint = if near.is_empty() {
            "`ork inspect` lists the names".to_owned()
        } else {
            format!("did you mean {}?", near.join(", "))
        };
        return Err(Error::Usage(format!(
            "{} has no weight {name:?}: {hint}",
            args.pack.display()
        )));
    };
    pack.verify_entry(entry).map_err(Error::input(&args.pack))?;
    let folder = args.output.clone().unwrap_or_else(|| PathBuf::from("."));
    std::fs::create_dir_all(&folder).map_err(Error::file("create the folder", &folder))?;
    // A weight's name may hold anything; a file's name may not, and should not.
    let base = plain(name).replace(['/', '\\'], "_");
    let (codes, scales) =
        (folder.join(format!("{base}.npy")), folder.join(format!("{base}.scales.npy")));
    write(&codes, |out| pack.write_codes_npy(entry, out))?;
    write(&scales, |out| pack.write_scales_npy(entry, out))?;
    Ok(vec![codes, scales])
}

fn write(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&mut File>) -> Result<(), PackError>,
) -> Result<()> {
    write_file(path, |file| {
        let mut out = BufWriter::new(file);
        fill(&mut out).map_err(Error::input(path))?;
        out.flush().map_err(Error::file("write", path))
    })
}

/// The source GGUF with its header and every tensor that is not in the pack; the rest stays a hole.
fn stub(pack: &Pack<PackFile>, args: &ExtractArgs) -> Result<PathBuf> {
    if pack.metadata_range().is_none() {
        let error = PackError::NoMetadata;
        return Err(Error::Usage(format!("{}: {error}", args.pack.display())));
    }
    let path = args.output.clone().unwrap_or_else(|| args.pack.with_extension("gguf"));
    // Never over a model that stands there.
    if path.exists() {
        return Err(Error::Usage(format!(
            "{} exists, and a skeleton never takes a model's place: name another output with -o",
            path.display()
        )));
    }
    check_place(&path)?;
    write_new(&path, |file| pack.write_stub(file).map_err(Error::input(&args.pack)))?;
    Ok(path)
}
