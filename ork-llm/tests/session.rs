//! Texts do not depend on how they are computed, and end where they should.

mod common;

use common::{families, gguf::Model};
use ork_llm::{
    Decoder, Draft, DraftModel, End, Error, Generated, Ngrams, Reference, Sampler, Session,
};
use ork_weights::model::gguf::Tensors;
use std::ops::ControlFlow;

fn decoder(model: &Model) -> Decoder {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    model.write(file.path());
    let tensors = Tensors::open(file.path()).unwrap();
    let linears = Reference::f32(&tensors).unwrap();
    Decoder::new(tensors, Box::new(linears)).unwrap()
}

fn write(session: &mut Session, sampler: &Sampler, most: usize) -> (Vec<u32>, Generated) {
    let mut text = Vec::new();
    let take = |token| {
        text.push(token);
        ControlFlow::Continue(())
    };
    let done = session.generate(sampler, most, |_| false, take).unwrap();
    (text, done)
}

fn samplers() -> [Sampler; 3] {
    [Sampler::greedy(), Sampler::new(1.0, 1.0, 5).unwrap(), Sampler::new(0.6, 0.9, 6).unwrap()]
}

/// Proposes what is right, and now and then what is wrong.
struct Oracle {
    text: Vec<u32>,
    wrong: usize,
}

impl Draft for Oracle {
    fn propose(
        &mut self,
        text: &[u32],
        most: usize,
        _: &Sampler,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let next = self.text.iter().skip(text.len()).take(most);
        out.extend(next.enumerate().map(|(i, token)| match (text.len() + i) % self.wrong {
            0 => (token + 1) % families::VOCABULARY,
            _ => *token,
        }));
        Ok(())
    }
}

#[test]
fn drafts_change_the_passes_and_not_the_text() {
    let model = families::qwen3();
    for sampler in samplers() {
        let mut alone = Session::new(decoder(&model), 128);
        alone.prompt(&families::PROMPT).unwrap();
        let (wanted, done) = write(&mut alone, &sampler, 40);
        assert_eq!((done.passes, done.tokens, done.end), (40, 40, End::Length));

        let whole = [&families::PROMPT[..], &wanted].concat();
        let drafts: [(&str, Box<dyn Draft>); 5] = [
            ("always right", Box::new(Oracle { text: whole.clone(), wrong: 1000 })),
            ("often wrong", Box::new(Oracle { text: whole.clone(), wrong: 3 })),
            ("the model itself", Box::new(DraftModel::new(decoder(&model), 128))),
            ("another model", Box::new(DraftModel::new(decoder(&families::llama()), 128))),
            ("n-grams", Box::new(Ngrams::default())),
        ];
        for (name, draft) in drafts {
            let mut session = Session::new(decoder(&model), 128).with_draft(draft, 7);
            session.prompt(&families::PROMPT).unwrap();
            let (text, done) = write(&mut session, &sampler, 40);
            assert_eq!(text, wanted, "{name}, {sampler:?}");
            assert_eq!((done.tokens, session.tokens()), (40, &whole[..]));
            // A pass gives what was accepted, and one token more.
            assert_eq!(done.tokens, done.accepted + done.passes as usize, "{name}");
            if matches!(name, "always right" | "the model itself") {
                assert_eq!((done.passes, done.accepted), (5, done.proposed), "{name}");
            }
        }
    }
}

#[test]
fn blocks_and_earlier_turns_do_not_change_the_text() {
    let model = families::gemma3();
    let sampler = samplers()[1];
    let prompt: Vec<u32> = families::PROMPT.iter().cycle().take(50).copied().collect();
    let mut whole = Session::new(decoder(&model), 128);
    whole.prompt(&prompt).unwrap();
    let (wanted, done) = write(&mut whole, &sampler, 10);
    assert_eq!((done.prompt, done.passes), (50, 10));
    for block in [1, 7, 49, 50] {
        let mut session = Session::new(decoder(&model), 128).with_block(block);
        // Another text first, the same for 30 tokens.
        session.prompt(&[&prompt[..30], &[1, 2, 3]].concat()).unwrap();
        write(&mut session, &sampler, 5);
        session.prompt(&prompt).unwrap();
        let (text, done) = write(&mut session, &sampler, 10);
        assert_eq!((text, done.prompt), (wanted.clone(), 20), "{block}");
    }
}

#[test]
fn texts_end_where_they_should() {
    let model = families::llama();
    let greedy = Sampler::greedy();
    let mut session = Session::new(decoder(&model), 24);
    let take = |_| ControlFlow::Continue(());
    assert!(matches!(session.generate(&greedy, 1, |_| false, take), Err(Error::EmptyPrompt)));
    assert!(matches!(session.prompt(&[]), Err(Error::EmptyPrompt)));
    let full = session.prompt(&[1; 24]);
    assert!(matches!(full, Err(Error::PromptTooLong { tokens: 24, context: 24 })));
    session.prompt(&[1, families::VOCABULARY]).unwrap();
    let foreign = session.generate(&greedy, 1, |_| false, take);
    assert!(matches!(foreign, Err(Error::Token { token: families::VOCABULARY, .. })));

    session.prompt(&families::PROMPT).unwrap();
    let (text, done) = write(&mut session, &greedy, 100);
    assert_eq!((text.len(), done.end, session.tokens().len()), (10, End::Context, 24));

    // A token that ends the text is none of it.
    session.prompt(&families::PROMPT).unwrap();
    let stop = text.iter().position(|token| *token == text[4]).unwrap();
    let done = session.generate(&greedy, 100, |token| token == text[4], take).unwrap();
    assert_eq!((done.tokens, done.end), (stop, End::Stop));
    assert_eq!(session.tokens(), [&families::PROMPT[..], &text[..stop]].concat());

    // Nor is anything lost when nobody wants more.
    session.prompt(&families::PROMPT).unwrap();
    let done = session.generate(&greedy, 100, |_| false, |_| ControlFlow::Break(())).unwrap();
    assert_eq!((done.tokens, done.end), (1, End::Interrupted));
    let (rest, _) = write(&mut session, &greedy, 100);
    assert_eq!(rest, text[1..]);
}

