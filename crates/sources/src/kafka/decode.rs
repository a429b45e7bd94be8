//! Turns a Kafka record into an entry `[time, record]`.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`

use millstream_kafka::Incoming;
use millstream_record::Time;
use millstream_wire::{
    json::{self, Progress},
    msgpack::{
        Reader, Shape, entry_head, entry_shape, replacing_time, write_array_len, write_bin,
        write_int, write_map_len, write_nil, write_str, write_time, write_uint,
    },
    record::{FieldPath, Record},
};

use super::options::{Fields, Format};

/// The field that holds the value of a record with `format: raw`.
const MESSAGE: &[u8] = b"message";

/// Appends the entry of a record. After an error, `out` is unchanged.
pub(super) fn entry(
    format: Format,
    fields: &Fields,
    record: &Incoming<'_>,
    received: Time,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let time = record
        .timestamp
        .map_or(received, |ms| Time(ms.saturating_mul(1_000_000)));
    scratch.clear();
    let value = record.value.unwrap_or_default();
    let (map, time) = match format {
        Format::Raw => {
            write_map_len(scratch, 1);
            write_str(scratch, MESSAGE);
            match record.value {
                Some(value) => write_str(scratch, value),
                None => write_nil(scratch),
            }
            (&scratch[..], time)
        }
        Format::Json => {
            let read = json::to_msgpack(value, scratch).map_err(|error| error.to_string())?;
            let Progress::Consumed(length) = read else {
                return Err("the JSON text ends too early".to_owned());
            };
            let rest = value.get(length..).unwrap_or_default();
            if !rest.iter().all(u8::is_ascii_whitespace) {
                return Err(format!("more than one JSON value (byte {length})"));
            }
            (&scratch[..], time)
        }
        Format::Msgpack => msgpack(value, time)?,
    };
    let mut reader = Reader::new(map);
    let own = reader
        .map_len()
        .map_err(|_| "it is not a map of fields".to_owned())?;
    write_array_len(out, 2);
    write_time(out, time);
    let added: Vec<_> = Beside::all(fields)
        .filter(|(name, _)| FieldPath::top(name).find(Record::Packed(map)).is_none())
        .collect();
    write_map_len(
        out,
        own.saturating_add(u32::try_from(added.len()).unwrap_or(0)),
    );
    out.extend_from_slice(map.get(reader.position()..).unwrap_or_default());
    for (name, beside) in added {
        write_str(out, name.as_bytes());
        beside.write(record, out);
    }
    Ok(())
}

/// Returns the map in a MessagePack value, and the time of the record. The value is either a map or an entry `[time, map]`. The
/// time of the record is that of the entry, or `time` if the value has none.
fn msgpack(value: &[u8], time: Time) -> Result<(&[u8], Time), String> {
    let mut reader = Reader::new(value);
    reader
        .skip()
        .map_err(|_| "it is not a complete MessagePack value".to_owned())?;
    if reader.position() < value.len() {
        return Err("more than one MessagePack value".to_owned());
    }
    match entry_shape(value) {
        Shape::Misfit => Ok((value, time)),
        Shape::Good | Shape::Timeless | Shape::Mark => {
            let head = entry_head(value, 0).map_err(|_| "it is not an entry".to_owned())?;
            let map = value.get(head.record..).unwrap_or_default();
            // The time follows the array marker.
            let mut reader = Reader::new(value);
            let _ = reader.array_len();
            let first = value.get(reader.position()..).unwrap_or_default();
            let own = head.time.unwrap_or_else(|| replacing_time(first, time));
            Ok((map, own))
        }
    }
}

/// A part of a record other than its value.
#[derive(Clone, Copy)]
enum Beside {
    Key,
    Offset,
    Topic,
    Partition,
    Timestamp,
    Headers,
}

impl Beside {
    /// The parts that are configured, with the names of their fields.
    fn all(fields: &Fields) -> impl Iterator<Item = (&str, Self)> {
        let all = [
            (&fields.key, Self::Key),
            (&fields.offset, Self::Offset),
            (&fields.topic, Self::Topic),
            (&fields.partition, Self::Partition),
            (&fields.timestamp, Self::Timestamp),
            (&fields.headers, Self::Headers),
        ];
        all.into_iter()
            .filter_map(|(name, beside)| Some((name.as_deref()?, beside)))
    }

    fn write(self, record: &Incoming<'_>, out: &mut Vec<u8>) {
        match self {
            Self::Key => write_bytes(record.key, out),
            Self::Offset => write_uint(out, record.offset),
            Self::Topic => write_str(out, record.topic.as_bytes()),
            Self::Partition => write_int(out, record.partition.into()),
            Self::Timestamp => match record.timestamp {
                Some(time) => write_int(out, time),
                None => write_nil(out),
            },
            Self::Headers => {
                write_map_len(out, u32::try_from(record.headers.len()).unwrap_or(0));
                for (name, value) in record.headers {
                    write_str(out, name.as_bytes());
                    write_bytes(*value, out);
                }
            }
        }
    }
}

/// Writes bytes as text if they are UTF-8.
fn write_bytes(bytes: Option<&[u8]>, out: &mut Vec<u8>) {
    match bytes {
        None => write_nil(out),
        Some(bytes) if std::str::from_utf8(bytes).is_ok() => write_str(out, bytes),
        Some(bytes) => write_bin(out, bytes),
    }
}
