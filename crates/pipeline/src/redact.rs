//! Hides the values of chosen fields in records that are shown: `api: { redact: [".password", ".user.email"] }`.
//!
//! A text that is itself a JSON object or array is searched, too. For example, a line that no processor has parsed may be one text with
//! all fields inside. Other texts are not searched. To hide a line that is not JSON, name the field that holds the line.
//!
//! A text about a record can quote the record: the reason of a rejection, the answer of a server, the last words of a program. So the
//! values of these fields are hidden in it, too ([`Redaction::reason`], [`Redaction::about`]; `mask.rs`). This happens only when such a
//! text is made or shown, and only if there are fields to hide.

mod mask;

use std::{borrow::Cow, sync::OnceLock};

use millstream_record::{Batch, Encoding};
use millstream_wire::{
    json,
    msgpack::entry_head,
    record::{FieldPath, MESSAGE},
};
use serde_json::Value;

use crate::reject::{Original, Rejected};
use mask::Mask;

/// Printed in place of a value.
pub const HIDDEN: &str = "***";
/// The maximum depth to which JSON texts within JSON texts are searched.
const DEPTH_MAX: usize = 3;
/// The maximum number of bytes of records that are searched for values. A text about more records is not shown.
const SEARCHED_MAX: usize = 8 << 20;

/// The fields that the process hides.
static CHOSEN: OnceLock<Redaction> = OnceLock::new();

/// Chooses the fields that this process hides in log lines and in the state of its nodes. Only the first call has an effect.
pub fn choose(redaction: Redaction) {
    let _ = CHOSEN.set(redaction);
}

/// The fields that this process hides.
pub fn chosen() -> &'static Redaction {
    static NONE: Redaction = Redaction(Vec::new());
    CHOSEN.get().unwrap_or(&NONE)
}

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

    /// A record that is a text, with the fields hidden. A text that is not JSON is the field `message`.
    pub fn text(&self, text: &str) -> String {
        if self.hides_line(text) {
            return HIDDEN.to_owned();
        }
        let mut value = Value::from(text);
        self.apply(&mut value);
        match value {
            Value::String(text) => text,
            other => other.to_string(),
        }
    }

    /// A record that is JSON, with the fields hidden. If there are no fields to hide, the text is unchanged, so it keeps all digits and
    /// repeated fields.
    pub fn json(&self, record: String) -> String {
        if self.is_empty() {
            return record;
        }
        match serde_json::from_str::<Value>(&record) {
            Ok(mut value) => {
                self.apply(&mut value);
                value.to_string()
            }
            Err(_) => "null".to_owned(),
        }
    }

    /// The reason of a rejection, without the values of the fields in the rejected records.
    pub fn reason<'a>(&self, rejected: &Rejected<'a>) -> Cow<'a, str> {
        if self.is_empty() {
            return rejected.reason.into();
        }
        if rejected.message.len() > SEARCHED_MAX {
            return withheld().into();
        }
        let mut mask = Mask::new(rejected.reason);
        for one in rejected.clone().split() {
            match one.original() {
                Original::Text(text) => self.mask_text(text, &mut mask),
                Original::Entry(_, record) => self.mask_json(&record, &mut mask),
                Original::Binary(bytes) => mask.quotes(&String::from_utf8_lossy(bytes)),
            }
        }
        mask.text
    }

    /// A text about some records of a batch, without the values of the fields in them.
    pub fn about<'a, 'r>(
        &self,
        batch: &Batch,
        records: impl IntoIterator<Item = &'r [u8]>,
        text: &'a str,
    ) -> Cow<'a, str> {
        if self.is_empty() {
            return text.into();
        }
        let (mut mask, mut searched) = (Mask::new(text), 0);
        for record in records {
            searched += record.len();
            if searched > SEARCHED_MAX {
                return withheld().into();
            }
            match batch.encoding {
                Encoding::Lines => self.mask_text(&String::from_utf8_lossy(record), &mut mask),
                Encoding::Packed => {
                    let mut out = Vec::new();
                    let head = entry_head(record, 0);
                    match head.map(|head| json::write_value(record, head.record, &mut out)) {
                        Ok(Ok(_)) => self.mask_json(&String::from_utf8_lossy(&out), &mut mask),
                        _ => return withheld().into(),
                    }
                }
            }
        }
        mask.text
    }

    /// Hides the values of the fields of a record that is a text.
    fn mask_text(&self, record: &str, mask: &mut Mask<'_>) {
        match self.hides_line(record) {
            true => mask.value(record.trim_end()),
            false => self.mask_values(&Value::from(record), 0, mask),
        }
    }

    /// Hides the values of the fields of a record that is JSON.
    fn mask_json(&self, record: &str, mask: &mut Mask<'_>) {
        match serde_json::from_str(record) {
            Ok(value) => self.mask_values(&value, 0, mask),
            Err(_) => mask.quotes(record),
        }
    }

    fn mask_values(&self, record: &Value, depth: usize, mask: &mut Mask<'_>) {
        for field in &self.0 {
            find(record, field.parts(), mask);
        }
        if depth == DEPTH_MAX {
            return;
        }
        match record {
            Value::String(text) => {
                let trimmed = text.trim_start();
                if !trimmed.starts_with(['{', '[']) {
                    return;
                }
                match serde_json::from_str::<Value>(trimmed) {
                    Ok(inner) => self.mask_values(&inner, depth + 1, mask),
                    Err(_) if self.names_a_field(text) => mask.quotes(text),
                    Err(_) => {}
                }
            }
            Value::Array(all) => all.iter().for_each(|one| self.mask_texts(one, depth, mask)),
            Value::Object(all) => all
                .values()
                .for_each(|one| self.mask_texts(one, depth, mask)),
            _ => {}
        }
    }

    /// Looks for texts that are JSON within a value. The fields of the value itself were searched before.
    fn mask_texts(&self, value: &Value, depth: usize, mask: &mut Mask<'_>) {
        match value {
            Value::String(_) => self.mask_values(value, depth, mask),
            Value::Array(all) => all.iter().for_each(|one| self.mask_texts(one, depth, mask)),
            Value::Object(all) => all
                .values()
                .for_each(|one| self.mask_texts(one, depth, mask)),
            _ => {}
        }
    }

    /// Whether a record that is this text is one field that is hidden: a line that is not JSON.
    fn hides_line(&self, text: &str) -> bool {
        let is_message = |field: &FieldPath| matches!(field.parts(), [name] if **name == *MESSAGE);
        !text.trim_start().starts_with(['{', '[']) && self.0.iter().any(is_message)
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

/// Shown instead of a text that could quote a hidden value.
fn withheld() -> &'static str {
    "(not shown: it could quote a value that `api.redact` hides)"
}

