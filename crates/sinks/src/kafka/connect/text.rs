//! Writes values as the JSON library of Connect (Jackson) does.

use std::io::Write;

use base64::{Engine, engine::general_purpose::STANDARD};

use super::tree::Kind;

/// Appends a value that is neither a map nor an array.
pub(super) fn scalar(kind: Kind, schemas: bool, bytes: &[u8], out: &mut Vec<u8>) {
    match kind {
        Kind::Nil | Kind::Map | Kind::Array => out.extend_from_slice(b"null"),
        Kind::Bool(true) => out.extend_from_slice(b"true"),
        Kind::Bool(false) => out.extend_from_slice(b"false"),
        // Writing to a vector cannot fail.
        Kind::Int(number) => drop(write!(out, "{number}")),
        Kind::Float(number) => float(number, schemas, out),
        Kind::Text(range) => string(bytes.get(range).unwrap_or_default(), out),
        Kind::Bytes(range) if schemas => {
            out.push(b'"');
            let text = STANDARD.encode(bytes.get(range).unwrap_or_default());
            out.extend_from_slice(text.as_bytes());
            out.push(b'"');
        }
        Kind::Bytes(range) => string(bytes.get(range).unwrap_or_default(), out),
    }
}

/// Writes a number like Java's `Double.toString`: as a decimal from 0.001 up to 10 million, otherwise with one digit before the
/// point and an exponent.
fn float(number: f64, schemas: bool, out: &mut Vec<u8>) {
    let size = number.abs();
    let written = if !number.is_finite() {
        let text = if number.is_nan() {
            "\"NaN\""
        } else if number > 0.0 {
            "\"Infinity\""
        } else {
            "\"-Infinity\""
        };
        out.write_all(if schemas { text } else { "null" }.as_bytes())
    } else if size == 0.0 || (1e-3..1e7).contains(&size) {
        write!(out, "{number:?}")
    } else {
        let text = format!("{number:E}");
        match text.split_once('E') {
            Some((digits, exponent)) if !digits.contains('.') => {
                write!(out, "{digits}.0E{exponent}")
            }
            _ => out.write_all(text.as_bytes()),
        }
    };
    debug_assert!(written.is_ok(), "a vector takes all");
}

/// Appends a quoted string. Each part of the text that is not UTF-8 becomes U+FFFD, as in Java.
pub(super) fn string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for chunk in text.utf8_chunks() {
        escape(chunk.valid(), out);
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
    out.push(b'"');
}

fn escape(text: &str, out: &mut Vec<u8>) {
    let mut rest = text.as_bytes();
    while let Some(at) = rest
        .iter()
        .position(|byte| *byte < 0x20 || b"\"\\".contains(byte))
    {
        let (before, special) = rest.split_at(at);
        out.extend_from_slice(before);
        let byte = special.first().copied().unwrap_or_default();
        let short = match byte {
            b'"' => b'"',
            b'\\' => b'\\',
            0x08 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            0x0c => b'f',
            b'\r' => b'r',
            _ => 0,
        };
        if short == 0 {
            let written = write!(out, "\\u{byte:04X}");
            debug_assert!(written.is_ok(), "a vector takes all");
        } else {
            out.extend_from_slice(&[b'\\', short]);
        }
        rest = special.get(1..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
}
