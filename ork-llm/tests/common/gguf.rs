//! Writes small GGUF models of any family, of noise.

use std::path::Path;

/// A model that is being put together.
#[derive(Clone, Default)]
pub(crate) struct Model {
    entries: Vec<u8>,
    entry_count: u64,
    pub(crate) tensors: Vec<(String, Vec<u64>, Vec<f32>)>,
    state: u64,
}

fn text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

impl Model {
    pub(crate) fn new(architecture: &str, seed: u64) -> Model {
        Model { state: seed, ..Model::default() }.text("general.architecture", architecture)
    }

    fn entry(mut self, key: &str, kind: u32, value: impl FnOnce(&mut Vec<u8>)) -> Model {
        text(&mut self.entries, key.as_bytes());
        self.entries.extend(kind.to_le_bytes());
        value(&mut self.entries);
        self.entry_count += 1;
        self
    }

    pub(crate) fn text(self, key: &str, value: &str) -> Model {
        self.entry(key, 8, |out| text(out, value.as_bytes()))
    }

    pub(crate) fn number(self, key: &str, value: u32) -> Model {
        self.entry(key, 4, |out| out.extend(value.to_le_bytes()))
    }

    pub(crate) fn float(self, key: &str, value: f32) -> Model {
        self.entry(key, 6, |out| out.extend(value.to_le_bytes()))
    }

    pub(crate) fn bool(self, key: &str, value: bool) -> Model {
        self.entry(key, 7, |out| out.push(value.into()))
    }

    pub(crate) fn strings(self, key: &str, values: &[&[u8]]) -> Model {
        self.entry(key, 9, |out| {
            out.extend(8u32.to_le_bytes());
            out.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| text(out, value));
        })
    }

    pub(crate) fn numbers(self, key: &str, values: &[i32]) -> Model {
        self.entry(key, 9, |out| {
            out.extend(5u32.to_le_bytes());
            out.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| out.extend(value.to_le_bytes()));
        })
    }

    pub(crate) fn floats(self, key: &str, values: &[f32]) -> Model {
        self.entry(key, 9, |out| {
            out.extend(6u32.to_le_bytes());
            out.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| out.extend(value.to_le_bytes()));
        })
    }

    /// Noise in (−1, 1).
    fn noise(&mut self) -> f32 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
        (self.state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// A tensor of values around `middle`, `spread` to both sides.
    pub(crate) fn tensor(
        mut self,
        name: &str,
        dimensions: &[u64],
        middle: f32,
        spread: f32,
    ) -> Model {
        let count: u64 = dimensions.iter().product();
        let values = (0..count).map(|_| middle + spread * self.noise()).collect();
        self.tensors.push((name.into(), dimensions.into(), values));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Model {
        self.tensors.retain(|tensor| tensor.0 != name);
        self
    }

    pub(crate) fn get(&self, name: &str) -> &[f32] {
        let found = self.tensors.iter().find(|tensor| tensor.0 == name);
        &found.unwrap_or_else(|| panic!("{name}")).2
    }

    pub(crate) fn write(&self, path: &Path) {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.entry_count.to_le_bytes());
        out.extend(&self.entries);
        let mut offset = 0u64;
        let padded = |values: &[f32]| (4 * values.len() as u64).next_multiple_of(32);
        for (name, dimensions, values) in &self.tensors {
            text(&mut out, name.as_bytes());
            out.extend((dimensions.len() as u32).to_le_bytes());
            dimensions.iter().for_each(|dimension| out.extend(dimension.to_le_bytes()));
            out.extend(0u32.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += padded(values);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        for (_, _, values) in &self.tensors {
            let end = out.len() + padded(values) as usize;
            values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            out.resize(end, 0);
        }
        std::fs::write(path, out).unwrap();
    }
}
