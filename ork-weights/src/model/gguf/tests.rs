//! Every refusal of the header parser, by name.

use super::*;

/// Builds headers, right or wrong.
#[derive(Clone, Default)]
struct Builder {
    bytes: Vec<u8>,
}

impl Builder {
    fn new(version: u32, tensors: u64, entries: u64) -> Builder {
        Builder::default().raw(b"GGUF").u32(version).u64(tensors).u64(entries)
    }

    fn raw(mut self, bytes: &[u8]) -> Builder {
        self.bytes.extend(bytes);
        self
    }

    fn u32(self, value: u32) -> Builder {
        self.raw(&value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Builder {
        self.raw(&value.to_le_bytes())
    }

    fn text(self, text: &str) -> Builder {
        self.u64(text.len() as u64).raw(text.as_bytes())
    }

    fn tensor(self, name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Builder {
        let mut with = self.text(name).u32(dimensions.len() as u32);
        for dimension in dimensions {
            with = with.u64(*dimension);
        }
        with.u32(kind).u64(offset)
    }

    /// The header padded to 32, and so many bytes of data.
    fn data(mut self, bytes: usize) -> Builder {
        self.bytes.resize(self.bytes.len().next_multiple_of(32) + bytes, 7);
        self
    }

    fn parse(&self) -> Result<Gguf, GgufError> {
        Gguf::parse(&self.bytes)
    }
}

fn one_tensor(dimensions: &[u64], kind: u32, offset: u64) -> Builder {
    Builder::new(3, 1, 0).tensor("t", dimensions, kind, offset).data(128)
}

#[test]
fn versions_2_and_3_are_read_with_every_value_type() {
    for version in [2, 3] {
        let file = Builder::new(version, 2, 14)
            .text("a")
            .u32(0)
            .raw(&[1])
            .text("b")
            .u32(1)
            .raw(&[0xff])
            .text("c")
            .u32(2)
            .raw(&[1, 1])
            .text("d")
            .u32(3)
            .raw(&[0xfe, 0xff])
            .text("e")
            .u32(4)
            .u32(5)
            .text("f")
            .u32(5)
            .u32(u32::MAX)
            .text("g")
            .u32(6)
            .raw(&1.5f32.to_le_bytes())
            .text("h")
            .u32(7)
            .raw(&[1])
            .text("i")
            .u32(8)
            .text("text")
            .text("j")
            .u32(9)
            .u32(9)
            .u64(2)
            .u32(8)
            .u64(1)
            .text("in")
            .u32(4)
            .u64(2)
            .u64(0)
            .text("k")
            .u32(10)
            .u64(u64::MAX)
            .text("l")
            .u32(11)
            .u64(u64::MAX)
            .text("m")
            .u32(12)
            .raw(&2.5f64.to_le_bytes())
            .text("general.alignment")
            .u32(4)
            .u32(32)
            .tensor("first", &[4, 2], 0, 0)
            .tensor("second", &[32], 8, 32)
            .data(66);
        let gguf = file.parse().unwrap();
        assert_eq!((gguf.version(), gguf.alignment()), (version, 32));
        let value = |key| gguf.get(key).unwrap().clone();
        assert_eq!(value("b"), Value::Signed(-1));
        assert_eq!(value("d"), Value::Signed(-2));
        assert_eq!(value("g"), Value::Float(1.5));
        assert_eq!(value("h"), Value::Bool(true));
        let nested = gguf.array("j").unwrap();
        assert_eq!((nested.element_type(), nested.len()), (9, 2));
        assert!(nested.strings().is_none() && nested.integers().is_none());
        assert_eq!(value("m"), Value::Float(2.5));
        assert_eq!(
            (gguf.number("e"), gguf.number("f"), gguf.number("c")),
            (Some(5), None, Some(257))
        );
        assert_eq!((gguf.text("i"), gguf.text("a")), (Some("text"), None));
        assert_eq!(gguf.number("k"), Some(u64::MAX));
        let second = gguf.tensor("second").unwrap();
        assert_eq!(second.range(), gguf.data_start() + 32..gguf.data_start() + 66);
        assert_eq!(second.kind(), Some(TensorType::Q8_0));
        assert_eq!(gguf.tensors().len(), 2);
        // Any cut is noticed.
        for length in 0..file.bytes.len() {
            assert!(Gguf::parse(&file.bytes[..length]).is_err(), "{length}");
        }
    }
}

#[test]
fn what_is_no_gguf() {
    assert_eq!(Gguf::parse(b"PK\x03\x04..."), Err(GgufError::Magic { found: *b"PK\x03\x04" }));
    assert_eq!(Builder::new(1, 0, 0).parse(), Err(GgufError::Version { version: 1 }));
    assert_eq!(Builder::new(4, 0, 0).parse(), Err(GgufError::Version { version: 4 }));
    assert_eq!(Builder::new(3 << 24, 0, 0).parse(), Err(GgufError::BigEndian));
    assert!(matches!(Gguf::parse(b"GG"), Err(GgufError::Truncated { what: "magic", .. })));
}

#[test]
fn counts_and_lengths_beyond_the_file() {
    let huge = Builder::new(3, 0, u64::MAX).parse();
    assert!(matches!(huge, Err(GgufError::Count { what: "metadata entries", .. })));
    let huge = Builder::new(3, 1 << 60, 0).data(64).parse();
    assert!(matches!(huge, Err(GgufError::Count { what: "tensors", .. })));
    let key = Builder::new(3, 0, 1).u64(u64::MAX).data(64).parse();
    assert!(matches!(key, Err(GgufError::Truncated { what: "metadata key", .. })));
    let array =
        |kind, len| Builder::new(3, 0, 1).text("k").u32(9).u32(kind).u64(len).data(64).parse();
    assert_eq!(array(12, u64::MAX), Err(GgufError::Overflow { what: "array" }));
    assert!(matches!(array(0, 1 << 40), Err(GgufError::Truncated { what: "array", .. })));
    assert!(matches!(array(8, u64::MAX), Err(GgufError::Count { what: "array elements", .. })));
    assert!(matches!(array(9, 1 << 50), Err(GgufError::Count { what: "array elements", .. })));
}

#[test]
fn values_that_are_none() {
    let value = |kind| Builder::new(3, 0, 1).text("k").u32(kind);
    assert_eq!(value(13).data(8).parse(), Err(GgufError::ValueType { key: "k".into(), kind: 13 }));
    let element = value(9).u32(99).u64(1).data(8).parse();
    assert_eq!(element, Err(GgufError::ValueType { key: "k".into(), kind: 99 }));
    assert_eq!(
        value(7).raw(&[2]).data(8).parse(),
        Err(GgufError::Bool { key: "k".into(), value: 2 })
    );
    let mut deep = value(9);
    for _ in 0..10_000 {
        deep = deep.u32(9).u64(1);
    }
    assert_eq!(deep.data(64).parse(), Err(GgufError::Depth { key: "k".into(), max: 4 }));
    let twice = Builder::new(3, 0, 2).text("k").u32(0).raw(&[1]).text("k").u32(0).raw(&[1]);
    assert_eq!(twice.parse(), Err(GgufError::DuplicateKey { key: "k".into() }));
    let key = Builder::new(3, 0, 1).u64(2).raw(&[0xff, 0xfe]).data(32).parse();
    assert!(matches!(key, Err(GgufError::NotUtf8 { what: "metadata key", .. })));
}

#[test]
fn alignments() {
    let aligned = |bytes| Builder::new(3, 0, 1).text("general.alignment").u32(4).u32(bytes).parse();
    assert_eq!(aligned(64).unwrap().alignment(), 64);
    for bytes in [0, 24, 33, u32::MAX] {
        let value = Value::Unsigned(bytes.into());
        assert_eq!(aligned(bytes), Err(GgufError::Alignment { value }));
    }
    let text = Builder::new(3, 0, 1).text("general.alignment").u32(8).text("32").parse();
    assert!(matches!(text, Err(GgufError::Alignment { .. })));
}

#[test]
fn tensors_that_cannot_be() {
    let reason = |file: Builder| match file.parse() {
        Err(GgufError::Tensor { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert!(reason(one_tensor(&[], 0, 0)).contains("0 dimensions"));
    assert!(reason(one_tensor(&[1; 5], 0, 0)).contains("5 dimensions"));
    assert!(reason(one_tensor(&[4, 0], 0, 0)).contains("is 0"));
    assert!(reason(one_tensor(&[1 << 40, 1 << 40], 0, 0)).contains("more elements"));
    assert!(reason(one_tensor(&[1 << 62], 0, 0)).contains("no whole blocks"));
    assert!(reason(one_tensor(&[1 << 40, 1 << 22], 0, 0)).contains("more bytes"));
    assert!(reason(one_tensor(&[33], 8, 0)).contains("no whole blocks of Q8_0"));
    assert!(reason(one_tensor(&[4], 0, 8)).contains("no multiple of 32"));
    let named = |name: &str| Builder::new(3, 1, 0).tensor(name, &[4], 0, 0).data(128).parse();
    assert!(matches!(named(""), Err(GgufError::NameLength { bytes: 0, .. })));
    let long = "n".repeat(70_000);
    assert!(matches!(named(&long), Err(GgufError::NameLength { bytes: 70_000, .. })));
}

#[test]
fn tensors_that_lie_wrong() {
    assert!(matches!(
        one_tensor(&[33], 0, 0).parse(),
        Err(GgufError::PastEnd { bytes: 132, offset: 0, .. })
    ));
    assert!(matches!(one_tensor(&[4], 0, u64::MAX - 31).parse(), Err(GgufError::PastEnd { .. })));
    let two = |second: u64| {
        Builder::new(3, 2, 0)
            .tensor("a", &[16], 0, 0)
            .tensor("b", &[16], 0, second)
            .data(256)
            .parse()
    };
    assert!(two(64).is_ok());
    assert_eq!(two(32), Err(GgufError::Overlap { first: "a".into(), second: "b".into() }));
    assert!(matches!(two(0), Err(GgufError::Overlap { .. })));
    let twice =
        Builder::new(3, 2, 0).tensor("a", &[8], 0, 0).tensor("a", &[8], 0, 32).data(256).parse();
    assert_eq!(twice, Err(GgufError::DuplicateTensor { name: "a".into() }));
}

#[test]
fn an_unknown_type_is_left_to_whoever_wants_the_tensor() {
    let gguf = one_tensor(&[4, 4], 77, 0).parse().unwrap();
    assert_eq!((gguf.tensors()[0].kind(), gguf.tensors()[0].bytes), (None, 0));
}

#[test]
fn arrays_keep_every_byte_and_sign() {
    let array = |kind: u32, len: u64, raw: &[u8]| {
        let file = Builder::new(3, 0, 1).text("k").u32(9).u32(kind).u64(len).raw(raw).data(0);
        file.parse().unwrap().array("k").unwrap().clone()
    };
    // Pieces of characters are not UTF-8.
    let pieces: [&[u8]; 4] = [b"\xe2\x96", b"", b"\x81\0", b"last"];
    let mut raw = Vec::new();
    for piece in pieces {
        raw.extend((piece.len() as u64).to_le_bytes());
        raw.extend(piece);
    }
    let strings = array(8, 4, &raw);
    assert_eq!(strings.strings().unwrap().collect::<Vec<_>>(), pieces);
    assert!(strings.integers().is_none() && strings.floats().is_none());

    let integers = |kind, raw: &[u8], width| {
        let array = array(kind, (raw.len() / width) as u64, raw);
        assert!(array.floats().is_none() && array.strings().is_none());
        array.integers().unwrap().collect::<Vec<_>>()
    };
    assert_eq!(integers(0, &[0, 255], 1), [0, 255]);
    assert_eq!(integers(1, &[127, 255], 1), [127, -1]);
    assert_eq!(integers(7, &[1, 0], 1), [1, 0]);
    assert_eq!(integers(2, &[0xfe, 0xff], 2), [0xfffe]);
    assert_eq!(integers(3, &[0xfe, 0xff], 2), [-2]);
    assert_eq!(integers(5, &i32::MIN.to_le_bytes(), 4), [i32::MIN.into()]);
    assert_eq!(integers(10, &u64::MAX.to_le_bytes(), 8), [u64::MAX.into()]);
    assert_eq!(integers(11, &i64::MIN.to_le_bytes(), 8), [i64::MIN.into()]);

    let singles = array(6, 2, &[1.5f32, -0.0].map(f32::to_le_bytes).concat());
    assert_eq!(singles.floats().unwrap().collect::<Vec<_>>(), [1.5, -0.0]);
    let doubles = array(12, 1, &0.1f64.to_le_bytes());
    assert_eq!(doubles.floats().unwrap().collect::<Vec<_>>(), [0.1f32]);
    assert!(array(6, 0, &[]).is_empty());
}

#[test]
fn strings_that_are_no_text_are_kept() {
    let file = Builder::new(3, 0, 1).text("k").u32(8).u64(2).raw(b"\xff\xfe").data(0);
    let gguf = file.parse().unwrap();
    assert_eq!(gguf.get("k"), Some(&Value::Bytes(b"\xff\xfe"[..].into())));
    assert_eq!(gguf.text("k"), None);
}
