//! Sizes as people write and read them.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
///
/// ```
/// use ork::size::Size;
///
/// assert_eq!("1.5GiB".parse(), Ok(Size(3 << 29)));
/// assert_eq!("64MB".parse(), Ok(Size(64_000_000)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Suffixes and what they multiply by, longest first.
const UNITS: [(&str, u64); 14] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
    ("", 1),
];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let lower = text.trim().to_ascii_lowercase();
        let wrong =
            || format!("{text:?} is no size: write bytes, or a number with KiB, MiB or GiB");
        // The last unit is empty, so one always fits.
        let (number, unit) = UNITS
            .iter()
            .find_map(|(suffix, unit)| Some((lower.strip_suffix(suffix)?, *unit)))
            .ok_or_else(wrong)?;
        let number = number.trim();
        if let Ok(whole) = number.parse::<u64>() {
            let too_large = || format!("{text:?} is more than 2^64 bytes");
            return whole.checked_mul(unit).map(Size).ok_or_else(too_large);
        }
        match number.parse::<f64>() {
            Ok(part)
                if part.is_finite() && part >= 0.0 && part * (unit as f64) < u64::MAX as f64 =>
            {
                Ok(Size((part * unit as f64) as u64))
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Size {
    /// Whole bytes below 1 KiB, otherwise three digits or more in the largest binary unit that fits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        let (unit, name) = match bytes {
            0..0x400 => return f.pad(&format!("{bytes} B")),
            0x400..0x10_0000 => (1u64 << 10, "KiB"),
            0x10_0000..0x4000_0000 => (1 << 20, "MiB"),
            0x4000_0000..0x100_0000_0000 => (1 << 30, "GiB"),
            _ => (1 << 40, "TiB"),
        };
        let value = bytes as f64 / unit as f64;
        let digits = if bytes.is_multiple_of(unit) {
            0
        } else if value < 100.0 {
            2
        } else {
            1
        };
        f.pad(&format!("{value:.digits$} {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_parses() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("40MiB", 40 << 20),
            ("40 mib", 40 << 20),
            ("9G", 9 << 30),
            ("1.5k", 1536),
            ("1GB", 1_000_000_000),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_what_would_do() {
        for text in ["", "MiB", "-1", "nan", "1e300G", "4 XiB", "18446744073709551616"] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains("MiB") || error.contains("2^64"), "{error}");
        }
        assert!("99999999999T".parse::<Size>().unwrap_err().contains("2^64"));
    }

    #[test]
    fn what_is_printed_reads_back() {
        for (bytes, text) in [
            (1023, "1023 B"),
            (40 << 20, "40 MiB"),
            ((4u64 << 30) - 4096, "4.00 GiB"),
            (1536, "1.50 KiB"),
            (250 << 20 | 1, "250.0 MiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
            let back: Size = text.parse().unwrap();
            assert!(back.0.abs_diff(bytes) <= bytes / 500, "{text}");
        }
    }
}
