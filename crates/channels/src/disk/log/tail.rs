//! The end of the log: the frames of a segment that nothing behind it vouches for.

use std::io::{self, IoSlice};

use millstream_record::{Position, Time};

use super::{
    ChannelId,
    frame::{Head, Kind},
    segment::Segment,
    walk::{Walk, WalkError},
};

/// What is read and written at once.
const PIECE_BYTES: u64 = 1 << 20;

/// What a walk over the last segment has found.
pub(super) struct Tail {
    /// Where the log ends: nothing behind it counts.
    pub(super) end: u64,
    /// The position after the last frame, in the epoch of the segment.
    pub(super) next: Position,
    pub(super) keep_time: Time,
    /// A mark says that the channel was closed in order.
    pub(super) clean: bool,
    /// Bytes behind the end up to the last frame of this place, which are dropped.
    pub(super) torn_bytes: u64,
    pub(super) damage: Option<&'static str>,
    /// Positions that damage took, between frames that are there: after, to.
    pub(super) gaps: Vec<(Position, Position)>,
}

/// Walks the frames of a segment, bodies too, and gives `each` the heads of whole groups: a group without its last part
/// does not exist. If the segment is not `closed`, what no sync vouches for is made durable, as consumers are going to see
/// it. `end` bounds the walk.
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
            Ok(Some(found)) if found.head.kind != Kind::Batch => {
                tail.clean = found.head.kind == Kind::CleanEnd;
                each(&found.head);
                break;
            }
            Ok(Some(found)) => {
                synced = synced.max(found.head.synced);
                let next = group.last().map_or(tail.next, |last| last.position.next());
                tail.note_gap(next, found.head.position);
                group.push(found.head);
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
            Err(WalkError::Misfit) => match go_on(&mut walk, closed)? {
                GoOn::At(offset) => {
                    tail.damage = Some("frames are damaged below the last synced end");
                    walk.skip_to(offset);
                }
                GoOn::Torn(bytes) => {
                    tail.damage = tail.damage.or(closed.then_some("the end is damaged"));
                    tail.torn_bytes = bytes;
                    break;
                }
            },
        }
    }
    if !closed {
        // A file that was cut may be shorter than its header.
        write_again(segment, 0, segment.start.min(segment.bytes()))?;
        write_again(segment, synced, tail.end.min(segment.bytes()))?;
        segment.file.sync()?;
    }
    Ok(tail)
}

impl Tail {
    /// Notes what is missing before a frame at `found`, where one at `next` should be.
    pub(super) fn note_gap(&mut self, next: Position, found: Position) {
        if found.seq > next.seq {
            self.gaps.push((next.before(), found.before()));
        }
    }
}

/// Writes the same bytes once more. After a kill the page cache may hold what never reached the disk although it counts
/// as clean, because a sync failed just before: a sync alone would prove nothing.
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

/// How a walk goes on at a misfit.
pub(super) enum GoOn {
    /// The frames behind the misfit count: they say that it was synced, so it is damage.
    At(u64),
    /// Nothing behind the misfit counts; so many bytes are dropped.
    Torn(u64),
}

/// Looks behind a misfit. `closed`: all of the segment was synced.
pub(super) fn go_on(walk: &mut Walk<'_>, closed: bool) -> io::Result<GoOn> {
    let misfit = walk.offset();
    let mut first = None;
    let mut end = misfit;
    while let Some((offset, head)) = walk.find_next()? {
        first = first.or(Some(offset));
        end = offset + head.lengths.total();
        if closed || head.synced > misfit {
            return Ok(GoOn::At(first.unwrap_or(offset)));
        }
        walk.look_behind(offset);
    }
    walk.look_behind(misfit);
    Ok(GoOn::Torn(end - misfit))
}
