//! Writes frames and the end mark to the newest segment, and syncs it.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> [keep] -> read back -> process -> encode -> write -> settle`

use std::{
    io::{self, IoSlice},
    path::Path,
    sync::Arc,
};

use millstream_record::{FileId, Position, Time};

use super::{
    ChannelId,
    file_table::FileTable,
    frame::{Kind, Place, Stamp, encode_head, seal},
    ids::{IdRecord, ids_bytes},
    repeats::Repeats,
    segment::{END_BYTES, PAGE, Segment, header_bytes},
    staging::{GroupSize, StagedFrame, Staging, files_of},
    walk::Walk,
};

/// One call writes at most this number of bytes, unless a group is larger. Larger calls gain nothing.
const WRITE_BYTES_MAX: u64 = 8 << 20;
/// The reserve (see [`reserve`]) takes at most the size of a segment divided by this.
const RESERVE_PART: u64 = 4;

/// The segment that is being written, and the segment before it.
#[derive(Default)]
pub(super) struct SegmentWriter {
    /// `None` before the first frame and after a failure. While roll.rs opens the next segment, this field holds that segment, and the file
    /// does not have its final name yet.
    open: Option<OpenSegment>,
    pub(super) previous: PreviousSegment,
    /// The keep time of the oldest frame that is written and not synced.
    unsynced_since: Option<Time>,
}

/// The segment that is being written.
pub(super) struct OpenSegment {
    pub(super) segment: Arc<Segment>,
    /// Where the next frame is written.
    pub(super) written: u64,
    /// Everything before this offset is durable.
    synced: u64,
    /// The ids in its frames.
    ids: Vec<IdRecord>,
    /// How many of the ids are durable.
    ids_synced: usize,
    /// The tailed files in frames that are not durable yet. Each entry holds a file, and the offset of the file before the frame.
    files_unsynced: Vec<(FileId, Option<u64>)>,
}

/// The segment that was closed last.
#[derive(Debug, Default)]
pub(super) struct PreviousSegment {
    pub(super) number: u64,
    /// The end of its frames. Later bytes in the file are not part of the log.
    pub(super) end: u64,
    /// The content of its id file.
    pub(super) ids: Vec<IdRecord>,
    /// Whether the id file must still be written.
    pub(super) lacks_id_file: bool,
}

impl PreviousSegment {
    pub(super) fn new(number: u64, end: u64, ids: Vec<IdRecord>) -> Self {
        Self {
            number,
            end,
            lacks_id_file: !ids.is_empty(),
            ids,
        }
    }
}

/// The part of a failed segment that was not synced.
pub(super) struct Unsynced {
    pub(super) segment: Arc<Segment>,
    /// Where the durable frames end.
    synced: u64,
    /// The end of the frames that consumers can see.
    published: u64,
    /// The tailed files in the frames that were not synced. Each entry holds a file, and the offset of the file before the frame.
    pub(super) files: Vec<(FileId, Option<u64>)>,
}

impl SegmentWriter {
    /// A writer that continues after `previous`.
    pub(super) fn after(previous: PreviousSegment) -> Self {
        Self {
            previous,
            ..Self::default()
        }
    }

    pub(super) fn open(&self) -> Option<&OpenSegment> {
        self.open.as_ref()
    }

    /// The keep time of the oldest frame that is written and not synced.
    pub(super) fn unsynced_since(&self) -> Option<Time> {
        self.unsynced_since
    }

    /// Begins to write a segment.
    pub(super) fn begin(&mut self, segment: Arc<Segment>) {
        let start = segment.start;
        self.open = Some(OpenSegment {
            segment,
            written: start,
            synced: start,
            ids: Vec::new(),
            ids_synced: 0,
            files_unsynced: Vec::new(),
        });
    }

    /// Whether the open segment has space for a group; `files` is the size of the file table.
    pub(super) fn fits(&self, group: GroupSize, files: usize) -> bool {
        self.open.as_ref().is_some_and(|open| {
            let bytes = open.segment.bytes();
            let reserve = reserve(bytes, open.ids.len() + group.ids, files);
            open.written + group.bytes + reserve <= bytes
        })
    }

