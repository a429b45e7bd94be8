//! The end of the log: the frames of a segment that nothing behind it vouches for.

use std::io;

use millstream_record::{Position, Time};

use super::{
    ChannelId,
    frame::{Head, Kind},
    segment::Segment,
    walk::{Walk, WalkError},
};

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
    /// The heads of all frames, in order.
    pub(super) heads: Vec<Head>,
}

/// Walks the frames of a segment, bodies too, and syncs it if it is not `closed`: after a kill the page cache may hold
/// what the disk does not, and consumers are going to see it. `end` bounds the walk.
pub(super) fn walk_tail(
    segment: &Segment,
    channel: ChannelId,
    end: u64,
    closed: bool,
    keep_time: Time,
) -> io::Result<Tail> {
    let mut tail = Tail {
        end: segment.start,
        next: segment.first,
        keep_time,
        clean: false,
        torn_bytes: 0,
        damage: None,
        heads: Vec::new(),
    };
    let mut walk = Walk::new(segment, channel, end);
    // The end of the last whole group, and how many heads there are up to it.
    loop {
        match walk.next_whole() {
            Ok(None) => break,
            Ok(Some(found)) if found.head.kind != Kind::Batch => {
                tail.clean = found.head.kind == Kind::CleanEnd;
                tail.heads.push(found.head);
                break;
            }
            Ok(Some(found)) => {
                tail.heads.push(found.head);
                if tail.heads.last().is_some_and(Head::ends_group) {
                    tail.end = walk.offset();
                }
            }
            Err(WalkError::Disk(error)) => return Err(error),
            Err(WalkError::Misfit) => match go_on(&mut walk, closed)? {
                GoOn::At(offset) => {
                    tail.damage = Some("frames are damaged below the last synced end");
                    walk.skip_to(offset);
                }
                GoOn::Torn(bytes) => {
                    tail.torn_bytes = bytes;
                    break;
                }
            },
        }
    }
    close_group(&mut tail);
    if !closed {
        segment.file.sync()?;
    }
    Ok(tail)
}

/// A group without its last part does not exist.
fn close_group(tail: &mut Tail) {
    let whole = tail
        .heads
        .iter()
        .rposition(Head::ends_group)
        .map_or(0, |last| last + 1);
    tail.heads.truncate(whole);
    if let Some(last) = tail.heads.iter().rfind(|head| head.kind == Kind::Batch) {
        tail.next = Position {
            epoch: last.position.epoch,
            seq: last.position.seq + 1,
        };
        tail.keep_time = tail.keep_time.max(last.keep_time);
    }
}

enum GoOn {
    /// The frames behind the misfit count: they say that it was synced, so it is damage.
    At(u64),
    /// Nothing behind the misfit counts; so many bytes are dropped.
    Torn(u64),
}

fn go_on(walk: &mut Walk<'_>, closed: bool) -> io::Result<GoOn> {
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
