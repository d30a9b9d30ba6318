//! Vocabularies and templates of a few tokens, without a model.

mod common;

use common::gguf::Model;
use ork_llm::{ChatTemplate, DraftModel, Error, Message, Role, Tokenizer};
use ork_weights::model::gguf::Tensors;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

fn tensors(model: Model) -> Tensors {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    model.tensor("token_embd.weight", &[32, 32], 0.0, 1.0).write(file.path());
    Tensors::open(file.path()).unwrap()
}

/// Bytes as pairs merge them, with tokens of all kinds.
fn byte_pairs() -> Model {
    byte_pairs_with("<|start|>")
}

fn byte_pairs_with(second: &str) -> Model {
    // `Ġ` stands for a space, `Ċ` for the end of a line, `Ã` and `©` for the bytes of é.
    let tokens = [
        ("<|end|>", CONTROL),
        (second, CONTROL),
        ("a", NORMAL),
        ("b", NORMAL),
        ("ab", NORMAL),
        ("Ġ", NORMAL),
        ("Ġab", NORMAL),
        ("Ã", NORMAL),
        ("©", NORMAL),
        ("<tool>", USER_DEFINED),
        ("<", NORMAL),
        ("|", NORMAL),
        (">", NORMAL),
        ("e", NORMAL),
        ("n", NORMAL),
        ("d", NORMAL),
        ("Ċ", NORMAL),
    ];
    let texts: Vec<&[u8]> = tokens.iter().map(|token| token.0.as_bytes()).collect();
    Model::new("llama", 1)
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &texts)
        .numbers("tokenizer.ggml.token_type", &tokens.map(|token| token.1))
        .strings("tokenizer.ggml.merges", &["a b".as_bytes(), "Ġ ab".as_bytes()])
        .number("tokenizer.ggml.eos_token_id", 0)
}

#[test]
fn control_tokens_come_from_templates_alone() {
    let tokenizer = Tokenizer::new(tensors(byte_pairs()).header()).unwrap();
    assert_eq!(tokenizer.encode("ab ab"), [4, 6]);
    // What a user writes is text, but for what the vocabulary declares to be words.
    let text = [10, 11, 13, 14, 15, 11, 12];
    assert_eq!(tokenizer.encode("<|end|>"), text);
    assert_eq!(tokenizer.encode("a<tool>b"), [2, 9, 3]);
    assert_eq!(tokenizer.encode_with_control("ab<|end|> ab<tool>"), [4, 0, 6, 9]);
    assert!(tokenizer.encode_with_control("").is_empty());

    let source = "{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}<|start|>";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let say = |content: &str| {
        let message = Message { role: Role::User, content: content.into() };
        tokenizer.encode_chat(&template, &[message]).unwrap()
    };
    assert_eq!(say("ab"), [1, 4, 0, 1]);
    assert_eq!(say("<|end|>"), [&[1][..], &text, &[0, 1]].concat());
    assert_eq!(say(""), [1, 0, 1]);

    // Control tokens give no text, and end answers where they are known to.
    assert_eq!(tokenizer.decode(&[1, 4, 0]), "ab");
    assert!(tokenizer.is_end(0) && !tokenizer.is_end(1) && !tokenizer.is_end(4));
    // One that nobody has.
    assert_eq!(tokenizer.decode(&[4, 1000, 5]), "ab ");
}

#[test]
fn pieces_of_characters_come_whole() {
    let tokenizer = Tokenizer::new(tensors(byte_pairs()).header()).unwrap();
    let tokens = tokenizer.encode("aé");
    assert_eq!(tokens, [2, 7, 8]);
    let mut stream = tokenizer.stream();
    let pieces: Vec<String> = tokens.iter().map(|token| stream.push(*token)).collect();
    assert_eq!(pieces, ["a", "", "é"]);
    assert_eq!(stream.finish(), "");
    let mut broken = tokenizer.stream();
    assert_eq!((broken.push(7), broken.push(2)), (String::new(), "\u{fffd}a".into()));
    assert_eq!(broken.push(7) + &broken.finish(), "\u{fffd}");
    assert_eq!(tokenizer.decode(&[7, 2, 7]), "\u{fffd}a\u{fffd}");
}

