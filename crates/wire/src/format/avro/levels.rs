//! Facility and severity, which Flume writes as numbers, and the priority that results from them.

use super::datum::bytes;
use crate::{json, msgpack::Reader, room::Room, syslog};

/// The facility and severity of the last record that was not encoded the quick way. Nearly every syslog record begins with these
/// two fields, usually with the same values.
#[derive(Debug, Default)]
pub(super) struct Levels {
    /// The two fields, encoded as in the record; empty if the record did not begin with them.
    pub(super) stand: Vec<u8>,
    /// The headers written for these fields: `Facility`, `Severity` and `priority`.
    pub(super) written: Vec<u8>,
    /// The added fields that have the names of these headers, as a bit set: bit n stands for the added field with index n.
    pub(super) seen: u64,
}

/// Flume's names for facility and severity.
pub(super) const LEVELS: [&str; 2] = ["Facility", "Severity"];

/// Whether `name` is `facility` or `severity`. Flume has other names for these two fields.
#[inline(always)]
pub(super) fn is_level(name: &[u8]) -> bool {
    name.len() == 8 && (name == b"facility" || name == b"severity")
}

/// Reads the field `name` at `at`. If the field is `facility` or `severity` and its value is one of syslog's names, returns three
/// values: the index of the field in [`LEVELS`], the number that the value stands for, and the offset after the field. Otherwise
/// returns `None`.
pub(super) fn level_at(name: &[u8], body: &[u8], at: usize) -> Option<(usize, u8, usize)> {
    let (which, names) = match name {
        b"facility" => (0, &syslog::FACILITIES[..]),
        b"severity" => (1, &syslog::SEVERITIES[..]),
        _ => return None,
    };
    let mut reader = Reader::at(body, at);
    reader.bytes().ok()?;
    let value = reader.bytes().ok()?;
    let number = names.iter().position(|name| name.as_bytes() == value)?;
    Some((which, u8::try_from(number).ok()?, reader.position()))
}

pub(super) fn write_level(room: &mut Room<'_>, which: usize, number: u8) {
    bytes(room, LEVELS[which].as_bytes());
    write_number(room, number);
}

pub(super) fn write_priority(room: &mut Room<'_>, facility: u8, severity: u8) {
    bytes(room, b"priority");
    write_number(room, facility * 8 + severity);
}

fn write_number(room: &mut Room<'_>, number: u8) {
    let mut buffer = [0; json::INTEGER_BYTES];
    let start = json::unsigned_digits(u64::from(number), &mut buffer);
    bytes(room, buffer.get(start..).unwrap_or_default());
}

impl Levels {
    /// Stores the facility and severity at the start of a record. If the record does not begin with both, stores nothing and
    /// clears `stand`.
    pub(super) fn learn(&mut self, body: &[u8], at: usize, fields: u32) {
        self.stand.clear();
        let level = |at| {
            let name = Reader::at(body, at).bytes().ok()?;
            level_at(name, body, at)
        };
        let Some((0, facility, middle)) = level(at).filter(|_| fields >= 2) else {
            return;
        };
        let Some((1, severity, end)) = level(middle) else {
            return;
        };
        self.stand
            .extend_from_slice(body.get(at..end).unwrap_or_default());
        self.written.clear();
        let mut room = Room::new(&mut self.written);
        write_level(&mut room, 0, facility);
        write_level(&mut room, 1, severity);
        write_priority(&mut room, facility, severity);
    }
}
