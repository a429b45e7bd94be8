//! Records to send: their bytes in one buffer, with the ranges of each record's parts.

use std::ops::Range;

/// Records to send, in order. The sink fills this buffer, passes it to a producer, and clears it for reuse.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Keys, values and header values.
    pub bytes: Vec<u8>,
    /// The records.
    pub records: Vec<Record>,
    /// The topics, which records refer to by index.
    pub topics: Vec<String>,
    /// The names of headers, in the order of each record's values.
    pub header_names: Vec<String>,
    /// The header values of all records: for each record, one value per header name.
    pub headers: Vec<Range<usize>>,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Identifies the record in failures.
    pub number: usize,
    /// Index of its topic.
    pub topic: usize,
    /// Its key, if it has one.
    pub key: Option<Range<usize>>,
    /// Its value.
    pub value: Range<usize>,
    /// Milliseconds since 1970.
    pub timestamp: i64,
}

impl Outgoing {
    /// Removes all records; topics and header names stay.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.records.clear();
        self.headers.clear();
    }

    /// Keeps a record only if `wanted` returns true for its number.
    pub fn keep(&mut self, wanted: impl Fn(usize) -> bool) {
        let names = self.header_names.len();
        let headers = std::mem::take(&mut self.headers);
        for (record, values) in self.records.iter().zip(headers.chunks(names.max(1))) {
            if names > 0 && wanted(record.number) {
                self.headers.extend_from_slice(values);
            }
        }
        self.records.retain(|record| wanted(record.number));
    }

    /// The bytes of a range.
    pub fn slice(&self, range: &Range<usize>) -> &[u8] {
        self.bytes.get(range.clone()).unwrap_or_default()
    }

    /// The header values of the record at `index`, one per name.
    pub fn headers_of(&self, index: usize) -> &[Range<usize>] {
        let names = self.header_names.len();
        self.headers
            .get(index * names..(index + 1) * names)
            .unwrap_or_default()
    }

    /// The size of the record at `index` that counts against a topic's `max.message.bytes`: its parts and their
    /// framing.
    pub fn size_of(&self, index: usize) -> usize {
        let Some(record) = self.records.get(index) else {
            return 0;
        };
        let names = self.header_names.iter().map(String::len);
        let values = self.headers_of(index).iter().map(Range::len);
        let headers: usize = names.zip(values).map(|(a, b)| a + b + HEADER_BYTES).sum();
        let key = record.key.as_ref().map_or(0, Range::len);
        record.value.len() + key + headers + FRAMING_BYTES
    }
}

/// The maximum number of bytes of a header without its name and value: two variable-length integers.
const HEADER_BYTES: usize = 10;
/// The header of a record batch (61 bytes) and the header of one record (at most 36 bytes). The broker counts both with a record.
const FRAMING_BYTES: usize = 97;
