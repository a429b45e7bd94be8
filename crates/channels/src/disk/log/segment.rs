//! The segment: a file `NNNNNNNNNN.seg` of the channel, and its header.
//!
//! ```text
//! offset bytes
//!      0   8   magic "MILLSEG" and 0
//!      8   4   format version
//!     12   4   CRC-32C of the version and bytes 16..H (seal.rs)
//!     16   4   H: bytes of the header with its table
//!     20   4   epoch of its frames
//!     24  16   channel id
//!     40   8   number of this segment
//!     48   8   first: the seq of its first frame
//!     56   8   keep time of the newest frame before it
//!     64   8   end of the frames of the segment before it, 0 if there is none; bytes after this end are not part of the log
//!     72   4   entries in the id file of the segment before it
//!     76   4   F: number of tailed files
//!     80  40F  per file: file (32, see origins.rs), next byte (8)
//!      H   -   zeros up to a multiple of 4096: there the first frame begins
//! ```
//!
//! A segment begins as a blank file (blanks.rs). Its header and its name are synced before its first frame is kept. A group
//! that is larger than a usual segment gets a larger file.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use millstream_record::{FileId, Position, Time};
use millstream_state::Fields;
use millstream_sys::disk::File;

use super::{
    ChannelId, frame,
    origins::{decode_file, encode_file},
    seal::{self, SEAL_BYTES, Sealed},
};

/// The unit in which the page cache and most disks write.
pub(super) const PAGE: u64 = 4096;
/// Bytes of the end mark of a segment.
pub(super) const END_BYTES: u64 = frame::FIXED_BYTES as u64;
const MAGIC: &[u8; 8] = b"MILLSEG\0";
const FIXED_BYTES: usize = 80;
/// The maximum size of a header in bytes: enough for 1.6 million tailed files.
const HEADER_BYTES_MAX: u32 = 64 << 20;

/// Bytes of the header of a segment with this many tailed files.
pub(super) fn header_bytes(files: usize) -> u64 {
    (FIXED_BYTES as u64 + 40 * files as u64).next_multiple_of(PAGE)
}

/// The header of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) number: u64,
    pub(super) first: Position,
    pub(super) keep_time: Time,
    pub(super) previous_end: u64,
    pub(super) previous_ids: u32,
    pub(super) files: Vec<(FileId, u64)>,
}

/// The result of [`Header::read`].
#[derive(Debug)]
pub(super) enum ReadHeader {
    /// A header of this channel, and the offset of the first frame.
    Valid(Header, u64),
    /// A newer program wrote it.
    Newer(u32),
    /// It is damaged, or not of this channel.
    Invalid,
}

impl Header {
    /// The bytes of the header, with the zeros up to the first frame.
    pub(super) fn encode(&self, channel: &ChannelId) -> Vec<u8> {
        let mut out = seal::begin(MAGIC);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.first.epoch.to_le_bytes());
        out.extend_from_slice(&channel.0);
        for field in [self.number, self.first.seq] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&self.keep_time.0.to_le_bytes());
        out.extend_from_slice(&self.previous_end.to_le_bytes());
        out.extend_from_slice(&self.previous_ids.to_le_bytes());
        let files = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&files.to_le_bytes());
        for (file, next) in &self.files {
            encode_file(&mut out, file);
            out.extend_from_slice(&next.to_le_bytes());
        }
        let bytes = u32::try_from(out.len()).unwrap_or(u32::MAX);
        out[16..20].copy_from_slice(&bytes.to_le_bytes());
        seal::seal(&mut out);
        out.resize(out.len().next_multiple_of(PAGE as usize), 0);
        out
    }

    /// Reads the header of `file`.
    pub(super) fn read(file: &dyn File, channel: &ChannelId) -> io::Result<ReadHeader> {
        let mut bytes = Vec::new();
        file.read_at(&mut bytes, PAGE as usize, 0)?;
        let mut fields = Fields::new(&bytes);
        let is_ours = fields.take(8).is_some_and(|magic| magic == MAGIC);
        fields.take(SEAL_BYTES - 8);
        let lengths = FIXED_BYTES as u32..=HEADER_BYTES_MAX;
        let Some(length) = fields
            .u32()
            .filter(|length| is_ours && lengths.contains(length))
        else {
            return Ok(ReadHeader::Invalid);
        };
        let length = length as usize;
        if length > bytes.len() {
            let have = bytes.len();
            file.read_at(&mut bytes, length - have, have as u64)?;
        }
        let Some(header) = bytes.get(..length) else {
            return Ok(ReadHeader::Invalid);
        };
        match seal::check(MAGIC, header) {
            Sealed::Whole => {}
            Sealed::Newer(version) => return Ok(ReadHeader::Newer(version)),
            Sealed::Damaged => return Ok(ReadHeader::Invalid),
        }
        let start = (length as u64).next_multiple_of(PAGE);
        Ok(match Self::decode(&header[SEAL_BYTES + 4..], channel) {
            Some(header) => ReadHeader::Valid(header, start),
            None => ReadHeader::Invalid,
        })
    }

    fn decode(bytes: &[u8], channel: &ChannelId) -> Option<Self> {
        let mut fields = Fields::new(bytes);
        let epoch = fields.u32()?;
        if fields.array()? != channel.0 {
            return None;
        }
        let number = fields.u64()?;
        let first = Position {
            epoch,
            seq: fields.u64()?,
        };
        let keep_time = Time(fields.i64()?);
        let (previous_end, previous_ids) = (fields.u64()?, fields.u32()?);
        let mut files = Vec::new();
        for _ in 0..fields.u32()? {
            files.push((decode_file(&mut fields)?, fields.u64()?));
        }
        Some(Self {
            number,
            first,
            keep_time,
            previous_end,
            previous_ids,
            files,
        })
    }
}

