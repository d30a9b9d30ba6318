//! Models in several files.

use super::error::ModelError;
use super::gguf::Gguf;
use std::path::{Path, PathBuf};

/// Files of a split model at most; the naming scheme has five digits.
const MAX_FILES: u32 = 99_999;

/// What `NAME-00001-of-00003.gguf` says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part<'a> {
    stem: &'a str,
    number: u32,
    count: u32,
}

fn part(name: &str) -> Option<Part<'_>> {
    let stem = name.strip_suffix(".gguf")?;
    let (stem, count) = stem.rsplit_once("-of-")?;
    let (stem, number) = stem.rsplit_once('-')?;
    let digits = |text: &str| {
        (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
    };
    Some(Part { stem, number: digits(number)?, count: digits(count)? })
}

/// The files of the model that `path` is a part of, in order; `header` is that of `path`.
pub(super) fn files(path: &Path, header: &Gguf) -> Result<Vec<PathBuf>, ModelError> {
    let split = |reason: String| ModelError::Split { path: path.to_owned(), reason };
    let count = header.number("split.count").unwrap_or(1);
    if count <= 1 {
        return Ok(vec![path.to_owned()]);
    }
    let number = header.number("split.no").unwrap_or(0);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let part = part(name).filter(|part| part.count <= MAX_FILES).ok_or_else(|| {
        split(format!(
            "one of {count} files of a split model, but not named …-00001-of-{count:05}.gguf"
        ))
    })?;
    if u64::from(part.count) != count || u64::from(part.number) != number + 1 {
        return Err(split(format!(
            "named as file {} of {}, but its header says {} of {count}",
            part.number,
            part.count,
            number + 1
        )));
    }
    let file =
        |n: u32| path.with_file_name(format!("{}-{n:05}-of-{:05}.gguf", part.stem, part.count));
    Ok((1..=part.count).map(file).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        assert_eq!(
            part("a-b-00002-of-00010.gguf"),
            Some(Part { stem: "a-b", number: 2, count: 10 })
        );
        for name in ["a.gguf", "a-1-of-2.gguf", "a-00001-of-00002.bin", "a-0000x-of-00002.gguf", ""]
        {
            assert_eq!(part(name), None, "{name}");
        }
    }
}
