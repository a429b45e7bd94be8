//! The common part of [`Size`](crate::Size) and [`Period`](crate::Period): numbers with units, exact and without floating point.

use crate::words::quote;

/// A decimal number times a factor; `None` if the result is not a whole number or does not fit into 64 bits.
pub(crate) fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') {
        return None;
    }
    let factor = u128::from(factor);
    let part = part.trim_end_matches('0');
    let mut total = u128::from(whole.parse::<u64>().ok()?) * factor;
    if !part.is_empty() {
        // 10^18 times a unit stays far below 2^128.
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

/// Checks a number without a unit. 0 is the same in every unit. Any other number is an error, because its unit is not clear.
pub(crate) fn without_unit(number: u64, units: [&str; 2]) -> Result<u64, String> {
    match number {
        0 => Ok(0),
        n => Err(format!(
            "{n} has no unit: did you mean {n}{} or {n}{}?",
            units[0], units[1]
        )),
    }
}

/// The error for a text that is not a quantity.
pub(crate) fn malformed(text: &str, noun: &str, examples: &str) -> String {
    format!("{} is not a {noun}: write {examples}", quote(text))
}

/// Implements serde's traits and JSON Schema for a quantity, which is written as a text or as the number 0.
macro_rules! impl_quantity {
    ($type:ident, units: $units:expr, expecting: $expecting:literal, pattern: $pattern:literal,
     description: $description:literal, examples: $examples:tt) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Quantity;

                impl serde::de::Visitor<'_> for Quantity {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }

                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }

                    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<$type, E> {
                        $crate::quantity::without_unit(number, $units)
                            .map($type)
                            .map_err(E::custom)
                    }
                }

                deserializer.deserialize_str(Quantity)
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "description": $description,
                    "anyOf": [{ "type": "string", "pattern": $pattern }, { "const": 0 }],
                    "examples": $examples
                })
            }
        }
    };
}

pub(crate) use impl_quantity;
