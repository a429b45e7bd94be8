//! Writing frames to the open segment, and its end mark.
//!
//! `read -> decode -> send -> [keep] -> take -> process -> encode -> write -> settle`

use std::io::{self, IoSlice};

use millstream_record::Position;

use super::{
    Error,
    commit::{Log, Staged},
    frame::{Kind, Place, Stamp, encode_head, seal},
    ids::ids_bytes,
    segment::{END_BYTES, PAGE, Segment, header_bytes},
};

/// What one call writes at most, unless one group is larger: beyond it a call gains nothing.
const WRITE_BYTES_MAX: u64 = 8 << 20;
/// The part of a segment that its reserve takes at most.
const RESERVE_PART: u64 = 4;

/// What is kept free at the end of a segment of `bytes` bytes that holds `ids` ids, where the table has `files` files. A
/// channel on a full disk gets going again with it once everything is settled: the segment is cut off behind its end mark,
/// and what that gives back holds its id file and the head of a segment that takes its place, so that it can be released.
fn reserve(bytes: u64, ids: usize, files: usize) -> u64 {
    let id_file = ids_bytes(ids).next_multiple_of(PAGE);
    // The next header with its end mark, this end mark, and a page for rounding.
    let heads = header_bytes(files) + 3 * PAGE;
    (id_file + heads).min(bytes / RESERVE_PART).max(END_BYTES)
}

/// How much room a group takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    pub(super) bytes: u64,
    ids: usize,
}

impl Log {
    /// What the first group that is staged takes. Groups are staged whole.
    pub(super) fn first_group(&self) -> Option<Needs> {
        let mut group = Needs { bytes: 0, ids: 0 };
        for frame in &self.staged {
            group.bytes += frame.bytes();
            group.ids += frame.ids.len();
            if frame.ends_group {
                break;
            }
        }
        (group.bytes > 0).then_some(group)
    }

    pub(super) fn fits(&self, group: Needs) -> bool {
        self.open.as_ref().is_some_and(|open| {
            let bytes = open.segment.bytes();
            let reserve = reserve(bytes, open.ids.len() + group.ids, self.files.len());
            open.written + group.bytes + reserve <= bytes
        })
    }

    /// Bytes of the smallest segment in which a group has room.
    pub(super) fn least_bytes(&self, group: Needs) -> u64 {
        let files = self.files.len();
        let content = header_bytes(files) + group.bytes + PAGE;
        let whole = content + reserve(u64::MAX, group.ids, files);
        // In a small segment the reserve is a part of it.
        let part = content + content.div_ceil(RESERVE_PART - 1) + PAGE;
        whole.min(part).next_multiple_of(PAGE)
    }

    /// Writes as many of the staged groups as fit into the open segment, with one call.
    pub(super) fn write_groups(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let bytes = open.segment.bytes();
        let (mut at, mut frames, mut end) = (open.written, 0, open.written);
        let (mut ids, files) = (open.ids.len(), self.files.len());
        for (number, frame) in self.staged.iter_mut().enumerate() {
            ids += frame.ids.len();
            let room = bytes - reserve(bytes, ids, files);
            if at + frame.bytes() > room || (frames > 0 && at - open.written >= WRITE_BYTES_MAX) {
                break;
            }
            let place = Place {
                channel: self.channel,
                segment: open.segment.number,
                offset: at,
            };
            seal(&mut frame.head, &place, open.synced);
            at += frame.bytes();
            if frame.ends_group {
                (frames, end) = (number + 1, at);
            }
        }
        write_frames(&open.segment, self.staged.iter().take(frames), open.written)?;
        open.written = end;
        for frame in self.staged.drain(..frames) {
            open.ids.extend_from_slice(&frame.ids);
            for origin in &frame.files {
                let before = self.files.write(origin);
                open.files_unsynced.push((origin.file, before));
            }
            self.written.push(frame);
        }
        self.unsynced_since.get_or_insert(self.keep_time);
        Ok(())
    }

    /// Writes the end mark and syncs the open segment, then the id file. The segment stays open until another follows.
    pub(super) fn end_segment(&mut self, kind: Kind, closed: &[u64]) -> Result<(), Error> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let place = Place {
            channel: self.channel,
            segment: open.segment.number,
            offset: open.written,
        };
        let stamp = Stamp {
            kind,
            position: Position {
                epoch: self.epoch,
                seq: self.next_seq,
            },
            keep_time: self.keep_time,
            graph: 0,
            part: 0,
            parts: 1,
        };
        let mut head = Vec::new();
        // A clean stop must not grow the mark beyond the room kept for it; what does not fit proves nothing later.
        let closed = if open.written + END_BYTES + 9 * closed.len() as u64 <= open.segment.bytes() {
            closed
        } else {
            &[]
        };
        encode_head(&mut head, &stamp, None, closed);
        seal(&mut head, &place, open.synced);
        let path = open.segment.path.clone();
        let written = open
            .segment
            .file
            .write_at(&[IoSlice::new(&head)], open.written);
        match written.and_then(|()| self.sync_open()) {
            Ok(()) => Ok(()),
            Err(error) if kind == Kind::CleanEnd => {
                Err(Error::disk("closing the segment", &path, error))
            }
            Err(error) => self.repair("ending the segment", error),
        }
    }
}

/// Writes frames one behind the other from `offset` on, and zeros up to the end of the page: so the kernel need not read
/// the page first, and no old frame of a recycled segment stands right behind the tail.
fn write_frames<'a>(
    segment: &Segment,
    frames: impl Iterator<Item = &'a Staged>,
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
