//! One text, written in several ways that must not differ by a byte.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use ork_cache::kept::Kept;
use ork_linear::Depth;
use ork_llm::{
    Decoder, Draft, DraftModel, Ngrams, Quality, Sampler, Session, Tokenizer, read_text,
};
use ork_weights::quantise::Tier;
use serde::Serialize;

use super::failed;
use super::layers::{self, ALL_CORES, Weights};
use super::model::{open, reference};
use crate::error::Result;
use crate::output::{Report, as_seconds};
use crate::size::Size;

/// What is written, and by what.
pub(crate) struct Scenario<'a> {
    pub(crate) model: &'a Path,
    /// The model that proposes; otherwise what the text repeats does.
    pub(crate) draft: Option<&'a Path>,
    pub(crate) prompt: &'a str,
    /// Tokens that are written at most.
    pub(crate) tokens: usize,
    pub(crate) sampler: Sampler,
    /// Device memory for weights and scratch of the ways that stream; by default three fifths of the weights.
    pub(crate) budget: Option<Size>,
    /// Beside the first one, which is [`Way::Resident`].
    pub(crate) ways: &'a [Way],
    /// From how many rows on the NPU computes.
    pub(crate) npu_rows: usize,
    /// Where a pack is kept between two ways.
    pub(crate) folder: &'a Path,
}

/// One way of running the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Way {
    /// All weights in device memory.
    Resident,
    /// The same on one core of the NPU.
    OneCore,
    /// Within the budget, weights quantised whenever they are needed.
    Streamed,
    /// The same, while they become a pack.
    Packed,
    /// Within the budget, weights read from that pack.
    Reloaded,
    /// The same, a draft proposing tokens.
    Drafted,
}

impl Way {
    /// For people.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Way::Resident => "resident",
            Way::OneCore => "resident, one core",
            Way::Streamed => "streamed from the model",
            Way::Packed => "streamed, packed on the way",
            Way::Reloaded => "streamed from the pack",
            Way::Drafted => "the same, with a draft",
        }
    }
}

/// How one way went.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Told {
    pub(crate) way: Way,
    /// Weights that stay in device memory.
    pub(crate) resident_bytes: u64,
    /// Weights that every pass loads again.
    pub(crate) streamed_bytes: u64,
    /// What was loaded in all, a draft's weights included.
    pub(crate) loaded_bytes: u64,
    #[serde(rename = "first_token_seconds", serialize_with = "as_seconds")]
    pub(crate) first_token: Duration,
    #[serde(rename = "seconds", serialize_with = "as_seconds")]
    pub(crate) time: Duration,
    pub(crate) tokens: usize,
    /// Passes over the weights.
    pub(crate) passes: u64,
    pub(crate) proposed: usize,
    pub(crate) accepted: usize,
    #[serde(skip)]
    pub(crate) text: String,
}

/// How all of them went.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    /// The prompt and what was written.
    pub(crate) text: String,
    /// Bytes of the weights in device memory.
    pub(crate) weight_bytes: u64,
    /// Budget of the ways that stream.
    pub(crate) budget: u64,
    pub(crate) ways: Vec<Told>,
    /// Whether every way wrote the same bytes.
    pub(crate) identical: bool,
    /// Mean divergence from f32 on the CPU at every position of the text, in nats.
    pub(crate) kl: f64,
    /// Share of the positions whose most likely token is that of f32.
    pub(crate) first_token: f64,
    pub(crate) positions: u64,
}

/// Writes the text in every way, and compares what the first one says with f32.
///
/// # Errors
/// As [`layers::open`]; [`Error::Usage`] for a prompt that does not fit.
pub(crate) fn tell(
    scenario: &Scenario<'_>,
    device: &rknpu::Device,
    report: Report,
) -> Result<Outcome> {
    let Scenario { model, .. } = *scenario;
    let (tensors, tokenizer) = open(model)?;
    if let Some(path) = scenario.draft {
        let (_, vocabulary) = open(path)?;
        DraftModel::check(&vocabulary, &tokenizer).map_err(failed(path))?;
    }
    let teller = Teller { scenario, device, tokenizer, report };
    let (first, decoder, weight_bytes) = teller.way(Way::Resident, None)?;
    let budget = scenario.budget.map_or(weight_bytes / 5 * 3, |size| size.0);
    report.note("writing: in f32 on the CPU, to compare");
    let mut exact = reference(&tensors)
        .map_err(failed(model))
        .and_then(|linears| Decoder::new(tensors, Box::new(linears)).map_err(failed(model)))?;
    let quality = teller.compare(&mut exact, decoder, &first.text)?;
    drop(exact);

    let mut ways = vec![first];
    for way in scenario.ways {
        ways.push(teller.way(*way, Some(budget))?.0);
    }
    let text = ways.first().map_or("", |way| &*way.text).to_owned();
    Ok(Outcome {
        identical: ways.iter().all(|way| way.text == text),
        text: format!("{}{text}", scenario.prompt),
        weight_bytes,
        budget,
        ways,
        kl: quality.mean_kl(),
        first_token: quality.agreement(),
        positions: quality.positions,
    })
}

