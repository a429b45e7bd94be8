//! The options of a component as rows, read from its JSON Schema: the doc comments, defaults and choices of its `Config`.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::page::paragraph;

/// The maximum depth of blocks within blocks that is listed. No component nests blocks deeper.
const DEPTH_MAX: usize = 4;

/// One option.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name, with the blocks around it: `rotate.size`, `servers[].weight`.
    pub name: String,
    /// Its type in words.
    pub takes: String,
    /// Its description.
    pub meaning: String,
    /// The default as it is written in YAML. `required` if the option must be set. Empty if the option may be left out and has no default,
    /// or if its default is a map.
    pub default: String,
}

/// The options in a schema, in the order of the code.
pub fn rows(schema: &Value) -> Vec<Row> {
    let mut rows = Vec::new();
    let reader = Reader { root: schema };
    reader.block("", schema, &mut rows, DEPTH_MAX);
    rows
}

/// The rows as text.
pub fn text(rows: &[Row]) -> String {
    if rows.is_empty() {
        return paragraph("  ", "It has no options.");
    }
    let mut out = String::new();
    for row in rows {
        let default = match row.default.as_str() {
            "" => String::new(),
            "required" => ", required".to_owned(),
            default => format!(", default {default}"),
        };
        let head = format!("  {}  ", row.name);
        out.push_str(&paragraph(&head, &format!("{}{default}", row.takes)));
        if !row.meaning.is_empty() {
            out.push_str(&paragraph("      ", &row.meaning));
        }
    }
    out
}

struct Reader<'a> {
    root: &'a Value,
}

impl Reader<'_> {
    /// Follows a reference within the schema.
    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let target = schema["$ref"].as_str();
        let target = target.and_then(|target| target.strip_prefix('#'));
        match target.and_then(|pointer| self.root.pointer(pointer)) {
            Some(found) => found,
            None => schema,
        }
    }

    /// The alternatives (`anyOf`) of a schema, except `null`; the schema itself if it has no alternatives.
    fn alternatives<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let schema = self.resolve(schema);
        match schema["anyOf"].as_array() {
            Some(all) => {
                let real = all.iter().filter(|one| one["type"] != "null");
                real.flat_map(|one| self.alternatives(one)).collect()
            }
            None => vec![schema],
        }
    }

    fn block(&self, prefix: &str, schema: &Value, rows: &mut Vec<Row>, depth: usize) {
        let Some(properties) = schema["properties"].as_object() else {
            return;
        };
        let required = schema["required"].as_array();
        let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|r| r == name));
        for (name, property) in properties {
            let full = format!("{prefix}{name}");
            let alternatives = self.alternatives(property);
            let default = match &property["default"] {
                _ if is_required(name) => "required".to_owned(),
                Value::Null | Value::Object(_) => String::new(),
                value => yaml(value),
            };
            rows.push(Row {
                takes: self.takes(property),
                meaning: self.meaning(property, &alternatives),
                default,
                name: full.clone(),
            });
            if depth == 0 {
                continue;
            }
            let mut seen: Vec<&Map<String, Value>> = Vec::new();
            for one in alternatives {
                let (item, mark) = match one["type"].as_str() {
                    Some("array") => (self.resolve(&one["items"]), "[]"),
                    _ => (one, ""),
                };
                for block in self.alternatives(item) {
                    let Some(inner) = block["properties"].as_object() else {
                        continue;
                    };
                    if !seen.contains(&inner) {
                        seen.push(inner);
                        self.block(&format!("{full}{mark}."), block, rows, depth - 1);
                    }
                }
            }
        }
    }

    /// The type of an option in words.
    fn takes(&self, property: &Value) -> String {
        let mut words: Vec<String> = Vec::new();
        for one in self.named_alternatives(property) {
            if !words.contains(&one) {
                words.push(one);
            }
        }
        // The option takes one value, or a list of such values.
        if let Some((last, most)) = words.split_last()
            && last.strip_prefix("list of ") == Some(most.join(" or ").as_str())
        {
            return format!("{}, one or a list", most.join(" or "));
        }
        words.join(" or ")
    }

    fn named_alternatives(&self, schema: &Value) -> Vec<String> {
        if let Some(name) = schema["$ref"].as_str().and_then(|to| to.rsplit('/').next()) {
            let named = match name {
                "Size" => Some("size"),
                "Period" => Some("duration"),
                "Template" => Some("template"),
                "FieldPath" => Some("field"),
                "Secret" => Some("secret"),
                _ => None,
            };
            if let Some(named) = named {
                return vec![named.to_owned()];
            }
        }
        let schema = self.resolve(schema);
        let all = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
        if let Some(all) = all {
            return all
                .iter()
                .flat_map(|one| self.named_alternatives(one))
                .collect();
        }
        if let Some(all) = schema["enum"].as_array() {
            return all.iter().map(|one| format!("`{}`", yaml(one))).collect();
        }
        if !schema["const"].is_null() {
            return vec![format!("`{}`", yaml(&schema["const"]))];
        }
        let types: Vec<&str> = match &schema["type"] {
            Value::String(one) => vec![one],
            Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let types = types.into_iter().filter(|name| *name != "null");
        types
            .map(|name| match name {
                "string" => "text".to_owned(),
                "integer" | "number" => "number".to_owned(),
                "boolean" => "`true` or `false`".to_owned(),
                "array" => match self.takes(&schema["items"]).as_str() {
                    "" => "list".to_owned(),
                    item => format!("list of {item}"),
                },
                _ if schema["properties"].is_object() => "block".to_owned(),
                _ => "map".to_owned(),
            })
            .collect()
    }

    /// The description of an option. The choices are added, unless the description mentions all of them.
    fn meaning(&self, property: &Value, alternatives: &[&Value]) -> String {
        let own = property["description"].as_str();
        let own = own.or_else(|| self.resolve(property)["description"].as_str());
        let mut meaning = one_line(own.unwrap_or_default());
        let choices = alternatives
            .iter()
            .filter_map(|one| one["oneOf"].as_array())
            .flatten()
            .filter_map(|choice| {
                Some((choice["const"].as_str()?, choice["description"].as_str()?))
            });
        let choices: Vec<_> = choices.collect();
        let names_all = |(name, _): &(&str, &str)| meaning.contains(&format!("`{name}`"));
        if !choices.iter().all(names_all) {
            for (name, what) in choices {
                let what = one_line(what);
                let _ = write!(meaning, " `{name}`: {}.", what.trim_end_matches('.'));
            }
        }
        meaning.trim().to_owned()
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A value as it is written in YAML, on one line.
fn yaml(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => text.escape_debug().to_string(),
        Value::Array(all) => {
            let all: Vec<_> = all.iter().map(yaml).collect();
            format!("[{}]", all.join(", "))
        }
        value => value.to_string(),
    }
}
