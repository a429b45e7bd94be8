//! Shapes batches into Kafka records: topic, key, headers, value and time of each.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! This module promises that every record of the batch is either shaped or refused, in order, and that the same batch always
//! becomes the same records. It allocates nothing per record: all buffers are reused.

use std::ops::Range;

use jiff::tz::TimeZone;
use millstream_kafka::{Outgoing, Record};
use millstream_record::{Batch, Time};
use millstream_wire::{
    format::{Encoder, Mark, Reject},
    record::records,
    template::Renderer,
};

use super::{
    connect::Connect,
    options::{Config, Format},
    topics::{Limits, Topics},
};
use crate::sending::{Refused, parts, records_max, unencoded};

/// Bytes of a batch that are encoded at a time. This bounds the memory of encoding even for large batches.
const PART_BYTES_MAX: usize = 256 << 10;

/// Splits a batch into parts that are shaped one after the other.
pub(super) fn shapeable(batch: Batch) -> Vec<Batch> {
    let records_max = records_max(&batch);
    parts(batch, |bytes, records| {
        bytes <= PART_BYTES_MAX && records <= records_max
    })
}

/// Turns batches into Kafka records.
pub(super) struct Shaper {
    values: Values,
    topics: Topics,
    key: Option<Renderer>,
    headers: Vec<Renderer>,
    limits: Limits,
    marks: Vec<Mark>,
    rejects: Vec<Reject>,
}

enum Values {
    Wire(Box<Encoder>),
    Connect(Box<Connect>),
}

impl Shaper {
    pub(super) fn new(config: &Config, limits: Limits) -> Self {
        let zone = config.zone().unwrap_or(TimeZone::UTC);
        let text = |template| Renderer::text(template, zone.clone());
        let headers = config.headers.iter().flat_map(|headers| &headers.fields);
        Self {
            values: match config.format {
                Format::Connect => Values::Connect(Box::new(Connect::new(config.schemas))),
                _ => Values::Wire(Box::new(config.encoder())),
            },
            topics: Topics::new(&config.topic, text(&config.topic)),
            key: config.key.as_ref().map(text),
            headers: headers.map(|(_, template)| text(template)).collect(),
            limits,
            marks: Vec::new(),
            rejects: Vec::new(),
        }
    }

    /// Sets the known limits of topics.
    pub(super) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Creates an empty output with the names of the headers.
    pub(super) fn outgoing(config: &Config) -> Outgoing {
        let headers = config.headers.iter().flat_map(|headers| &headers.fields);
        Outgoing {
            header_names: headers.map(|(name, _)| name.clone()).collect(),
            ..Outgoing::default()
        }
    }

    /// Appends the records of a batch, numbered from `first` on; returns how many numbers were used.
    pub(super) fn shape(
        &mut self,
        batch: &Batch,
        first: usize,
        outgoing: &mut Outgoing,
        refused: &mut Vec<Refused>,
    ) -> usize {
        self.topics.begin(outgoing);
        self.limits.forget_old();
        if let Values::Connect(_) = &self.values {
            return self.connect(batch, first, outgoing, refused);
        }
        self.marks.clear();
        let mut start = outgoing.bytes.len();
        if let Values::Wire(encoder) = &mut self.values {
            encoder.encode_each(
                batch,
                &mut outgoing.bytes,
                &mut self.rejects,
                &mut self.marks,
            );
        }
        let rejects = self.rejects.drain(..);
        refused.extend(rejects.map(unencoded));
        let marks = std::mem::take(&mut self.marks);
        for (index, mark) in marks.iter().enumerate() {
            let value = start..mark.written;
            start = mark.written;
            if let Err(reason) = self.add(batch, mark, first + index, value, outgoing) {
                refused.push((mark.start..mark.end, reason.into()));
            }
        }
        let count = marks.len();
        self.marks = marks;
        count
    }

