//! The directory of a channel: its lock, its id, its names.

use std::{
    io::{self, IoSlice},
    path::Path,
    sync::Arc,
};

use millstream_sys::disk::{Disk, File, Open};

use super::{
    ChannelId, Error,
    bytes::Fields,
    seal::{self, FORMAT_VERSION, SEAL_BYTES, Sealed},
    segment::number_in,
};

const MAGIC: &[u8; 8] = b"MILLCHN\0";
/// Bytes of the file `channel`.
const FILE_BYTES: usize = SEAL_BYTES + 16;

/// Makes the directory and takes its lock.
pub(super) fn take_lock(disk: &dyn Disk, directory: &Path) -> Result<Arc<dyn File>, Error> {
    let failed = |error| Error::disk("opening the channel", directory, error);
    disk.create_directory(directory).map_err(failed)?;
    if let Some(parent) = directory.parent() {
        let here = parent.as_os_str().is_empty();
        let parent = if here { Path::new(".") } else { parent };
        disk.sync_directory(parent).map_err(failed)?;
    }
    let path = directory.join("lock");
    let lock = match disk.open(&path, Open::Create) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => disk.open(&path, Open::Write),
        other => other,
    };
    let lock = lock.map_err(failed)?;
    match lock.try_lock() {
        Ok(true) => Ok(lock),
        Ok(false) => Err(Error::Locked(directory.to_owned())),
        Err(error) => Err(failed(error)),
    }
}

pub(super) fn list(disk: &dyn Disk, directory: &Path) -> Result<Vec<String>, Error> {
    let names = disk
        .list(directory)
        .map_err(|error| Error::disk("listing the channel", directory, error))?;
    // Names that are not UTF-8 are not ours.
    Ok(names
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .collect())
}

/// Reads the file `channel`, or makes it: in a directory without segments with the id `fresh`, else with the id that the record
/// of the channel `remembers`.
///
/// ```text
/// offset bytes
///      0   8   magic "MILLCHN" and 0
///      8   4   format version
///     12   4   CRC-32C of the version and the id (seal.rs)
///     16  16   channel id
/// ```
pub(super) fn identify(
    disk: &dyn Disk,
    directory: &Path,
    names: &[String],
    fresh: ChannelId,
    remembers: Option<ChannelId>,
) -> Result<ChannelId, Error> {
    let path = directory.join("channel");
    let failed = |error| Error::disk("opening the channel", &path, error);
    if let Some(channel) = read_identity(disk, &path)? {
        return Ok(channel);
    }
    let holds_segments = names.iter().any(|name| number_in(name, ".seg").is_some());
    let fresh = match remembers {
        Some(channel) if holds_segments => channel,
        None if holds_segments => return Err(Error::NoIdentity(path)),
        _ => fresh,
    };
    let mut out = seal::begin(MAGIC);
    out.extend_from_slice(&fresh.0);
    seal::seal(&mut out);
    let new = directory.join("channel.new");
    if names.iter().any(|name| name == "channel.new") {
        disk.remove(&new).map_err(failed)?;
    }
    let file = disk.open(&new, Open::Create).map_err(failed)?;
    file.write_at(&[IoSlice::new(&out)], 0)
        .and_then(|()| file.sync())
        .and_then(|()| disk.rename(&new, &path))
        .and_then(|()| disk.sync_directory(directory))
        .map_err(failed)?;
    Ok(fresh)
}

/// Whether the channel stands in another directory beside `directory`: it was renamed, and is not lost.
pub(super) fn was_moved(disk: &dyn Disk, directory: &Path, channel: ChannelId) -> bool {
    let Some(beside) = directory.parent() else {
        return false;
    };
    let names = disk.list(beside).unwrap_or_default();
    names.iter().any(|name| {
        let identity = read_identity(disk, &beside.join(name).join("channel"));
        matches!(identity, Ok(Some(found)) if found == channel)
    })
}

/// The id in the file `channel`; `None` if there is none or it is damaged.
pub(super) fn read_identity(disk: &dyn Disk, path: &Path) -> Result<Option<ChannelId>, Error> {
    let failed = |error| Error::disk("opening the channel", path, error);
    let mut bytes = Vec::new();
    match disk.open(path, Open::Read) {
        Ok(file) => file.read_at(&mut bytes, FILE_BYTES, 0).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    match seal::check(MAGIC, &bytes) {
        Sealed::Whole => {
            let id = bytes
                .get(SEAL_BYTES..)
                .and_then(|rest| Fields::new(rest).id());
            Ok(id.map(ChannelId))
        }
        Sealed::Newer(found) => Err(Error::Newer {
            path: path.to_owned(),
            found,
            known: FORMAT_VERSION,
        }),
        Sealed::Damaged => Ok(None),
    }
}
