//! Text that a terminal only shows.

use std::borrow::Cow;

/// `text` with every control character but line feed and tab as an escape: names in files of others
/// can neither move the cursor nor rename the window.
///
/// ```
/// use ork::output::plain;
///
/// assert_eq!(plain("blk.0\t4096\n"), "blk.0\t4096\n");
/// assert_eq!(plain("\u{1b}[2Jblk.0"), "\\u{1b}[2Jblk.0");
/// ```
pub fn plain(text: &str) -> Cow<'_, str> {
    let acts = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    Cow::Owned(out)
}
