//! Settings from the environment: the one place that reads them.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::open::Access;

/// Budget when nothing else is said: 3072 MiB, which leaves a quarter of a domain's 4 GiB for
/// scratch, activations and the holes between.
pub(crate) const DEFAULT_BUDGET: u64 = 3072 << 20;

/// Which policy evicts.
///
/// ```
/// use ork_cache::environment::PolicyKind;
///
/// assert_eq!("pinned-ring".parse(), Ok(PolicyKind::PinnedRing)); // a dash does too
/// assert_eq!(PolicyKind::default().to_string(), "pinned_ring");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// A set that stays and a ring: for dense models.
    #[default]
    PinnedRing,
    /// Least recently used: what the C project does.
    Lru,
    /// Least frequently used, by counts that fade: for experts.
    Lfu,
}

/// What the environment says.
///
/// ```
/// use ork_cache::environment::{Environment, PolicyKind};
///
/// let env = Environment::from_lookup(|name| match name {
///     "ORK_WCACHE_BUDGET_MB" => Some("40".into()),
///     "ORK_CACHE_POLICY" => Some("lru".into()),
///     _ => None,
/// })?;
/// assert_eq!((env.budget, env.policy), (40 << 20, Some(PolicyKind::Lru)));
/// # Ok::<(), ork_cache::environment::BadSetting>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// `ORK_PERSIST`: path of the pack; what `1` and `0` mean, [`Kept`](crate::kept::Kept) says.
    pub pack: Option<PathBuf>,
    /// `ORK_WCACHE_BUDGET_MB`, in bytes.
    pub budget: u64,
    /// `ORK_EVICT_SRC`: drop the source's pages once a weight has been converted: `1`, or `0` for
    /// not; also `yes`, `no`, `true`, `false`, `on`, `off`.
    pub evict_source: bool,
    /// `ORK_CACHE_POLICY`.
    pub policy: Option<PolicyKind>,
    /// `ORK_ACCESS`: how weights are read.
    pub access: Access,
}

/// A variable with a value that means nothing.
///
/// ```
/// use ork_cache::environment::Environment;
///
/// let bad = Environment::from_lookup(|name| (name == "ORK_WCACHE_BUDGET_MB").then(|| "lots".into()));
/// let text = bad.unwrap_err().to_string();
/// assert!(text.contains("ORK_WCACHE_BUDGET_MB") && text.contains("lots"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value:?} is not understood: {expected}")]
pub struct BadSetting {
    /// Name of the variable.
    pub name: &'static str,
    /// Its value.
    pub value: OsString,
    /// What it may be.
    pub expected: &'static str,
}

impl Environment {
    /// The environment of this process.
    ///
    /// ```
    /// use ork_cache::environment::Environment;
    ///
    /// match Environment::read() {
    ///     Ok(environment) => assert!(environment.budget > 0),
    ///     Err(bad) => println!("{bad}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// The first variable whose value means nothing.
    pub fn read() -> Result<Environment, BadSetting> {
        Environment::from_lookup(std::env::var_os)
    }

    /// The same from any source of variables. Empty values count as unset.
    ///
    /// ```
    /// use ork_cache::environment::Environment;
    ///
    /// let environment = Environment::from_lookup(|_| None)?;
    /// assert_eq!(environment.budget, 3072 << 20);
    /// # Ok::<(), ork_cache::environment::BadSetting>(())
    /// ```
    ///
    /// # Errors
    /// The first variable whose value means nothing.
    pub fn from_lookup(
        lookup: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Environment, BadSetting> {
        let set = |name| lookup(name).filter(|v| !v.is_empty());
        let parse = |name, expected, value: OsString| {
            let bad = BadSetting { name, value, expected };
            match bad.value.to_str() {
                Some(text) => Ok((text.trim().to_owned(), bad)),
                None => Err(bad),
            }
        };
        let budget = match set("ORK_WCACHE_BUDGET_MB") {
            None => DEFAULT_BUDGET,
            Some(value) => {
                let expected = "a number of MiB above 0";
                let (text, bad) = parse("ORK_WCACHE_BUDGET_MB", expected, value)?;
                let mib = text.parse::<u64>().ok().filter(|&m| m > 0);
                mib.and_then(|m| m.checked_mul(1 << 20)).ok_or(bad)?
            }
        };
        let policy = match set("ORK_CACHE_POLICY") {
            None => None,
            Some(value) => {
                let (text, bad) = parse("ORK_CACHE_POLICY", PolicyKind::NAMES, value)?;
                Some(text.parse().map_err(|_| bad)?)
            }
        };
        let access = match set("ORK_ACCESS") {
            None => Access::Auto,
            Some(value) => {
                let (text, bad) = parse("ORK_ACCESS", "auto, buffered or direct", value)?;
                text.parse().map_err(|_| bad)?
            }
        };
        let evict_source = match set("ORK_EVICT_SRC") {
            None => false,
            Some(value) => {
                let (text, bad) = parse("ORK_EVICT_SRC", "1 (yes) or 0 (no)", value)?;
                match &*text.to_ascii_lowercase() {
                    "1" | "yes" | "true" | "on" => true,
                    "0" | "no" | "false" | "off" => false,
                    _ => return Err(bad),
                }
            }
        };
        Ok(Environment {
            pack: set("ORK_PERSIST").map(PathBuf::from),
            budget,
            evict_source,
            policy,
            access,
        })
    }
}

impl PolicyKind {
    /// All names, for messages.
    pub(crate) const NAMES: &'static str =
        "pinned_ring (for dense models), lru, or lfu (for experts)";

