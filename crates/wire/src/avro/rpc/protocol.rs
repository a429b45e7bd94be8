//! Checks whether a client's protocol is the one that [`Calls`](super::Calls) decodes: its messages must carry events
//! with headers and a body.
//!
//! The names of the messages, and the names and order of an event's fields, must match, as Avro's specification requires.
//! Comments, namespaces and Java's annotations do not matter.

use crate::{
    json::{Progress, to_msgpack},
    msgpack::Reader,
};

/// Whether clients of this protocol (JSON text) send the expected calls.
pub(super) fn is_compatible(text: &[u8]) -> bool {
    let mut protocol = Vec::new();
    if !matches!(to_msgpack(text, &mut protocol), Ok(Progress::Consumed(_))) {
        return false;
    }
    takes_events(&protocol).unwrap_or(false)
}

fn takes_events(protocol: &[u8]) -> Option<bool> {
    let name = record_of_events(list(field(protocol, "types")?)?)?;
    let messages = field(protocol, "messages")?;
    let mut sound = 0;
    for (message, is_batch) in [("append", false), ("appendBatch", true)] {
        let Some(message) = field(messages, message) else {
            continue;
        };
        let parameters = list(field(message, "request")?)?;
        let [parameter] = parameters[..] else {
            return Some(false);
        };
        let mut kind = field(parameter, "type")?;
        if is_batch {
            if text(field(kind, "type")?)? != b"array" {
                return Some(false);
            }
            kind = field(kind, "items")?;
        }
        if short(text(kind)?) != short(name) {
            return Some(false);
        }
        sound += 1;
    }
    Some(sound > 0)
}

/// Returns the name of the Avro record type for events: its only fields are the map of headers and the body, in this order.
/// `None` if no type has these fields.
fn record_of_events(types: Vec<&[u8]>) -> Option<&[u8]> {
    types.into_iter().find_map(|kind| {
        let fields = list(field(kind, "fields")?)?;
        let [headers, body] = fields[..] else {
            return None;
        };
        let map = field(headers, "type")?;
        let sound = text(field(headers, "name")?)? == b"headers"
            && text(field(body, "name")?)? == b"body"
            && text(field(map, "type")?)? == b"map"
            && primitive(field(map, "values")?)? == b"string"
            && primitive(field(body, "type")?)? == b"bytes";
        sound.then(|| text(field(kind, "name")?)).flatten()
    })
}

/// The name of a primitive type, written as a name or as `{"type": NAME, ...}`.
fn primitive(kind: &[u8]) -> Option<&[u8]> {
    text(kind).or_else(|| text(field(kind, "type")?))
}

/// A name without its namespace.
fn short(name: &[u8]) -> &[u8] {
    name.rsplit(|byte| *byte == b'.').next().unwrap_or(name)
}

/// The value of a key of a map.
fn field<'a>(map: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut reader = Reader::new(map);
    for _ in 0..reader.map_len().ok()? {
        let key = reader.bytes().ok()?;
        let value = reader.value().ok()?;
        if key == name.as_bytes() {
            return Some(value);
        }
    }
    None
}

/// The elements of an array. Their number is bounded by the size of a handshake.
fn list(array: &[u8]) -> Option<Vec<&[u8]>> {
    let mut reader = Reader::new(array);
    let count = reader.array_len().ok()?;
    (0..count).map(|_| reader.value().ok()).collect()
}

fn text(value: &[u8]) -> Option<&[u8]> {
    Reader::new(value).bytes().ok()
}
