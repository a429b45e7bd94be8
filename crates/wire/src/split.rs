//! Splits batches: by the key of each record, into adjacent parts, or at an offset of the file that the records come from.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`

use std::ops::Range;

use jiff::tz::TimeZone;
use millstream_record::{Batch, Buffer, Encoding, FileOrigin, Pool};

use crate::{
    lines, msgpack,
    record::{FieldPath, MESSAGE, Record, TimedRecord, Value, entry_and_end, records},
    template::{Depends, Renderer, Template},
};

/// The maximum capacity, in records, that `Splitter::records` keeps for a smaller batch.
const RECORDS_KEPT: usize = 64 << 10;

/// Splits batches by the hash of each record's key, which is the text of a template. Every task needs its own splitter, because a
/// splitter reuses buffers.
pub struct Splitter {
    renderer: Renderer,
    /// The path of the field, if the template is a single field. In this case, the text of the field is hashed without being copied.
    field: Option<FieldPath>,
    /// The name of `field`, if it is at the top level.
    name: Option<Box<str>>,
    hash: fn(&[u8]) -> u64,
    key: Vec<u8>,
    /// For each record of the last batch: the number of its part, and its end offset in the body.
    records: Vec<(u32, u32)>,
}

impl Splitter {
    /// Creates a splitter whose keys are the texts of `template`, and which hashes them with `hash`. strftime directives show the
    /// time in UTC.
    pub fn new(template: &Template, hash: fn(&[u8]) -> u64) -> Self {
        Self {
            renderer: Renderer::text(template, TimeZone::UTC),
            field: template.field().cloned(),
            name: template
                .field()
                .and_then(FieldPath::top_name)
                .map(Box::from),
            hash,
            key: Vec::new(),
            records: Vec::new(),
        }
    }

    /// Splits a batch into at most `parts` parts. A record belongs to the part whose number is the hash of its key modulo `parts`. Returns
    /// the parts that have records, with their numbers, in ascending order. The records of a part keep their order. If a value that the
    /// template needs is missing, the key is empty. If all records belong to one part, the batch is returned unchanged and is not copied.
    /// Otherwise the parts have no origins (the chunks or file ranges from which the records came).
    pub fn split(&mut self, batch: Batch, parts: usize, pool: &Pool) -> Vec<(usize, Batch)> {
        let parts = parts.max(1);
        if parts == 1 {
            return vec![(0, batch)];
        }
        if self.renderer.depends() <= Depends::Batch {
            self.key.clear();
            let _ = self.renderer.render_batch(&batch, &mut self.key);
            let part = ((self.hash)(&self.key) % parts as u64) as usize;
            return vec![(part, batch)];
        }
        let places = self.place(&batch, parts, pool);
        self.records = places.records;
        if !places.is_divided {
            return vec![(places.first, batch)];
        }
        let all = places.parts.into_iter().enumerate();
        all.filter_map(|(number, part)| {
            let body = part.body?.freeze();
            Some((number, part_of(&batch, body, part.count)))
        })
        .collect()
    }

    /// Returns the records of a part of the last batch that was divided, as indexes in that batch.
    pub fn members(&self, part: usize) -> impl Iterator<Item = usize> {
        let all = self.records.iter().enumerate();
        all.filter_map(move |(at, (of, _))| (*of as usize == part).then_some(at))
    }

    /// Determines the part of each record, and copies the record to its part if the batch has several parts.
    fn place<'b>(&mut self, batch: &'b Batch, parts: usize, pool: &'b Pool) -> Places<'b> {
        self.records.clear();
        let count = batch.count as usize;
        // Without this call, the memory for one large batch would never be freed.
        self.records.shrink_to(count.max(RECORDS_KEPT));
        self.records.reserve(count);
        let mut places = Places::new(batch, parts, pool, std::mem::take(&mut self.records));
        match (batch.encoding, &self.name) {
            (Encoding::Lines, Some(name)) if **name == *MESSAGE => {
                self.place_lines(batch, &mut places)
            }
            (Encoding::Packed, Some(_)) => self.place_entries(batch, &mut places),
            _ => {
                for (range, timed) in records(batch) {
                    let value = self.field.as_ref().map(|field| field.find(timed.record));
                    let hash = self.hash_of(batch, timed, value);
                    places.add(hash, range.end);
                }
            }
        }
        places
    }