/// A segment that is part of the log.
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn File>,
    /// Bytes of the file.
    bytes: AtomicU64,
    /// The position of its first frame.
    pub(super) first: Position,
    /// Where its first frame begins.
    pub(super) start: u64,
    /// Where the kept frames end.
    end: AtomicU64,
}

impl Segment {
    /// `lengths` holds the number of bytes of the file, the offset at which its first frame begins, and the offset at which its kept frames
    /// end.
    pub(super) fn new(
        number: u64,
        first: Position,
        path: PathBuf,
        file: Arc<dyn File>,
        lengths: (u64, u64, u64),
    ) -> Self {
        let (bytes, start, end) = lengths;
        Self {
            number,
            path,
            file,
            bytes: AtomicU64::new(bytes),
            first,
            start,
            end: AtomicU64::new(end),
        }
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Frees the space after the first `used` bytes, because on a full disk the next segment needs this space.
    pub(super) fn truncate(&self, used: u64) -> io::Result<()> {
        let bytes = used.next_multiple_of(PAGE);
        if bytes < self.bytes() {
            self.file.truncate(bytes)?;
            self.bytes.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Where the kept frames end.
    pub(super) fn end(&self) -> u64 {
        // Only the writer's thread stores this, and the lock of the index orders it with the frames, so `Relaxed` is enough.
        self.end.load(Ordering::Relaxed)
    }

    pub(super) fn set_end(&self, end: u64) {
        self.end.store(end, Ordering::Relaxed);
    }
}

/// The name of a segment.
pub(super) fn segment_name(number: u64) -> String {
    format!("{number:010}.seg")
}

/// A temporary name of a segment that is being renamed to its correct name; `unique` distinguishes several files with the same number.
pub(super) fn moved_name(number: u64, unique: usize) -> String {
    format!("moved-{number}-{unique}.seg")
}

/// The segment number in a [`moved_name`].
pub(super) fn moved_number_in(name: &str) -> Option<u64> {
    let (number, _) = name
        .strip_prefix("moved-")?
        .strip_suffix(".seg")?
        .split_once('-')?;
    number.parse().ok()
}

/// The name of a file that waits to become a segment.
pub(super) fn blank_name(number: u64) -> String {
    format!("free-{number}.seg")
}

/// The number in a [`blank_name`].
pub(super) fn blank_number_in(name: &str) -> Option<u64> {
    name.strip_prefix("free-")?
        .strip_suffix(".seg")?
        .parse()
        .ok()
}

/// The number in a name like `0000000017.seg`, `.ids` or `.bad`.
pub(super) fn number_in(name: &str, ending: &str) -> Option<u64> {
    let digits = name.strip_suffix(ending)?;
    (digits.len() >= 10 && digits.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| digits.parse().ok())
        .flatten()
}
