//! What a model's config.json says that its tensors do not.

use std::io::Read as _;
use std::path::Path;

/// A config.json larger than this is none.
const MOST: u64 = 4 << 20;

/// The config.json beside a model's files; empty where there is none that can be read, since names and
/// shapes tell most.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct Config {
    quantization_config: Option<Quantization>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Quantization {
    weight_block_size: Option<[u32; 2]>,
}

impl Config {
    pub(super) fn beside(path: &Path) -> Config {
        let Ok((file, _)) = crate::regular_file::open(&path.with_file_name("config.json")) else {
            return Config::default();
        };
        let mut text = Vec::new();
        match file.take(MOST).read_to_end(&mut text) {
            Ok(_) => serde_json::from_slice(&text).unwrap_or_default(),
            Err(_) => Config::default(),
        }
    }

    /// Outputs and inputs of a block of FP8 that shares a scale.
    pub(super) fn block(&self) -> Option<[u32; 2]> {
        self.quantization_config.as_ref()?.weight_block_size
    }
}
