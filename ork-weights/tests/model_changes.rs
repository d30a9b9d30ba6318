//! Models that are cut or rewritten while they are converted: an error that names file and place, the
//! old pack untouched, and a next try that ends as if nothing had been.

use ork_weights::convert::{ConvertError, Options, Report, convert};
use ork_weights::model::synth::Shape;
use ork_weights::model::{Model, ModelError, OpenOptions, Read};
use ork_weights::quantise::Tier;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

const WAYS: [Read; 2] = [Read::Buffered, Read::Direct];

/// A model and its pack in a folder of their own, with the bytes of both.
struct Case {
    _folder: tempfile::TempDir,
    path: PathBuf,
    target: PathBuf,
    model: Vec<u8>,
    pack: Vec<u8>,
}

impl Case {
    fn new() -> Case {
        // Beside the sources: a temporary folder may be memory, which O_DIRECT does not do.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("model.gguf");
        Shape::tiny().write(File::create(&path).unwrap()).unwrap();
        let target = folder.path().join("model.orkpack");
        run(&path, &target, Read::Buffered, || {}).unwrap();
        let (model, pack) = (fs::read(&path).unwrap(), fs::read(&target).unwrap());
        Case { _folder: folder, path, target, model, pack }
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        PathBuf::from(format!("{}{suffix}", self.target.display()))
    }
}

/// Converts; `disturb` is called when the third weight is done.
fn run(path: &Path, target: &Path, read: Read, disturb: impl Fn()) -> Result<Report, ConvertError> {
    let model = Model::open(path, &OpenOptions { read, ..OpenOptions::default() })?;
    convert(&model, target, &Options::default(), |at| {
        if at.weights == 3 {
            disturb();
        }
    })
}

#[test]
fn a_model_that_is_cut_under_a_conversion() {
    for read in WAYS {
        let case = Case::new();
        let modified = fs::metadata(&case.path).unwrap().modified().unwrap();
        let cut = || {
            let file = File::options().write(true).open(&case.path).unwrap();
            file.set_len(case.model.len() as u64 / 2).unwrap();
        };
        let error = run(&case.path, &case.target, read, cut).unwrap_err();
        let ConvertError::Model(ModelError::Shortened { path, offset, what }) = &error else {
            panic!("{read:?}: {error:?}");
        };
        assert_eq!(path, &case.path);
        assert!(*offset < case.model.len() as u64 && what.contains("weight"), "{what}");
        let text = error.to_string();
        assert!(text.contains("shortened") && text.contains("restore it"), "{text}");
        assert!(fs::read(&case.target).unwrap() == case.pack, "{read:?}: the old pack changed");

        // The model is back: what was written of the first try is used, and no byte differs.
        fs::write(&case.path, &case.model).unwrap();
        File::options().write(true).open(&case.path).unwrap().set_modified(modified).unwrap();
        let report = run(&case.path, &case.target, read, || {}).unwrap();
        assert!(report.resumed() > 0, "{read:?}");
        assert!(fs::read(&case.target).unwrap() == case.pack, "{read:?}: an interruption shows");
    }
}

#[test]
fn a_model_that_is_rewritten_under_a_conversion() {
    for read in WAYS {
        let case = Case::new();
        let rewrite = || {
            let mut other = case.model.clone();
            other.reverse();
            fs::write(&case.path, other).unwrap();
        };
        let error = run(&case.path, &case.target, read, rewrite).unwrap_err();
        // Whatever the other bytes mean: as values they may even be refused first.
        match &error {
            ConvertError::Model(ModelError::Changed { path, .. }) => {
                assert_eq!(path, &case.path);
                assert!(!case.beside(".partial").exists(), "weights of two models are kept");
            }
            ConvertError::Model(ModelError::Quantise { .. }) => {}
            other => panic!("{read:?}: {other:?}"),
        }
        assert!(fs::read(&case.target).unwrap() == case.pack);
    }
}

#[test]
fn a_touched_model_is_not_trusted_either() {
    let case = Case::new();
    let touch = || {
        let file = File::options().write(true).open(&case.path).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    };
    let error = run(&case.path, &case.target, Read::Buffered, touch).unwrap_err();
    assert!(matches!(&error, ConvertError::Model(ModelError::Changed { .. })), "{error:?}");
    assert!(error.to_string().contains("modification time"), "{error}");
    assert!(!case.beside(".partial").exists() && !case.beside(".journal").exists());
    assert!(fs::read(&case.target).unwrap() == case.pack);
}

#[test]
fn a_cut_model_has_no_identity_and_no_weights() {
    for read in WAYS {
        let case = Case::new();
        let model = Model::open(&case.path, &OpenOptions { read, ..OpenOptions::default() });
        let model = model.unwrap();
        File::options().write(true).open(&case.path).unwrap().set_len(10_000).unwrap();
        for full in [false, true] {
            let error = model.identity(full).unwrap_err();
            assert!(matches!(error, ModelError::Shortened { .. }), "{error}");
        }
        let weight = model.weights().last().unwrap();
        let layout = Tier::Int8.layout(weight.k, weight.n).unwrap();
        let (mut out, mut scales) =
            (vec![0; layout.bytes() as usize], vec![0.0; weight.n as usize]);
        let error = model.quantise(weight, &Tier::Int8, &mut out, &mut scales).unwrap_err();
        assert!(matches!(error, ModelError::Shortened { .. }), "{error}");
    }
}
