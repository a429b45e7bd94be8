//! Hides the values of chosen fields in records that are shown: `api: { redact: [".password", ".user.email"] }`.
//!
//! A text that is itself a JSON object or array is searched, too. For example, a line that no processor has parsed may be one text with
//! all fields inside. Other texts are not searched. To hide a line that is not JSON, name the field that holds the line.

use millstream_wire::record::FieldPath;
use serde_json::Value;

/// Printed in place of a value.
const HIDDEN: &str = "***";
/// The maximum depth to which JSON texts within JSON texts are searched.
const DEPTH_MAX: usize = 3;

/// The fields to hide.
#[derive(Clone, Debug, Default)]
pub struct Redaction(Vec<FieldPath>);

impl Redaction {
    /// `fields` are the paths in the configuration. They are valid, because the configuration was checked when it was read.
    pub fn new(fields: &[String]) -> Self {
        Self(fields.iter().filter_map(|it| it.parse().ok()).collect())
    }

    /// Whether no field is hidden.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Hides the fields in a record. The recursion is bounded, because serde_json limits the depth of values.
    pub fn apply(&self, record: &mut Value) {
        if !self.0.is_empty() {
            self.within(record, 0);
        }
    }

    /// A record that is a text, with the fields hidden.
    pub fn text(&self, text: &str) -> String {
        let mut value = Value::from(text);
        self.apply(&mut value);
        match value {
            Value::String(text) => text,
            other => other.to_string(),
        }
    }

    /// Hides the fields in `value`, and in each text within `value` that is a JSON object or array.
    fn within(&self, value: &mut Value, depth: usize) {
        for field in &self.0 {
            hide(value, field.parts());
        }
        if depth < DEPTH_MAX {
            self.texts(value, depth);
        }
    }

    /// Whether a text holds the name of a hidden field.
    fn names_a_field(&self, text: &str) -> bool {
        let last = |field: &FieldPath| {
            field
                .parts()
                .last()
                .is_some_and(|name| text.contains(&**name))
        };
        self.0.iter().any(last)
    }

    fn texts(&self, value: &mut Value, depth: usize) {
        match value {
            Value::String(text) => {
                let trimmed = text.trim_start();
                if !trimmed.starts_with(['{', '[']) {
                    return;
                }
                let Ok(mut inner) = serde_json::from_str::<Value>(trimmed) else {
                    // The JSON is truncated or damaged, so the end of a field is unknown. If the text names a hidden field, the
                    // whole text is hidden.
                    if self.names_a_field(text) {
                        HIDDEN.clone_into(text);
                    }
                    return;
                };
                let before = inner.clone();
                self.within(&mut inner, depth + 1);
                if inner != before {
                    *text = inner.to_string();
                }
            }
            Value::Array(all) => all.iter_mut().for_each(|one| self.texts(one, depth)),
            Value::Object(fields) => fields.values_mut().for_each(|one| self.texts(one, depth)),
            _ => {}
        }
    }
}

/// Hides one field. A list on the path is treated as a list of records.
fn hide(value: &mut Value, names: &[Box<str>]) {
    match (value, names) {
        (Value::Array(all), _) => all.iter_mut().for_each(|one| hide(one, names)),
        (Value::Object(fields), [name]) => {
            if let Some(found) = fields.get_mut(&**name) {
                *found = Value::from(HIDDEN);
            }
        }
        (Value::Object(fields), [name, rest @ ..]) => {
            if let Some(inner) = fields.get_mut(&**name) {
                hide(inner, rest);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redacted(mut record: Value) -> Value {
        let fields = [".password", ".user.email"].map(str::to_owned);
        Redaction::new(&fields).apply(&mut record);
        record
    }

    #[test]
    fn named_fields_are_hidden_and_no_others() {
        let record = json!({ "password": { "a": 1 }, "user": { "email": "a@b", "password": "x", "n": [1] }, "email": "c" });
        let shown = json!({ "password": "***", "user": { "email": "***", "password": "x", "n": [1] }, "email": "c" });
        assert_eq!(redacted(record), shown);
        let list = json!([{ "password": 1 }, { "user": [{ "email": 2 }, 3] }]);
        let shown = json!([{ "password": "***" }, { "user": [{ "email": "***" }, 3] }]);
        assert_eq!(redacted(list), shown);
        let same = json!({ "user": "x", "n": null });
        assert_eq!(redacted(same.clone()), same);
    }

    #[test]
    fn fields_in_texts_that_are_records_are_hidden() {
        let record = json!({ "message": " {\"password\":\"x\",\"n\":1.50}", "plain": "my password", "cut": "{\"password\": \"x" });
        let shown = json!({ "message": "{\"password\":\"***\",\"n\":1.5}", "plain": "my password", "cut": "***" });
        assert_eq!(redacted(record), shown);
        let nested =
            json!({ "message": json!({ "log": "{\"user\":{\"email\":\"x\"}}" }).to_string() });
        assert!(!redacted(nested).to_string().contains("\\\"x"));
        let untouched = json!({ "message": "{ \"n\": 1.50 }" });
        assert_eq!(redacted(untouched.clone()), untouched);
        assert_eq!(
            Redaction::new(&[".a".to_owned()]).text("{\"a\":1}"),
            "{\"a\":\"***\"}"
        );
    }
}
