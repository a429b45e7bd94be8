//! The options of a node as they may be shown: every secret is `***`.
//!
//! A text is secret if one of these holds:
//!
//! - It came from a file, or from an environment variable whose name suggests a secret.
//! - The option that holds it has the type `millstream_config::Secret` in the schema of the component.
//! - The name of the option that holds it suggests a secret.
//! - It is the password in a URL.

use std::collections::BTreeSet;

use millstream_config::{Node, Value, is_secret_name};
use serde_json::{Map, Value as Json, json};

/// Shown in place of a secret.
const HIDDEN: &str = "***";
/// The name that the definition of secret texts has in a schema.
const SECRET: &str = "Secret";

/// The options of a component with this schema, with all secrets masked.
pub fn options(options: &Node, schema: &Json) -> Json {
    shown(options, &secrets(schema))
}

fn shown(node: &Node, secrets: &BTreeSet<String>) -> Json {
    match &node.value {
        Value::Null | Value::Invalid => Json::Null,
        Value::Bool(value) => json!(value),
        Value::Integer(value) => match i64::try_from(*value) {
            Ok(value) => json!(value),
            Err(_) => json!(value.to_string()),
        },
        Value::Float(value) => json!(value),
        Value::Text(text) if text.secret => json!(HIDDEN),
        Value::Text(text) => json!(without_password(&text.text)),
        Value::List(list) => list.iter().map(|node| shown(node, secrets)).collect(),
        Value::Map(map) => {
            let entry = |(key, node): &(millstream_config::Key, Node)| {
                let is_secret = secrets.contains(&key.text) || is_secret_name(&key.text);
                let value = match is_secret {
                    true => hidden(node),
                    false => shown(node, secrets),
                };
                (key.text.clone(), value)
            };
            Json::Object(map.entries.iter().map(entry).collect())
        }
    }
}

/// A masked value. The names in a map stay visible.
fn hidden(node: &Node) -> Json {
    match &node.value {
        Value::Null => Json::Null,
        Value::Map(map) => {
            let entries = map.entries.iter();
            Json::Object(
                entries
                    .map(|(key, _)| (key.text.clone(), json!(HIDDEN)))
                    .collect(),
            )
        }
        _ => json!(HIDDEN),
    }
}

/// A text in which the password of each URL is masked: `https://user:***@host`.
fn without_password(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after.find(['/', '?', '#', ' ', ',']).unwrap_or(after.len());
        let (authority, tail) = after.split_at(end);
        match authority.rsplit_once('@') {
            Some((user, host)) => {
                out.push_str(user.split(':').next().unwrap_or_default());
                if user.contains(':') {
                    out.push(':');
                    out.push_str(HIDDEN);
                }
                out.push('@');
                out.push_str(host);
            }
            None => out.push_str(authority),
        }
        rest = tail;
    }
    out.push_str(rest);
    out
}

/// The names of the options that are secret texts, or lists or maps of secret texts.
fn secrets(schema: &Json) -> BTreeSet<String> {
    let empty = Map::new();
    let defs = schema["$defs"].as_object().unwrap_or(&empty);
    let mut kinds = BTreeSet::from([SECRET.to_owned()]);
    // Repeated, because a definition may refer to a later one.
    loop {
        let known = kinds.len();
        for (name, def) in defs {
            if is_secret(def, &kinds) {
                kinds.insert(name.clone());
            }
        }
        if kinds.len() == known {
            break;
        }
    }
    let mut found = BTreeSet::new();
    let mut open = vec![schema];
    while let Some(part) = open.pop() {
        if let Some(properties) = part["properties"].as_object() {
            let secret = properties.iter().filter(|(_, it)| is_secret(it, &kinds));
            found.extend(secret.map(|(name, _)| name.clone()));
        }
        match part {
            Json::Object(parts) => open.extend(parts.values()),
            Json::Array(parts) => open.extend(parts),
            _ => {}
        }
    }
    found
}

/// Whether a schema describes a secret text, or a list or map of secret texts. False for a map with named options, because each of its
/// options is checked separately.
fn is_secret(schema: &Json, kinds: &BTreeSet<String>) -> bool {
    let mut open = vec![schema];
    while let Some(part) = open.pop() {
        let name = part["$ref"]
            .as_str()
            .and_then(|path| path.rsplit('/').next());
        if name.is_some_and(|name| kinds.contains(name)) || part["writeOnly"] == true {
            return true;
        }
        match part {
            Json::Object(parts) => {
                let inner = parts.iter().filter(|(name, _)| *name != "properties");
                open.extend(inner.map(|(_, part)| part));
            }
            Json::Array(parts) => open.extend(parts),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::fs;

    use millstream_config::{Environment, load};

    use super::*;
    use crate::registry;

    fn shown_options(section: &str, kind: &str, yaml: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.yaml");
        fs::write(directory.path().join("pw"), "from-a-file").unwrap();
        fs::write(&path, yaml).unwrap();
        let environment = Environment::empty().with("MY_TOKEN", "from-the-environment");
        let loaded = load(&[path], &environment).unwrap();
        let schema = (registry::find(section, kind).unwrap().schema)().to_value();
        options(&loaded.tree.root, &schema).to_string()
    }

    #[test]
    fn secrets_are_hidden_wherever_they_came_from() {
        let yaml = "auth: { hostname: agg, shared_key: in-the-file, users: { alice: of-alice } }\n\
                    listen: 'tcp://user:in-the-url@0.0.0.0:1'\n\
                    tag: '${file:pw}'\n\
                    other: 'x ${MY_TOKEN}'\n";
        let text = shown_options("sources", "forward", yaml);
        for secret in [
            "in-the-file",
            "of-alice",
            "in-the-url",
            "from-a-file",
            "from-the-env",
        ] {
            assert!(!text.contains(secret), "{text}");
        }
        for shown in ["agg", "alice", "tcp://user:***@0.0.0.0:1"] {
            assert!(text.contains(shown), "{text}");
        }
    }

    #[test]
    fn options_whose_type_is_secret_are_hidden() {
        let yaml = "url: 'https://h/x'\nheaders: { X-Api-Key: sesame, Content-Type: text/plain }\nauth: { bearer: abracadabra }\n";
        let text = shown_options("sinks", "http", yaml);
        assert!(
            !text.contains("sesame") && !text.contains("abracadabra"),
            "{text}"
        );
        assert!(text.contains("https://h/x"), "{text}");
    }

    #[test]
    fn the_secret_options_of_every_component_are_found_in_its_schema() {
        for component in registry::all() {
            let schema = (component.schema)().to_value();
            let uses_secrets = schema.to_string().contains("writeOnly");
            assert_eq!(
                uses_secrets,
                !secrets(&schema).is_empty(),
                "{}",
                component.name
            );
        }
    }

    #[test]
    fn only_the_password_of_a_url_is_hidden() {
        for (given, wanted) in [
            ("https://a:b@h/p", "https://a:***@h/p"),
            ("https://a@h/p", "https://a@h/p"),
            ("tcp://h:1, tcp://u:p@ss@h:2", "tcp://h:1, tcp://u:***@h:2"),
            ("a@b://", "a@b://"),
            ("/srv/{tag}@x", "/srv/{tag}@x"),
        ] {
            assert_eq!(without_password(given), wanted);
        }
    }
}