/// Hides the values of one field in a text. A list on the path is treated as a list of records.
fn find(value: &Value, names: &[Box<str>], mask: &mut Mask<'_>) {
    match (value, names) {
        (value, []) => mask.all(value),
        (Value::Array(all), _) => all.iter().for_each(|one| find(one, names, mask)),
        (Value::Object(fields), [name, rest @ ..]) => {
            if let Some(inner) = fields.get(&**name) {
                find(inner, rest, mask);
            }
        }
        _ => {}
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

    fn rejected<'a>(reason: &'a str, message: &'a [u8]) -> Rejected<'a> {
        Rejected {
            time: millstream_record::Time(0),
            node: "p",
            reason,
            tag: "t",
            values: Vec::new(),
            records: 1,
            message: message.into(),
        }
    }

    #[test]
    fn a_reason_does_not_quote_the_values_of_hidden_fields() {
        let redaction = Redaction::new(&[".password", ".user.email"].map(str::to_owned));
        let entry = b"\x92\xce\x60\x00\x00\x00\x82\xa1n\x01\xa8password\xa7hunter2";
        let joined = [&entry[..], &entry[..]].concat();
        for (reason, message, wanted) in [
            (
                "Invalid integer \"hunter2\"",
                &entry[..],
                "Invalid integer \"***\"",
            ),
            (
                "no number: 4711, n: 1",
                b"{\"password\":4711,\"n\":1}",
                "no number: ***, n: 1",
            ),
            (
                "bad a@b",
                b"{\"log\":\"{\\\"user\\\":{\\\"email\\\":\\\"a@b\\\"}}\"}",
                "bad ***",
            ),
            (
                "expected `,` at \"hunter2\"",
                b"{\"password\":\"hunter2\"",
                "expected `,` at \"***\"",
            ),
            (
                "no UTF-8 in \"hunter2\"",
                b"\xffhunter2",
                "no UTF-8 in \"***\"",
            ),
            ("no number: hunter2", b"user hunter2", "no number: hunter2"),
        ] {
            assert_eq!(redaction.reason(&rejected(reason, message)), wanted);
            assert_eq!(
                Redaction::default().reason(&rejected(reason, message)),
                reason
            );
        }
        let mut two = rejected("hunter2", &joined);
        two.records = 2;
        assert_eq!(redaction.reason(&two), "***");
        let huge = vec![b' '; SEARCHED_MAX + 1];
        assert_eq!(redaction.reason(&rejected("hunter2", &huge)), withheld());
    }

    #[test]
    fn a_hidden_message_is_the_whole_line() {
        let redaction = Redaction::new(&[".message".to_owned()]);
        assert_eq!(redaction.text("user hunter2"), "***");
        assert_eq!(redaction.text("{\"message\":1}"), "{\"message\":\"***\"}");
        let reason = redaction.reason(&rejected("no JSON: user hunter2", b"user hunter2\n"));
        assert_eq!(reason, "no JSON: ***");
    }

    #[test]
    fn a_text_about_a_batch_does_not_quote_hidden_values_of_its_records() {
        let redaction = Redaction::new(&[".password".to_owned()]);
        let (one, two) = (
            "{\"password\":\"hunter2\"}\n",
            "{\"password\":\"letmein\"}\n",
        );
        let batch = Batch {
            tag: "t".into(),
            plain: false,
            encoding: Encoding::Lines,
            body: format!("{one}{two}").into(),
            count: 2,
            received: millstream_record::Time(0),
            values: std::sync::Arc::default(),
            origins: Vec::new(),
        };
        let records = || [one.as_bytes(), two.as_bytes()];
        let text = "400: hunter2, letmein, open";
        assert_eq!(
            redaction.about(&batch, records(), text),
            "400: ***, ***, open"
        );
        assert_eq!(Redaction::default().about(&batch, records(), text), text);
        let many = std::iter::repeat_n(one.as_bytes(), SEARCHED_MAX / one.len() + 1);
        assert_eq!(redaction.about(&batch, many, text), withheld());
    }
}
