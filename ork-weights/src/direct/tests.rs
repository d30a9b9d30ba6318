use super::*;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// A file of `len` bytes that differ everywhere; beside the sources, since a temporary folder may be memory.
fn file(len: usize) -> (tempfile::NamedTempFile, Vec<u8>) {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let bytes: Vec<u8> = (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect();
    std::fs::write(file.path(), &bytes).unwrap();
    (file, bytes)
}

/// Both ways to have several reads under way; none where the disk under the sources has no direct reads.
fn both(file: &File) -> Vec<DirectFile> {
    let ways = [true, false].map(|has_rings| {
        let direct = DirectFile::open(file)?;
        Ok(DirectFile { rings: direct.rings.filter(|_| has_rings), ..direct })
    });
    let ways: io::Result<Vec<_>> = ways.into_iter().collect();
    ways.unwrap_or_else(|error: io::Error| {
        eprintln!("no direct reads here, nothing was tested: {error}");
        Vec::new()
    })
}

/// `len` bytes, `skip` behind a page's beginning.
fn memory(buffer: &mut Vec<u8>, skip: usize, len: usize) -> &mut [u8] {
    *buffer = vec![0xAA; skip + len + 4096];
    let start = buffer.as_ptr().align_offset(4096) + skip;
    &mut buffer[start..start + len]
}

const LEN: usize = 5 * PIECE + 12_345;

/// Wherever they begin and end, in the file and in memory.
#[test]
fn the_bytes_are_those_of_the_file() {
    let (file, bytes) = file(LEN);
    let ways = both(file.as_file());
    let places = (0..LEN, 0..5000usize, 0..LEN, 0..3).prop_map(|(offset, skip, len, aligned)| {
        let (offset, skip) = match aligned {
            0 => (offset, skip),
            1 => (offset / 4096 * 4096, skip / 4096 * 4096),
            _ => (offset, offset % 4096),
        };
        (offset, skip, len.min(LEN - offset))
    });
    let mut runner = TestRunner::new(ProptestConfig::with_cases(256));
    let run = runner.run(&places, |(offset, skip, len)| {
        let mut buffer = Vec::new();
        for direct in &ways {
            let before = direct.reads();
            let out = memory(&mut buffer, skip, len);
            direct.read(file.as_file(), offset as u64, out).unwrap();
            prop_assert!(out == &bytes[offset..offset + len]);
            let reads = direct.reads();
            let all = reads.direct - before.direct + reads.buffered - before.buffered;
            prop_assert_eq!(all, len as u64);
            prop_assert!(reads.refusal().is_none(), "{:?}", reads.refusal());
        }
        Ok(())
    });
    run.unwrap();
    assert!(ways.iter().all(|direct| direct.reads().direct > 0));
}

#[test]
fn whole_blocks_go_past_the_cache() {
    let (file, _) = file(LEN);
    let mut buffer = Vec::new();
    for direct in both(file.as_file()) {
        let out = memory(&mut buffer, 0, LEN);
        direct.read(file.as_file(), 0, out).unwrap();
        let tail = LEN as u64 % direct.block;
        assert_eq!((direct.reads().direct, direct.reads().buffered), (LEN as u64 - tail, tail));
        // Aligned in the file alone.
        let out = memory(&mut buffer, 1, LEN);
        if direct.memory > 1 {
            direct.read(file.as_file(), 0, out).unwrap();
            assert_eq!(direct.reads().buffered, tail + LEN as u64);
        }
    }
}

/// Bytes of a file that the page cache holds, by util-linux's `fincore`; `None` where that is not installed.
fn cached(file: &tempfile::NamedTempFile) -> Option<u64> {
    let mut fincore = std::process::Command::new("fincore");
    fincore.args(["--bytes", "--noheadings", "--output", "RES"]).arg(file.path());
    let said = fincore.output().ok()?;
    Some(String::from_utf8(said.stdout).unwrap().trim().parse().unwrap())
}

#[test]
fn what_is_read_directly_adds_less_than_a_hundredth_to_the_page_cache() {
    let (file, bytes) = file(LEN);
    let forget = || {
        file.as_file().sync_all().unwrap();
        rustix::fs::fadvise(file.as_file(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    };
    let mut buffer = Vec::new();
    for direct in both(file.as_file()) {
        forget();
        let Some(before) = cached(&file) else {
            return eprintln!("no fincore here, nothing was tested");
        };
        let out = memory(&mut buffer, 0, LEN);
        direct.read(file.as_file(), 0, out).unwrap();
        assert!(out == bytes);
        let grown = cached(&file).unwrap().saturating_sub(before);
        assert!(grown <= LEN as u64 / 100, "{grown} of {LEN} bytes");
        // That it would be seen.
        forget();
        file.as_file().read_exact_at(out, 0).unwrap();
        assert!(cached(&file).unwrap() - before >= LEN as u64 / 2);
    }
}

#[test]
fn what_is_cut_off_is_an_error() {
    let (file, bytes) = file(LEN);
    let mut buffer = Vec::new();
    for direct in both(file.as_file()) {
        let out = memory(&mut buffer, 0, LEN);
        file.as_file().set_len(3 * PIECE as u64 + 77).unwrap();
        let error = direct.read(file.as_file(), 0, out).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        std::fs::write(file.path(), &bytes).unwrap();
    }
}

#[test]
fn what_the_kernel_refuses_is_read_through_the_cache() {
    let (file, bytes) = file(LEN);
    let mut buffer = Vec::new();
    for mut direct in both(file.as_file()) {
        // It can't be read at all, as memory that can't be pinned can't be written.
        direct.file = File::options().write(true).open(file.path()).unwrap();
        for _ in 0..3 {
            let out = memory(&mut buffer, 0, LEN);
            direct.read(file.as_file(), 0, out).unwrap();
            assert!(out == bytes);
        }
        let reads = direct.reads();
        assert_eq!((reads.direct, reads.buffered), (0, 3 * LEN as u64));
        assert_eq!(reads.refusal().unwrap().raw_os_error(), Some(9), "EBADF");
    }
}

/// As a board answers while the process forks: the rest comes through the cache, and nothing was refused.
#[test]
fn short_reads_are_finished_through_the_cache() {
    let (file, bytes) = file(LEN);
    let had = 2 * PIECE + 3 * PAGE as usize;
    let short = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    std::fs::write(short.path(), &bytes[..had]).unwrap();
    let mut buffer = Vec::new();
    for (mut direct, other) in both(file.as_file()).into_iter().zip(both(short.as_file())) {
        direct.file = other.file;
        let out = memory(&mut buffer, 0, LEN);
        direct.read(file.as_file(), 0, out).unwrap();
        assert!(out == bytes);
        let reads = direct.reads();
        assert_eq!((reads.direct, reads.buffered), (had as u64, (LEN - had) as u64));
        assert!(reads.refusal().is_none());
    }
}

/// A disk that needs more than it said: EINVAL.
#[test]
fn misaligned_reads_are_finished_through_the_cache() {
    let (file, bytes) = file(LEN);
    let mut buffer = Vec::new();
    for mut direct in both(file.as_file()) {
        direct.block = 1;
        let out = memory(&mut buffer, 1, LEN - 1);
        direct.memory = 1;
        direct.read(file.as_file(), 1, out).unwrap();
        assert!(out == &bytes[1..]);
        let reads = direct.reads();
        assert_eq!(reads.direct + reads.buffered, LEN as u64 - 1);
        assert_eq!(reads.refusal().unwrap().raw_os_error(), Some(22), "EINVAL");
    }
}

#[test]
fn two_readers_have_a_queue_each() {
    let (file, bytes) = file(LEN);
    for direct in both(file.as_file()) {
        std::thread::scope(|scope| {
            for reader in 0..4 {
                let (direct, file, bytes) = (&direct, file.as_file(), &bytes);
                scope.spawn(move || {
                    let mut buffer = Vec::new();
                    for round in 0..8 {
                        let start = (reader * 3 + round) * 4096;
                        let out = memory(&mut buffer, 0, LEN - start);
                        direct.read(file, start as u64, out).unwrap();
                        assert!(out == &bytes[start..]);
                    }
                });
            }
        });
        assert!(direct.rings.is_none_or(|rings| lock(&rings).len() <= 4));
    }
}
