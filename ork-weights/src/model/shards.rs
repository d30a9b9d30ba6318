//! Models in several files.

use super::error::ModelError;
use super::gguf::Gguf;
use std::path::{Path, PathBuf};

/// Files of a split model at most; the naming scheme has five digits.
const MAX_FILES: u32 = 99_999;

/// Missing files that an error names at most.
const NAMED: usize = 8;

/// What `NAME-00001-of-00003.gguf` says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part<'a> {
    stem: &'a str,
    number: u32,
    count: u32,
    extension: &'a str,
}

fn part(name: &str) -> Option<Part<'_>> {
    let (stem, extension) = name.rsplit_once('.')?;
    let (stem, count) = stem.rsplit_once("-of-")?;
    let (stem, number) = stem.rsplit_once('-')?;
    let digits = |text: &str| {
        (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
    };
    let (number, count) = (digits(number)?, digits(count)?);
    (1..=count).contains(&number).then_some(Part { stem, number, count, extension })
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// The files of the model that `path` is a part of, in order; `header` is that of `path`.
pub(super) fn files(path: &Path, header: &Gguf) -> Result<Vec<PathBuf>, ModelError> {
    let split = |reason: String| ModelError::Split { path: path.to_owned(), reason };
    let part = part(name(path)).filter(|part| part.count <= MAX_FILES);
    let count = header.number("split.count").unwrap_or(1);
    if count <= 1 {
        return match part {
            Some(Part { number, count, .. }) if count > 1 => Err(split(format!(
                "named as file {number} of {count}, but its header knows of no others: rename it if it is a whole model"
            ))),
            _ => Ok(vec![path.to_owned()]),
        };
    }
    let number = header.number("split.no").unwrap_or(0);
    let part = part.ok_or_else(|| {
        split(format!(
            "one of {count} files of a split model, but not named …-00001-of-{count:05}.gguf"
        ))
    })?;
    if u64::from(part.count) != count || u64::from(part.number) != number.saturating_add(1) {
        return Err(split(format!(
            "named as file {} of {}, but its header says {} of {count}",
            part.number,
            part.count,
            number.saturating_add(1)
        )));
    }
    let Part { stem, count, extension, .. } = part;
    let file = |n: u32| path.with_file_name(format!("{stem}-{n:05}-of-{count:05}.{extension}"));
    let files: Vec<PathBuf> = (1..=count).map(file).collect();
    present(path, &files)?;
    Ok(files)
}

/// Refuses a model some of whose files are not there, and names those.
pub(super) fn present(path: &Path, files: &[PathBuf]) -> Result<(), ModelError> {
    let missing: Vec<&str> =
        files.iter().filter(|file| !file.exists()).map(|file| name(file)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let more = if missing.len() > NAMED { ", …" } else { "" };
    let named = missing.get(..NAMED).unwrap_or(&missing).join(", ");
    Err(ModelError::Split {
        path: path.to_owned(),
        reason: format!(
            "{} of the model's {} files are not beside it: {named}{more}",
            missing.len(),
            files.len()
        ),
    })
}

/// Refuses a safetensors file that is one of several, which only their index knows.
pub(super) fn alone(path: &Path) -> Result<(), ModelError> {
    let Some(Part { stem, number, count, .. }) = part(name(path)).filter(|part| part.count > 1)
    else {
        return Ok(());
    };
    Err(ModelError::Split {
        path: path.to_owned(),
        reason: format!(
            "file {number} of {count} of a model: name the index instead, {stem}.safetensors.index.json"
        ),
    })
}

/// Checks that `header` is that of file `index` of `count`.
pub(super) fn check(
    path: &Path,
    header: &Gguf,
    index: usize,
    count: usize,
) -> Result<(), ModelError> {
    let (number, of) = (header.number("split.no"), header.number("split.count"));
    if count > 1 && (number, of) != (Some(index as u64), Some(count as u64)) {
        let say = |value: Option<u64>| value.map_or("nothing".into(), |v| v.to_string());
        return Err(ModelError::Split {
            path: path.to_owned(),
            reason: format!(
                "expected file {index} of {count}, counted from 0; its header says {} of {}",
                say(number),
                say(of)
            ),
        });
    }
    Ok(())
}

/// Refuses files of a split model that are of different ones: another architecture, or not as many tensors
/// together as each says.
pub(super) fn belong_together<'a>(
    files: impl Iterator<Item = (&'a Path, &'a Gguf)> + Clone,
) -> Result<(), ModelError> {
    let split = |path: &Path, reason| Err(ModelError::Split { path: path.to_owned(), reason });
    let architecture = |header: &'a Gguf| header.text("general.architecture");
    let first = files.clone().find_map(|(_, header)| architecture(header));
    let tensors: u64 = files.clone().map(|(_, header)| header.tensors().len() as u64).sum();
    for (path, header) in files {
        if let (Some(first), Some(own)) = (first, architecture(header))
            && first != own
        {
            return split(
                path,
                format!("it is of architecture {own:?}, the files before it of {first:?}"),
            );
        }
        if let Some(count) = header.number("split.tensors.count")
            && count != tensors
        {
            return split(
                path,
                format!(
                    "its header speaks of {count} tensors in all files, and they hold {tensors}: files of two downloads"
                ),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        assert_eq!(
            part("a-b-00002-of-00010.gguf"),
            Some(Part { stem: "a-b", number: 2, count: 10, extension: "gguf" })
        );
        for name in [
            "a.gguf",
            "a-1-of-2.gguf",
            "a-00003-of-00002.gguf",
            "a-00000-of-00002.gguf",
            "a-0000x-of-00002.gguf",
            "a-00001-of-00002",
            "",
        ] {
            assert_eq!(part(name), None, "{name}");
        }
    }
}
