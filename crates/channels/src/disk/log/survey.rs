//! Which files of a folder are segments of the log: their headers, in order.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_record::{Position, Time};
use millstream_sys::disk::{Disk, File, Open};

use super::{
    ChannelId, Error,
    frame::Place,
    segment::{FORMAT_VERSION, Header, HeaderFound, PAGE, Segment, number_in, segment_name},
    walk::Walk,
};

/// A segment as a start finds it.
pub(super) struct Survey {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn File>,
    pub(super) bytes: u64,
    /// Where its first frame begins.
    pub(super) start: u64,
    pub(super) first: Position,
    pub(super) keep_time: Time,
    /// None if it is damaged; then the rest is what its frames say.
    pub(super) header: Option<Header>,
}

impl Survey {
    /// Gives back the room of a segment that ended long before it was full, as the last one of every start does: a program
    /// that is killed again and again must not fill its channel with segments that have next to nothing in them. The
    /// segment behind it vouches for `end`; nothing behind that is part of the log.
    pub(super) fn give_back(&mut self, end: u64) -> Result<(), Error> {
        let bytes = end.next_multiple_of(PAGE);
        // Else it is worth more as it is: it will be written over.
        if bytes >= self.bytes / 2 {
            return Ok(());
        }
        let shrunk = self.file.truncate(bytes);
        shrunk.map_err(|error| Error::disk("giving back room of", &self.path, error))?;
        self.bytes = bytes;
        Ok(())
    }

    pub(super) fn into_segment(self, end: u64) -> Segment {
        Segment::of(
            self.number,
            self.first,
            self.path,
            self.file,
            (self.bytes, self.start, end),
        )
    }
}

/// Opens all segments of the folder in order. Files that never became part of the log are removed.
pub(super) fn survey(
    disk: &dyn Disk,
    folder: &Path,
    names: &[String],
    channel: &ChannelId,
    damage: &mut Vec<(PathBuf, &'static str)>,
) -> Result<Vec<Survey>, Error> {
    let mut numbers: Vec<u64> = names
        .iter()
        .filter_map(|name| number_in(name, ".seg"))
        .collect();
    numbers.sort_unstable();
    let mut found = Vec::new();
    for number in numbers {
        let path = folder.join(segment_name(number));
        match look(disk, path.clone(), number, channel, Open::Write)? {
            Some(segment) => {
                if segment.header.is_none() {
                    damage.push((path, "the header of the segment is damaged"));
                }
                found.push(segment);
            }
            // Its header was never synced, so nothing in it was ever kept.
            None => disk
                .remove(&path)
                .map_err(|error| Error::disk("removing a leftover", &path, error))?,
        }
    }
    Ok(found)
}

/// Opens one; `None` if no header and no frame of this channel and number is in it.
pub(super) fn look(
    disk: &dyn Disk,
    path: PathBuf,
    number: u64,
    channel: &ChannelId,
    how: Open,
) -> Result<Option<Survey>, Error> {
    let failed = |error| Error::disk("reading the head of a segment", &path, error);
    let file = disk.open(&path, how).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len;
    match Header::read(&*file, channel).map_err(failed)? {
        HeaderFound::Newer(found) => {
            return Err(Error::Newer {
                path,
                found,
                known: FORMAT_VERSION,
            });
        }
        HeaderFound::Good(header, start) if header.number == number => {
            return Ok(Some(Survey {
                number,
                path,
                file,
                bytes,
                start,
                first: header.first,
                keep_time: header.keep_time,
                header: Some(header),
            }));
        }
        HeaderFound::Good(..) => return Ok(None),
        HeaderFound::None => {}
    }
    let place = Place {
        channel: *channel,
        segment: number,
        offset: PAGE - 1,
    };
    let mut walk = Walk::of_file(&*file, place, Position::default(), bytes);
    let first = walk.find_any().map_err(failed)?;
    Ok(first.map(|(start, head)| Survey {
        number,
        path,
        file,
        bytes,
        start,
        first: head.position,
        keep_time: head.keep_time,
        header: None,
    }))
}
