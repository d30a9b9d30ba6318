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
