//! The canonical text of a node's options. Equal options have equal texts, because the text contains no places (file, line and column), no
//! comments and no secrets.

use std::fmt::Write;

use crate::node::{Node, Value};
use crate::secret::HIDDEN;
use crate::secret_names::is_secret_name;

impl Node {
    /// Appends the value as a text. Equal values give equal texts, regardless of the file in which they are written and the order of names.
    /// A secret is written as `***`, so that a hash of the text reveals nothing about it.
    pub fn canonical(&self, out: &mut String) {
        // Writing to a `String` cannot fail.
        let _ = match &self.value {
            Value::Null => write!(out, "null"),
            Value::Bool(value) => write!(out, "{value}"),
            Value::Integer(value) => write!(out, "{value}"),
            Value::Float(value) => write!(out, "{value:?}"),
            Value::Text(text) => write!(out, "{text:?}"),
            Value::Invalid => write!(out, "?"),
            Value::List(nodes) => {
                out.push('[');
                for node in nodes {
                    node.canonical(out);
                    out.push(',');
                }
                write!(out, "]")
            }
            Value::Map(map) => {
                let mut entries: Vec<_> = map.entries.iter().collect();
                entries.sort_by(|a, b| a.0.text.cmp(&b.0.text));
                out.push('{');
                for (key, node) in entries {
                    let _ = write!(out, "{:?}:", key.text);
                    match is_secret_name(&key.text) {
                        true => out.push_str(HIDDEN),
                        false => node.canonical(out),
                    }
                    out.push(',');
                }
                write!(out, "}}")
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(yaml: &str) -> String {
        let mut out = String::new();
        Node::parse("t", yaml).unwrap().canonical(&mut out);
        out
    }

    #[test]
    fn the_text_depends_on_values_but_not_on_places_or_order() {
        let one = text("{ a: 1, b: [x, 'y, z', 1.5, null], c: { d: true } }");
        let same = "# a comment\nc:\n  d: true\nb: [x, \"y, z\", 1.5, ~]\na: 1\n";
        assert_eq!(one, text(same));
        for other in [
            "{ a: 2, b: [x, 'y, z', 1.5, null], c: { d: true } }",
            "{ a: 1, b: [x, y, z, 1.5, null], c: { d: true } }",
            "{ a: \"1\", b: [x, 'y, z', 1.5, null], c: { d: true } }",
        ] {
            assert_ne!(one, text(other));
        }
    }

    #[test]
    fn secrets_are_left_out() {
        let one = text("{ auth: { shared_key: abc, users: { alice: xyz } }, token: t1 }");
        for secret in ["abc", "xyz", "alice", "t1"] {
            assert!(!one.contains(secret), "{one}");
        }
        assert_eq!(
            one,
            text("{ token: t2, auth: { shared_key: 1, users: {} } }")
        );
    }

    #[test]
    fn only_the_secrets_of_a_node_whose_name_looks_secret_are_left_out() {
        for name in ["auth-log", "keycloak-in", "bypass-x", "users", "api_token"] {
            let text = |path: &str, key: &str| {
                let options = format!("{{ paths: {path}, auth: {{ shared_key: {key} }} }}");
                let yaml = format!("sources: {{ {name}: {options} }}");
                let root = Node::parse("t", &yaml).unwrap();
                let mut out = String::new();
                let node = root.find(&format!("sources.{name}")).unwrap();
                node.canonical(&mut out);
                out
            };
            assert_ne!(text("/a", "k"), text("/b", "k"), "{name}");
            assert_eq!(text("/a", "k"), text("/a", "other"), "{name}");
        }
    }
}
