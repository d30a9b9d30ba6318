//! What a model says of itself beside its tensors: config.json, or the metadata of a GGUF.

use super::gguf::Gguf;
use super::names::{SCHEMES, Scheme};
use crate::pattern::matches;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::io::Read as _;
use std::path::Path;

/// A config.json larger than this is none.
const MOST: u64 = 1 << 20;

/// The config.json beside a model's files; empty where there is none that can be read, since names and
/// shapes tell most.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Config {
    model_type: Lenient<String>,
    architectures: Lenient<Vec<String>>,
    text_config: Lenient<Text>,
    ffn_config: Lenient<FeedForward>,
    quantization_config: Lenient<Quantization>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Text {
    model_type: Lenient<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FeedForward {
    moe_num_experts: Lenient<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Quantization {
    weight_block_size: Lenient<[u32; 2]>,
}

/// A value of the wanted type, or another one, which says nothing.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Lenient<T> {
    Is(T),
    Other(IgnoredAny),
}

impl<T> Default for Lenient<T> {
    fn default() -> Lenient<T> {
        Lenient::Other(IgnoredAny)
    }
}

impl<T> Lenient<T> {
    fn get(&self) -> Option<&T> {
        match self {
            Lenient::Is(value) => Some(value),
            Lenient::Other(_) => None,
        }
    }
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
        self.quantization_config.get()?.weight_block_size.get().copied()
    }

    /// What the model calls its architecture, as names of [`Scheme`]s; the first is for people.
    fn names(&self) -> Vec<&str> {
        let text = self.text_config.get().and_then(|text| text.model_type.get());
        let classes = self.architectures.get().map_or(&[][..], Vec::as_slice);
        let names = self.model_type.get().into_iter().chain(text).chain(classes);
        names.map(String::as_str).collect()
    }
}

/// Classes of models that write tokens.
const WRITERS: [&str; 8] = [
    "*ForCausalLM",
    "*LMHead*",
    "*ForMaskedLM",
    "*ForConditionalGeneration",
    "*ForPreTraining",
    "*ForSeq2SeqLM",
    "*MTModel",
    "ChatGLMModel",
];

/// Architectures of GGUF files that write none.
const HEADLESS: [&str; 4] = ["*bert*", "t5encoder", "*-embedding", "clip"];

/// What is known of a model's architecture.
#[derive(Clone, Copy, Default)]
pub(super) struct Known {
    pub(super) scheme: Option<&'static Scheme>,
    /// How many experts lie in the rows of one matrix.
    pub(super) experts: Option<u32>,
    /// Whether it writes no tokens, so that no output head is tied to its embeddings.
    pub(super) headless: bool,
}

impl Known {
    fn of(names: &[&str], experts: Option<u32>, headless: bool) -> Known {
        let scheme =
            SCHEMES.iter().find(|scheme| scheme.names.iter().any(|name| names.contains(name)));
        Known { scheme, experts, headless }
    }
}

/// The architecture for people, and what is known of it.
pub(super) fn architecture(header: Option<&Gguf>, config: &Config) -> (Option<Box<str>>, Known) {
    let (names, experts, headless): (Vec<&str>, _, _) = match header {
        Some(header) => {
            let keys =
                ["general.architecture", "clip.projector_type", "clip.vision.projector_type"];
            let names: Vec<&str> = keys.into_iter().filter_map(|key| header.text(key)).collect();
            let first = names.first().copied().unwrap_or_default();
            let headless = HEADLESS.iter().any(|pattern| matches(pattern, first));
            (names, None, headless)
        }
        None => {
            let experts = config.ffn_config.get().and_then(|ffn| ffn.moe_num_experts.get());
            let classes = config.architectures.get().map_or(&[][..], Vec::as_slice);
            let writes = |class: &String| WRITERS.iter().any(|pattern| matches(pattern, class));
            let headless = !classes.is_empty() && !classes.iter().any(writes);
            (config.names(), experts.copied(), headless)
        }
    };
    (names.first().map(|name| (*name).into()), Known::of(&names, experts, headless))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        serde_json::from_str(text).unwrap_or_default()
    }

    #[test]
    fn what_is_of_another_type_says_nothing_and_spoils_nothing() {
        let read = config(
            r#"{"model_type": 7, "architectures": ["QWenLMHeadModel"], "text_config": [],
                "ffn_config": {"moe_num_experts": -1}, "quantization_config": {"weight_block_size": [64, 32]}}"#,
        );
        assert_eq!(read.names(), ["QWenLMHeadModel"]);
        assert_eq!(read.block(), Some([64, 32]));
        let (name, known) = architecture(None, &read);
        assert_eq!(name.as_deref(), Some("QWenLMHeadModel"));
        assert!(known.scheme.is_some() && known.experts.is_none());
    }

    #[test]
    fn a_language_model_inside_another_is_known_too() {
        let read = config(r#"{"model_type": "a_new_one", "text_config": {"model_type": "gpt2"}}"#);
        let (name, known) = architecture(None, &read);
        assert_eq!(name.as_deref(), Some("a_new_one"));
        assert!(known.scheme.is_some_and(|scheme| !scheme.by_input.is_empty()));
        assert!(architecture(None, &config("[]")).1.scheme.is_none());
    }

    #[test]
    fn a_model_that_writes_nothing_has_no_head() {
        let headless = |text: &str| architecture(None, &config(text)).1.headless;
        for writes in ["LlamaForCausalLM", "GPT2LMHeadModel", "BertForMaskedLM", "MarianMTModel"] {
            assert!(!headless(&format!(r#"{{"architectures": ["{writes}"]}}"#)), "{writes}");
        }
        for none in ["BertModel", "XLMRobertaModel", "ViTForImageClassification", "CLIPModel"] {
            assert!(headless(&format!(r#"{{"architectures": ["{none}"]}}"#)), "{none}");
        }
        assert!(!headless("{}")); // nothing is known
    }
}
