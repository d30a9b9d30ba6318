//! The size of the last cache before memory, on which speed depends and nothing else does.

use std::path::Path;
use std::sync::OnceLock;

/// Where the system says so.
const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";

/// Assumed where the system does not say.
const COMMON: usize = 8 << 20;

/// Bytes of the last cache before memory.
pub(crate) fn bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| last_cache_of(Path::new(CACHES)).unwrap_or(COMMON))
}

/// Of the caches described in `folder`, one sub-folder each, the size of that with the highest level.
fn last_cache_of(folder: &Path) -> Option<usize> {
    let caches = std::fs::read_dir(folder).ok()?.filter_map(|cache| {
        let read = |what| std::fs::read_to_string(cache.as_ref().ok()?.path().join(what)).ok();
        let level: u32 = read("level")?.trim().parse().ok()?;
        let kib: usize = read("size")?.trim().strip_suffix('K')?.parse().ok()?;
        Some((level, kib.checked_mul(1024)?))
    });
    caches.max().map(|(_, bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_cache_is_that_of_the_highest_level() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(last_cache_of(&folder.path().join("nothing")), None);
        assert_eq!(last_cache_of(folder.path()), None);
        let cache = |name: &str, level: &str, size: &str| {
            let cache = folder.path().join(name);
            std::fs::create_dir(&cache).unwrap();
            std::fs::write(cache.join("level"), level).unwrap();
            std::fs::write(cache.join("size"), size).unwrap();
        };
        cache("index0", "1\n", "32K\n");
        cache("index1", "3\n", "3072K\n");
        cache("index2", "2\n", "4096K\n");
        cache("index3", "4\n", "unknown\n");
        std::fs::write(folder.path().join("uevent"), "").unwrap();
        assert_eq!(last_cache_of(folder.path()), Some(3072 << 10));
        assert!(bytes() > 0);
    }
}
