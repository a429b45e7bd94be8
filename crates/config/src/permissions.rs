//! An option that takes the permissions of a file, in octal.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::Error};

/// Permissions of user, group and others, written in octal: `0640` or `"640"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions(u32);

impl Permissions {
    /// The bits, at most 0o777.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }
}

/// YAML reads `0640` as the number 640, so the digits of that number are taken as octal, too.
impl<'de> Deserialize<'de> for Permissions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Digits {
            Number(i64),
            Text(String),
        }
        let digits = match Digits::deserialize(deserializer)? {
            Digits::Number(number) => number.to_string(),
            Digits::Text(text) => text,
        };
        let bits = u32::from_str_radix(&digits, 8).ok();
        let bits = bits.filter(|bits| *bits <= 0o777);
        bits.map(Self)
            .ok_or_else(|| D::Error::custom("must be permissions in octal, such as 0640"))
    }
}

impl JsonSchema for Permissions {
    fn schema_name() -> Cow<'static, str> {
        "Permissions".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "Permissions of user, group and others in octal.",
            "examples": ["0640"]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;

    #[test]
    fn permissions_are_octal_with_and_without_quotes() {
        let read = |text: &str| {
            let node = Node::parse("t.yaml", &format!("mode: {text}")).unwrap();
            let mode = node.find("mode").unwrap().read::<Permissions>();
            mode.map(Permissions::bits)
                .map_err(|problems| problems[0].message.clone())
        };
        for text in ["0640", "640", "'0640'", "\"640\""] {
            assert_eq!(read(text).unwrap(), 0o640, "{text}");
        }
        assert_eq!(read("0").unwrap(), 0);
        assert_eq!(read("0777").unwrap(), 0o777);
        for text in ["0680", "1777", "rw-r--r--", "-1", "''"] {
            assert!(read(text).unwrap_err().contains("in octal"), "{text}");
        }
    }
}
