//! That every error names its operation, its numbers and the way out.

use super::*;
use crate::health::Recovery;

fn post_mortem() -> Box<PostMortem> {
    Box::new(PostMortem {
        operation: "int8 matmul",
        precision: Some(Precision::Int8),
        m: 4,
        k: 64,
        n: 32,
        domain: 3,
        core: 2,
        programs: 9,
        programs_done: 5,
        program_iova: 0xffff_0000,
        weights_iova: 0xfff0_0000,
        errno: Some(Errno::TIMEDOUT),
        waited: Duration::from_millis(1234),
        age: Duration::from_secs(60),
        iova_used: 4096,
        attempts: 2,
        recovery: Recovery::Reset,
        earlier: None,
    })
}

/// Every variant with the words that its text must have.
fn all() -> Vec<(Error, &'static [&'static str])> {
    let path = || PathBuf::from("/dev/dri/card9");
    let holder = Some(LockHolder { pid: 77, command: Some("other --flag".into()) });
    let tried = vec![NodeAnswer { path: path(), answer: "panthor".into() }];
    let (call, errno) = (Call::Create, Errno::NOMEM);
    vec![
        (
            Error::NoDevice { tried },
            &["card9: panthor", "rknpu or rocket", "this kernel", "simulated"],
        ),
        (
            Error::OtherDriver { path: path(), driver: "panthor".into() },
            &["card9", "\"panthor\"", "Device::open"],
        ),
        (Error::NoNode { path: path() }, &["card9 does not exist", "Device::open"]),
        (Error::Permission { path: path() }, &["card9", "permission", "join the group"]),
        (Error::Open { path: path(), errno: Errno::MFILE }, &["card9", "files open", "ulimit -n"]),
        (
            Error::Locked { path: path(), holder },
            &["card9", "process 77 (other --flag)", "wait for it to end"],
        ),
        (Error::Locked { path: path(), holder: None }, &["in use by another process"]),
        (
            Error::Unsupported { feature: "flying", needs: "wings", has: DriverVersion(907) },
            &["flying", "wings", "0.9.7"],
        ),
        (
            Error::DomainsStuck { node: "sim".into(), from: 4, to: 1, errno: Errno::INVAL },
            &[
                "sim",
                "from 4 to 1",
                "6 s",
                "only a reboot helps",
                "does not take this crate's lock",
            ],
        ),
        (
            Error::NoDomain { index: 17, domains: Domains::Real },
            &["no domain 17", "16, numbered from 0"],
        ),
        (
            Error::NoDomain { index: 1, domains: Domains::None },
            &["no domain 1", "one, number 0", "0.9.8"],
        ),
        (Error::DomainLeased { index: 4 }, &["domain 4", "clone"]),
        (
            Error::DomainsExhausted { domains: Domains::Stub },
            &["one, number 0", "CONFIG_NO_GKI", "drop a lease"],
        ),
        (Error::DomainBusy { active: 2, wanted: 3 }, &["domain 3", "domain 2", "drop that guard"]),
        (Error::NoCore { core: 5, cores: 3 }, &["core 5", "3, numbered from 0"]),
        (Error::CoreLeased { core: 1 }, &["core 1", "drop it"]),
        (Error::CoreLost { core: 1 }, &["core 1", "another core", "reboot"]),
        (Error::Size { requested: 0, limit: 4096 }, &["0 bytes", "4096", "in pieces"]),
        (
            Error::IovaExhausted {
                domain: 3,
                requested: 8192,
                used: 20,
                capacity: 4096,
                largest_free: 0,
                aligned: false,
                errno: None,
            },
            &["domain 3", "8192", "20 of 4096", "free a buffer"],
        ),
        (Error::NoContiguousMemory { requested: 8192, errno }, &["8192", "IOMMU", "cma="]),
        (
            Error::ArenaFull { requested: 9, free: 8, capacity: 16, largest: 4 },
            &["9 bytes", "8 of 16", "4 together", "larger arena"],
        ),
        (
            Error::Driver { call, domain: 3, bytes: 4096, errno },
            &["MEM_CREATE of 4096 bytes in domain 3", "no memory left", "free some"],
        ),
        (
            Error::OpenFiles { call, bytes: 4096, open: 64, limit: 65, errno },
            &["MEM_CREATE of 4096 bytes", "64 of 65", "ulimit -n"],
        ),
        (Error::Range { offset: 8, len: 9, size: 16 }, &["9 bytes from 8", "16", "end the range"]),
        (
            Error::Layout(rknpu_sys::layout::Layout::new(31, 32, Precision::Int8).unwrap_err()),
            &["K=31"],
        ),
        (Error::Shape { what: "M", value: 9, limit: 8 }, &["M = 9", "limit is 8"]),
        (
            Error::Length { what: "out", got: 1, want: 32, m: 1, k: 64, n: 32 },
            &["out has 1", "K=64", "needs 32"],
        ),
        (
            Error::Precision { weights: Precision::Int4, matmul: Precision::Int8 },
            &["Int4", "Int8", "make one"],
        ),
        (
            Error::Int4Range { value: 9, row: 1, column: 2 },
            &["activation 9 at row 1, column 2", "scale to -8..=7"],
        ),
        (Error::ActivationsLeased, &["activations", "drop those rows"]),
        (Error::ForeignActivations, &["rows", "lease them from this one"]),
        (
            Error::ForeignDomain { what: "a buffer", got: 1, want: 2 },
            &["a buffer is in domain 1", "domain 2", "allocate it there"],
        ),
        (Error::ImportDomain { domain: 4 }, &["domain 4", "domain 0", "copy it"]),
        (Error::ImportedAlready, &["imported already", "share that buffer"]),
        (
            Error::NotDmaBuf { kind: 0xef53, sealed: false, size: 10, len: 4096 },
            &["no dma-buf of 4096 bytes", "10 bytes", "0xef53", "can be cut", "dma-heap"],
        ),
        (
            Error::Program(ProgramError::Missing { program: 2, register: 0x4024 }),
            &["program 2", "0x4024"],
        ),
        (Error::Timeout(Duration::ZERO), &["0ns", "1 ms to 2147483647 ms"]),
        (
            Error::JobFailed(post_mortem()),
            &[
                "M=4 K=64 N=32",
                "core 2 in domain 3",
                "5 of 9 programs",
                "1234 ms",
                "reset",
                "longer timeout",
            ],
        ),
        (Error::Wedged(post_mortem()), &["takes no more work", "core 2 in domain 3", "Reboot"]),
        (
            Error::Os { what: "cannot start a thread", source: std::io::Error::other("no more") },
            &["cannot start a thread"],
        ),
        (
            Error::Mismatch { what: "cacheable", at: 7, got: 1, want: 2 },
            &["cacheable", "byte 7 is 0x01, 0x02 was written", "cache maintenance"],
        ),
    ]
}

