//! Texts of real models, which variables name: those of llama.cpp, and the same with drafts.

mod common;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use ork_cache::Store;
use ork_linear::Setup;
use ork_llm::{Decoder, Generated, Ngrams, Sampler, Session, Tokenizer};
use ork_weights::model::gguf::Tensors;
use ork_weights::model::{Model, OpenOptions};
use ork_weights::quantise::Tier;

/// Tokens of a text.
const TOKENS: usize = 24;

/// A session as `ork run --tier` opens one, all of the model being resident.
fn session(path: &Path, tier: Tier) -> Session {
    let model = Model::open(path, &OpenOptions::default()).unwrap();
    let store = Arc::new(Store::from_model(model, tier, None).unwrap());
    let device = rknpu::Device::simulated(Default::default()).unwrap();
    let mut setup = Setup::new(4 << 30);
    setup.npu_rows = usize::MAX; // the CPU gives the same bits, and is faster than the simulator
    let layers = ork_linear::open(&device, &[store], &setup).unwrap().remove(0);
    let tensors = Tensors::open(path).unwrap();
    Session::new(Decoder::new(tensors, Box::new(layers)).unwrap(), 512)
}

/// The most likely tokens behind a prompt, up to the end of the text.
fn write(
    session: &mut Session,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    most: usize,
) -> (Vec<u32>, Generated) {
    session.prompt(prompt).unwrap();
    let mut text = Vec::new();
    let take = |token| {
        text.push(token);
        ControlFlow::Continue(())
    };
    let stop = |token| tokenizer.is_end(token);
    let done = session.generate(&Sampler::greedy(), most, stop, take).unwrap();
    (text, done)
}

fn check(path: &Path, model: &str) {
    let golden = common::golden("logits/greedy.json");
    let tokenizer = Tokenizer::new(Tensors::open(path).unwrap().header()).unwrap();
    let mut session = session(path, Tier::Fp16);
    let texts = golden["prompts"].as_array().unwrap().iter().zip(golden[model].as_array().unwrap());
    let (mut equal, mut all) = (0, 0);
    for (prompt, wanted) in texts {
        let prompt = prompt.as_str().unwrap();
        let wanted: Vec<u32> =
            wanted.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let (found, _) = write(&mut session, &tokenizer, &tokenizer.encode(prompt), TOKENS);
        all += 1;
        match found == wanted {
            true => equal += 1,
            false => eprintln!("{model} {prompt:?}:\n  {found:?}\n  {wanted:?}"),
        }
    }
    eprintln!("{model}: {equal} of {all} texts are llama.cpp's");
    assert!(all == 24 && equal >= 23, "{equal} of {all}");
}

#[test]
fn fp16_writes_the_texts_of_llama_cpp() {
    for (variable, name) in [("ORK_TEST_SMOLLM2", "smollm2"), ("ORK_TEST_GEMMA", "gemma")] {
        if let Some(path) = common::model(variable) {
            check(&path, name);
        }
    }
}

/// A text that repeats itself, as code and tables do.
const REPEATING: &str =
    "The cat sat on the mat. The dog sat on the mat. The cow sat on the mat. The pig sat on";

#[test]
fn ngrams_save_passes_and_change_nothing() {
    let Some(path) = common::model("ORK_TEST_SMOLLM2") else { return };
    let tokenizer = Tokenizer::new(Tensors::open(&path).unwrap().header()).unwrap();
    let mut alone = session(&path, Tier::default());
    let mut drafted = session(&path, Tier::default()).with_draft(Box::new(Ngrams::default()), 6);
    let prompt = tokenizer.encode(REPEATING);
    let (wanted, without) = write(&mut alone, &tokenizer, &prompt, 64);
    let (found, done) = write(&mut drafted, &tokenizer, &prompt, 64);
    eprintln!(
        "{} of {} accepted, {} passes for {}",
        done.accepted, done.proposed, done.passes, without.passes
    );
    assert_eq!(found, wanted);
    assert_eq!(done.tokens, done.accepted + done.passes as usize);
    assert!(done.accepted > 0 && done.passes * 2 < without.passes, "{done:?}");
}
