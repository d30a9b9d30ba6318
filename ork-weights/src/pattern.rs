//! Names by patterns.

/// Whether `name` is of the form `pattern`, where `*` stands for any characters.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut rest) = name.strip_prefix(head) else { return false };
    let (middle, last) = tail.rsplit_once('*').unwrap_or(("", tail));
    // The earliest place for each part leaves the most for those after it.
    for part in middle.split('*') {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Whether `name` is of the form of one of `patterns`.
pub(crate) fn any(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, name))
}

/// Names at most.
const NEAREST: usize = 3;

/// Of `names` those that are most like `pattern`, nearest first; of those that differ in numbers alone
/// the first.
pub(crate) fn nearest<'a>(pattern: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let text: Vec<char> = pattern.chars().filter(|c| *c != '*').collect();
    let kind = |name: &str| name.replace(|c: char| c.is_ascii_digit(), "");
    let mut seen = std::collections::HashSet::new();
    let kinds = names.filter(|name| seen.insert(kind(name)));
    let mut near: Vec<(usize, &str)> = kinds.map(|name| (distance(&text, name), name)).collect();
    near.retain(|(distance, _)| *distance <= text.len() / 2);
    near.sort_by_key(|(distance, _)| *distance);
    near.into_iter().take(NEAREST).map(|(_, name)| name).collect()
}

/// Letters to add, leave out or change so that `text` is a part of `name`.
fn distance(text: &[char], name: &str) -> usize {
    let mut column: Vec<usize> = (0..=text.len()).collect();
    let mut least = text.len();
    for letter in name.chars() {
        let mut diagonal = 0; // a part may begin anywhere
        for (i, own) in text.iter().enumerate() {
            let change = diagonal + usize::from(*own != letter);
            diagonal = column[i + 1];
            column[i + 1] = change.min(diagonal + 1).min(column[i] + 1);
        }
        least = least.min(column[text.len()]);
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By trying every split.
    fn naive(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|at| naive(rest, &name[at..])),
            Some((first, rest)) => name.first() == Some(first) && naive(rest, &name[1..]),
        }
    }

    #[test]
    fn a_slip_of_the_fingers_is_near() {
        let names = ["blk.0.ffn_down.weight", "blk.1.ffn_down.weight", "blk.0.attn_q.weight"];
        assert_eq!(nearest("*fnn_down*", names.into_iter()), ["blk.0.ffn_down.weight"]);
        assert_eq!(nearest("*attn_k*", names.into_iter())[0], "blk.0.attn_q.weight");
        assert_eq!(nearest("*something*", names.into_iter()), [""; 0]);
        assert_eq!(nearest("*", names.into_iter()).len(), 2);
        let apart = |text: &str, name| distance(&text.chars().collect::<Vec<_>>(), name);
        assert_eq!(apart("abc", "xxabcxx"), 0);
        assert_eq!(apart("abc", "xxabxx"), 1);
        assert_eq!(apart("abc", ""), 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn patterns_match_as_by_trying(pattern in "[ab*]{0,6}", name in "[ab]{0,8}") {
            prop_assert_eq!(
                matches(&pattern, &name),
                naive(pattern.as_bytes(), name.as_bytes()),
                "{} {}", pattern, name
            );
        }
    }
}
