//! When the disk refuses: nothing since the last good sync is durable, whatever a second sync says.
//!
//! Linux marks pages clean whose writing failed. So a file that failed once is not written or synced again: the log ends
//! in it where the last good sync ended, the frames behind that are staged again with the same numbers, and the next
//! segment's header says where the old one ends. A second failure before a good sync stops the channel.

use std::{io, path::PathBuf};

use bytes::Bytes;
use millstream_record::Position;

use super::{
    Error,
    append::files_of,
    commit::{Log, OpenSegment, Previous, Staged},
    frame::Kind,
    walk::{Walk, ids_of},
};

impl Log {
    /// The open segment has failed: stages again what is not durable in it.
    pub(super) fn repair(&mut self, doing: &'static str, error: io::Error) -> Result<(), Error> {
        let Some(mut open) = self.open.take() else {
            return self.fail(doing, self.directory.clone(), error);
        };
        let path = open.segment.path.clone();
        let published = open.segment.end();
        for frame in std::mem::take(&mut self.written).into_iter().rev() {
            self.staged.push_front(frame);
        }
        // Kept by a policy that does not sync each time, and let go from memory since.
        for frame in self.read_back(&open, published).into_iter().rev() {
            self.staged.push_front(frame);
        }
        for origin in self.staged.iter().flat_map(|frame| &frame.files) {
            self.files.stage(origin);
        }
        self.files.undo(std::mem::take(&mut open.files_unsynced));
        open.ids.truncate(open.ids_synced);
        open.segment.set_end(open.synced.min(published));
        self.previous = Previous {
            number: open.segment.number,
            end: open.synced,
            ids_written: open.ids.is_empty(),
            ids: open.ids,
        };
        self.fail(doing, path, error)
    }

    /// Notes a failure; the second one before a good sync stops the channel.
    pub(super) fn fail(
        &mut self,
        doing: &'static str,
        path: PathBuf,
        error: io::Error,
    ) -> Result<(), Error> {
        if self.failing {
            return Err(Error::Disk {
                doing,
                path,
                source: error.into(),
            });
        }
        self.failing = true;
        Ok(())
    }

    /// The frames between the last good sync and what consumers see, as far as the disk still gives them back.
    fn read_back(&mut self, open: &OpenSegment, published: u64) -> Vec<Staged> {
        let mut frames = Vec::new();
        if open.synced >= published {
            return frames;
        }
        let first = self.seq_at(open);
        let last = self.kept();
        let mut walk = Walk::new(&open.segment, self.channel, published);
        walk.skip_to(open.synced);
        while let Ok(Some(found)) = walk.next_whole() {
            if found.head.kind != Kind::Batch {
                break;
            }
            let ids = ids_of(&mut self.keys, &found.head);
            let (position, ends_group) = (found.head.position, found.head.ends_group());
            let body = found.body.clone();
            let files = found.head.clone().batch(Bytes::new());
            frames.push(Staged {
                head: found.head_bytes,
                body,
                position,
                ends_group,
                ids,
                files: files.iter().flat_map(files_of).copied().collect(),
                batch: None,
                window_end: 0,
            });
        }
        // What ends in the middle of a group was damaged; whole groups only.
        while frames.last().is_some_and(|frame| !frame.ends_group) {
            frames.pop();
        }
        let next = frames
            .last()
            .map_or(first, |frame: &Staged| frame.position.seq + 1);
        if next <= last.seq {
            let from = Position {
                epoch: last.epoch,
                seq: next,
            };
            self.lost.push((from, last));
        }
        frames
    }

    /// The seq of the first frame that is not durable.
    fn seq_at(&self, open: &OpenSegment) -> u64 {
        let mut walk = Walk::new(&open.segment, self.channel, open.synced);
        let mut next = open.segment.first.seq;
        while let Ok(Some(found)) = walk.next_head() {
            next = found.head.position.seq + 1;
        }
        next
    }
}