    /// Adds lines to their parts. The key is the line.
    fn place_lines(&self, batch: &Batch, places: &mut Places<'_>) {
        let body = &batch.body[..];
        let mut ends = LineEnds::default();
        lines::each_newline(body, |end| {
            if ends.push(end + 1) {
                self.place_found(&ends, body, places);
                ends.count = 0;
            }
        });
        self.place_found(&ends, body, places);
        let rest = body.get(places.start..).unwrap_or_default();
        if !rest.is_empty() {
            places.add((self.hash)(rest), body.len());
        }
    }

    /// Adds the lines that end at `ends`.
    #[inline(never)]
    fn place_found(&self, ends: &LineEnds, body: &[u8], places: &mut Places<'_>) {
        let mut hashes = [0; LINES];
        let mut start = places.start;
        for (hash, end) in hashes.iter_mut().zip(ends.all()) {
            let end = *end as usize;
            *hash = (self.hash)(body.get(start..end - 1).unwrap_or_default());
            start = end;
        }
        for (hash, end) in hashes.iter().zip(ends.all()) {
            places.add(*hash, *end as usize);
        }
    }

    /// Adds entries to their parts by a field at the top level. One walk finds the field and the end of the entry.
    fn place_entries(&mut self, batch: &Batch, places: &mut Places<'_>) {
        let (body, name) = (&batch.body[..], self.name.take().unwrap_or_default());
        while let Ok(head) = msgpack::entry_head(body, places.start) {
            let Some((value, end)) = entry_and_end(body, head.record, name.as_bytes()) else {
                break;
            };
            let timed = TimedRecord {
                time: head.time.unwrap_or(batch.received),
                record: Record::Packed(body.get(head.record..).unwrap_or_default()),
                metadata: head.metadata(body),
            };
            let hash = self.hash_of(batch, timed, Some(value));
            places.add(hash, end);
        }
        self.name = Some(name);
    }

    /// Returns the hash of a record's key. `value` is `None` if the template is not a single field and must be rendered. Otherwise
    /// `value` is `Some` with the value of the field, or `Some(None)` if the record does not have the field.
    #[inline(always)]
    fn hash_of(
        &mut self,
        batch: &Batch,
        timed: TimedRecord<'_>,
        value: Option<Option<Value<'_>>>,
    ) -> u64 {
        match value {
            Some(None) => return (self.hash)(b""),
            Some(Some(value)) => {
                if let Some(text) = value.text() {
                    return (self.hash)(text);
                }
            }
            None => {}
        }
        self.key.clear();
        let _ = self.renderer.render(batch.into(), timed, &mut self.key);
        (self.hash)(&self.key)
    }
}

/// Lines are processed in groups of this many: the lines of a group are found, then hashed, and then copied. Three short loops are faster
/// than one long loop.
const LINES: usize = 32;

/// The offsets after the newlines of up to [`LINES`] lines.
#[derive(Default)]
struct LineEnds {
    ends: [u32; LINES],
    count: usize,
}

impl LineEnds {
    /// Adds an offset. Returns true if the array is full afterwards.
    #[inline(always)]
    fn push(&mut self, end: usize) -> bool {
        if let Some(place) = self.ends.get_mut(self.count) {
            // A body is smaller than 4 GiB.
            *place = end as u32;
            self.count += 1;
        }
        self.count == LINES
    }

    fn all(&self) -> &[u32] {
        self.ends.get(..self.count).unwrap_or_default()
    }
}

/// The parts of a batch while its records are copied to them.
struct Places<'b> {
    body: &'b [u8],
    pool: &'b Pool,
    parts: Vec<Part>,
    /// A mask that gives the remainder of a hash; `None` if the number of parts is not a power of two.
    mask: Option<u64>,
    /// The part of the first record. No record is copied until a record of another part is found.
    first: usize,
    is_divided: bool,
    /// For each record: the number of its part, and its end offset in the body.
    records: Vec<(u32, u32)>,
    /// The offset of the next record.
    start: usize,
}

/// A part that is being filled.
#[derive(Default)]
struct Part {
    body: Option<Buffer>,
    count: u32,
}

impl<'b> Places<'b> {
    fn new(batch: &'b Batch, parts: usize, pool: &'b Pool, records: Vec<(u32, u32)>) -> Self {
        let part = |_| Part::default();
        Self {
            body: &batch.body,
            pool,
            parts: (0..parts).map(part).collect(),
            mask: parts.is_power_of_two().then_some(parts as u64 - 1),
            first: 0,
            is_divided: false,
            records,
            start: 0,
        }
    }

