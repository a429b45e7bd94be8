//! Encodes records as OTLP log records, and combines log records into requests, in protobuf and JSON.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! The fields that the decoder writes (see [`super`]) become the OTLP fields from which they were read. Every other field becomes
//! an attribute of the same name. If a record has neither of OTLP's severity fields, and its field `severity` or `level` holds a
//! name that syslog or loggers use, this field also sets the severity. A record without the field `resources` gets the resource
//! attributes that the caller has configured. The time is the event time. The observed time is the field
//! `observed_time_unix_nano`, or the receive time if the record does not have it.
//!
//! An integer above the signed 64-bit range becomes text; text that is not UTF-8 becomes bytes. Nothing recurses. The caller
//! decides which records form a request.

use jiff::tz::TimeZone;
use millstream_record::Time;

use super::{
    Form,
    around::{Around, HEAD_BYTES},
    known::{Known, scope_of},
    value::Stack,
    write_json, write_protobuf,
};
use crate::{
    json::Unfit,
    record::{Record, TimedRecord},
    template::{Renderer, Shared, Template},
};

/// Encodes records. Each task has its own encoder.
#[derive(Debug)]
pub struct Encoder {
    form: Form,
    /// The attributes of the resource for records that have no field `resources`.
    resource: Vec<(Box<str>, Renderer)>,
    stack: Stack,
    text: Vec<u8>,
    /// The rendered values, each with the index of its attribute in `resource`.
    rendered: Vec<(usize, Vec<u8>)>,
}

impl Encoder {
    /// Creates an encoder. `resource` has the attributes of the resource for records that have no field `resources`. If the
    /// template of an attribute needs a value that is missing, the attribute is left out.
    pub fn new<'t>(
        form: Form,
        resource: impl IntoIterator<Item = (&'t str, &'t Template)>,
    ) -> Self {
        let resource = resource
            .into_iter()
            .map(|(name, template)| (name.into(), Renderer::text(template, TimeZone::UTC)));
        Self {
            form,
            resource: resource.collect(),
            stack: Stack::default(),
            text: Vec::new(),
            rendered: Vec::new(),
        }
    }

    /// Appends the log record for `event` to `out`, and its context (resource and scope) to `around`.
    ///
    /// # Errors
    /// If the record cannot be encoded. In that case, `out` and `around` are unchanged.
    pub fn record(
        &mut self,
        shared: Shared<'_>,
        event: TimedRecord<'_>,
        received: Time,
        out: &mut Vec<u8>,
        around: &mut Vec<u8>,
    ) -> Result<(), Unfit> {
        let (out_start, around_start) = (out.len(), around.len());
        let done = self.write(shared, event, received, out, around);
        if done.is_err() {
            out.truncate(out_start);
            around.truncate(around_start);
        }
        done
    }

    fn write(
        &mut self,
        shared: Shared<'_>,
        event: TimedRecord<'_>,
        received: Time,
        out: &mut Vec<u8>,
        around: &mut Vec<u8>,
    ) -> Result<(), Unfit> {
        let known = match event.record {
            Record::Packed(map) => Known::of(map)?,
            Record::Line(line) => Known::line(line),
            Record::None => Known::default(),
        };
        if known.resources.is_empty() {
            self.render(shared, event);
        } else {
            self.rendered.clear();
        }
        let start = around.len();
        around.extend_from_slice(&[0; HEAD_BYTES]);
        let names = self
            .rendered
            .iter()
            .filter_map(|(place, value)| Some((&*self.resource.get(*place)?.0, &value[..])));
        let times = (event.time, received);
        let (stack, text) = (&mut self.stack, &mut self.text);
        let found = scope_of(known.scope)?;
        let scope = match self.form {
            Form::Protobuf => {
                write_protobuf::record(&known, times, stack, text, out)?;
                write_protobuf::resource(&known, names, stack, text, around)?;
                let scope = around.len();
                write_protobuf::scope(&found, stack, text, around)?;
                scope
            }
            Form::Json => {
                write_json::record(&known, times, stack, text, out)?;
                write_json::resource(&known, names, stack, text, around)?;
                let scope = around.len();
                write_json::scope(&found, stack, text, around)?;
                scope
            }
        };
        let lengths = [
            scope - start - HEAD_BYTES,
            around.len() - scope,
            known.resource_schema.len(),
        ];
        around.extend_from_slice(known.resource_schema);
        around.extend_from_slice(found.schema);
        let head = around.get_mut(start..start + HEAD_BYTES);
        let head = head.unwrap_or_default().chunks_exact_mut(4);
        for (place, length) in head.zip(lengths) {
            let length = u32::try_from(length).map_err(|_| Unfit::TooDeep)?;
            place.copy_from_slice(&length.to_le_bytes());
        }
        Ok(())
    }

    /// Renders the attributes of the resource.
    fn render(&mut self, shared: Shared<'_>, event: TimedRecord<'_>) {
        let mut used = 0;
        for (place, (_, renderer)) in self.resource.iter_mut().enumerate() {
            if self.rendered.len() == used {
                self.rendered.push((place, Vec::new()));
            }
            let Some((found, value)) = self.rendered.get_mut(used) else {
                continue;
            };
            value.clear();
            if renderer.render(shared, event, value).is_ok() {
                *found = place;
                used += 1;
            }
        }
        self.rendered.truncate(used);
    }
}

/// Appends a request with these log records. Each item is a log record and its context, as [`Encoder::record`] has written them.
/// Consecutive records with equal contexts share a resource and a scope.
pub fn write_request<'a>(
    form: Form,
    records: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    out: &mut Vec<u8>,
) {
    let mut records = records.peekable();
    let mut scratch = Vec::new();
    let mut first = true;
    if form == Form::Json {
        out.extend_from_slice(b"{\"resourceLogs\":[");
    }
    while let Some((record, around)) = records.next() {
        scratch.clear();
        append(form, record, &mut scratch, true);
        while let Some((record, _)) = records.next_if(|(_, other)| *other == around) {
            append(form, record, &mut scratch, false);
        }
        let around = Around::of(around);
        match form {
            Form::Protobuf => write_protobuf::group(around, &scratch, out),
            Form::Json => write_json::group(first, around, &scratch, out),
        }
        first = false;
    }
    if form == Form::Json {
        out.extend_from_slice(b"]}");
    }
}

fn append(form: Form, record: &[u8], out: &mut Vec<u8>, first: bool) {
    match form {
        Form::Protobuf => write_protobuf::bytes(2, record, out),
        Form::Json => {
            if !first {
                out.push(b',');
            }
            out.extend_from_slice(record);
        }
    }
}