/// A variant's place in the list above: a new one does not compile until it has one.
fn place(error: &Error) -> usize {
    match error {
        Error::NoDevice { .. } => 0,
        Error::OtherDriver { .. } => 1,
        Error::NoNode { .. } => 2,
        Error::Permission { .. } => 3,
        Error::Open { .. } => 4,
        Error::Locked { .. } => 5,
        Error::Unsupported { .. } => 6,
        Error::DomainsStuck { .. } => 7,
        Error::NoDomain { .. } => 8,
        Error::DomainLeased { .. } => 9,
        Error::DomainsExhausted { .. } => 10,
        Error::DomainBusy { .. } => 11,
        Error::NoCore { .. } => 12,
        Error::CoreLeased { .. } => 13,
        Error::CoreLost { .. } => 14,
        Error::Size { .. } => 15,
        Error::IovaExhausted { .. } => 16,
        Error::NoContiguousMemory { .. } => 17,
        Error::ArenaFull { .. } => 18,
        Error::Driver { .. } => 19,
        Error::OpenFiles { .. } => 20,
        Error::Range { .. } => 21,
        Error::Layout(_) => 22,
        Error::Shape { .. } => 23,
        Error::Length { .. } => 24,
        Error::Precision { .. } => 25,
        Error::Int4Range { .. } => 26,
        Error::ActivationsLeased => 27,
        Error::ForeignActivations => 28,
        Error::ForeignDomain { .. } => 29,
        Error::ImportDomain { .. } => 30,
        Error::ImportedAlready => 31,
        Error::NotDmaBuf { .. } => 32,
        Error::Program(_) => 33,
        Error::Timeout(_) => 34,
        Error::JobFailed(_) => 35,
        Error::Wedged(_) => 36,
        Error::Os { .. } => 37,
        Error::Mismatch { .. } => 38,
    }
}

#[test]
fn every_error_says_what_with_which_numbers_and_what_to_do() {
    let all = all();
    let mut seen: Vec<usize> = all.iter().map(|(error, _)| place(error)).collect();
    seen.dedup();
    assert_eq!(seen, (0..=38).collect::<Vec<_>>(), "each variant is in the list, in order");
    for (error, words) in all {
        let text = error.to_string();
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
        assert!(!text.contains("  ") && !text.ends_with('.'), "{text}");
    }
}