    /// Name as it is written in settings.
    ///
    /// ```
    /// use ork_cache::environment::PolicyKind;
    ///
    /// assert_eq!(PolicyKind::PinnedRing.name(), "pinned_ring");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            PolicyKind::PinnedRing => "pinned_ring",
            PolicyKind::Lru => "lru",
            PolicyKind::Lfu => "lfu",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No policy of that name.
///
/// ```
/// use ork_cache::environment::PolicyKind;
///
/// let error = "fifo".parse::<PolicyKind>().unwrap_err();
/// assert!(error.to_string().contains("lfu")); // all names are listed
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no policy is called {0:?}: it is one of {names}", names = PolicyKind::NAMES)]
pub struct UnknownPolicy(pub String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<PolicyKind, UnknownPolicy> {
        let known = [PolicyKind::PinnedRing, PolicyKind::Lru, PolicyKind::Lfu];
        let name = text.replace('-', "_");
        known.into_iter().find(|k| k.name() == name).ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Environment, BadSetting> {
        Environment::from_lookup(|n| (n == name).then(|| value.into()))
    }

    #[test]
    fn nothing_set_is_the_default() {
        let env = Environment::from_lookup(|_| None).unwrap();
        assert_eq!(env.budget, 3072 << 20);
        assert_eq!((env.pack, env.evict_source, env.policy), (None, false, None));
        assert_eq!(env.access, Access::Auto);
    }

    #[test]
    fn settings_are_read() {
        assert_eq!(with("ORK_PERSIST", "/a/b").unwrap().pack, Some("/a/b".into()));
        assert!(with("ORK_EVICT_SRC", "1").unwrap().evict_source);
        assert!(with("ORK_EVICT_SRC", "Yes").unwrap().evict_source);
        assert!(!with("ORK_EVICT_SRC", "0").unwrap().evict_source);
        let bad = with("ORK_EVICT_SRC", "foo").unwrap_err();
        assert!(bad.to_string().contains("ORK_EVICT_SRC=\"foo\""), "{bad}");
        assert!(!with("ORK_EVICT_SRC", "").unwrap().evict_source);
        assert_eq!(with("ORK_ACCESS", "direct").unwrap().access, Access::Direct);
        let bad = with("ORK_ACCESS", "mmap").unwrap_err();
        assert!(bad.to_string().contains("auto, buffered or direct"), "{bad}");
        for name in ["pinned_ring", "pinned-ring", "lru", "lfu"] {
            let kind: PolicyKind = name.parse().unwrap();
            assert_eq!(kind.to_string(), name.replace('-', "_"));
        }
    }

    #[test]
    fn what_means_nothing_is_refused_by_name() {
        for value in ["0", "-1", "x", "99999999999999999999", "20000000000000"] {
            let error = with("ORK_WCACHE_BUDGET_MB", value).unwrap_err();
            assert!(error.to_string().contains(value), "{error}");
        }
        for value in ["fifo", "next_use", "s3fifo"] {
            let error = with("ORK_CACHE_POLICY", value).unwrap_err().to_string();
            assert!(error.contains(value) && error.contains("lfu (for experts)"), "{error}");
        }
    }
}
