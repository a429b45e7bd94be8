//! Decides the types of unquoted scalars by the core schema of YAML 1.2.2, section 10.3.2.
//!
//! Unlike in YAML 1.1, `yes` and `on` are texts, and `012` is the number 12.

use crate::node::{Text, Value};

/// The value of a plain scalar.
pub(crate) fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    if let Some(number) = integer(text) {
        return Value::Integer(number);
    }
    match float(text) {
        Some(number) => Value::Float(number),
        None => Value::Text(Text::new(text)),
    }
}

/// Reads a whole number: `[-+]?[0-9]+`, `0o[0-7]+` or `0x[0-9a-fA-F]+`. `None` for other texts, and for numbers beyond 128 bits.
pub(crate) fn integer(text: &str) -> Option<i128> {
    if let Some(digits) = text.strip_prefix("0o") {
        return digits_of(digits, 8);
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return digits_of(digits, 16);
    }
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let number = digits_of(digits, 10)?;
    Some(if negative { -number } else { number })
}

fn digits_of(digits: &str, radix: u32) -> Option<i128> {
    // `from_str_radix` would accept a sign as well.
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    i128::from_str_radix(digits, radix).ok()
}

/// Reads a number with a point or an exponent, or one of the special values `.inf` and `.nan`.
pub(crate) fn float(text: &str) -> Option<f64> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    match rest {
        ".inf" | ".Inf" | ".INF" => return Some(sign * f64::INFINITY),
        ".nan" | ".NaN" | ".NAN" if rest == text => return Some(f64::NAN),
        _ => {}
    }
    // std accepts more than the schema: `inf`, `nan`, `infinity`.
    let first = rest.chars().next()?;
    if !(first.is_ascii_digit() || first == '.') || rest.chars().any(|c| !is_of_number(c)) {
        return None;
    }
    text.parse().ok()
}

fn is_of_number(c: char) -> bool {
    c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        format!("{:?}", plain(text))
    }

    #[test]
    fn the_core_schema_decides_what_a_plain_scalar_is() {
        for (text, value) in [
            ("", "Null"),
            ("~", "Null"),
            ("NULL", "Null"),
            ("nULL", "Text(\"nULL\")"),
            ("True", "Bool(true)"),
            ("yes", "Text(\"yes\")"),
            ("012", "Integer(12)"),
            ("+7", "Integer(7)"),
            ("-0x1F", "Text(\"-0x1F\")"),
            ("0x1F", "Integer(31)"),
            ("0o17", "Integer(15)"),
            ("18446744073709551615", "Integer(18446744073709551615)"),
            ("1e3", "Float(1000.0)"),
            (".5", "Float(0.5)"),
            ("1.", "Float(1.0)"),
            ("-.inf", "Float(-inf)"),
            (".nan", "Float(NaN)"),
            ("inf", "Text(\"inf\")"),
            ("nan", "Text(\"nan\")"),
            (".", "Text(\".\")"),
            ("1.2.3", "Text(\"1.2.3\")"),
            ("10.0.0.1", "Text(\"10.0.0.1\")"),
            ("1_000", "Text(\"1_000\")"),
            ("--1", "Text(\"--1\")"),
            ("12:30", "Text(\"12:30\")"),
        ] {
            assert_eq!(shown(text), value, "{text}");
        }
    }
}
