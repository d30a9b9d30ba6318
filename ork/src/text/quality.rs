//! How much each form of weights changes what a model says, and what it costs.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use ork_cache::kept::Kept;
use ork_linear::Depth;
use ork_llm::{Decoder, Quality, Tokenizer, read_text};
use ork_weights::convert::{Options, TierChoice, convert};
use ork_weights::model::OpenOptions;
use ork_weights::pack::WriterOptions;
use ork_weights::quantise::Tier;
use serde::Serialize;

use super::failed;
use super::layers::{self, ALL_CORES, Weights};
use super::model::{open, reference};
use crate::cli::{Form, QualityArgs};
use crate::device::OpenDevice;
use crate::error::{Error, Result};
use crate::input::{open_model, read_text as read_text_file};
use crate::output::{Progress, Report, as_seconds};
use crate::temporary::{TemporaryFolder, check_room, remove_left_behind};

/// What the names of the folders for logits begin with.
const PREFIX: &str = "ork-quality-";

/// What was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    /// Tokens that were read.
    pub(crate) tokens: usize,
    /// Of each part that was read as a text of its own, at most.
    pub(crate) window: usize,
    /// f32, and the others in the order in which they were asked for.
    pub(crate) forms: Vec<Measured>,
}

/// A form of the linear layers, measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    /// Of the weights.
    pub(crate) form: String,
    /// Bits of the values that they are multiplied by.
    pub(crate) activation_bits: usize,
    /// Time of the passes over the text.
    #[serde(rename = "seconds", serialize_with = "as_seconds")]
    pub(crate) time: Duration,
    /// Weights in memory.
    pub(crate) bytes: u64,
    /// Weights in a pack.
    pub(crate) pack_bytes: Option<u64>,
    /// Mean divergence of the shares of tokens from those of f32, in nats.
    pub(crate) kl: f64,
    pub(crate) worst_kl: f64,
    /// Share of the positions whose most likely token is that of f32.
    pub(crate) first_token: f64,
    pub(crate) perplexity: f64,
}

/// What is measured, and on which text.
struct Comparison<'a> {
    args: &'a QualityArgs,
    /// Parts of the text, each read as one of its own.
    windows: Vec<Vec<u32>>,
    report: Report,
}

/// Measures f32, and then every form beside it. The logits of f32 are kept in a temporary file: a large
/// vocabulary's take a megabyte a token.
///
/// # Errors
/// As [`layers::open`]; [`Error::File`] where there is no room; [`Error::Usage`] for a text of less than two
/// tokens.
pub(crate) fn measure(args: &QualityArgs, report: Report) -> Result<Table> {
    let text = read_text_file(&args.text)?;
    let (tensors, tokenizer) = open(&args.model)?;
    let exact = reference(&tensors).map_err(failed(&args.model))?;
    let bytes = exact.bytes() as u64;
    let decoder = Decoder::new(tensors, Box::new(exact)).map_err(failed(&args.model))?;
    let window = (args.window as usize).min(decoder.config().context);
    let windows = windows(&tokenizer, &text, args.tokens as usize, window);
    let comparison = Comparison { args, windows, report };
    let tokens = comparison.tokens();
    if tokens < 2 {
        let text = args.text.display();
        return Err(Error::Usage(format!("{text} has {tokens} tokens: there is nothing to guess")));
    }

    let device = args.device.device.open(report)?;
    remove_left_behind(PREFIX);
    let folder = TemporaryFolder::new(PREFIX)?;
    let path = folder.path().join("logits");
    let mut forms = vec![comparison.exact(decoder, bytes, &path)?];
    let asked = if args.form.is_empty() { Form::all().collect() } else { args.form.clone() };
    for form in asked {
        report.note(format!("measuring {form}"));
        forms.push(comparison.beside(form, &path, &device)?);
    }
    Ok(Table { tokens, window, forms })
}

/// Cuts the first `most` tokens of a text into windows of `window` tokens, each of which begins as every text
/// of the model does.
fn windows(tokenizer: &Tokenizer, text: &str, most: usize, window: usize) -> Vec<Vec<u32>> {
    let begin = tokenizer.begin();
    let begins = usize::from(begin.is_some());
    let tokens = tokenizer.encode(text);
    let tokens = tokens.get(begins..).unwrap_or_default();
    let tokens = tokens.get(..most).unwrap_or(tokens);
    let begun = |part: &[u32]| begin.iter().chain(part).copied().collect();
    tokens.chunks(window.saturating_sub(begins).max(1)).map(begun).collect()
}

