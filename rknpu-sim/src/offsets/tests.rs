//! Offsets as recorded from the driver, and the holes that freed ones leave.

use super::*;

#[test]
fn packed_from_the_bottom_the_smallest_hole_first() {
    let mut offsets = Offsets::new();
    let at = |pages| FIRST + pages;
    assert_eq!(offsets.add(0, 9), None);
    // As recorded: 16 KiB, 4 KiB, 8 KiB.
    assert_eq!(offsets.add(4, 1), Some(at(0)));
    assert_eq!(offsets.add(1, 2), Some(at(4)));
    assert_eq!(offsets.add(2, 3), Some(at(5)));
    assert_eq!(offsets.at(at(4)), Some((2, 1)));
    assert_eq!(offsets.at(at(1)), None);
    offsets.remove(at(0));
    // The hole of four is smaller than what is left above.
    assert_eq!(offsets.add(3, 4), Some(at(0)));
    assert_eq!(offsets.add(1, 5), Some(at(3)));
    assert_eq!(offsets.add(1, 6), Some(at(7)));
}

#[test]
fn neighbouring_holes_become_one() {
    let mut offsets = Offsets::new();
    let taken: Vec<u64> = (0..6).filter_map(|object| offsets.add(1, object)).collect();
    for at in [1, 3, 2] {
        offsets.remove(taken[at]);
    }
    assert_eq!(offsets.add(3, 7), Some(taken[1]));
    offsets.remove(FIRST + 99);
    assert_eq!(offsets.at(taken[1]), Some((7, 3)));
    assert_eq!(offsets.add(PAGES, 8), None);
}
