//! Reads the answers of Elasticsearch and OpenSearch to `_bulk`, item by item.
//!
//! ```text
//! {"took":3,"errors":true,"items":[
//!   {"create":{"_index":"logs","_id":"1","status":201}},
//!   {"create":{"_index":"logs","_id":"2","status":429,"error":{"type":"es_rejected_execution_exception","reason":"..."}}}]}
//! ```
//! The items of the answer are in the order of the request. 409 for a `create` means that a document with this id exists already. If
//! this sink made the id, that document is the same record from an earlier attempt.

use serde::Deserialize;

use super::answer::is_suspicious;

/// The status of an item whose index does not exist.
const MISSING: u16 = 404;

/// An answer.
#[derive(Debug, Deserialize)]
struct BulkAnswer {
    errors: Option<bool>,
    #[serde(default)]
    items: Vec<Item>,
}

/// `{"create": {...}}`, or another action.
#[derive(Debug, Deserialize)]
struct Item {
    #[serde(alias = "create", alias = "index", alias = "update", alias = "delete")]
    done: Done,
}

#[derive(Debug, Deserialize)]
struct Done {
    status: u16,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

/// The items of a request by outcome.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Sorted {
    /// The items to retry.
    pub(super) again: Vec<u32>,
    /// Why the first item in `again` failed.
    pub(super) why: Option<String>,
    /// The status of all items in `again`, if the records may have caused it.
    pub(super) suspicious: Option<u16>,
    /// Refused items, each with its reason.
    pub(super) refused: Vec<(u32, String)>,
    /// Number of documents that existed already.
    pub(super) there: u64,
}

impl Sorted {
    /// Moves the refused items whose index is missing to those to retry, if `waits` returns true for the reason.
    pub(super) fn wait_for(&mut self, waits: impl Fn(&str) -> bool) {
        let missing = format!("{MISSING} ");
        let (waiting, refused) = std::mem::take(&mut self.refused)
            .into_iter()
            .partition(|(_, why)| why.starts_with(&missing) && waits(why));
        self.refused = refused;
        let waiting: Vec<(u32, String)> = waiting;
        for (item, why) in waiting {
            self.suspicious = None;
            self.why.get_or_insert(why);
            self.again.push(item);
        }
        self.again.sort_unstable();
    }
}

/// Sorts the items of a request by outcome. `sent`: the numbers of the items, in the order of the request. `again`: statuses that are
/// retried in addition to 5xx. `ours`: this sink made the documents' ids.
///
/// # Errors
/// Returns why the answer is not valid. The outcome of every item is then unknown.
pub(super) fn sort(body: &[u8], sent: &[u32], again: &[u16], ours: bool) -> Result<Sorted, String> {
    let object = body.trim_ascii_start().starts_with(b"{");
    // Arrays are excluded, because serde would read the elements of an array as the fields of the struct.
    let body = if object { body } else { b"no object" };
    let answer: BulkAnswer = serde_json::from_slice(body)
        .map_err(|error| format!("this is not an answer to `_bulk`: {error}"))?;
    let mut sorted = Sorted::default();
    let mut statuses = Vec::new();
    // With `filter_path=errors,items.*.error` a successful answer has only the field `errors`. An answer with neither items nor this
    // field is not from `_bulk`.
    if answer.errors == Some(false) && answer.items.is_empty() {
        return Ok(sorted);
    }
    if answer.items.len() != sent.len() {
        let (named, sent) = (answer.items.len(), sent.len());
        return Err(format!(
            "the answer names {named} items, but {sent} were sent"
        ));
    }
    for (item, sent) in answer.items.iter().zip(sent) {
        let Done { status, error } = &item.done;
        match *status {
            200..=299 => {}
            409 if ours => sorted.there += 1,
            status if status >= 500 || again.contains(&status) => {
                sorted
                    .why
                    .get_or_insert_with(|| reason(status, error.as_ref()));
                sorted.again.push(*sent);
                statuses.push(status);
            }
            status => sorted.refused.push((*sent, reason(status, error.as_ref()))),
        }
    }
    statuses.dedup();
    if let [status] = statuses[..]
        && is_suspicious(status)
        && !again.contains(&status)
    {
        sorted.suspicious = Some(status);
    }
    Ok(sorted)
}

