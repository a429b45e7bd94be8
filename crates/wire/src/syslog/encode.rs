//! Encodes records as syslog messages: writes the header of RFC 5424 or RFC 3164 that precedes a text.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! ```text
//! RFC 5424   <PRI>1 2026-11-21T22:14:15.123456Z HOST APP PROCID MSGID [id name="value"]... TEXT
//! RFC 3164   <PRI>Nov 21 22:14:15 HOST APP[PROCID]: TEXT
//! ```
//!
//! The encoder reads the fields that the decoder writes (see [`super`]). If facility, severity, host or app is missing, the encoder uses
//! the caller's default. Any other missing field is `-` in RFC 5424, and is left out in RFC 3164. A header contains only allowed
//! characters, regardless of the contents of the fields. Nothing is allocated per record. The caller writes the text and separates
//! messages.

use jiff::tz::TimeZone;

use super::{
    priority, structured_text,
    word::{text_of, word},
};
use crate::{
    msgpack::Reader,
    record::{Record, TimedRecord},
    template::{Renderer, Shared, Template, write_number},
};

/// The maximum lengths of host, app, process id and message id in RFC 5424.
const HOST_BYTES_MAX: usize = 255;
const APP_BYTES_MAX: usize = 48;
const PROCID_BYTES_MAX: usize = 128;
const MSGID_BYTES_MAX: usize = 32;
/// The maximum length of a tag in RFC 3164.
const TAG_BYTES_MAX: usize = 32;

/// The format of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// RFC 5424.
    Rfc5424,
    /// RFC 3164.
    Rfc3164,
}

/// Defaults for missing fields.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// Facility, 0 to 23.
    pub facility: u8,
    /// Severity, 0 to 7.
    pub severity: u8,
    /// The host.
    pub host: Template,
    /// The app.
    pub app: Template,
}

/// Writes headers. Each task has its own encoder, because an encoder caches times.
#[derive(Debug)]
pub struct Encoder {
    header: Header,
    facility: u8,
    severity: u8,
    host: Renderer,
    app: Renderer,
    time: Renderer,
    scratch: Vec<u8>,
}

/// The fields of a record that a header can contain: MessagePack values, empty if missing.
#[derive(Default)]
struct Fields<'a> {
    facility: &'a [u8],
    severity: &'a [u8],
    host: &'a [u8],
    app: &'a [u8],
    procid: &'a [u8],
    msgid: &'a [u8],
    structured: &'a [u8],
}

impl<'a> Fields<'a> {
    fn of(record: Record<'a>) -> Self {
        let mut fields = Self::default();
        if let Record::Packed(map) = record {
            // This cannot fail, because a batch holds complete records.
            let _ = fields.read(map);
        }
        fields
    }

    fn read(&mut self, map: &'a [u8]) -> Option<()> {
        let mut reader = Reader::new(map);
        for _ in 0..reader.map_len().ok()? {
            let key = reader.value().ok()?;
            let value = reader.value().ok()?;
            let field = match Reader::new(key).bytes().unwrap_or_default() {
                b"facility" => &mut self.facility,
                b"severity" => &mut self.severity,
                b"host" => &mut self.host,
                b"app" => &mut self.app,
                b"procid" => &mut self.procid,
                b"msgid" => &mut self.msgid,
                b"structured_data" => &mut self.structured,
                _ => continue,
            };
            // If a key occurs several times, the first one applies. Nil counts as missing.
            if field.is_empty() && value != [0xc0] {
                *field = value;
            }
        }
        Some(())
    }
}

impl Encoder {
    /// Creates an encoder for this format. Times are written in the time zone `zone`.
    pub fn new(header: Header, zone: &TimeZone, defaults: &Defaults) -> Self {
        let format = match header {
            Header::Rfc3164 => "%b %e %T",
            Header::Rfc5424 if *zone == TimeZone::UTC => "%FT%T.%6fZ",
            Header::Rfc5424 => "%FT%T.%6f%:z",
        };
        let format = Template::parse(format);
        let format = format.expect("strftime that jiff knows");
        let text = |template| Renderer::text(template, zone.clone());
        Self {
            header,
            facility: defaults.facility,
            severity: defaults.severity,
            host: text(&defaults.host),
            app: text(&defaults.app),
            time: text(&format),
            scratch: Vec::new(),
        }
    }

