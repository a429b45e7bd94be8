//! Finds the end of the log, by walking over a segment whose end is not in the header of a later segment.

use std::io::{self, IoSlice};

use millstream_record::{Position, Time};

use super::{
    ChannelId,
    frame::{Head, Kind},
    segment::Segment,
    walk::{Walk, WalkError},
};

/// Bytes to read and write at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// The result of [`walk_tail`].
pub(super) struct Tail {
    /// The offset after the last complete group of the segment. Bytes after this offset are not part of the log.
    pub(super) end: u64,
    /// The position after the last frame, in the epoch of the segment.
    pub(super) next: Position,
    pub(super) keep_time: Time,
    /// Whether the end mark shows that the channel was closed cleanly.
    pub(super) clean: bool,
    /// Bytes after the end that look like frames, and are dropped.
    pub(super) torn_bytes: u64,
    pub(super) damage: Option<&'static str>,
    /// Gaps that damage has left. Each entry holds the last position before the gap, and the last missing position.
    pub(super) gaps: Vec<(Position, Position)>,
}

/// Reads the frames of a segment up to `end`, including their bodies, and passes the heads of complete groups to `each`. An incomplete
/// group is ignored. If the segment is not `closed`, syncs the frames that may not be durable, because consumers will see them.
pub(super) fn walk_tail(
    segment: &Segment,
    channel: ChannelId,
    (end, closed): (u64, bool),
    keep_time: Time,
    mut each: impl FnMut(&Head),
) -> io::Result<Tail> {
    let mut tail = Tail {
        end: segment.start,
        next: segment.first,
        keep_time,
        clean: false,
        torn_bytes: 0,
        damage: None,
        gaps: Vec::new(),
    };
    let mut walk = Walk::new(segment, channel, end);
    let mut synced = segment.start;
    let mut group: Vec<Head> = Vec::new();
    loop {
        match walk.next_whole() {
            Ok(None) => break,
            Ok(Some(frame)) if frame.head.kind != Kind::Batch => {
                tail.clean = frame.head.kind == Kind::CleanEnd;
                each(&frame.head);
                break;
            }
            Ok(Some(frame)) => {
                synced = synced.max(frame.head.synced);
                let next = group.last().map_or(tail.next, |last| last.position.next());
                tail.note_gap(next, frame.head.position);
                group.push(frame.head);
                if group.last().is_some_and(Head::ends_group) {
                    tail.end = walk.offset();
                    for head in group.drain(..) {
                        tail.next = head.position.next();
                        tail.keep_time = tail.keep_time.max(head.keep_time);
                        each(&head);
                    }
                }
            }
            Err(WalkError::Disk(error)) => return Err(error),
            Err(WalkError::Misfit) => match resume(&mut walk, closed)? {
                Resume::At(offset) => {
                    tail.damage = Some("frames are damaged below the last synced end");
                    walk.skip_to(offset);
                }
                Resume::Torn(bytes) => {
                    tail.damage = tail.damage.or(closed.then_some("the end is damaged"));
                    tail.torn_bytes = bytes;
                    break;
                }
            },
        }
    }
    if !closed {
        // A truncated file may be shorter than its header, so both ranges are limited to the file.
        write_again(segment, 0, segment.start.min(segment.bytes()))?;
        write_again(segment, synced, tail.end.min(segment.bytes()))?;
        segment.file.sync()?;
    }
    Ok(tail)
}

impl Tail {
    /// Notes a gap if the next frame is at `actual` but should be at `next`.
    pub(super) fn note_gap(&mut self, next: Position, actual: Position) {
        if actual.seq > next.seq {
            self.gaps.push((next.before(), actual.before()));
        }
    }
}

/// Writes the bytes from `start` to `end` again, unchanged. If a sync failed just before a kill, the page cache holds pages that count as
/// clean but never reached the disk, so a sync alone would prove nothing.
fn write_again(segment: &Segment, start: u64, end: u64) -> io::Result<()> {
    let mut bytes = Vec::new();
    let mut at = start;
    while at < end {
        bytes.clear();
        let piece = usize::try_from((end - at).min(PIECE_BYTES)).unwrap_or(0);
        if segment.file.read_at(&mut bytes, piece, at)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        segment.file.write_at(&[IoSlice::new(&bytes)], at)?;
        at += bytes.len() as u64;
    }
    Ok(())
}

/// How to continue after bytes that are not a valid frame (a misfit).
pub(super) enum Resume {
    /// Continue at the frame at this offset. The misfit is damage, because its bytes were synced: the segment is closed, or a later frame
    /// names a synced end (`synced`) beyond these bytes.
    At(u64),
    /// Stop: the misfit is a torn tail. This many bytes are dropped.
    Torn(u64),
}

/// Searches for the next valid frame after a misfit, and decides how to continue. `closed`: the whole segment was synced.
pub(super) fn resume(walk: &mut Walk<'_>, closed: bool) -> io::Result<Resume> {
    let misfit = walk.offset();
    let mut first = None;
    let mut end = misfit;
    while let Some((offset, head)) = walk.find_next()? {
        let first = *first.get_or_insert(offset);
        end = offset + head.lengths.total();
        if closed || head.synced > misfit {
            return Ok(Resume::At(first));
        }
        walk.search_behind(offset);
    }
    walk.search_behind(misfit);
    Ok(Resume::Torn(end - misfit))
}
