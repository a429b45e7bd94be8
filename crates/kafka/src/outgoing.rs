//! Records on their way out: the bytes of many in one buffer, and where each one's parts stand in it.

use std::ops::Range;

/// Records to send, in order. It is filled, handed to a producer and cleared to be filled again.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Keys, values and headers' values, wherever the records say.
    pub bytes: Vec<u8>,
    /// The records.
    pub records: Vec<Record>,
    /// The topics that they name by their index.
    pub topics: Vec<String>,
    /// The names of headers, in the order in which each record has its values.
    pub header_names: Vec<String>,
    /// Values of headers: for every record as many as there are names, or none at all.
    pub headers: Vec<Range<usize>>,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// By which a failure names it.
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
    /// Empties it; topics and names of headers stay.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.records.clear();
        self.headers.clear();
    }

    /// Keeps only the records whose number is wanted.
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

    /// The values of the headers of the record at `index`; as many as there are names.
    pub fn headers_of(&self, index: usize) -> &[Range<usize>] {
        let names = self.header_names.len();
        self.headers
            .get(index * names..(index + 1) * names)
            .unwrap_or_default()
    }

    /// Bytes of the record at `index` that count against a topic's `max.message.bytes`: its parts and what frames them.
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

/// At most so many bytes of a header besides its name and value: two variable-length integers.
const HEADER_BYTES: usize = 10;
/// The header of a record batch (61 bytes) and of one record in it (at most 36): what the broker counts with a record.
const FRAMING_BYTES: usize = 97;
