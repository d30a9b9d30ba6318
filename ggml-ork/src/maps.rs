//! Which file is behind an address.

use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A file's bytes at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) addresses: Range<usize>,
    /// Of the first byte, in the file.
    pub(crate) offset: u64,
    /// Major and minor number, as the kernel prints them.
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
    pub(crate) path: PathBuf,
}

/// The file behind `size` bytes at `address`, and where in it they begin; `None` for memory of none, or
/// of several.
pub(crate) fn behind(address: usize, size: usize) -> Option<(Mapping, u64)> {
    let maps = fs::read("/proc/self/maps").ok()?;
    let mapping = parse(&maps).find(|mapping| mapping.addresses.contains(&address))?;
    let at = mapping.offset + (address - mapping.addresses.start) as u64;
    (size <= mapping.addresses.end - address).then_some((mapping, at))
}

/// The lines of `/proc/self/maps` that have a file.
pub(crate) fn parse(maps: &[u8]) -> impl Iterator<Item = Mapping> {
    maps.split(|byte| *byte == b'\n').filter_map(line)
}

/// `start-end perms offset major:minor inode     path`.
fn line(line: &[u8]) -> Option<Mapping> {
    let slash = line.iter().position(|byte| *byte == b'/')?;
    let (fields, path) = line.split_at(slash);
    let mut fields = std::str::from_utf8(fields).ok()?.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let hex = |text| usize::from_str_radix(text, 16).ok();
    let addresses = hex(start)?..hex(end)?;
    let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let device = (number(major)?, number(minor)?);
    let inode = fields.next()?.parse().ok()?;
    // The kernel writes a line's end in a name as \012.
    let path = unescaped(path);
    Some(Mapping { addresses, offset, device, inode, path: OsString::from_vec(path).into() })
}

fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, tail)) = rest.split_first() {
        match rest.strip_prefix(b"\\012") {
            Some(tail) => {
                out.push(b'\n');
                rest = tail;
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let text = b"7f00-8f10 r--s 00001000 fe:0a 1234                       /m/a b\\012.gguf\n\
                     9000-a000 rw-p 00000000 00:00 0                          [heap]\n\
                     a000-b000 rw-p 00000000 00:00 0\n\
                     c000-d000 r--p 00000000 08:01 9 /x (deleted)";
        let all: Vec<_> = parse(text).collect();
        assert_eq!(all.len(), 2);
        let first = Mapping {
            addresses: 0x7f00..0x8f10,
            offset: 0x1000,
            device: (0xfe, 0x0a),
            inode: 1234,
            path: "/m/a b\n.gguf".into(),
        };
        assert_eq!(all[0], first);
        assert_eq!(all[1].path, PathBuf::from("/x (deleted)"));
    }

    #[test]
    fn own_code_is_behind_its_address() {
        let address = own_code_is_behind_its_address as fn() as usize;
        let (mapping, at) = behind(address, 1).expect("code is mapped from a file");
        assert_eq!(mapping.path, std::env::current_exe().unwrap());
        assert!(at >= mapping.offset);
        let heap = Box::new(0u8);
        assert_eq!(behind(&raw const *heap as usize, 1), None);
    }
}