    /// Adds the next record, which ends at `end`, to the part for the hash of its key.
    #[inline(always)]
    fn add(&mut self, hash: u64, end: usize) {
        let part = match self.mask {
            Some(mask) => (hash & mask) as usize,
            None => (hash % self.parts.len() as u64) as usize,
        };
        let start = std::mem::replace(&mut self.start, end);
        // A body is smaller than 4 GiB.
        self.records.push((part as u32, end as u32));
        if !self.is_divided && !self.divides(part, start) {
            return;
        }
        let Some(Part { body, count }) = self.parts.get_mut(part) else {
            return;
        };
        *count += 1;
        match body {
            Some(body) => append(body, self.body, start..end),
            None => self.begin(part, start..end),
        }
    }

    /// Called for a record of `part`, while all records before it belong to one part. These records end at offset `end`. Returns whether
    /// the batch must be divided because `part` is another part. If so, copies the earlier records to their part.
    #[inline(never)]
    fn divides(&mut self, part: usize, end: usize) -> bool {
        if end == 0 {
            self.first = part;
        }
        if part == self.first {
            return false;
        }
        self.is_divided = true;
        self.begin(self.first, 0..end);
        let before = self.records.len() as u32 - 1;
        if let Some(first) = self.parts.get_mut(self.first) {
            first.count = before;
        }
        true
    }

    /// Begins a part with a copy of these bytes of the batch.
    #[inline(never)]
    fn begin(&mut self, part: usize, bytes: Range<usize>) {
        // The capacity is a little more than an equal share. The buffer grows if keys are spread unequally.
        let share = self.body.len() / self.parts.len();
        let mut body = self.pool.take(bytes.len().max(share + share / 4));
        body.extend_from_slice(self.body.get(bytes).unwrap_or_default());
        if let Some(part) = self.parts.get_mut(part) {
            part.body = Some(body);
        }
    }
}

/// To append a record of at most this length, a block of exactly this length is copied. Then the bytes after the record are truncated. A
/// copy of constant length needs no loop and no call.
const SHORT_BYTES: usize = 128;

/// Appends `from[range]` to `body`.
#[inline(always)]
fn append(body: &mut Vec<u8>, from: &[u8], range: Range<usize>) {
    let whole = body.len() + range.len();
    let ahead = from.get(range.start..).and_then(<[u8]>::first_chunk);
    match ahead {
        Some(ahead) if range.len() <= SHORT_BYTES => {
            let ahead: &[u8; SHORT_BYTES] = ahead;
            body.extend_from_slice(ahead);
            body.truncate(whole);
        }
        _ => body.extend_from_slice(from.get(range).unwrap_or_default()),
    }
}

/// Divides a batch into at most `parts` adjacent parts of about equal size. The parts share the bytes of the batch and have no
/// origins.
pub fn adjacent(batch: &Batch, parts: usize) -> Vec<Batch> {
    let (body, parts) = (&batch.body[..], parts.max(1));
    let mut found = Vec::with_capacity(parts);
    let mut push = |range: Range<usize>, count| {
        if !range.is_empty() {
            found.push(part_of(batch, batch.body.slice(range), count));
        }
    };
    let (mut at, mut left) = (0, batch.count);
    for part in 1..parts {
        let target = body.len() / parts * part;
        if target <= at {
            continue;
        }
        let (end, count) = match batch.encoding {
            Encoding::Lines => {
                let newline = memchr::memchr(b'\n', &body[target - 1..]);
                let end = newline.map_or(body.len(), |length| target + length);
                (end, lines::count(&body[at..end]))
            }
            Encoding::Packed => entries(body, at, target),
        };
        push(at..end, count);
        (at, left) = (end, left.saturating_sub(count));
    }
    push(at..body.len(), left);
    found
}

/// Returns the end of the first entry that ends at or after `target`, and the number of entries from `at` to that end.
fn entries(body: &[u8], mut at: usize, target: usize) -> (usize, u32) {
    let mut count = 0;
    while at < target {
        let mut open = 1;
        match msgpack::skip(body, at, &mut open) {
            Ok(end) if open == 0 => (at, count) = (end, count + 1),
            // The bytes from `at` on are not an entry, which does not happen in a valid batch. They stay in one part with the
            // entries before them.
            _ => return (body.len(), count),
        }
    }
    (at, count)
}

