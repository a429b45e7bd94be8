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
    /// Refused items, each with its reason.
    pub(super) refused: Vec<(u32, String)>,
    /// Number of documents that existed already.
    pub(super) there: u64,
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
            }
            status => sorted.refused.push((*sent, reason(status, error.as_ref()))),
        }
    }
    Ok(sorted)
}

/// `400 mapper_parsing_exception: failed to parse field [n]`
fn reason(status: u16, error: Option<&serde_json::Value>) -> String {
    let part = |error: &serde_json::Value, name: &str| {
        let text = error.get(name).and_then(serde_json::Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    match error {
        None => status.to_string(),
        Some(serde_json::Value::String(text)) => format!("{status} {text}"),
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