/// Pieces with scores, and bytes for what they cannot spell.
fn pieces() -> Model {
    let mut tokens =
        vec![("<unk>".to_owned(), 2), ("<s>".into(), CONTROL), ("</s>".into(), CONTROL)];
    tokens.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    tokens.extend(["▁", "h", "i", "hi", "▁hi"].map(|piece| (piece.to_owned(), NORMAL)));
    let texts: Vec<&[u8]> = tokens.iter().map(|token| token.0.as_bytes()).collect();
    let types: Vec<i32> = tokens.iter().map(|token| token.1).collect();
    let mut scores = vec![0.0; 259];
    scores.extend([-3.0, -4.0, -5.0, -1.0, -0.5]);
    Model::new("llama", 1)
        .text("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &texts)
        .numbers("tokenizer.ggml.token_type", &types)
        .floats("tokenizer.ggml.scores", &scores)
        .number("tokenizer.ggml.bos_token_id", 1)
        .number("tokenizer.ggml.eos_token_id", 2)
}

#[test]
fn texts_begin_with_the_token_that_models_of_pieces_want() {
    let tokenizer = Tokenizer::new(tensors(pieces()).header()).unwrap();
    assert_eq!(tokenizer.encode("hi hi"), [1, 263, 263]);
    assert_eq!(tokenizer.encode(""), [1]);
    assert_eq!(tokenizer.encode("é"), [1, 259, 3 + 0xc3, 3 + 0xa9]);
    assert_eq!(tokenizer.decode(&[263, 3 + 0xc3, 3 + 0xa9]), " hié");
    // Once, even where a template writes it too.
    assert_eq!(tokenizer.encode_with_control("<s>hi"), [1, 263]);
    let none = pieces().bool("tokenizer.ggml.add_bos_token", false);
    let tokenizer = Tokenizer::new(tensors(none).header()).unwrap();
    assert_eq!(tokenizer.encode("hi"), [263]);
}

#[test]
fn templates_do_what_pythons_do() {
    let source = "\
{%- set ns = namespace(system='') %}
{% for message in messages %}
    {% if message['role'] == 'system' %}
        {% set ns.system = message.content.strip() %}
        {% continue %}
    {% endif %}
[{{ message.role.upper() }}|{{ ns.system }}] {{ message['content'].split('|')[0] | trim }}
{% endfor %}
{% if strftime_now is defined %}{{ strftime_now('%Y') | length }}{% endif %}
{{ {'a': [1, true]} | tojson }}{% if add_generation_prompt %}{{ eos_token }}>{% endif %}";
    let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
    let message = |role, content: &str| Message { role, content: content.into() };
    let messages = [message(Role::System, " be kind "), message(Role::User, " hello | you")];
    let rendered = template.render(&messages).unwrap();
    // Ends of lines after blocks are the blocks'.
    assert_eq!(rendered, "[USER|be kind] hello\n4{\"a\": [1, true]}</s>>");

    let header = tensors(byte_pairs().text("tokenizer.chat_template", "{{ eos_token }}"));
    let template = ChatTemplate::from_header(header.header()).unwrap().unwrap();
    assert_eq!(template.render(&[]).unwrap(), "<|end|>");
    assert!(ChatTemplate::from_header(tensors(byte_pairs()).header()).unwrap().is_none());
}

#[test]
fn templates_that_fail_say_why() {
    assert!(matches!(ChatTemplate::new("{% if %}", "", ""), Err(Error::Template { .. })));
    let source = "{{ raise_exception('Only user and assistant roles are supported!') }}";
    let error = ChatTemplate::new(source, "", "").unwrap().render(&[]).unwrap_err();
    assert!(error.to_string().contains("Only user and assistant roles"), "{error}");
    // A template that would never end.
    let endless =
        "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}";
    let error = ChatTemplate::new(endless, "", "").unwrap().render(&[]);
    assert!(matches!(error, Err(Error::Template { .. })));
}

#[test]
fn drafts_of_another_vocabulary_are_refused() {
    let tokenizer = |model: Model| Tokenizer::new(tensors(model).header()).unwrap();
    let (one, other) = (tokenizer(byte_pairs()), tokenizer(pieces()));
    DraftModel::check(&one, &tokenizer(byte_pairs())).unwrap();
    let error = DraftModel::check(&other, &one).unwrap_err().to_string();
    assert!(error.contains("another vocabulary") && error.contains("<unk>"), "{error}");
    // As many tokens, of which one is another.
    let other = tokenizer(byte_pairs_with("<|stop|>"));
    let error = DraftModel::check(&other, &one).unwrap_err().to_string();
    assert!(error.contains("token 1 ") && error.contains("<|stop|>"), "{error}");
}