    /// The byte ranges of the records of the batch that was shaped last, in the order of their numbers.
    pub(super) fn places(&self, batch: &Batch) -> Vec<Range<usize>> {
        match self.values {
            Values::Wire(_) => self.marks.iter().map(|mark| mark.start..mark.end).collect(),
            Values::Connect(_) => records(batch).map(|(range, _)| range).collect(),
        }
    }

    fn connect(
        &mut self,
        batch: &Batch,
        first: usize,
        outgoing: &mut Outgoing,
        refused: &mut Vec<Refused>,
    ) -> usize {
        let mut count = 0;
        for (range, timed) in records(batch) {
            let number = first + count;
            count += 1;
            let mark = Mark {
                start: range.start,
                record: range.end - rest(&timed, batch, &range),
                end: range.end,
                time: timed.time,
                written: 0,
            };
            let done = self.topics.index(batch, timed, outgoing).and_then(|topic| {
                let Values::Connect(connect) = &mut self.values else {
                    return Ok(());
                };
                let name = outgoing.topics.get(topic).map_or("", String::as_str);
                let start = outgoing.bytes.len();
                connect.write(name, timed, &mut outgoing.bytes)?;
                let value = start..outgoing.bytes.len();
                let key = self
                    .key
                    .is_none()
                    .then(|| connect.key(batch, &mut outgoing.bytes));
                let added = self.add(batch, &mark, number, value, outgoing);
                if let (Ok(()), Some(Some(key)), Some(record)) =
                    (&added, key, outgoing.records.last_mut())
                {
                    record.key = Some(key);
                }
                added
            });
            if let Err(reason) = done {
                refused.push((range, reason.into()));
            }
        }
        count
    }

    /// Appends one record whose value is already written; writes its key and headers after the value.
    #[inline]
    fn add(
        &mut self,
        batch: &Batch,
        mark: &Mark,
        number: usize,
        value: Range<usize>,
        outgoing: &mut Outgoing,
    ) -> Result<(), String> {
        let timed = mark.event(batch);
        let topic = self.topics.index(batch, timed, outgoing)?;
        let key = match &mut self.key {
            None => None,
            Some(renderer) => Some(text(renderer, batch, mark, &mut outgoing.bytes)?),
        };
        let headers = outgoing.headers.len();
        for renderer in &mut self.headers {
            match text(renderer, batch, mark, &mut outgoing.bytes) {
                Ok(range) => outgoing.headers.push(range),
                Err(reason) => {
                    outgoing.headers.truncate(headers);
                    return Err(reason);
                }
            }
        }
        outgoing.records.push(Record {
            number,
            topic,
            key,
            value,
            timestamp: milliseconds(mark.time),
        });
        let name = outgoing.topics.get(topic).map_or("", String::as_str);
        if let Some(max) = self.limits.of(name) {
            let size = outgoing.size_of(outgoing.records.len() - 1);
            if size > max {
                outgoing.records.pop();
                outgoing.headers.truncate(headers);
                return Err(format!(
                    "the record has {size} bytes, and the topic {name} accepts at most {max} (max.message.bytes)"
                ));
            }
        }
        Ok(())
    }
}

/// The length of the record in an entry, in bytes.
fn rest(
    timed: &millstream_wire::record::TimedRecord<'_>,
    batch: &Batch,
    range: &Range<usize>,
) -> usize {
    use millstream_wire::record::Record as Of;
    match timed.record {
        // The record's slice extends to the end of the body.
        Of::Packed(bytes) => bytes.len() - (batch.body.len() - range.end),
        Of::Line(_) | Of::None => range.len(),
    }
}

fn text(
    renderer: &mut Renderer,
    batch: &Batch,
    mark: &Mark,
    out: &mut Vec<u8>,
) -> Result<Range<usize>, String> {
    let start = out.len();
    let rendered = renderer.render(batch.into(), mark.event(batch), out);
    rendered.map_err(|missing| missing.to_string())?;
    Ok(start..out.len())
}

/// The event time in milliseconds since 1970; earlier times become 0.
fn milliseconds(time: Time) -> i64 {
    time.0.div_euclid(1_000_000).max(0)
}