impl Comparison<'_> {
    fn tokens(&self) -> usize {
        self.windows.iter().map(Vec::len).sum()
    }

    /// What f32 says goes to `path`.
    fn exact(&self, mut decoder: Decoder, bytes: u64, path: &Path) -> Result<Measured> {
        let row = 4 * decoder.config().vocabulary as u64;
        let need = row.saturating_mul(self.tokens() as u64);
        check_room(path.parent().unwrap_or(path), "what f32 says of every token", need)?;
        let mut file = BufWriter::new(File::create(path).map_err(Error::file("create", path))?);
        let mut quality = Quality::default();
        let time = self.pass("f32", &mut decoder, |logits, next| {
            quality.add(logits, logits, next);
            logits.iter().try_for_each(|logit| file.write_all(&logit.to_le_bytes()))
        });
        let time = time?.map_err(Error::file("write", path))?;
        file.flush().map_err(Error::file("write", path))?;
        Ok(Measured::new("f32", None, time, bytes, None, &quality))
    }

    /// Compares a form with what is in `path`.
    fn beside(&self, form: Form, path: &Path, device: &OpenDevice) -> Result<Measured> {
        let (Form { tier, depth }, model) = (form, &*self.args.model);
        // A simulator's time would tell nothing; the CPU gives the same bits.
        let npu_rows = if device.is_simulated() { usize::MAX } else { device.npu_rows() };
        let (cores, budget) = (ALL_CORES, self.args.budget);
        // Not every tier can be made while a model runs; all can be read from a pack.
        let pack = path.with_extension("orkpack");
        let pack_bytes = self.convert(tier, &pack)?;
        let kept = Kept::At(pack);
        let weights = Weights { tier, depth, npu_rows, cores, budget, access: None, kept };
        let opened = layers::open(&weights, &[model], device, self.report)?;
        opened.notes.iter().for_each(|note| self.report.note(note));
        let (_, layers) = opened.into_draft_and_model()?;
        let bytes = layers.bytes();
        let (tensors, _) = open(model)?;
        let mut decoder = Decoder::new(tensors, Box::new(layers)).map_err(failed(model))?;

        let mut file = BufReader::new(File::open(path).map_err(Error::file("open", path))?);
        let (mut raw, mut exact) = (Vec::new(), Vec::new());
        let mut quality = Quality::default();
        let time = self.pass("form", &mut decoder, |logits, next| {
            raw.resize(size_of_val(logits), 0);
            file.read_exact(&mut raw)?;
            exact.clear();
            exact.extend(raw.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            quality.add(&exact, logits, next);
            Ok(())
        });
        let time = time?.map_err(Error::file("read", path))?;
        let depth = (tier != Tier::Fp16).then_some(depth);
        Ok(Measured::new(&tier.to_string(), depth, time, bytes, Some(pack_bytes), &quality))
    }

    /// Makes a pack of the model, in the place of another; gives its size.
    fn convert(&self, tier: Tier, target: &Path) -> Result<u64> {
        let path = &*self.args.model;
        let model = open_model(path, &OpenOptions::default())?;
        let writer = WriterOptions { replace: true, ..WriterOptions::default() };
        let options = Options { tiers: TierChoice::fixed(tier), writer, ..Options::default() };
        let converted = convert(&model, target, &options, |_| {}).map_err(Error::input(path))?;
        Ok(converted.bytes)
    }

    /// Reads all windows; gives the time that this takes beside `take`, or why that failed.
    fn pass(
        &self,
        label: &'static str,
        decoder: &mut Decoder,
        mut take: impl FnMut(&[f32], Option<u32>) -> io::Result<()>,
    ) -> Result<io::Result<Duration>> {
        let progress = Progress::count(label, self.tokens() as u64);
        let (mut aside, mut outcome) = (Duration::ZERO, Ok(()));
        let start = Instant::now();
        for window in &self.windows {
            let read = read_text(decoder, window, |logits, next| {
                let start = Instant::now();
                if outcome.is_ok() {
                    outcome = take(logits, next);
                }
                progress.add(1);
                aside += start.elapsed();
            });
            read.map_err(failed(&self.args.model))?;
        }
        Ok(outcome.map(|()| start.elapsed().saturating_sub(aside)))
    }
}

impl Measured {
    fn new(
        form: &str,
        depth: Option<Depth>,
        time: Duration,
        bytes: u64,
        pack_bytes: Option<u64>,
        quality: &Quality,
    ) -> Measured {
        Measured {
            form: form.into(),
            activation_bits: depth.map_or(32, |depth| 8 * depth.planes()),
            time,
            bytes,
            pack_bytes,
            kl: quality.mean_kl(),
            worst_kl: quality.worst_kl,
            first_token: quality.agreement(),
            perplexity: quality.perplexity(),
        }
    }
}
