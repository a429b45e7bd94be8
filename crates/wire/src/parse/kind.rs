//! Types of parsed fields, and conversions to them.
//!
//! A value that cannot be converted stays unchanged, and is not an error. For example, a `-` in place of a number is kept as
//! text.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    json,
    msgpack::{Reader, write_bool, write_f64, write_int, write_str, write_uint},
};

/// Type of a parsed field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A number without a fraction, of 64 bits. A fraction is cut off.
    Integer,
    /// A number with a fraction.
    Float,
    /// `true`, `yes`, `on`, `1`, or `false`, `no`, `off`, `0`, in any case.
    #[serde(alias = "bool")]
    Boolean,
    /// Text. Numbers, lists and objects become their JSON text.
    String,
}

impl Kind {
    /// Appends a text as a value of this type, or as text if it cannot be converted.
    #[inline]
    pub(super) fn write_text(self, text: &[u8], out: &mut Vec<u8>) {
        let written = match self {
            Self::Integer => integer(text, out),
            Self::Float => float(text, out),
            Self::Boolean => boolean(text, out),
            Self::String => false,
        };
        if !written {
            write_str(out, text);
        }
    }

    /// Appends one MessagePack value as a value of this type, or unchanged if it cannot be converted.
    pub(super) fn write_value(self, value: &[u8], scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
        if let Ok(text) = Reader::new(value).bytes() {
            return self.write_text(text, out);
        }
        let written = match self {
            Self::Integer => float_of(value).is_some_and(|number| cut_off(number, out)),
            Self::Float => match Reader::new(value).int() {
                Ok(number) => {
                    write_f64(out, number as f64);
                    true
                }
                Err(_) => false,
            },
            Self::Boolean => match Reader::new(value).int() {
                Ok(number @ (0 | 1)) => {
                    write_bool(out, number == 1);
                    true
                }
                _ => false,
            },
            Self::String => as_text(value, scratch, out),
        };
        if !written {
            out.extend_from_slice(value);
        }
    }
}

/// Numbers with up to this many digits always fit into 64 bits.
const SHORT_DIGITS: usize = 18;

/// Appends the integer that `text` holds. Returns `false`, and appends nothing, if it holds none.
#[inline]
pub(super) fn integer(text: &[u8], out: &mut Vec<u8>) -> bool {
    if (1..=SHORT_DIGITS).contains(&text.len()) {
        let mut number = 0;
        let all = text.iter().all(|byte| {
            let digit = byte.wrapping_sub(b'0');
            number = number * 10 + u64::from(digit);
            digit < 10
        });
        if all {
            write_uint(out, number);
            return true;
        }
    }
    long_integer(text, out)
}

#[cold]
fn long_integer(text: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(text) = trimmed(text) else {
        return false;
    };
    if let Ok(number) = text.parse::<u64>() {
        write_uint(out, number);
    } else if let Ok(number) = text.parse::<i64>() {
        write_int(out, number);
    } else {
        return match plain_float(text) {
            // Only a text in float notation is converted by way of a float. An integer beyond 64 bits would lose digits.
            Some(number) if text.contains(['.', 'e', 'E']) => cut_off(number, out),
            _ => false,
        };
    }
    true
}

fn float(text: &[u8], out: &mut Vec<u8>) -> bool {
    match trimmed(text).and_then(plain_float) {
        Some(number) => {
            write_f64(out, number);
            true
        }
        None => false,
    }
}

fn trimmed(text: &[u8]) -> Option<&str> {
    std::str::from_utf8(text.trim_ascii()).ok()
}

/// Parses a finite number. Names such as `inf` are refused.
pub(super) fn plain_float(text: &str) -> Option<f64> {
    let digits = text.bytes().any(|byte| byte.is_ascii_digit());
    let number = text.parse::<f64>().ok()?;
    (digits && number.is_finite()).then_some(number)
}

fn boolean(text: &[u8], out: &mut Vec<u8>) -> bool {
    let text = text.trim_ascii();
    let is = |words: [&str; 4]| {
        words
            .iter()
            .any(|word| text.eq_ignore_ascii_case(word.as_bytes()))
    };
    let value = is(["true", "yes", "on", "1"]);
    if value || is(["false", "no", "off", "0"]) {
        write_bool(out, value);
        return true;
    }
    false
}

fn float_of(value: &[u8]) -> Option<f64> {
    Reader::new(value).float().ok()
}

/// 2^63, the smallest float above all signed 64-bit integers.
const BEYOND: f64 = 9_223_372_036_854_775_808.0;

/// Appends the integer part of a float. Returns `false`, and appends nothing, if it does not fit into 64 bits.
fn cut_off(number: f64, out: &mut Vec<u8>) -> bool {
    let fits = (-BEYOND..BEYOND).contains(&number);
    if fits {
        write_int(out, number as i64);
    }
    fits
}

/// Appends the JSON text of a value. Returns `false`, and appends nothing, for nil and for a value that has no JSON text.
fn as_text(value: &[u8], scratch: &mut Vec<u8>, out: &mut Vec<u8>) -> bool {
    scratch.clear();
    if Reader::new(value).nil().is_ok() || json::write_value(value, 0, scratch).is_err() {
        return false;
    }
    write_str(out, scratch);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: Kind, text: &str) -> String {
        let mut out = Vec::new();
        kind.write_text(text.as_bytes(), &mut out);
        rmpv::decode::read_value(&mut &out[..]).unwrap().to_string()
    }

    #[test]
    fn texts_are_converted_exactly_or_stay_unchanged() {
        for (from, to) in [
            ("0", "0"),
            ("007", "7"),
            ("-5", "-5"),
            (" 12 ", "12"),
            ("+3", "3"),
            ("999999999999999999", "999999999999999999"),
            ("18446744073709551615", "18446744073709551615"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("18446744073709551616", "\"18446744073709551616\""),
            ("1.9", "1"),
            ("-1e2", "-100"),
            ("12ms", "\"12ms\""),
            ("-", "\"-\""),
            ("", "\"\""),
            ("1e99", "\"1e99\""),
        ] {
            assert_eq!(text(Kind::Integer, from), to, "{from}");
        }
        assert_eq!(text(Kind::Float, ".5"), "0.5");
        assert_eq!(text(Kind::Float, "inf"), "\"inf\"");
        assert_eq!(text(Kind::Float, "NaN"), "\"NaN\"");
        assert_eq!(text(Kind::Boolean, "Yes"), "true");
        assert_eq!(text(Kind::Boolean, "OFF"), "false");
        assert_eq!(text(Kind::Boolean, "maybe"), "\"maybe\"");
        assert_eq!(text(Kind::String, "1"), "\"1\"");
    }
}
