//! Sizes in bytes as people write them: `64KiB`, `64Ki`, `1GB`, `1.5GiB`.
//!
//! A unit with an `i` is binary (1024), one without is decimal (1000). A number without a unit is an error because it
//! could mean two things; 0 needs no unit.

use std::fmt;
use std::str::FromStr;

use crate::quantity::{impl_quantity, malformed, scaled, without_unit};
use crate::words::quote;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

/// The units that are printed, with their bytes.
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
    /// A size of this many bytes.
    #[must_use]
    pub const fn bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// A size of this many KiB.
    #[must_use]
    pub const fn kib(n: u32) -> Self {
        Self((n as u64) << 10)
    }

    /// A size of this many MiB.
    #[must_use]
    pub const fn mib(n: u32) -> Self {
        Self((n as u64) << 20)
    }

    /// A size of this many GiB.
    #[must_use]
    pub const fn gib(n: u32) -> Self {
        Self((n as u64) << 30)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn as_bytes(self) -> u64 {
        self.0
    }

    /// The number of bytes as a length in memory; `usize::MAX` if it does not fit.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// Whether the size is 0, which means "no limit" for many options.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The size with a binary unit and one decimal place, rounded down: `5.8GiB`.
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
        let wrong = || {
            malformed(
                text,
                "size",
                "a number and a unit, such as 64KiB, 10MB or 1GiB",
            )
        };
        if unit.is_empty() {
            let number = number.parse().map_err(|_| wrong())?;
            return without_unit(number, ["B", "KiB"]).map(Self);
        }
        let factor = UNITS
            .iter()
            .find(|(name, _)| {
                let short = name.strip_suffix('B').filter(|short| !short.is_empty());
                name.eq_ignore_ascii_case(unit)
                    || short.is_some_and(|short| short.eq_ignore_ascii_case(unit))
            })
            .map(|(_, factor)| *factor);
        let factor = factor.filter(|_| !number.is_empty()).ok_or_else(wrong)?;
        scaled(number, factor).map(Self).ok_or_else(|| {
            format!(
                "{} is too large or not a whole number of bytes",
                quote(text)
            )
        })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0");
        }
        // Chooses the unit that gives the smallest whole number.
        let best = UNITS
            .iter()
            .filter(|(_, factor)| self.0.is_multiple_of(*factor))
            .min_by_key(|(_, factor)| self.0 / factor);
        let (unit, factor) = best.unwrap_or(&UNITS[0]);
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl_quantity!(
    Size,
    units: ["B", "KiB"],
    expecting: "a size such as 64KiB",
    pattern: r"^\s*([0-9]+(\.[0-9]+)?\s*([KkMmGgTtPp][Ii]?[Bb]?|[Bb])|0+|.*\$\{.*)\s*$",
    description: "A size in bytes: a number and a unit, binary with an i (64KiB, 64Ki), decimal without (1GB). 0 needs no unit.",
    examples: ["64KiB", "10MB", "1GiB"]
);

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
    fn a_text_that_is_not_a_size_is_an_error() {
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
    fn a_number_without_a_unit_is_an_error_that_names_both_readings() {
        let error = "64".parse::<Size>().err();
        assert_eq!(
            error.as_deref(),
            Some("64 has no unit: did you mean 64B or 64KiB?")
        );
    }

    #[test]
    fn a_printed_size_parses_to_the_same_size() {
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
