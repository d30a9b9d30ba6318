//! The recordings' files: calls to the vendor driver and its answers.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// One file of recordings.
#[derive(Clone, Debug, Deserialize)]
pub struct Trace {
    /// The driver; none for the vendor's.
    #[serde(default)]
    pub driver: String,
    /// Kernel options in words; `CONFIG_HZ=` is looked for.
    #[serde(default)]
    pub hz: String,
    /// Name of the file's group.
    #[serde(default)]
    pub group: String,
    /// Scenarios, each from a freshly booted machine.
    pub scenarios: Vec<Scenario>,
}

/// A sequence of steps on a fresh machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Scenario {
    /// Name.
    pub name: String,
    /// The machine.
    #[serde(default)]
    pub config: Setup,
    /// False when the recording process was killed by the kernel after the last step.
    #[serde(default = "yes")]
    pub completed: bool,
    /// Which outcomes may differ between runs.
    #[serde(default)]
    pub racy: Option<String>,
    /// What the stand-in for the cores logged: one line per start.
    #[serde(default)]
    pub device_log: Vec<String>,
    /// What the kernel logged: lines, or events whose innermost function is the line.
    #[serde(default, deserialize_with = "lines")]
    pub kernel_log: Vec<String>,
    /// How the scenario ended, when it is not a normal end.
    #[serde(default)]
    pub ended: Option<String>,
    /// Steps in order of completion.
    pub steps: Vec<Step>,
}

/// Lines of a log, or its events.
fn lines<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let line = |entry: Value| match entry {
        Value::String(line) => line,
        event => {
            let inner = event.get("stack").and_then(|stack| stack.get(0)?.as_str());
            let what = event.get("what").and_then(Value::as_str);
            inner.or(what).unwrap_or_default().to_owned()
        }
    };
    Ok(Vec::<Value>::deserialize(from)?.into_iter().map(line).collect())
}

/// Milliseconds, with or without a fraction.
fn millis<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.map(|millis| millis as u64))
}

fn yes() -> bool {
    true
}

/// The machine of a scenario.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Setup {
    /// Whether there is an IOMMU.
    #[serde(default)]
    pub iommu: Value,
    /// Domains: real, stub, or only 0.
    #[serde(default)]
    pub domains: String,
    /// Whether fences were built in.
    #[serde(default)]
    pub fence: Value,
    /// SRAM, in words that begin with its size, or false.
    #[serde(default)]
    pub sram: Value,
    /// The mainline driver in words.
    #[serde(default)]
    pub driver: String,
    /// Kernel and driver in words.
    #[serde(default)]
    pub kernel: String,
    /// Boot parameters; `rig.rst_us=` is how long a reset line takes.
    #[serde(default)]
    pub cmdline: String,
}

/// One step.
#[derive(Clone, Debug, Deserialize)]
pub struct Step {
    /// What is done.
    pub op: String,
    /// The step's own name.
    #[serde(default)]
    pub step: String,
    /// The thread that does it; none for the main one.
    #[serde(default)]
    pub thread: Option<String>,
    /// The file that it is done on.
    #[serde(default)]
    pub fd: Option<String>,
    /// Request word.
    #[serde(default)]
    pub req: Option<String>,
    /// Fields handed in.
    #[serde(rename = "in", default)]
    pub input: Map<String, Value>,
    /// What came of it.
    #[serde(default)]
    pub expect: Map<String, Value>,
    /// How each field that changed is compared.
    #[serde(rename = "match", default)]
    pub compare: Value,
    /// What was observed.
    #[serde(default)]
    pub value: Value,
    /// A remark.
    #[serde(default)]
    pub text: Option<String>,
    /// What the stand-ins for the hardware counted.
    #[serde(default)]
    pub internal_state: Value,
    /// The object whose address was handed out again.
    #[serde(default)]
    pub addr_reused_from: Option<String>,
    /// When it began, in milliseconds.
    #[serde(default, deserialize_with = "millis")]
    pub at_ms: Option<u64>,
    /// How long it took.
    #[serde(default)]
    pub us: Option<u64>,
}

impl Step {
    /// How a field is compared: `exact` where nothing is said.
    pub(crate) fn rule(&self, field: &str) -> &str {
        self.compare.get(field).and_then(Value::as_str).unwrap_or("exact")
    }

    /// An input as text.
    pub(crate) fn text(&self, field: &str) -> Option<&str> {
        self.input.get(field).and_then(Value::as_str)
    }

    /// An input as a number.
    pub(crate) fn number(&self, field: &str) -> Option<u64> {
        self.input.get(field).and_then(number)
    }

    /// The errno expected, `"0"` for success.
    pub(crate) fn errno(&self) -> Option<&str> {
        self.expect.get("errno").and_then(Value::as_str)
    }
}

/// A number, written as one or as text in decimal or hexadecimal. Negative ones as their bits.
pub(crate) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => {
            number.as_u64().or_else(|| number.as_i64().map(i64::cast_unsigned))
        }
        Value::String(text) => match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        },
        Value::Bool(flag) => Some(u64::from(*flag)),
        _ => None,
    }
}

/// The number that follows `key` in a text.
pub(crate) fn after(text: &str, key: &str) -> Option<u64> {
    let rest = &text[text.find(key)? + key.len()..];
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}
