//! The data that is sent: chunks of senders that wait for acknowledgements, and tailed files. Every line is unique, so that each can
//! be counted.

use std::sync::Arc;

use bytes::Bytes;
use millstream_record::{
    Batch, ChunkOrigin, Encoding, FileId, FileOrigin, Origin, Tag, Time, Values,
};
use millstream_testkit::Random;

/// Bytes of a line of a tailed file.
const LINE: u64 = 10;

/// A sender of chunks with ids.
pub struct Sender {
    pub name: String,
    /// Whether the ids are hashes of the content and the sender waits for each acknowledgement, like Fluent Bit.
    pub content_ids: bool,
    pub connection: u64,
    /// The number of chunks that were created.
    pub made: usize,
    /// The number of chunks that were acknowledged on earlier connections, or sent on the current one.
    pub sent: usize,
    /// The number of chunks that were acknowledged.
    pub acked: usize,
    /// Records per chunk, by chunk.
    sizes: Vec<usize>,
}

impl Sender {
    pub fn new(name: &str, content_ids: bool, connection: u64) -> Self {
        Self {
            name: name.to_owned(),
            content_ids,
            connection,
            made: 0,
            sent: 0,
            acked: 0,
            sizes: Vec::new(),
        }
    }

    /// The lines of a chunk.
    pub fn lines(&self, chunk: usize) -> Vec<String> {
        (0..self.sizes[chunk])
            .map(|line| format!("{}-{chunk:04}-{line:03}", self.name))
            .collect()
    }

    /// Sends some chunks; returns the parts of one group and the number of chunks.
    pub fn send(&mut self, random: &mut Random) -> (Vec<Batch>, usize) {
        let chunks = match self.content_ids {
            true => 1,
            false => 1 + random.below(3) as usize,
        };
        while self.made < self.sent + chunks {
            let long = random.chance(1, 12);
            let size = 1 + random.below(if long { 400 } else { 12 }) as usize;
            self.sizes.push(size);
            self.made += 1;
        }
        let range = self.sent..self.sent + chunks;
        self.sent += chunks;
        if chunks == 1 && random.chance(1, 3) {
            return (self.in_parts(range.start, random), 1);
        }
        (vec![self.gathered(range)], chunks)
    }

    /// Several chunks in one batch.
    fn gathered(&self, chunks: std::ops::Range<usize>) -> Batch {
        let (mut body, mut origins, mut count) = (Vec::new(), Vec::new(), 0);
        for chunk in chunks {
            let start = body.len();
            let lines = self.lines(chunk);
            for line in &lines {
                body.extend_from_slice(line.as_bytes());
                body.push(b'\n');
            }
            count += lines.len();
            origins.push(self.origin(chunk, start, body.len(), lines.len()));
        }
        batch(&self.name, body, count, origins)
    }

    /// One chunk as several batches, as a processor may split it: under any tags, which may differ from those of an earlier copy.
    fn in_parts(&self, chunk: usize, random: &mut Random) -> Vec<Batch> {
        let lines = self.lines(chunk);
        let size = lines.len().div_ceil(3);
        lines
            .chunks(size)
            .map(|lines| {
                let body: Vec<u8> = lines
                    .iter()
                    .flat_map(|line| format!("{line}\n").into_bytes())
                    .collect();
                let origin = self.origin(chunk, 0, body.len(), lines.len());
                let tag = format!("{}.{}", self.name, random.below(3));
                batch(&tag, body, lines.len(), vec![origin])
            })
            .collect()
    }

    fn origin(&self, chunk: usize, start: usize, end: usize, records: usize) -> Origin {
        let lines = self.lines(chunk).join("\n");
        let checksum = lines.bytes().fold(7u32, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u32::from(byte))
        });
        let id = match self.content_ids {
            true => format!("{:08x}{checksum:08x}{chunk:016x}", self.name.len()),
            false => format!("{:>16}{chunk:08}", self.name),
        };
        let header = match self.content_ids {
            true => vec![0xd9, 32],
            false => vec![0xa0 | 24],
        };
        Origin::Chunk(ChunkOrigin {
            id: Bytes::from([header, id.into_bytes()].concat()),
            tag: Tag::from(&*self.name),
            connection: self.connection,
            length: lines.len() as u32,
            checksum,
            start: start as u32,
            end: end as u32,
            records: records as u32,
        })
    }
}

/// A tailed file of any length.
pub struct Tailed {
    pub number: u64,
    /// Where the source continues to read.
    pub next: u64,
    /// The length of the file.
    pub bytes: u64,
}

impl Tailed {
    pub fn id(&self) -> FileId {
        FileId {
            device: 1,
            inode: self.number,
            birth: 5,
            head: 9,
        }
    }

    pub fn lines(&self) -> Vec<String> {
        (0..self.bytes / LINE).map(|line| self.line(line)).collect()
    }

    fn line(&self, line: u64) -> String {
        format!("f{}-{line:06}", self.number)
    }

    /// Continues to read the file; sometimes from an earlier byte, as a source does after a restart if another channel holds less of the
    /// file.
    pub fn read(&mut self, random: &mut Random) -> Batch {
        if random.chance(1, 8) {
            self.next -= LINE * random.below(self.next / LINE + 1).min(9);
        }
        let count = 1 + random.below(20);
        let begin = self.next;
        self.next += count * LINE;
        self.bytes = self.bytes.max(self.next);
        let body: Vec<u8> = (begin / LINE..self.next / LINE)
            .flat_map(|line| format!("{}\n", self.line(line)).into_bytes())
            .collect();
        let origin = Origin::File(FileOrigin {
            file: self.id(),
            begin,
            next: self.next,
        });
        batch("file", body, count as usize, vec![origin])
    }
}

fn batch(tag: &str, body: Vec<u8>, count: usize, origins: Vec<Origin>) -> Batch {
    let mut values = Values::new();
    values.set("host", "h");
    Batch {
        tag: Tag::from(tag),
        plain: false,
        encoding: Encoding::Lines,
        count: count as u32,
        // The receive time differs from the keep time, and is the same for every resend of the batch.
        received: Time(body.len() as i64),
        body: Bytes::from(body),
        values: Arc::new(values),
        origins,
    }
}
