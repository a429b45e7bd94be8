//! Writing frames to the open segment, and its end mark.
//!
//! `read -> decode -> send -> [keep] -> take -> process -> encode -> write -> settle`

use std::io::{self, IoSlice};

use millstream_record::Position;

use super::{
    Error,
    commit::{Log, Staged},
    frame::{FIXED_BYTES, Kind, Place, Stamp, encode_head, seal},
    segment::{PAGE, Segment},
};

/// What one call writes at most, unless one group is larger: beyond it a call gains nothing.
const WRITE_BYTES_MAX: u64 = 8 << 20;
/// Kept free in every segment for its end mark.
const END_BYTES: u64 = FIXED_BYTES as u64;

impl Log {
    /// Bytes of the first group that is staged. Groups are staged whole.
    pub(super) fn first_group_bytes(&self) -> Option<u64> {
        let mut bytes = 0;
        for frame in &self.staged {
            bytes += frame.bytes();
            if frame.ends_group {
                break;
            }
        }
        (bytes > 0).then_some(bytes)
    }

    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.open
            .as_ref()
            .is_some_and(|open| open.written + bytes + END_BYTES <= open.segment.bytes)
    }

    /// Writes as many of the staged groups as fit into the open segment, with one call.
    pub(super) fn write_groups(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let room = open.segment.bytes - END_BYTES;
        let (mut at, mut frames, mut end) = (open.written, 0, open.written);
        for (number, frame) in self.staged.iter_mut().enumerate() {
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
        let closed = if open.written + END_BYTES + 9 * closed.len() as u64 <= open.segment.bytes {
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
    let page_end = at.next_multiple_of(PAGE).min(segment.bytes);
    parts.push(IoSlice::new(&ZEROS[..(page_end - at) as usize]));
    segment.file.write_at(&parts, offset)
}
