//! Durations as people write them: `500ms`, `10s`, `1h30m`, `7d`.
//!
//! A number without a unit is an error because it could mean two things; 0 needs no unit.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::quantity::{impl_quantity, malformed, scaled, without_unit};

/// A duration of up to 584 years, exact to the nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(u64);

/// Units from the largest to the smallest, with their nanoseconds.
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
    /// A duration of this many milliseconds.
    #[must_use]
    pub const fn millis(n: u32) -> Self {
        Self(n as u64 * 1_000_000)
    }

    /// A duration of this many seconds.
    #[must_use]
    pub const fn secs(n: u32) -> Self {
        Self(n as u64 * NANOS_PER_SECOND)
    }

    /// Returns the duration as the type of the standard library.
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Whether the duration is 0, which means "off" for many options.
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
        let mut left = text.trim();
        if let Ok(number) = left.parse() {
            return without_unit(number, ["s", "ms"]).map(Self);
        }
        let examples = "numbers with units, such as 500ms, 10s, 1h30m or 7d";
        let wrong = || malformed(text, "duration", examples);
        let mut total = 0_u64;
        let mut units = UNITS.iter();
        if left.is_empty() {
            return Err(wrong());
        }
        while !left.is_empty() {
            let digits = left.find(|c: char| !c.is_ascii_digit() && c != '.');
            let (number, tail) = left.split_at(digits.ok_or_else(wrong)?);
            let letters = tail
                .find(|c: char| !c.is_alphabetic())
                .unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(letters);
            // The iterator only advances. So each unit may occur only once, and larger units must precede smaller ones.
            let (_, factor) = units.find(|(name, _)| *name == unit).ok_or_else(wrong)?;
            total = scaled(number, *factor)
                .and_then(|nanos| total.checked_add(nanos))
                .ok_or_else(wrong)?;
            left = tail;
        }
        Ok(Self(total))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut left = self.0;
        for (unit, factor) in UNITS {
            if left >= factor {
                write!(f, "{}{unit}", left / factor)?;
                left %= factor;
            }
        }
        Ok(())
    }
}

impl_quantity!(
    Period,
    units: ["s", "ms"],
    expecting: "a duration such as 10s",
    pattern: r"^\s*(([0-9]+(\.[0-9]+)?(d|h|ms|m|s|us|ns))+|0+|.*\$\{.*)\s*$",
    description: "A duration: numbers with the units d, h, m, s, ms, us, ns, the larger first (500ms, 10s, 1h30m, 7d). 0 needs no unit.",
    examples: ["500ms", "10s", "1h30m", "7d"]
);

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
    fn a_text_that_is_not_a_duration_is_an_error() {
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
    fn a_number_without_a_unit_is_an_error_that_names_both_readings() {
        let error = "5".parse::<Period>().err();
        assert_eq!(
            error.as_deref(),
            Some("5 has no unit: did you mean 5s or 5ms?")
        );
    }

    #[test]
    fn a_printed_duration_parses_to_the_same_duration() {
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
