//! Packs and models that a user names.

use std::io::Read as _;
use std::path::Path;

use ork_cache::kept::{Kept, KeptError, Opened, Way};
use ork_cache::{Store, StoreError};
use ork_weights::model::{Model, OpenOptions, Role, Weight};
use ork_weights::open_regular;
use ork_weights::pack::{Freshness, Pack, PackError, PackFile, PackWriter, Source};
use ork_weights::quantise::Tier;

use crate::error::{Error, Result};
use crate::output::{Report, counted, plain};

/// What a file is.
pub(crate) enum Input {
    /// An `.orkpack`.
    Pack(Box<Pack<PackFile>>),
    /// A GGUF or safetensors model.
    Model(Box<Model>),
}

impl Input {
    /// Opens a pack or a model, by what the file begins with and is called.
    pub(crate) fn open(path: &Path) -> Result<Input> {
        Input::open_with(path, &OpenOptions::default())
    }

    /// Opens a pack, or a model in a way of its own.
    pub(crate) fn open_with(path: &Path, options: &OpenOptions) -> Result<Input> {
        let model = || open_model(path, options).map(|m| Input::Model(Box::new(m)));
        if path.is_dir() {
            return model();
        }
        let mut start = [0; 4];
        let read = open_regular(path).and_then(|file| file.take(4).read(&mut start));
        read.map_err(Error::file("read", path))?;
        let extension = path.extension().and_then(|extension| extension.to_str());
        if &start == b"GGUF" || matches!(extension, Some("gguf" | "safetensors" | "json")) {
            return model();
        }
        let pack = Pack::open(path).map(|pack| Input::Pack(Box::new(pack)));
        match pack {
            // Opening a model also says what a file is that is neither: an LFS pointer, a web page, an archive.
            Err(PackError::NoMagic { .. } | PackError::TooShort { .. })
                if extension != Some("orkpack") =>
            {
                model()
            }
            pack => pack.map_err(Error::input(path)),
        }
    }
}

/// Reads a text file.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let mut text = String::new();
    let read = open_regular(path).and_then(|mut file| file.read_to_string(&mut text));
    read.map_err(Error::file("read", path))?;
    Ok(text)
}

/// Opens a model.
pub(crate) fn open_model(path: &Path, options: &OpenOptions) -> Result<Model> {
    Model::open(path, options).map_err(Error::input(path))
}

/// The weights of a model in the usual form, quantised as they are needed, and added to a pack if one is
/// being built.
pub(crate) fn model_store(model: Model, building: Option<PackWriter>) -> Result<Store, StoreError> {
    Store::from_model(model, Tier::default(), building)
}

/// Opens a pack. By position, not by mapping: nothing here knows who else writes to a user's file,
/// and a file that is cut under a mapping would end the program by a signal.
pub(crate) fn open_pack(path: &Path) -> Result<Pack<PackFile>> {
    Pack::open(path).map_err(Error::input(path))
}

/// Refuses a pack that was made from another model than the one at hand.
pub(crate) fn check_model<S: Source>(
    pack: &Pack<S>,
    pack_path: &Path,
    model: &Model,
    report: Report,
) -> Result<()> {
    let Some(identity) = pack.identity() else {
        warn_unnamed(pack_path, report);
        return Ok(());
    };
    let ours = model.identity(identity.full_hash.is_some()).map_err(Error::input(pack_path))?;
    match identity.check(&ours).map_err(Error::input(pack_path))? {
        Freshness::Same | Freshness::Touched => Ok(()),
    }
}

/// The weights of the model in `path`, from the pack that is kept of it, or on their way into one.
pub(crate) fn open_kept(
    kept: &Kept,
    model: Model,
    path: &Path,
    tier: Tier,
    report: Report,
) -> Result<Opened> {
    let opened = kept.open(model, tier).map_err(|error| match error {
        KeptError::NoFolder => Error::Usage(error.to_string()),
        KeptError::Folder { path, source } => Error::file("make the folder", &path)(source),
        KeptError::Pack { path, source } => Error::input(&path)(source),
        KeptError::Model(error) => Error::input(path)(error),
        error => Error::input(path)(error),
    })?;
    match &opened.way {
        Way::Loaded { pack, names_model: false, .. } => warn_unnamed(pack, report),
        Way::Loaded { pack, touched: true, .. } => report.note(format!(
            "note: {} is of another time than when {} was made of it: size and samples are the same, but \
             if it was edited, make the pack again",
            path.display(),
            pack.display()
        )),
        _ => {}
    }
    Ok(opened)
}

/// Says that a pack is taken on trust.
fn warn_unnamed(pack: &Path, report: Report) {
    report.note(format!(
        "warning: {} does not say which model it was made from; names and shapes are all that is checked",
        pack.display()
    ));
}

/// Names that are examples of one kind at most.
pub(crate) const EXAMPLES: usize = 3;

/// Says which tensors of a model are not among its weights, a line for each reason.
pub(crate) fn note_skipped(model: &Model, report: Report) {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for skipped in model.skipped() {
        match reasons.iter_mut().find(|(reason, _)| *reason == skipped.reason) {
            Some((_, names)) => names.push(&skipped.name),
            None => reasons.push((&skipped.reason, vec![&skipped.name])),
        }
    }
    for (reason, names) in reasons {
        let count = counted(names.len(), "tensor");
        let more = if names.len() > EXAMPLES { ", …" } else { "" };
        let examples = names.get(..EXAMPLES).unwrap_or(&names).join(", ");
        report.note(format!("not taken: {count} ({examples}{more}): {reason}"));
    }
    let unknown = |weight: &&Weight| weight.role == Role::Unknown;
    let by_shape: Vec<&str> =
        model.weights().iter().filter(unknown).map(|weight| &*weight.name).collect();
    if !by_shape.is_empty() {
        let more = if by_shape.len() > EXAMPLES { ", …" } else { "" };
        let examples = by_shape.get(..EXAMPLES).unwrap_or(&by_shape).join(", ");
        let count = counted(by_shape.len(), "weight");
        let of = model.architecture().map_or(String::new(), |name| format!(" of {}", plain(name)));
        report.note(format!(
            "taken for their shape alone: {count}{of} ({examples}{more}): their names are not known; \
             --exclude leaves out what is no matrix of a multiplication"
        ));
    }
}