    /// Appends the header of a record, up to the start of its text.
    pub fn head(&mut self, shared: Shared<'_>, event: TimedRecord<'_>, out: &mut Vec<u8>) {
        let fields = Fields::of(event.record);
        let facility = number(fields.facility, priority::facility).unwrap_or(self.facility);
        let severity = number(fields.severity, priority::severity).unwrap_or(self.severity);
        out.push(b'<');
        write_number(i64::from(facility) * 8 + i64::from(severity), out);
        out.push(b'>');
        match self.header {
            Header::Rfc5424 => self.new_head(&fields, shared, event, out),
            Header::Rfc3164 => self.old_head(&fields, shared, event, out),
        }
    }

    fn new_head(
        &mut self,
        fields: &Fields<'_>,
        shared: Shared<'_>,
        event: TimedRecord<'_>,
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(b"1 ");
        if self.time.render(shared, event, out).is_err() {
            out.push(b'-');
        }
        out.push(b' ');
        self.host(fields, shared, event, out);
        self.app(fields, shared, event);
        out.push(b' ');
        word(&self.scratch, APP_BYTES_MAX, b"-", |_| true, out);
        for (value, bytes_max) in [
            (fields.procid, PROCID_BYTES_MAX),
            (fields.msgid, MSGID_BYTES_MAX),
        ] {
            out.push(b' ');
            text_of(value, &mut self.scratch);
            word(&self.scratch, bytes_max, b"-", |_| true, out);
        }
        out.push(b' ');
        structured_text::write(fields.structured, &mut self.scratch, out);
        out.push(b' ');
    }

    fn old_head(
        &mut self,
        fields: &Fields<'_>,
        shared: Shared<'_>,
        event: TimedRecord<'_>,
        out: &mut Vec<u8>,
    ) {
        // This cannot fail, because the format can render every time.
        let _ = self.time.render(shared, event, out);
        out.push(b' ');
        self.host(fields, shared, event, out);
        out.push(b' ');
        self.app(fields, shared, event);
        let in_tag = |byte| !matches!(byte, b'[' | b']' | b':');
        word(&self.scratch, TAG_BYTES_MAX, b"-", in_tag, out);
        text_of(fields.procid, &mut self.scratch);
        if !self.scratch.is_empty() {
            out.push(b'[');
            word(&self.scratch, PROCID_BYTES_MAX, b"-", in_tag, out);
            out.push(b']');
        }
        out.extend_from_slice(b": ");
    }

    fn host(
        &mut self,
        fields: &Fields<'_>,
        shared: Shared<'_>,
        event: TimedRecord<'_>,
        out: &mut Vec<u8>,
    ) {
        text_of(fields.host, &mut self.scratch);
        if self.scratch.is_empty() {
            // If the template needs a value that is missing, the host is nil (`-`).
            let _ = self.host.render(shared, event, &mut self.scratch);
        }
        word(&self.scratch, HOST_BYTES_MAX, b"-", |_| true, out);
    }

    /// Writes the app to `scratch`.
    fn app(&mut self, fields: &Fields<'_>, shared: Shared<'_>, event: TimedRecord<'_>) {
        text_of(fields.app, &mut self.scratch);
        if self.scratch.is_empty() {
            let _ = self.app.render(shared, event, &mut self.scratch);
        }
    }
}

/// Returns the number of the facility or severity in `value`, a MessagePack text or number. Returns `None` if `value` is empty, or if
/// `named` does not know the text or number.
fn number(value: &[u8], named: impl Fn(&str) -> Option<u8>) -> Option<u8> {
    if value.is_empty() {
        return None;
    }
    match Reader::new(value).bytes() {
        Ok(text) => named(str::from_utf8(text).ok()?),
        Err(_) => {
            let mut text = [0; 3];
            let number = u8::try_from(Reader::new(value).int().ok()?).ok()?;
            let digits = [number / 100, number / 10 % 10, number % 10];
            text.iter_mut()
                .zip(digits)
                .for_each(|(text, digit)| *text = b'0' + digit);
            named(str::from_utf8(&text).ok()?)
        }
    }
}
