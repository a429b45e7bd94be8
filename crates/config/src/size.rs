//! Sizes in bytes as people write them: `64KiB`, `64Ki`, `1GB`, `1.5GiB`.
//!
//! With an `i` the unit is binary (1024), without it is decimal (1000). A bare number is refused, but for 0, because it
//! could mean two things.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

/// Units as they are printed, each with its bytes.
const UNITS: [(&str, u64); 11] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
];

impl Size {
    /// That many bytes.
    #[must_use]
    pub const fn bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// That many times 1024 bytes.
    #[must_use]
    pub const fn kib(n: u32) -> Self {
        Self((n as u64) << 10)
    }

    /// That many times 1024 times 1024 bytes.
    #[must_use]
    pub const fn mib(n: u32) -> Self {
        Self((n as u64) << 20)
    }

    /// That many times 1024 to the third bytes.
    #[must_use]
    pub const fn gib(n: u32) -> Self {
        Self((n as u64) << 30)
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(self) -> u64 {
        self.0
    }

    /// The bytes as a length in memory; the largest one there is if it would not fit.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// True for 0, which many options take as "no limit".
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl Size {
    /// With a binary unit and one digit behind the point, rounded down: `5.8GiB`.
    #[must_use]
    pub fn rounded(self) -> String {
        let unit = UNITS[1..5].iter().rev().find(|(_, size)| self.0 >= *size);
        let Some((name, size)) = unit else {
            return format!("{}B", self.0);
        };
        match (self.0 / size, self.0 % size * 10 / size) {
            (whole, 0) => format!("{whole}{name}"),
            (whole, tenth) => format!("{whole}.{tenth}{name}"),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim();
        if unit.is_empty() {
            return bare(number);
        }
        let factor = UNITS
            .iter()
            .find(|(name, _)| {
                let short = name.strip_suffix('B').filter(|short| !short.is_empty());
                name.eq_ignore_ascii_case(unit)
                    || short.is_some_and(|short| short.eq_ignore_ascii_case(unit))
            })
            .map(|(_, factor)| *factor);
        let Some(factor) = factor.filter(|_| !number.is_empty()) else {
            return Err(format!(
                "{} is no size: write a number and a unit, such as 64KiB, 10MB or 1GiB",
                crate::words::quote(text)
            ));
        };
        scaled(number, factor).map(Self).ok_or_else(|| {
            format!(
                "{} is no whole number of bytes, or too many",
                crate::words::quote(text)
            )
        })
    }
}

/// A number without a unit: 0 is 0 in every unit.
fn bare(number: &str) -> Result<Size, String> {
    match number.parse::<u64>() {
        Ok(0) => Ok(Size(0)),
        Ok(n) => Err(format!(
            "{n} has no unit: it could be {n}B or {n}KiB, write which one"
        )),
        Err(_) => Err(format!(
            "{} is no size: write a number and a unit, such as 64KiB, 10MB or 1GiB",
            crate::words::quote(number)
        )),
    }
}

/// A decimal number times a factor, if that is whole and fits: exact, without floating point.
pub(crate) fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') {
        return None;
    }
    let factor = u128::from(factor);
    let part = part.trim_end_matches('0');
    let mut total = u128::from(whole.parse::<u64>().ok()?) * factor;
    if !part.is_empty() {
        // 10^18 times a unit stays far below 2^128
        let digits = u32::try_from(part.len()).ok().filter(|n| *n <= 18)?;
        let scaled = u128::from(part.parse::<u64>().ok()?) * factor;
        let scale = 10_u128.pow(digits);
        if scaled % scale != 0 {
            return None;
        }
        total += scaled / scale;
    }
    u64::try_from(total).ok()
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0");
        }
        // the unit that leaves the smallest whole number, binary ones first
        let best = UNITS
            .iter()
            .filter(|(_, factor)| self.0.is_multiple_of(*factor))
            .min_by_key(|(_, factor)| self.0 / factor);
        let (unit, factor) = best.unwrap_or(&UNITS[0]);
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Read)
    }
}

struct Read;

impl Visitor<'_> for Read {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as 64KiB")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Size, E> {
        bare(&number.to_string()).map_err(E::custom)
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A size in bytes: a number and a unit, binary with an i (64KiB, 64Ki), decimal without (1GB). 0 needs no unit.",
            "anyOf": [
                { "type": "string", "pattern": r"^\s*([0-9]+(\.[0-9]+)?\s*([KkMmGgTtPp][Ii]?[Bb]?|[Bb])|0+|.*\$\{.*)\s*$" },
                { "const": 0 }
            ],
            "examples": ["64KiB", "10MB", "1GiB"]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_with_an_i_and_decimal_without() {
        for (text, bytes) in [
            ("0", 0),
            ("64KiB", 65_536),
            ("64Ki", 65_536),
            ("64kib", 65_536),
            ("64KB", 64_000),
            ("64k", 64_000),
            ("1GB", 1_000_000_000),
            ("1G", 1_000_000_000),
            ("1 GiB", 1 << 30),
            ("1.5GiB", 3 << 29),
            ("0.5KB", 500),
            ("100B", 100),
            ("2PiB", 2 << 50),
        ] {
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "-1KiB",
            "KiB",
            "1XB",
            "1.5B",
            "1..5KB",
            "1.KB",
            ".5KB",
            "99999999PB",
            "1e3KB",
            "0.1KiB",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_bare_number_is_refused_with_its_two_readings() {
        let error = "64".parse::<Size>().err();
        assert_eq!(
            error.as_deref(),
            Some("64 has no unit: it could be 64B or 64KiB, write which one")
        );
    }

    #[test]
    fn a_printed_size_reads_back_as_itself() {
        for bytes in [
            0,
            1,
            1000,
            1024,
            1536,
            65_536,
            1_000_000,
            10 << 30,
            u64::MAX,
            12_345,
        ] {
            let text = Size(bytes).to_string();
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        assert_eq!(Size::gib(10).to_string(), "10GiB");
        assert_eq!(Size::bytes(1_000_000_000).to_string(), "1GB");
    }
}
