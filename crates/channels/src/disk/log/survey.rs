//! Finds the segments of a log in its directory, by their headers.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_record::{Position, Time};
use millstream_sys::disk::{Disk, File, Open};

use super::{
    ChannelId, Error,
    frame::Place,
    seal::FORMAT_VERSION,
    segment::{
        Header, PAGE, ReadHeader, Segment, moved_name, moved_number_in, number_in, segment_name,
    },
    walk::Walk,
};

/// A segment file that was found in the directory.
pub(super) struct SegmentFile {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn File>,
    pub(super) bytes: u64,
    /// Where its first frame begins.
    pub(super) start: u64,
    pub(super) first: Position,
    pub(super) keep_time: Time,
    /// `None` if the header is damaged. In this case `number` comes from the file name, and `start`, `first` and `keep_time` come from
    /// the first valid frame.
    pub(super) header: Option<Header>,
}

impl SegmentFile {
    /// Truncates a closed segment that is less than half full. The last segment of a run may end that early. Without the truncation, a
    /// program that is killed repeatedly would fill its channel with nearly empty segments. `end` is the end of the segment's frames,
    /// according to the header of the next segment.
    pub(super) fn truncate(&mut self, end: u64) -> Result<(), Error> {
        let bytes = end.next_multiple_of(PAGE);
        // A fuller segment keeps its size, to be reused.
        if bytes >= self.bytes / 2 {
            return Ok(());
        }
        let truncated = self.file.truncate(bytes);
        truncated.map_err(|error| Error::disk("truncating a segment", &self.path, error))?;
        self.bytes = bytes;
        Ok(())
    }

    /// Whether the file holds a frame of this segment.
    fn holds_frames(&self, channel: &ChannelId) -> Result<bool, Error> {
        let place = Place {
            channel: *channel,
            segment: self.number,
            offset: self.start - 1,
        };
        let mut walk = Walk::of_file(&*self.file, place, Position::default(), self.bytes);
        let found = walk
            .find_any()
            .map_err(|error| Error::disk("reading", &self.path, error))?;
        Ok(found.is_some())
    }

    /// The segment, whose kept frames end at `end`.
    pub(super) fn into_segment(self, end: u64) -> Segment {
        Segment::new(
            self.number,
            self.first,
            self.path,
            self.file,
            (self.bytes, self.start, end),
        )
    }
}

/// Damaged files, each with a description of the damage.
pub(super) type Damage = Vec<(PathBuf, &'static str)>;

/// Opens all segments of the directory in order. If the file of a segment has the name of another segment, it is renamed to the correct
/// name. A file that is not a segment of this channel is renamed to `.bad` and never removed, because it may hold records that are
/// missing.
pub(super) fn survey(
    disk: &dyn Disk,
    directory: &Path,
    names: &[String],
    channel: &ChannelId,
    damage: &mut Damage,
) -> Result<Vec<SegmentFile>, Error> {
    let (mut found, mut misnamed) = (Vec::new(), Vec::new());
    for name in names {
        let path = directory.join(name);
        let Some(number) = number_in(name, ".seg").or_else(|| moved_number_in(name)) else {
            continue;
        };
        match open_segment(disk, path.clone(), number, channel, Open::Write)? {
            Some(segment) => {
                if segment.header.is_none() {
                    damage.push((path.clone(), "the header of the segment is damaged"));
                }
                let named = path == directory.join(segment_name(segment.number));
                let list = if named { &mut found } else { &mut misnamed };
                list.push(segment);
            }
            None => {
                let aside = put_aside(disk, &path)?;
                damage.push((
                    aside,
                    "not a segment of this channel; it was renamed to .bad",
                ));
            }
        }
    }
    rename_back(disk, directory, channel, &mut found, misnamed, damage)?;
    found.sort_by_key(|segment| segment.number);
    Ok(found)
}

/// Renames segments to their own names. Names may have been swapped, so all of them get temporary names first.
fn rename_back(
    disk: &dyn Disk,
    directory: &Path,
    channel: &ChannelId,
    found: &mut Vec<SegmentFile>,
    mut misnamed: Vec<SegmentFile>,
    damage: &mut Damage,
) -> Result<(), Error> {
    for (place, segment) in misnamed.iter_mut().enumerate() {
        let moved = directory.join(moved_name(segment.number, place));
        if segment.path != moved {
            rename(disk, &segment.path, &moved)?;
        }
        segment.path = moved;
    }
    for mut segment in misnamed {
        if !segment.holds_frames(channel)? {
            // This is a recycled segment that got a new header, and a power cut undid its rename. It has no kept frame.
            disk.remove(&segment.path)
                .map_err(|error| Error::disk("removing a leftover", &segment.path, error))?;
            continue;
        }
        if found.iter().any(|other| other.number == segment.number) {
            let aside = put_aside(disk, &segment.path)?;
            damage.push((aside, "a second copy of a segment; it was renamed to .bad"));
            continue;
        }
        let path = directory.join(segment_name(segment.number));
        rename(disk, &segment.path, &path)?;
        damage.push((
            path.clone(),
            "the segment had the name of another one; it was renamed",
        ));
        segment.path = path;
        found.push(segment);
    }
    Ok(())
}

/// Renames a file to `.bad` (or `.2.bad` and so on), so that it is not part of the log. Returns its new path.
fn put_aside(disk: &dyn Disk, path: &Path) -> Result<PathBuf, Error> {
    let mut aside = path.with_extension("bad");
    let mut copy = 1;
    while disk.metadata(&aside).is_ok() {
        copy += 1;
        aside = path.with_extension(format!("{copy}.bad"));
    }
    rename(disk, path, &aside)?;
    Ok(aside)
}

fn rename(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), Error> {
    disk.rename(from, to)
        .map_err(|error| Error::disk("renaming a segment", from, error))
}

/// Opens a segment. Returns `None` if it holds neither a valid header nor a frame of this channel. The number of the segment comes from a
/// valid header, or without one from the file name.
pub(super) fn open_segment(
    disk: &dyn Disk,
    path: PathBuf,
    number: u64,
    channel: &ChannelId,
    how: Open,
) -> Result<Option<SegmentFile>, Error> {
    let failed = |error| Error::disk("reading the head of a segment", &path, error);
    let file = disk.open(&path, how).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len;
    match Header::read(&*file, channel).map_err(failed)? {
        ReadHeader::Newer(found) => {
            return Err(Error::Newer {
                path,
                found,
                known: FORMAT_VERSION,
            });
        }
        ReadHeader::Valid(header, start) => {
            return Ok(Some(SegmentFile {
                number: header.number,
                path,
                file,
                bytes,
                start,
                first: header.first,
                keep_time: header.keep_time,
                header: Some(header),
            }));
        }
        ReadHeader::Invalid => {}
    }
    let place = Place {
        channel: *channel,
        segment: number,
        offset: PAGE - 1,
    };
    let mut walk = Walk::of_file(&*file, place, Position::default(), bytes);
    let first = walk.find_any().map_err(failed)?;
    Ok(first.map(|(start, head)| SegmentFile {
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