#[test]
fn drafts_end_with_the_text() {
    // At the end of the context, of what is asked for, and at a token that ends the text.
    let model = families::llama();
    let greedy = Sampler::greedy();
    let mut alone = Session::new(decoder(&model), 24);
    alone.prompt(&families::PROMPT).unwrap();
    let (wanted, _) = write(&mut alone, &greedy, 100);
    for most in 1..=10 {
        let draft = DraftModel::new(decoder(&model), 24);
        let mut session = Session::new(decoder(&model), 24).with_draft(Box::new(draft), 4);
        session.prompt(&families::PROMPT).unwrap();
        let (text, done) = write(&mut session, &greedy, most);
        assert_eq!((&text[..], done.end), (&wanted[..most], End::Length));
        let (rest, done) = write(&mut session, &greedy, 100);
        assert_eq!((&rest[..], done.end), (&wanted[most..], End::Context));
    }
    let stop = wanted[5];
    let draft = DraftModel::new(decoder(&model), 24);
    let mut session = Session::new(decoder(&model), 24).with_draft(Box::new(draft), 4);
    session.prompt(&families::PROMPT).unwrap();
    let take = |_| ControlFlow::Continue(());
    let done = session.generate(&greedy, 100, |token| token == stop, take).unwrap();
    let end = wanted.iter().position(|token| *token == stop).unwrap();
    assert_eq!((done.tokens, done.end), (end, End::Stop));
}

#[test]
fn a_cache_of_another_model_is_refused() {
    let (mut one, other) = (decoder(&families::llama()), decoder(&families::gemma3()));
    let mut cache = other.cache(8);
    assert!(matches!(one.forward(&mut cache, &[1], 1), Err(Error::Setting { .. })));
}

/// The shares of all tokens behind `tokens`, at a temperature of 2.
fn shares(decoder: &mut Decoder, tokens: &[u32]) -> Vec<f64> {
    let mut cache = decoder.cache(64);
    let logits = decoder.forward(&mut cache, tokens, 1).unwrap();
    let shares: Vec<f64> = logits.iter().map(|logit| (f64::from(*logit) / 2.0).exp()).collect();
    let sum: f64 = shares.iter().sum();
    shares.into_iter().map(|share| share / sum).collect()
}

/// How far counts are from shares: χ² less what is expected of it, in units of its spread.
fn surprise(counts: &[f64], shares: &[f64]) -> f64 {
    let all: f64 = counts.iter().sum();
    let expected = shares.iter().map(|share| share * all);
    let (mut sum, mut bins) = (0.0, 0.0);
    for (count, expected) in counts.iter().zip(expected).filter(|(_, expected)| *expected >= 5.0) {
        sum += (count - expected).powi(2) / expected;
        bins += 1.0;
    }
    (sum - bins) / f64::sqrt(2.0 * bins)
}

#[test]
fn texts_of_a_draft_have_the_shares_of_the_model_alone() {
    let mut model = decoder(&families::qwen3());
    let first = shares(&mut model, &families::PROMPT);
    let mut second = vec![0.0; first.len()];
    for (token, share) in (0..).zip(&first) {
        let behind = [&families::PROMPT[..], &[token]].concat();
        let next = shares(&mut model, &behind);
        second.iter_mut().zip(next).for_each(|(sum, next)| *sum += share * next);
    }
    // A draft of another opinion, over many seeds.
    let mut other = decoder(&families::llama());
    let of_draft = shares(&mut other, &families::PROMPT);
    let mut session = Session::new(model, 64).with_draft(Box::new(DraftModel::new(other, 64)), 3);
    let mut counts = [vec![0.0; first.len()], vec![0.0; first.len()]];
    let (mut proposed, mut accepted) = (0, 0);
    for seed in 0..5000 {
        session.prompt(&families::PROMPT).unwrap();
        let (text, done) = write(&mut session, &Sampler::new(2.0, 1.0, seed).unwrap(), 2);
        counts.iter_mut().zip(text).for_each(|(counts, token)| counts[token as usize] += 1.0);
        (proposed, accepted) = (proposed + done.proposed, accepted + done.accepted);
    }
    assert!(proposed >= 5000 && accepted > 50 && accepted < proposed * 9 / 10, "{accepted}");
    for (counts, shares) in counts.iter().zip([&first, &second]) {
        let found = surprise(counts, shares);
        assert!(found.abs() < 4.0, "{found}");
    }
    // The test sees the shares of the draft, and of the place before.
    assert!(surprise(&counts[0], &of_draft) > 10.0 && surprise(&counts[1], &first) > 10.0);
}
