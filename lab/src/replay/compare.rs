//! Recorded values against simulated ones.

use crate::replay::format::number;
use rustix::io::Errno;
use serde_json::Value;
use std::collections::HashMap;

/// Names of errnos, as the recordings write them.
const NAMES: &[(&str, Errno)] = &[
    ("EPERM", Errno::PERM),
    ("ENOENT", Errno::NOENT),
    ("EINTR", Errno::INTR),
    ("EIO", Errno::IO),
    ("ENXIO", Errno::NXIO),
    ("EBADF", Errno::BADF),
    ("EAGAIN", Errno::AGAIN),
    ("ENOMEM", Errno::NOMEM),
    ("EACCES", Errno::ACCESS),
    ("EFAULT", Errno::FAULT),
    ("EBUSY", Errno::BUSY),
    ("EEXIST", Errno::EXIST),
    ("ENODEV", Errno::NODEV),
    ("EINVAL", Errno::INVAL),
    ("EMFILE", Errno::MFILE),
    ("ENOTTY", Errno::NOTTY),
    ("ENOSPC", Errno::NOSPC),
    ("ENOSYS", Errno::NOSYS),
    ("EOPNOTSUPP", Errno::OPNOTSUPP),
    ("ETIMEDOUT", Errno::TIMEDOUT),
];

/// By how many timer ticks an errno that counts them may differ: 60 ms at 300 Hz, the recordings'
/// own tolerance for times.
const TICKS: i32 = 18;

/// An errno's name.
pub(crate) fn name(errno: Errno) -> String {
    let known = NAMES.iter().find(|(_, of)| *of == errno);
    known.map_or_else(|| format!("E{}", errno.raw_os_error()), |(name, _)| (*name).into())
}

/// The errno of a name.
pub(crate) fn errno(text: &str) -> Option<Errno> {
    NAMES.iter().find(|(name, _)| *name == text).map(|(_, errno)| *errno)
}

/// What a call returned, as the recordings write it.
pub(crate) fn outcome<T>(result: &Result<T, Errno>) -> String {
    result.as_ref().map_or_else(|errno| name(*errno), |_| "0".into())
}

/// Whether an outcome is the recorded one. A raw number (`E303`) is an elapsed time in disguise, see
/// the timeout with its top bit set.
pub(crate) fn same_outcome(recorded: &str, simulated: &str) -> bool {
    let raw = |text: &str| text.strip_prefix('E').and_then(|digits| digits.parse::<i32>().ok());
    let code = |text: &str| raw(text).or_else(|| errno(text).map(|errno| errno.raw_os_error()));
    match (raw(recorded), code(simulated)) {
        (Some(recorded), Some(simulated)) => {
            recorded.checked_sub(simulated).is_some_and(|late| (0..=TICKS).contains(&late))
        }
        _ => recorded == simulated,
    }
}

/// Tokens of the recording and what they stand for here: `obj#3`, `dmabuf:heap`, `fence@5`.
#[derive(Debug, Default)]
pub(crate) struct Tokens(HashMap<String, u64>);

impl Tokens {
    /// Whether a token stands for a value; a new token does from now on. None stands for 0.
    pub(crate) fn stands_for(&mut self, token: &str, value: u64) -> bool {
        value != 0 && *self.0.entry(token.to_owned()).or_insert(value) == value
    }

    pub(crate) fn get(&self, token: &str) -> Option<u64> {
        self.0.get(token).copied()
    }

    /// Lets a token stand for something else next.
    pub(crate) fn forget(&mut self, token: &str) {
        self.0.remove(token);
    }

    pub(crate) fn set(&mut self, token: &str, value: u64) {
        self.0.insert(token.to_owned(), value);
    }

    /// An input's value: a number, a token, or a literal in a token's clothes (`forged:0x1000`,
    /// `fd:4`).
    pub(crate) fn value(&self, value: &Value) -> Option<u64> {
        let Some(text) = value.as_str() else { return number(value) };
        if let Some(known) = self.get(text) {
            return Some(known);
        }
        let literal = text.split_once(':').map_or(text, |(_, literal)| literal);
        number(&Value::from(literal))
    }
}

/// Whether a field follows its rule. Rules that speak of fake hardware, and shapes of times, ask for
/// nothing that can be compared.
pub(crate) fn same_field(
    rule: &str,
    recorded: &Value,
    simulated: u64,
    tokens: &mut Tokens,
) -> bool {
    if rule.starts_with("fake-hardware") {
        return true;
    }
    if rule.starts_with("shape") {
        return if rule.contains("physical address") {
            simulated.is_multiple_of(4096) && (1..1 << 32).contains(&simulated)
        } else {
            simulated > 0
        };
    }
    match recorded.as_str() {
        Some(text) if rule == "token" || !text.starts_with("0x") => match number(recorded) {
            Some(literal) => literal == simulated,
            None => tokens.stands_for(text, simulated),
        },
        _ => number(recorded).is_some_and(|recorded| same_bits(recorded, simulated)),
    }
}

/// Negative numbers are recorded with a sign and come back in 32 bits.
fn same_bits(recorded: u64, simulated: u64) -> bool {
    recorded == simulated || (recorded > i64::MAX as u64 && recorded as u32 as u64 == simulated)
}