struct Teller<'a> {
    scenario: &'a Scenario<'a>,
    device: &'a rknpu::Device,
    tokenizer: Tokenizer,
    report: Report,
}

impl Teller<'_> {
    /// Writes the text in one way; gives its model back, and the bytes of its weights.
    fn way(&self, way: Way, budget: Option<u64>) -> Result<(Told, Decoder, u64)> {
        // A large model takes a while for each.
        self.report.note(format!("writing: {}", way.label()));
        let Scenario { model, tokens, .. } = *self.scenario;
        let pack = || Kept::At(self.scenario.folder.join("demo.orkpack"));
        let weights = Weights {
            tier: Tier::default(),
            depth: Depth::Bits16,
            npu_rows: self.scenario.npu_rows,
            cores: if way == Way::OneCore { 1 } else { ALL_CORES },
            budget: match way {
                Way::Resident | Way::OneCore => None,
                _ => budget.map(Size),
            },
            access: None,
            kept: match way {
                Way::Packed | Way::Reloaded | Way::Drafted => pack(),
                _ => Kept::Nowhere,
            },
        };
        let small = self.scenario.draft.filter(|_| way == Way::Drafted);
        let models: Vec<&Path> = small.into_iter().chain([model]).collect();
        let opened = layers::open(&weights, &models, self.device, self.report)?;
        let (mut of_draft, of_model) = opened.into_draft_and_model()?;
        let (cache, weight_bytes) = (of_model.cache().clone(), of_model.bytes());
        let (resident_bytes, streamed_bytes) = of_model.placed_bytes();

        let (tensors, _) = open(model)?;
        let decoder = Decoder::new(tensors, Box::new(of_model)).map_err(failed(model))?;
        let context = decoder.config().context.min(self.prompt().len() + tokens + 1);
        let mut session = Session::new(decoder, context);
        if way == Way::Drafted {
            let draft: Box<dyn Draft> = match (small, of_draft.take()) {
                (Some(path), Some(linears)) => {
                    let (tensors, _) = open(path)?;
                    let decoder = Decoder::new(tensors, Box::new(linears)).map_err(failed(path))?;
                    Box::new(DraftModel::new(decoder, context))
                }
                _ => Box::new(Ngrams::default()),
            };
            session = session.with_draft(draft, DRAFT_TOKENS);
        }
        let before = cache.stats().bytes_loaded;
        let told = self.write(way, &mut session).map_err(failed(model))?;
        let loaded_bytes = cache.stats().bytes_loaded - before;
        let told = Told { resident_bytes, streamed_bytes, loaded_bytes, ..told };
        Ok((told, session.into_decoder(), weight_bytes))
    }

    fn prompt(&self) -> Vec<u32> {
        self.tokenizer.encode(self.scenario.prompt)
    }

    fn write(&self, way: Way, session: &mut Session) -> ork_llm::Result<Told> {
        session.prompt(&self.prompt())?;
        let start = Instant::now();
        let (mut text, mut first) = (String::new(), None);
        let mut stream = self.tokenizer.stream();
        let done = session.generate(
            &self.scenario.sampler,
            self.scenario.tokens,
            |token| self.tokenizer.is_end(token),
            |token| {
                first.get_or_insert_with(|| start.elapsed());
                text.push_str(&stream.push(token));
                ControlFlow::Continue(())
            },
        )?;
        text.push_str(&stream.finish());
        let time = start.elapsed();
        Ok(Told {
            way,
            resident_bytes: 0,
            streamed_bytes: 0,
            loaded_bytes: 0,
            first_token: first.unwrap_or(time),
            time,
            tokens: done.tokens,
            passes: done.passes,
            proposed: done.proposed,
            accepted: done.accepted,
            text,
        })
    }

    /// What a model says of the prompt and `text`, beside what f32 says.
    fn compare(&self, exact: &mut Decoder, mut found: Decoder, text: &str) -> Result<Quality> {
        let mut tokens = self.tokenizer.encode(&format!("{}{text}", self.scenario.prompt));
        tokens.truncate(exact.config().context);
        let path = self.scenario.model;
        let mut wanted = Vec::new();
        read_text(exact, &tokens, |logits, _| wanted.extend_from_slice(logits))
            .map_err(failed(path))?;
        let mut wanted = wanted.chunks_exact(exact.config().vocabulary);
        let mut quality = Quality::default();
        read_text(&mut found, &tokens, |logits, next| {
            if let Some(wanted) = wanted.next() {
                quality.add(wanted, logits, next);
            }
        })
        .map_err(failed(path))?;
        Ok(quality)
    }
}

/// Tokens that a draft proposes at a time.
const DRAFT_TOKENS: usize = 4;