/// `400 mapper_parsing_exception: failed to parse field [n]`. Equal faults have equal reasons: without ids, values and places.
fn reason(status: u16, error: Option<&serde_json::Value>) -> String {
    let part = |error: &serde_json::Value, name: &str| {
        let text = error.get(name).and_then(serde_json::Value::as_str);
        text.map(general).unwrap_or_default()
    };
    match error {
        None => status.to_string(),
        Some(serde_json::Value::String(text)) => format!("{status} {}", general(text)),
        Some(error) => {
            let cause = error.get("caused_by").map(|cause| part(cause, "reason"));
            let cause = cause.filter(|cause| !cause.is_empty());
            let cause = cause.map_or(String::new(), |cause| format!(" ({cause})"));
            format!(
                "{status} {}: {}{cause}",
                part(error, "type"),
                part(error, "reason")
            )
        }
    }
}

/// Texts of a reason that end before the id or the value that follows them in brackets.
const BEFORE_VALUES: [&str; 3] = ["parse date field ", "document with id ", "routing "];

/// A reason without what differs from document to document: texts in quotes (ids and previews of values), the id in front of a
/// conflict, values in brackets, and numbers. Names of fields and types, which are in brackets, too, stay.
fn general(text: &str) -> String {
    // `[ID]: version conflict, ...`
    let rest = text.split_once("]: ").filter(|_| text.starts_with('['));
    let mut rest = rest.map_or(text, |(_, rest)| rest);
    let mut out = String::with_capacity(rest.len());
    while let Some(first) = rest.chars().next() {
        let after = &rest[first.len_utf8()..];
        let last = out.chars().next_back();
        let is_word = last.is_some_and(char::is_alphanumeric);
        // Names of indexes contain dates.
        let is_of_name = is_word || last.is_some_and(|last| "-_.".contains(last));
        let closing = match first {
            // An apostrophe within a word (`can't`, `field's`) quotes nothing.
            '\'' if !is_word => Some('\''),
            '"' => Some('"'),
            '[' if BEFORE_VALUES.iter().any(|before| out.ends_with(before)) => Some(']'),
            _ => None,
        };
        if let Some(closing) = closing
            && let Some(end) = after.find(closing)
        {
            out.push(first);
            out.push_str("...");
            out.push(closing);
            rest = &after[end + closing.len_utf8()..];
        } else if first.is_ascii_digit() && !is_of_name {
            let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            let is_number = !digits.starts_with(char::is_alphanumeric);
            let length = rest.len() - digits.len();
            out.push_str(if is_number { "N" } else { &rest[..length] });
            rest = digits;
        } else {
            out.push(first);
            rest = after;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = r#"{"took":3,"errors":true,"items":[
        {"create":{"_index":"logs","status":201,"result":"created"}},
        {"create":{"_index":"logs","status":409,"error":{"type":"version_conflict_engine_exception","reason":"there"}}},
        {"index":{"_index":"logs","status":429,"error":{"type":"es_rejected_execution_exception","reason":"full"}}},
        {"create":{"_index":"logs","status":400,"error":{"type":"document_parsing_exception","reason":"failed to parse","caused_by":{"reason":"no number"}}}},
        {"create":{"_index":"logs","status":503}}]}"#;

    #[test]
    fn every_item_is_done_retried_or_refused() {
        let sorted = sort(ANSWER.as_bytes(), &[7, 8, 9, 10, 11], &[429], true).unwrap();
        assert_eq!(sorted.again, [9, 11]);
        assert_eq!(
            sorted.why.as_deref(),
            Some("429 es_rejected_execution_exception: full")
        );
        let reason = "400 document_parsing_exception: failed to parse (no number)";
        assert_eq!(sorted.refused, [(10, reason.to_owned())]);
        assert_eq!(sorted.there, 1);
        let sorted = sort(ANSWER.as_bytes(), &[7, 8, 9, 10, 11], &[429], false).unwrap();
        assert_eq!(sorted.refused[0].0, 8, "the id is not ours");
    }

    #[test]
    fn reasons_of_equal_faults_are_equal() {
        for (one, other, wanted) in [
            (
                "[a.1.2]: version conflict, document already exists (current version [1])",
                "[b.1.7]: version conflict, document already exists (current version [23])",
                "version conflict, document already exists (current version [N])",
            ),
            (
                "[1:34] failed to parse field [n2] of type [long] in document with id 'a'. Preview of field's value: 'x'",
                "[1:7] failed to parse field [n2] of type [long] in document with id 'b'. Preview of field's value: '17 y'",
                "[N:N] failed to parse field [n2] of type [long] in document with id '...'. Preview of field's value: '...'",
            ),
            (
                "failed to parse date field [today] with format [strict_date_optional_time||epoch_millis]",
                "failed to parse date field [a] with format [strict_date_optional_time||epoch_millis]",
                "failed to parse date field [...] with format [strict_date_optional_time||epoch_millis]",
            ),
            (
                "For input string: \"abc\"",
                "For input string: \"\u{e4}\"",
                "For input string: \"...\"",
            ),
            (
                "can't merge a non object mapping [a.b] with an object mapping",
                "can't merge a non object mapping [a.b] with an object mapping",
                "can't merge a non object mapping [a.b] with an object mapping",
            ),
        ] {
            assert_eq!(general(one), wanted);
            assert_eq!(general(other), wanted);
        }
        assert_eq!(
            general("no such index [logs-2026.11.28]"),
            "no such index [logs-2026.11.28]"
        );
        // A quote without its end stays.
        assert_eq!(general("a 'b"), "a 'b");
        assert_eq!(general("[a"), "[a");
        assert_eq!(general("3e4 x1 1"), "3e4 x1 N");
    }

    #[test]
    fn items_of_a_missing_index_are_retried_while_the_sink_waits_for_it() {
        let answer = r#"{"errors":true,"items":[
            {"create":{"status":404,"error":{"type":"index_not_found_exception","reason":"no such index [a]"}}},
            {"create":{"status":400,"error":{"type":"x","reason":"y"}}},
            {"create":{"status":500,"error":{"type":"z","reason":"y"}}}]}"#;
        let mut sorted = sort(answer.as_bytes(), &[4, 5, 6], &[], true).unwrap();
        assert_eq!((&*sorted.again, sorted.suspicious), (&[6][..], Some(500)));
        sorted.wait_for(|_| false);
        assert_eq!((sorted.again.len(), sorted.refused.len()), (1, 2));
        sorted.wait_for(|why| why == "404 index_not_found_exception: no such index [a]");
        assert_eq!((&*sorted.again, sorted.suspicious), (&[4, 6][..], None));
        assert_eq!(sorted.refused, [(5, "400 x: y".to_owned())]);
    }

    #[test]
    fn an_answer_without_errors_is_a_success_and_a_malformed_one_is_not() {
        assert_eq!(
            sort(b"{\"errors\":false}", &[0, 1], &[], true),
            Ok(Sorted::default())
        );
        for bad in [
            "",
            "ok",
            "[]",
            "{}",
            r#"{"message":"welcome"}"#,
            r#"{"errors":true,"items":[]}"#,
            r#"{"errors":true,"items":[{"create":{"status":201}}]}"#,
        ] {
            assert!(sort(bad.as_bytes(), &[0, 1], &[], true).is_err(), "{bad}");
        }
    }
}
