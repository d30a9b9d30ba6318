//! Packs written, interrupted, read and upgraded.

use arbitrary::{Arbitrary, Result, Unstructured};
use ork_weights::pack::{Pack, PackWriter, WriterOptions, upgrade, verify};

use crate::spec::{Spec, folder};

/// What is written must be read as it was given; an interrupted writing must end in the same bytes;
/// another version of the pack must hold the same weights.
pub fn pack_roundtrip(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok((spec, stop, version)) = read(&mut u) else { return };
    let folder = folder().expect("a temporary folder");
    let path = folder.path().join("whole");
    spec.write(&path).expect("the pack is sound");
    let pack = Pack::open(&path).expect("what was written opens");
    assert_eq!(pack.version(), spec.options.version);
    assert_eq!(pack.identity(), spec.identity.as_ref());
    assert_eq!(pack.recipe(), Some(spec.options.recipe));
    assert_eq!(pack.entries().len(), spec.weights.len());
    assert!(verify(&pack, &|_| {}).is_sound());
    for (weight, entry) in spec.weights.iter().zip(pack.entries()) {
        assert!(weight.is(entry), "{weight:?} became {entry:?}");
        let scales = pack.scales(entry).expect("sound scales");
        assert!(weight.scales.is_empty() || scales == weight.scales);
        let mut tiles = vec![0; entry.layout().bytes() as usize];
        pack.load_into(entry, &mut tiles).expect("sound codes");
        assert!(!entry.dtype.is_plain() || tiles == weight.blob);
    }

    let again = folder.path().join("again");
    let create = || {
        PackWriter::create(&again, spec.identity.as_ref(), spec.options.clone()).expect("resumes")
    };
    let mut writer = create();
    spec.add(&mut writer, stop).expect("the first weights");
    drop(writer);
    let mut writer = create();
    let kept = if spec.identity.is_some() { stop.min(spec.weights.len()) } else { 0 };
    assert_eq!(writer.resumed() as usize, kept);
    spec.add(&mut writer, usize::MAX).expect("the other weights");
    writer.finish().expect("the same pack");
    let [whole, again] = [&path, &again].map(|path| std::fs::read(path).expect("written"));
    assert!(whole == again, "an interruption shows");

    let other = folder.path().join("other");
    let options = WriterOptions { version, ..WriterOptions::default() };
    upgrade(&pack, &other, options, |_| {}).expect("another version");
    let other = Pack::open(&other).expect("it opens");
    assert_eq!(pack.entries().len(), other.entries().len());
    for (one, two) in pack.entries().iter().zip(other.entries()) {
        assert_eq!((&one.name, one.k, one.n, one.dtype), (&two.name, two.k, two.n, two.dtype));
        let mut tiles = [one, two].map(|entry| vec![0; entry.layout().bytes() as usize]);
        pack.load_into(one, &mut tiles[0]).expect("loads");
        other.load_into(two, &mut tiles[1]).expect("loads");
        assert!(tiles[0] == tiles[1]);
        assert!(pack.scales(one).expect("scales") == other.scales(two).expect("scales"));
    }
}

fn read(u: &mut Unstructured<'_>) -> Result<(Spec, usize, u32)> {
    Ok((Spec::arbitrary(u)?, u.int_in_range(0..=4)?, *u.choose(&[2, 3, 5, 7])?))
}
