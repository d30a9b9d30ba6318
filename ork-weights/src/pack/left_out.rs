//! Tensors of a model that are not in its pack, by name and role.

use crate::model::Role;

/// Bytes of a name at most; what has a longer one is not listed.
const MAX_NAME: usize = super::format::index::MAX_NAME as usize;

/// Roles by their codes in packs.
const ROLES: [Role; 11] = [
    Role::Unknown,
    Role::Linear,
    Role::Expert,
    Role::Head,
    Role::Embedding,
    Role::Router,
    Role::Norm,
    Role::Bias,
    Role::Position,
    Role::Convolution,
    Role::Other,
];

/// Which tensors of a model are not in its pack, each with its [`Role`].
///
/// ```
/// use ork_weights::model::Role;
/// use ork_weights::pack::{Dtype, LeftOut, Pack, PackWriter, WriterOptions};
///
/// let left_out = LeftOut::new([("output_norm.weight", Role::Norm)]);
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("small.orkpack");
/// let options = WriterOptions { left_out, ..WriterOptions::default() };
/// let mut writer = PackWriter::create(&path, None, options)?;
/// writer.add("w", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
/// writer.finish()?;
/// let pack = Pack::open(&path)?;
/// assert_eq!(pack.left_out().iter().next(), Some(("output_norm.weight", Role::Norm)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// As they lie in the file: u16 bytes of a name, the name, a byte for the role.
    records: Vec<u8>,
    count: u32,
}

impl LeftOut {
    /// These tensors. One whose name no pack can hold is not listed: empty, longer than 4096 bytes, with
    /// control characters.
    pub fn new<'a>(tensors: impl IntoIterator<Item = (&'a str, Role)>) -> LeftOut {
        let mut out = LeftOut::default();
        for (name, role) in tensors {
            let code = ROLES.iter().position(|other| *other == role).unwrap_or(0);
            if is_name(name) && out.count < u32::MAX {
                out.records.extend((name.len() as u16).to_le_bytes());
                out.records.extend(name.as_bytes());
                out.records.push(code as u8);
                out.count += 1;
            }
        }
        out
    }

    /// Name and role of each, in the order of the model's file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Role)> {
        Records(&self.records)
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether nothing was left out, or nobody knows.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// As it lies in the file: u32 number of records, then those.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.count.to_le_bytes());
        out.extend(&self.records);
    }

    /// What fills `bytes`; `None` where that is no such list.
    pub(super) fn parse(bytes: &[u8]) -> Option<LeftOut> {
        let (count, records) = bytes.split_first_chunk()?;
        let count = u32::from_le_bytes(*count);
        let mut at = Records(records);
        for _ in 0..count {
            at.next().filter(|(name, _)| is_name(name))?;
        }
        at.0.is_empty().then(|| LeftOut { records: records.to_vec(), count })
    }
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// Records that are left to read.
struct Records<'a>(&'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = (&'a str, Role);

    fn next(&mut self) -> Option<(&'a str, Role)> {
        let (length, rest) = self.0.split_first_chunk()?;
        let (name, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        let (code, rest) = rest.split_first()?;
        self.0 = rest;
        // A role that later packers may add is not known here.
        let role = ROLES.get(usize::from(*code)).copied().unwrap_or(Role::Unknown);
        Some((std::str::from_utf8(name).ok()?, role))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let tensors: Vec<(String, Role)> =
            ROLES.iter().map(|role| (format!("a {role}"), *role)).collect();
        let list = LeftOut::new(tensors.iter().map(|(name, role)| (&**name, *role)));
        let mut bytes = Vec::new();
        list.encode(&mut bytes);
        assert_eq!(LeftOut::parse(&bytes), Some(list.clone()));
        assert!(list.iter().map(|(name, role)| (name.to_owned(), role)).eq(tensors));
        for cut in 0..bytes.len() {
            assert_eq!(LeftOut::parse(&bytes[..cut]), None, "{cut}");
        }
        bytes.push(0);
        assert_eq!(LeftOut::parse(&bytes), None);
    }

    #[test]
    fn names_that_no_pack_holds_are_neither_written_nor_read() {
        let long = "n".repeat(MAX_NAME + 1);
        for name in ["", "a\0b", "a\x1b[2J", &long] {
            assert!(LeftOut::new([(name, Role::Norm)]).is_empty(), "{name:?}");
            let mut bytes = 1u32.to_le_bytes().to_vec();
            bytes.extend((name.len() as u16).to_le_bytes());
            bytes.extend(name.as_bytes());
            bytes.push(6);
            assert_eq!(LeftOut::parse(&bytes), None, "{name:?}");
        }
        assert_eq!(LeftOut::parse(&[1, 0, 0, 0, 1, 0, 0xff, 6]), None, "no text");
        // The role of a later packer.
        let later = LeftOut::parse(&[1, 0, 0, 0, 1, 0, b'n', 200]).unwrap();
        assert_eq!(later.iter().next(), Some(("n", Role::Unknown)));
    }
}