    /// Writes as many staged groups as fit, with one call to the disk. Frames that are kept already count as one group.
    pub(super) fn write(
        &mut self,
        channel: ChannelId,
        staging: &mut Staging,
        files: &mut FileTable,
    ) -> io::Result<()> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let bytes = open.segment.bytes();
        let (mut at, mut frames, mut end) = (open.written, 0, open.written);
        let mut ids = open.ids.len();
        for (index, frame) in staging.staged_mut().enumerate() {
            ids += frame.ids.len();
            let limit = bytes - reserve(bytes, ids, files.len());
            let is_enough = frames > 0 && at - open.written >= WRITE_BYTES_MAX;
            if at + frame.bytes() > limit || (is_enough && !frame.is_kept()) {
                break;
            }
            let place = Place {
                channel,
                segment: open.segment.number,
                offset: at,
            };
            seal(&mut frame.head, &place, open.synced);
            at += frame.bytes();
            if frame.ends_group {
                (frames, end) = (index + 1, at);
            }
        }
        write_frames(&open.segment, staging.staged().take(frames), open.written)?;
        open.written = end;
        let keep_time = staging.keep_time();
        for frame in staging.mark_written(frames) {
            open.ids.extend_from_slice(&frame.ids);
            for origin in &frame.files {
                let before = files.write(origin);
                open.files_unsynced.push((origin.file, before));
            }
        }
        self.unsynced_since.get_or_insert(keep_time);
        Ok(())
    }

    /// Makes everything that is written durable.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if let Some(open) = &self.open {
            open.segment.file.sync()?;
        }
        self.note_sync();
        Ok(())
    }

    /// Notes that everything that is written is durable.
    pub(super) fn note_sync(&mut self) {
        if let Some(open) = &mut self.open {
            open.synced = open.written;
            open.ids_synced = open.ids.len();
            open.files_unsynced.clear();
        }
        self.unsynced_since = None;
    }

    /// Writes an end mark after the last frame. The segment stays open.
    pub(super) fn write_end(
        &mut self,
        channel: ChannelId,
        stamp: &Stamp,
        closed: &[u64],
    ) -> io::Result<()> {
        let Some(open) = &self.open else {
            return Ok(());
        };
        // The end mark of a clean stop always fits into the reserve (see [`reserve`]). If there is no space for the list of orderly closes,
        // the list is left out. Without the list, nothing proves after the restart that the last acknowledgements on these connections
        // arrived.
        let fits = open.written + END_BYTES + 9 * closed.len() as u64 <= open.segment.bytes();
        let mut head = Vec::new();
        encode_head(&mut head, stamp, None, if fits { closed } else { &[] });
        let place = Place {
            channel,
            segment: open.segment.number,
            offset: open.written,
        };
        seal(&mut head, &place, open.synced);
        let parts = [IoSlice::new(&head)];
        open.segment.file.write_at(&parts, open.written)
    }

    /// Gives up a segment that has just begun, and forgets its file. Returns the tailed files in its frames, each with the offset of the
    /// file before the frame.
    pub(super) fn abandon(&mut self) -> Vec<(FileId, Option<u64>)> {
        let open = self.open.take();
        open.map_or_else(Vec::new, |open| open.files_unsynced)
    }

    /// Closes the open segment at the end of its durable frames. If the last sync succeeded, this is the end of the last frame. Returns the
    /// part that was not synced, if any.
    pub(super) fn close(&mut self) -> Option<Unsynced> {
        let mut open = self.open.take()?;
        let published = open.segment.end();
        open.ids.truncate(open.ids_synced);
        open.segment.set_end(open.synced.min(published));
        self.previous = PreviousSegment::new(open.segment.number, open.synced, open.ids);
        Some(Unsynced {
            segment: open.segment,
            synced: open.synced,
            published,
            files: open.files_unsynced,
        })
    }
}

impl Unsynced {
    /// Reads back the frames that consumers can see and that were kept without a sync (any `sync` other than `batch`). `kept` is the
    /// position of the newest such frame. Returns the frames, and the first position that cannot be read back, if there is one.
    pub(super) fn read_back(
        &self,
        channel: ChannelId,
        repeats: &mut Repeats,
        kept: Position,
    ) -> (Vec<StagedFrame>, Option<Position>) {
        let mut frames = Vec::new();
        if self.synced >= self.published {
            return (frames, None);
        }
        let mut walk = Walk::new(&self.segment, channel, self.published);
        walk.skip_to(self.synced);
        while let Ok(Some(frame)) = walk.next_whole() {
            if frame.head.kind != Kind::Batch {
                break;
            }
            frames.push(StagedFrame {
                ids: repeats.ids_of(&frame.head),
                position: frame.head.position,
                ends_group: frame.head.ends_group(),
                files: files_of(&frame.head.origins),
                head: frame.head_bytes,
                body: frame.body,
                batch: None,
                window_end: 0,
            });
        }
        // A group without its last part is dropped as a whole.
        while frames.last().is_some_and(|frame| !frame.ends_group) {
            frames.pop();
        }
        let next = match frames.last() {
            Some(frame) => frame.position.seq + 1,
            None => self.first_seq(channel),
        };
        let lost = (next <= kept.seq).then_some(Position { seq: next, ..kept });
        (frames, lost)
    }

