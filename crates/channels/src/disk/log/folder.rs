//! The folder of a channel: its lock, its id, its names.

use std::{
    io::{self, IoSlice},
    path::Path,
    sync::Arc,
};

use millstream_sys::disk::{Disk, File, Open};

use super::{
    ChannelId, Error,
    bytes::Fields,
    frame::checksum,
    segment::{FORMAT_VERSION, number_in},
};

const MAGIC: &[u8; 8] = b"MILLCHN\0";

/// Makes the folder and takes its lock.
pub(super) fn take_lock(disk: &dyn Disk, folder: &Path) -> Result<Arc<dyn File>, Error> {
    let failed = |error| Error::disk("opening the channel", folder, error);
    disk.create_folder(folder).map_err(failed)?;
    if let Some(parent) = folder.parent() {
        let here = parent.as_os_str().is_empty();
        let parent = if here { Path::new(".") } else { parent };
        disk.sync_folder(parent).map_err(failed)?;
    }
    let path = folder.join("lock");
    let lock = match disk.open(&path, Open::Create) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => disk.open(&path, Open::Write),
        other => other,
    };
    let lock = lock.map_err(failed)?;
    match lock.try_lock() {
        Ok(true) => Ok(lock),
        Ok(false) => Err(Error::Locked(folder.to_owned())),
        Err(error) => Err(failed(error)),
    }
}

pub(super) fn list(disk: &dyn Disk, folder: &Path) -> Result<Vec<String>, Error> {
    let names = disk
        .list(folder)
        .map_err(|error| Error::disk("listing the channel", folder, error))?;
    // Names that are not UTF-8 are not ours.
    Ok(names
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .collect())
}

/// Reads the file `channel`, or makes it: in a folder without segments with the id `fresh`, else with the id that the record
/// of the channel `remembers`.
///
/// ```text
/// offset bytes
///      0   8   magic "MILLCHN" and 0
///      8   4   format version
///     12   4   CRC-32C of the id
///     16  16   channel id
/// ```
pub(super) fn identify(
    disk: &dyn Disk,
    folder: &Path,
    names: &[String],
    fresh: ChannelId,
    remembers: Option<ChannelId>,
) -> Result<ChannelId, Error> {
    let path = folder.join("channel");
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
    let mut out = Vec::with_capacity(32);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    out.extend_from_slice(&checksum(&fresh.0).to_le_bytes());
    out.extend_from_slice(&fresh.0);
    let new = folder.join("channel.new");
    if names.iter().any(|name| name == "channel.new") {
        disk.remove(&new).map_err(failed)?;
    }
    let file = disk.open(&new, Open::Create).map_err(failed)?;
    file.write_at(&[IoSlice::new(&out)], 0)
        .and_then(|()| file.sync())
        .and_then(|()| disk.rename(&new, &path))
        .and_then(|()| disk.sync_folder(folder))
        .map_err(failed)?;
    Ok(fresh)
}

/// Whether the channel stands in another directory beside `folder`: it was renamed, and is not lost.
pub(super) fn was_moved(disk: &dyn Disk, folder: &Path, channel: ChannelId) -> bool {
    let Some(beside) = folder.parent() else {
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
        Ok(file) => file.read_at(&mut bytes, 32, 0).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut fields = Fields::new(&bytes);
    if fields.take(8).is_none_or(|magic| magic != MAGIC) {
        return Ok(None);
    }
    match (fields.u32(), fields.u32(), fields.id()) {
        (Some(found), ..) if found > FORMAT_VERSION => Err(Error::Newer {
            path: path.to_owned(),
            found,
            known: FORMAT_VERSION,
        }),
        (Some(_), Some(crc), Some(id)) if crc == checksum(&id) => Ok(Some(ChannelId(id))),
        _ => Ok(None),
    }
}
