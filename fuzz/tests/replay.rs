//! Every target on its seeds and on what it once found.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Files of a folder, sorted; none when there is no such folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(folder) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = folder.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_target_survives_its_corpus_and_regressions() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, target) in ork_fuzz::TARGETS {
        let seeds = files(&root.join("corpus").join(name));
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for path in seeds.iter().chain(&files(&root.join("regressions").join(name))) {
            let data = fs::read(path).unwrap();
            let survived = catch_unwind(AssertUnwindSafe(|| target(&data)));
            assert!(survived.is_ok(), "{name} fails on {}", path.display());
        }
    }
}

#[test]
fn every_folder_belongs_to_a_target() {
    for kind in ["corpus", "regressions"] {
        for folder in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(kind)) {
            let name = folder.file_name().unwrap().to_str().unwrap();
            let known = ork_fuzz::TARGETS.iter().any(|(target, _)| *target == name);
            assert!(known || name == "README.md", "{} has no target", folder.display());
        }
    }
}
