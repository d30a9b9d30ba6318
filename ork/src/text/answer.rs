//! An answer as it comes: text on standard output, figures on standard error.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ork_llm::{End, Generated, Sampler};
use serde::Serialize;

use super::TextModel;
use super::interrupt::is_interrupt;
use crate::ending::interrupt_asks_first;
use crate::error::{Error, Result};
use crate::output::{Report, plain_lines};

/// An answer and what it took.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) end: &'static str,
    pub(crate) prompt_tokens: usize,
    pub(crate) tokens: usize,
    pub(crate) passes: u64,
    pub(crate) proposed: usize,
    pub(crate) accepted: usize,
    pub(crate) first_token_seconds: f64,
    pub(crate) seconds: f64,
    /// Why a part of it could not be written; a reader that has gone is no reason.
    #[serde(skip)]
    lost: Option<io::Error>,
}

/// Has a model answer.
pub(crate) struct Teller {
    sampler: Sampler,
    most: usize,
    report: Report,
    terminal: bool,
    interrupted: Arc<AtomicBool>,
}

impl Teller {
    /// From here on the first Ctrl-C ends an answer, and one more the program.
    pub(crate) fn new(
        sampler: Sampler,
        most: usize,
        model: &TextModel,
        report: Report,
    ) -> Result<Teller> {
        let interrupted = model.interrupted.clone();
        interrupt_asks_first(&interrupted)?;
        Ok(Teller { sampler, most, report, terminal: io::stdout().is_terminal(), interrupted })
    }

    /// Forgets an interrupt that nothing has ended by: it was not about what comes now.
    pub(crate) fn forget_interrupt(&self) {
        self.interrupted.store(false, Ordering::Relaxed);
    }

    /// Answers a text: `tokens` whole, of which the model has computed what it had before.
    pub(crate) fn answer(
        &self,
        model: &mut TextModel,
        tokens: &[u32],
    ) -> Result<Answer, ork_llm::Error> {
        let TextModel { session, tokenizer, .. } = model;
        session.prompt(tokens)?;
        let (prompt, before) = (tokens.len() - session.computed(), session.decoder().passes());
        let start = Instant::now();
        let (mut text, mut first, mut lost, mut count) = (String::new(), None, None, 0);
        let mut show = |piece: &str| {
            let shown = self.show(piece);
            let going = shown.is_ok();
            lost = lost.take().or(shown.err()).filter(|e| e.kind() != io::ErrorKind::BrokenPipe);
            going
        };
        let mut stream = tokenizer.stream();
        let done = session.generate(
            &self.sampler,
            self.most,
            |token| tokenizer.is_end(token),
            |token| {
                first.get_or_insert_with(|| start.elapsed());
                count += 1;
                let piece = stream.push(token);
                text.push_str(&piece);
                match show(&piece) && !self.interrupted.load(Ordering::Relaxed) {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            },
        );
        let done = match done {
            // In the middle of a pass, such as one over a long prompt.
            Err(error) if is_interrupt(&error) => Generated {
                prompt,
                tokens: count,
                passes: session.decoder().passes() - before,
                proposed: 0,
                accepted: 0,
                end: End::Interrupted,
            },
            done => done?,
        };
        let rest = stream.finish();
        show(&rest);
        text.push_str(&rest);
        self.forget_interrupt();
        Ok(Answer { lost, ..Answer::new(text, &done, first, start.elapsed()) })
    }

    /// Ends the line of an answer that people read.
    pub(crate) fn end_line(&self) {
        if self.terminal {
            let _ = self.show("\n");
        }
    }

    fn show(&self, piece: &str) -> io::Result<()> {
        if self.report.json || piece.is_empty() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        match self.terminal {
            // What a model writes must not move somebody's cursor.
            true => {
                let shown: Vec<String> = piece.split('\t').map(plain_lines).collect();
                out.write_all(shown.join("\t").as_bytes())?;
            }
            false => out.write_all(piece.as_bytes())?,
        }
        out.flush()
    }
}

impl Answer {
    fn new(text: String, done: &Generated, first: Option<Duration>, took: Duration) -> Answer {
        Answer {
            text,
            end: match done.end {
                End::Stop => "stop",
                End::Length => "length",
                End::Context => "context",
                End::Interrupted => "interrupted",
            },
            prompt_tokens: done.prompt,
            tokens: done.tokens,
            passes: done.passes,
            proposed: done.proposed,
            accepted: done.accepted,
            first_token_seconds: first.unwrap_or(took).as_secs_f64(),
            seconds: took.as_secs_f64(),
            lost: None,
        }
    }

    /// The answer, if all of it could be written.
    pub(crate) fn written(mut self) -> Result<Answer> {
        self.lost.take().map_or(Ok(self), |error| Err(Error::Output(error)))
    }

    /// The figures, in a line for people.
    pub(crate) fn figures(&self) -> String {
        let rate = |count: usize, seconds: f64| match seconds > 0.0 && count > 0 {
            true => format!(" ({:.1}/s)", count as f64 / seconds),
            false => String::new(),
        };
        if (self.end, self.tokens) == ("interrupted", 0) {
            let (tokens, seconds) = (self.prompt_tokens, self.seconds);
            return format!(
                "prompt {tokens} tokens; interrupted after {seconds:.2} s, before the first token of the answer"
            );
        }
        let (first, rest) = (self.first_token_seconds, self.seconds - self.first_token_seconds);
        let mut line = format!(
            "prompt {} tokens{}, first token after {first:.2} s; text {} tokens{} in {} passes",
            self.prompt_tokens,
            rate(self.prompt_tokens, first),
            self.tokens,
            // The first one comes with the prompt.
            rate(self.tokens.saturating_sub(1), rest),
            self.passes,
        );
        if self.proposed > 0 {
            line += &format!("; {} of {} drafted tokens accepted", self.accepted, self.proposed);
        }
        match self.end {
            "length" => line += "; ended by --max-tokens",
            "context" => line += "; the context is full (--context)",
            "interrupted" => line += "; interrupted",
            _ => {}
        }
        line
    }
}