/// Finds the records of a batch that come from the part of its file before the offset `mark`. `file` is the origin of the whole batch.
/// Returns the length of these records in the body, and their number. Returns `None` if the batch cannot be divided at `mark`.
///
/// A batch of lines can be divided if its body has the bytes of the file unchanged. A packed batch can be divided if the offsets of the
/// file count its records, as those of a journal do. The lengths of a packed body and of its part of the file are not compared: they can be
/// equal by chance, and a wrong division would lose records. `mark` must be between two records.
pub fn before_mark(batch: &Batch, file: &FileOrigin, mark: u64) -> Option<(usize, u32)> {
    let whole = file.next.checked_sub(file.begin)?;
    let part = mark.checked_sub(file.begin).filter(|part| *part <= whole)?;
    let body = &batch.body[..];
    let target = usize::try_from(part).ok()?;
    match batch.encoding {
        Encoding::Lines if whole == body.len() as u64 => {
            let lines = body.get(..target)?;
            (lines.is_empty() || lines.ends_with(b"\n")).then(|| (target, lines::count(lines)))
        }
        Encoding::Packed if whole == u64::from(batch.count) => {
            let next = |at, _| msgpack::skip(body, at, &mut 1).ok();
            Some(((0..target).try_fold(0, next)?, u32::try_from(target).ok()?))
        }
        Encoding::Lines | Encoding::Packed => None,
    }
}

