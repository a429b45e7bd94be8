//! Values between separators: LTSV, CSV and TSV.
//!
//! - LTSV: `label:value` between tabs (<http://ltsv.org>). Nothing is escaped.
//! - CSV: one record of RFC 4180. A value in quotes may hold commas, newlines and doubled quotes.
//! - TSV: values between tabs, without quotes, as in Fluentd and in text/tab-separated-values.
//!
//! In CSV and TSV, an empty value without quotes counts as missing, and its field is left out. If there are fewer values than
//! columns, the fields of the remaining columns are left out, too. The values after the last column become the field [`MORE`], as they
//! stand in the text.

use memchr::memchr;

use super::{
    Fault,
    fields::{Fields, Slot},
};

/// The name of the field that gets the values for which a format has no name.
pub(super) const MORE: &str = "more";

/// Appends the fields of LTSV.
pub(super) fn ltsv(text: &[u8], fields: &mut Fields<'_>) -> Result<(), Fault> {
    let (mut at, mut any) = (0, false);
    while at < text.len() {
        let rest = text.get(at..).unwrap_or_default();
        let length = memchr(b'\t', rest).unwrap_or(rest.len());
        let pair = rest.get(..length).unwrap_or_default();
        if !pair.is_empty() {
            let colon = memchr(b':', pair).filter(|colon| *colon > 0);
            let colon = colon.ok_or(Fault::at(at, "a label and `:`"))?;
            let (label, value) = pair.split_at_checked(colon).unwrap_or((pair, &[]));
            fields.named(label, value.get(1..).unwrap_or_default())?;
            any = true;
        }
        at += length + 1;
    }
    match any {
        true => Ok(()),
        false => Err(Fault::at(0, "a label and `:`")),
    }
}

/// Appends the fields of a TSV line.
pub(super) fn tsv(text: &[u8], columns: &[Slot], fields: &mut Fields<'_>) -> Result<(), Fault> {
    if text.is_empty() {
        return Err(Fault::at(0, "a value"));
    }
    let (mut at, mut columns) = (0, columns.iter());
    loop {
        let rest = text.get(at..).unwrap_or_default();
        let length = memchr(b'\t', rest).unwrap_or(rest.len());
        let value = rest.get(..length).unwrap_or_default();
        let Some(column) = columns.next() else {
            return more(rest, fields);
        };
        if !value.is_empty() {
            fields.text(column, value)?;
        }
        at += length;
        if at >= text.len() {
            return Ok(());
        }
        at += 1;
    }
}

/// Appends the fields of a CSV record.
pub(super) fn csv(text: &[u8], columns: &[Slot], fields: &mut Fields<'_>) -> Result<(), Fault> {
    if text.is_empty() {
        return Err(Fault::at(0, "a value"));
    }
    let (mut at, mut columns) = (0, columns.iter());
    loop {
        let Some(column) = columns.next() else {
            return more(text.get(at..).unwrap_or_default(), fields);
        };
        if text.get(at) == Some(&b'"') {
            at = quoted(text, at + 1, column, fields)?;
        } else {
            let rest = text.get(at..).unwrap_or_default();
            let length = memchr(b',', rest).unwrap_or(rest.len());
            let value = rest.get(..length).unwrap_or_default();
            if !value.is_empty() {
                fields.text(column, value)?;
            }
            at += length;
        }
        match text.get(at) {
            None => return Ok(()),
            Some(b',') => at += 1,
            Some(_) => return Err(Fault::at(at, "a comma after the closing quote")),
        }
    }
}

/// Appends the field whose quoted value begins at `start`, the offset after the opening quote. Returns the offset after the closing
/// quote.
fn quoted(
    text: &[u8],
    start: usize,
    column: &Slot,
    fields: &mut Fields<'_>,
) -> Result<usize, Fault> {
    let (mut at, mut from) = (start, start);
    let mut doubled = false;
    loop {
        let rest = text.get(at..).unwrap_or_default();
        let found = memchr(b'"', rest).ok_or(Fault::at(text.len(), "a closing quote"))?;
        at += found + 1;
        if text.get(at) != Some(&b'"') {
            break;
        }
        if !doubled {
            fields.scratch.clear();
            doubled = true;
        }
        // The first quote of a pair belongs to the value, the second one is skipped.
        let part = text.get(from..at).unwrap_or_default();
        fields.scratch.extend_from_slice(part);
        at += 1;
        from = at;
    }
    let rest = text.get(from..at - 1).unwrap_or_default();
    if doubled {
        let mut scratch = std::mem::take(fields.scratch);
        scratch.extend_from_slice(rest);
        let appended = fields.text(column, &scratch);
        *fields.scratch = scratch;
        appended?;
    } else {
        fields.text(column, rest)?;
    }
    Ok(at)
}

/// Appends the values after the last column.
#[cold]
fn more(rest: &[u8], fields: &mut Fields<'_>) -> Result<(), Fault> {
    match rest {
        // A separator at the end of the line.
        [] => Ok(()),
        _ => fields.named(MORE.as_bytes(), rest),
    }
}