    /// The seq of the first frame that is not durable.
    fn first_seq(&self, channel: ChannelId) -> u64 {
        let mut walk = Walk::new(&self.segment, channel, self.synced);
        let mut next = self.segment.first.seq;
        while let Ok(Some(frame)) = walk.next_head() {
            next = frame.head.position.seq + 1;
        }
        next
    }

    /// Frees the space after the frames that are durable or that consumers can see.
    pub(super) fn truncate(&self) -> io::Result<()> {
        self.segment.truncate(self.synced.max(self.published))
    }

    pub(super) fn path(&self) -> &Path {
        &self.segment.path
    }
}

/// The number of bytes to keep free at the end of a segment. The segment has `bytes` bytes and `ids` ids, and the file table has `files`
/// files.
///
/// A channel on a full disk needs this reserve to continue once everything is settled. The segment is truncated after its end mark, which
/// frees space for its id file and for the head of another segment. Then the segment can be released.
fn reserve(bytes: u64, ids: usize, files: usize) -> u64 {
    let id_file = ids_bytes(ids).next_multiple_of(PAGE);
    // The next header with its end mark, the end mark of this segment, and a page for rounding.
    let heads = header_bytes(files) + 3 * PAGE;
    (id_file + heads).min(bytes / RESERVE_PART).max(END_BYTES)
}

/// Bytes of the smallest segment in which a group has space.
pub(super) fn least_bytes(group: GroupSize, files: usize) -> u64 {
    let content = header_bytes(files) + group.bytes + PAGE;
    let with_reserve = content + reserve(u64::MAX, group.ids, files);
    // In a small segment the reserve is the size of the segment divided by `RESERVE_PART`.
    let with_part = content + content.div_ceil(RESERVE_PART - 1) + PAGE;
    with_reserve.min(with_part).next_multiple_of(PAGE)
}

/// Writes consecutive frames from `offset` on, and zeros up to the end of the page. So the kernel need not read the page first, and
/// no old frame of a recycled segment directly follows the newest one.
fn write_frames<'a>(
    segment: &Segment,
    frames: impl Iterator<Item = &'a StagedFrame>,
    offset: u64,
) -> io::Result<()> {
    const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
    let mut parts = Vec::new();
    let mut at = offset;
    for frame in frames {
        parts.push(IoSlice::new(&frame.head));
        parts.push(IoSlice::new(&frame.body));
        let unaligned = frame.bytes() - frame.head.len() as u64 - frame.body.len() as u64;
        parts.push(IoSlice::new(&ZEROS[..unaligned as usize]));
        at += frame.bytes();
    }
    let page_end = at.next_multiple_of(PAGE).min(segment.bytes());
    parts.push(IoSlice::new(&ZEROS[..(page_end - at) as usize]));
    segment.file.write_at(&parts, offset)
}

#[cfg(test)]
mod tests {
    use millstream_sys::disk::{Disk, Open};
    use millstream_testkit::SimulatedDisk;

    use super::*;
    use crate::disk::log::{Dedupe, tests::batch};

    #[test]
    fn a_failed_segment_ends_at_its_last_good_sync_and_published_frames_are_read_back() {
        let channel = ChannelId([1; 16]);
        let disk = SimulatedDisk::new(1);
        let file = disk.open(Path::new("/1"), Open::Create).unwrap();
        let first = Position { epoch: 1, seq: 1 };
        let lengths = (1 << 20, PAGE, PAGE);
        let segment = Arc::new(Segment::new(1, first, "/1".into(), file, lengths));
        let mut writer = SegmentWriter::default();
        let (mut staging, mut files) = (Staging::new(first, Time(5)), FileTable::default());
        writer.begin(Arc::clone(&segment));
        let mut write = |writer: &mut SegmentWriter| {
            staging.stage(vec![(batch(1, 100), Vec::new())], Vec::new(), 0);
            assert!(writer.fits(staging.first_group().unwrap(), 0));
            writer.write(channel, &mut staging, &mut files).unwrap();
            writer.open().unwrap().written
        };
        let synced = write(&mut writer);
        writer.sync().unwrap();
        assert_eq!(writer.unsynced_since(), None);
        let published = write(&mut writer);
        segment.set_end(published);
        assert_eq!(writer.unsynced_since(), Some(Time(5)));
        write(&mut writer);
        let unsynced = writer.close().unwrap();
        assert_eq!((segment.end(), writer.previous.end), (synced, synced));
        let mut repeats = Repeats::new(channel, Dedupe::default());
        let kept = Position { epoch: 1, seq: 4 };
        let (frames, lost) = unsynced.read_back(channel, &mut repeats, kept);
        let seqs: Vec<u64> = frames.iter().map(|frame| frame.position.seq).collect();
        assert_eq!(seqs, [2]);
        assert_eq!(
            lost.map(|lost| lost.seq),
            Some(3),
            "kept says that there was more"
        );
    }
}