fn part_of(batch: &Batch, body: bytes::Bytes, count: u32) -> Batch {
    Batch {
        tag: batch.tag.clone(),
        values: batch.values.clone(),
        body,
        count,
        origins: Vec::new(),
        ..*batch
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millstream_record::{FileId, Values};

    use super::*;

    fn batch(encoding: Encoding, body: Vec<u8>, count: u32) -> Batch {
        Batch {
            tag: "t".into(),
            encoding,
            plain: true,
            body: body.into(),
            count,
            received: Default::default(),
            values: Arc::new(Values::new()),
            origins: Vec::new(),
        }
    }

    /// Returns two batches with the same texts: one of lines and one of entries.
    fn both(texts: &[String]) -> [Batch; 2] {
        let (mut plain, mut packed) = (Vec::new(), Vec::new());
        for text in texts {
            plain.extend_from_slice(text.as_bytes());
            plain.push(b'\n');
            packed.extend_from_slice(b"\x92\x01\x81");
            msgpack::write_str(&mut packed, b"message");
            msgpack::write_str(&mut packed, text.as_bytes());
        }
        let count = texts.len() as u32;
        [
            batch(Encoding::Lines, plain, count),
            batch(Encoding::Packed, packed, count),
        ]
    }

    #[test]
    fn a_batch_is_divided_only_between_two_records_of_its_file() {
        let id = FileId {
            device: 1,
            inode: 2,
            birth: 3,
            head: 4,
        };
        let file = |begin, next| FileOrigin {
            file: id,
            begin,
            next,
        };
        let texts = ["a", "bc", "d"].map(str::to_owned);
        let [lines, packed] = both(&texts);
        // The offsets count bytes.
        let at = |mark| before_mark(&lines, &file(10, 17), mark);
        assert_eq!([at(12), at(15)], [Some((2, 1)), Some((5, 2))]);
        assert_eq!([at(13), at(9), at(18)], [None; 3]);
        // The offsets count records.
        let at = |mark| before_mark(&packed, &file(7, 10), mark);
        assert_eq!([at(7), at(8)], [Some((0, 0)), Some((13, 1))]);
        assert_eq!(at(10), Some((packed.len(), 3)));
        // The records are not the bytes of the file.
        assert_eq!(before_mark(&lines, &file(10, 20), 12), None);
        assert_eq!(before_mark(&packed, &file(10, 20), 12), None);
        // The body is as long as its part of the file by chance.
        let length = packed.len() as u64;
        assert_eq!(before_mark(&packed, &file(10, 10 + length), 23), None);
    }

    fn texts(batch: &Batch) -> Vec<String> {
        let path: crate::record::FieldPath = ".message".parse().unwrap();
        let text = |timed: crate::record::TimedRecord<'_>| {
            let text = path.find(timed.record).unwrap().text().unwrap().to_vec();
            String::from_utf8(text).unwrap()
        };
        records(batch).map(|(_, timed)| text(timed)).collect()
    }

    fn length(key: &[u8]) -> u64 {
        key.len() as u64
    }

    #[test]
    fn records_with_equal_keys_are_in_one_part_and_keep_their_order() {
        let all: Vec<_> = (0..100_usize)
            .map(|n| format!("{n:0width$}", width = n % 7 + 2))
            .collect();
        let template = "{.message}".parse().unwrap();
        let pool = Pool::new(1 << 20);
        for batch in both(&all) {
            let mut splitter = Splitter::new(&template, length);
            let parts = splitter.split(batch, 3, &pool);
            assert_eq!(parts.len(), 3);
            for (number, part) in &parts {
                let expected: Vec<_> = all
                    .iter()
                    .filter(|text| text.len() % 3 == *number)
                    .cloned()
                    .collect();
                assert_eq!(texts(part), expected);
                assert_eq!(part.count as usize, expected.len());
                let members = splitter.members(*number).map(|at| all[at].clone());
                assert_eq!(members.collect::<Vec<_>>(), expected);
            }
        }
    }

    #[test]
    fn a_single_field_is_hashed_like_its_rendered_text() {
        let pool = Pool::new(1 << 20);
        let mut body = Vec::new();
        for value in [
            &b"\xa3abc"[..],
            b"\x07",
            b"\xc0",
            b"\x91\x01",
            b"\xcb\x3f\xf8\0\0\0\0\0\0",
        ] {
            body.extend_from_slice(b"\x92\x01\x81\xa1k");
            body.extend_from_slice(value);
        }
        body.extend_from_slice(b"\x92\x01\x80");
        let batch = batch(Encoding::Packed, body, 6);
        let parts = |template: &str| -> Vec<_> {
            let sum = |key: &[u8]| key.iter().map(|byte| u64::from(*byte)).sum();
            let mut splitter = Splitter::new(&template.parse().unwrap(), sum);
            let parts = splitter.split(batch.clone(), 7, &pool).into_iter();
            parts.map(|(part, batch)| (part, batch.body)).collect()
        };
        assert!(parts("{.k}").len() > 2);
        // `{host|}` is always empty here, so both templates have the same text.
        assert_eq!(parts("{.k}"), parts("{.k}{host|}"));
    }

    #[test]
    fn a_batch_in_one_part_is_not_copied_and_a_missing_value_is_an_empty_key() {
        let pool = Pool::new(1 << 20);
        let [plain, packed] = both(&["a".to_owned(), "b".to_owned()]);
        for (template, part) in [("{tag}", 1), ("{.missing}", 0), ("{.message}", 1)] {
            for batch in [&plain, &packed] {
                let mut splitter = Splitter::new(&template.parse().unwrap(), length);
                let parts = splitter.split(batch.clone(), 2, &pool);
                assert_eq!((parts.len(), parts[0].0), (1, part), "{template}");
                assert_eq!(parts[0].1.body.as_ptr(), batch.body.as_ptr());
            }
        }
    }

    #[test]
    fn the_memory_for_a_large_batch_is_freed() {
        let pool = Pool::new(64 << 20);
        let mut splitter = Splitter::new(&"{.message}".parse().unwrap(), length);
        let many: Vec<_> = (0..3 * RECORDS_KEPT).map(|n| "x".repeat(n % 2)).collect();
        for (all, at_most) in [(&many[..], usize::MAX), (&many[..10], RECORDS_KEPT)] {
            for batch in both(all) {
                assert_eq!(splitter.split(batch, 2, &pool).len(), 2);
            }
            assert!((all.len()..=at_most).contains(&splitter.records.capacity()));
        }
    }

    #[test]
    fn adjacent_parts_are_the_batch_in_order() {
        let all: Vec<_> = (0..57).map(|n| "x".repeat(n % 11)).collect();
        for batch in both(&all) {
            for parts in [1, 2, 3, 5, 40, 500] {
                let found = adjacent(&batch, parts);
                assert!(found.len() <= parts);
                let joined: Vec<_> = found.iter().flat_map(texts).collect();
                assert_eq!(joined, all, "{parts}");
                assert!(
                    found
                        .iter()
                        .all(|part| part.count as usize == texts(part).len())
                );
            }
        }
        assert!(adjacent(&batch(Encoding::Packed, vec![], 0), 3).is_empty());
    }

    #[test]
    fn bytes_that_are_not_entries_stay_together() {
        let parts = adjacent(&batch(Encoding::Packed, vec![0xc1; 50], 1), 4);
        assert_eq!((parts.len(), parts[0].len()), (1, 50));
    }
}
