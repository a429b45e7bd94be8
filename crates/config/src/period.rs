//! Stretches of time as people write them: `500ms`, `10s`, `1h30m`, `7d`.
//!
//! A bare number is refused, but for 0, because it could mean two things.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::size::scaled;
use crate::words::quote;

/// A stretch of time, up to 584 years, exact to the nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(u64);

/// Units from the largest to the smallest, each with its nanoseconds.
const UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

const NANOS_PER_SECOND: u64 = 1_000_000_000;

impl Period {
    /// That many milliseconds.
    #[must_use]
    pub const fn millis(n: u32) -> Self {
        Self(n as u64 * 1_000_000)
    }

    /// That many seconds.
    #[must_use]
    pub const fn secs(n: u32) -> Self {
        Self(n as u64 * NANOS_PER_SECOND)
    }

    /// The same for the standard library.
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// True for 0, which many options take as "not at all".
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl From<Period> for Duration {
    fn from(period: Period) -> Self {
        period.as_duration()
    }
}

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rest = text.trim();
        if let Ok(number) = rest.parse::<u64>() {
            return bare(number);
        }
        let wrong = || {
            format!(
                "{} is no duration: write numbers with units, such as 500ms, 10s, 1h30m or 7d",
                quote(text)
            )
        };
        let mut total = 0_u64;
        let mut units = UNITS.iter();
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
            let (number, tail) = rest.split_at(digits.ok_or_else(wrong)?);
            let letters = tail
                .find(|c: char| !c.is_alphabetic())
                .unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(letters);
            // each unit once, the larger ones first: the iterator only goes on
            let (_, factor) = units.find(|(name, _)| *name == unit).ok_or_else(wrong)?;
            total = scaled(number, *factor)
                .and_then(|nanos| total.checked_add(nanos))
                .ok_or_else(wrong)?;
            rest = tail;
        }
        Ok(Self(total))
    }
}

/// A number without a unit: 0 is 0 in every unit.
fn bare(number: u64) -> Result<Period, String> {
    match number {
        0 => Ok(Period(0)),
        n => Err(format!(
            "{n} has no unit: it could be {n}s or {n}ms, write which one"
        )),
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        for (unit, factor) in UNITS {
            if rest >= factor {
                write!(f, "{}{unit}", rest / factor)?;
                rest %= factor;
            }
        }
        Ok(())
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Read)
    }
}

struct Read;

impl Visitor<'_> for Read {
    type Value = Period;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as 10s")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Period, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Period, E> {
        bare(number).map_err(E::custom)
    }
}

impl JsonSchema for Period {
    fn schema_name() -> Cow<'static, str> {
        "Period".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A duration: numbers with the units d, h, m, s, ms, us, ns, the larger first (500ms, 10s, 1h30m, 7d). 0 needs no unit.",
            "anyOf": [
                { "type": "string", "pattern": r"^\s*(([0-9]+(\.[0-9]+)?(d|h|ms|m|s|us|ns))+|0+|.*\$\{.*)\s*$" },
                { "const": 0 }
            ],
            "examples": ["500ms", "10s", "1h30m", "7d"]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_with_units() {
        for (text, millis) in [
            ("0", 0),
            ("500ms", 500),
            ("10s", 10_000),
            ("1.5s", 1_500),
            ("1h30m", 5_400_000),
            ("7d", 604_800_000),
            ("1m500ms", 60_500),
        ] {
            let wanted = Duration::from_millis(millis);
            assert_eq!(text.parse().map(Period::as_duration), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in [
            "",
            "s",
            "1x",
            "-1s",
            "30m1h",
            "1s1s",
            "1h 30m x",
            "999999999d",
            "1.s",
            "10 s 5",
        ] {
            assert!(text.parse::<Period>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_bare_number_is_refused_with_its_two_readings() {
        let error = "5".parse::<Period>().err();
        assert_eq!(
            error.as_deref(),
            Some("5 has no unit: it could be 5s or 5ms, write which one")
        );
    }

    #[test]
    fn a_printed_duration_reads_back_as_itself() {
        for (nanos, wanted) in [
            (0, "0s"),
            (5_400_000_000_000, "1h30m"),
            (1_500_000_000, "1s500ms"),
            (604_800_000_000_000, "7d"),
        ] {
            assert_eq!(Period(nanos).to_string(), wanted);
            assert_eq!(wanted.parse(), Ok(Period(nanos)));
        }
        let longest = Period(u64::MAX);
        assert_eq!(longest.to_string().parse(), Ok(longest));
    }
}
