//! Which paths can be files, and the names of rotated files. Pure functions.
//!
//! `app.log` becomes `app.log.20261121-035051-7`. The first part of the suffix is a time in UTC, usually the receive time of the
//! batch that did not fit into the file. The second part is the number of the rotation. It is higher than the numbers of all
//! rotated files that are already in the directory (see `numbering`). The extension of a compressed file stays at the end:
//! `app.log.gz` becomes `app.log.20261121-035051-7.gz`.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use jiff::{Timestamp, tz::TimeZone};
use millstream_record::Time;

/// Maximum number of bytes that Linux accepts in one part of a path, and in a whole path.
const PART_BYTES_MAX: usize = 255;
const PATH_BYTES_MAX: usize = 4095;
/// Maximum number of bytes that [`rotated`] adds.
const SUFFIX_BYTES_MAX: usize = ".20261121-035051-18446744073709551615".len();

/// Returns why no file can have this path, or None if a file can have it. Paths contain text from senders, so an impossible path
/// must not stop the delivery of other records.
///
/// `rotates` says whether files are later renamed to longer names. `prunes` says whether a file that is named like a rotated file
/// may be removed.
pub(super) fn misfit(path: &[u8], rotates: bool, prunes: bool) -> Option<String> {
    let suffix = if rotates { SUFFIX_BYTES_MAX } else { 0 };
    let mut parts = path.split(|byte| *byte == b'/').rev();
    let name = parts.next().map_or(0, <[u8]>::len) + suffix;
    let long = name > PART_BYTES_MAX || parts.any(|part| part.len() > PART_BYTES_MAX);
    if long || path.len() + suffix > PATH_BYTES_MAX {
        return Some(format!(
            "a path of {} bytes is too long, in a part or as a whole",
            path.len()
        ));
    }
    if path.is_empty() || path.ends_with(b"/") {
        Some("a path that names no file".to_owned())
    } else if prunes && number_in(path).is_some() {
        Some("a name like that of a rotated file, which `rotate.keep` would remove".to_owned())
    } else {
        None
    }
}

/// Returns the name that a file called `path` gets when it is rotated.
pub(super) fn rotated(path: &Path, time: Time, number: u64) -> PathBuf {
    // Every 64-bit count of nanoseconds is a time that jiff accepts.
    let time = Timestamp::from_nanosecond(i128::from(time.0))
        .unwrap_or_default()
        .to_zoned(TimeZone::UTC);
    let (name, end) = split_end(path.as_os_str().as_bytes());
    let mut rotated = OsStr::from_bytes(name).to_owned();
    rotated.push(format!(".{}-{number}", time.strftime("%Y%m%d-%H%M%S")));
    rotated.push(OsStr::from_bytes(end));
    PathBuf::from(rotated)
}

/// Splits a name before the extension by which tools recognize a compressed file (`.gz`, `.zst`). The second part is empty if the
/// name has no such extension.
fn split_end(name: &[u8]) -> (&[u8], &[u8]) {
    let ends = [&b".gz"[..], b".zst"].into_iter();
    let length = ends
        .filter(|end| name.ends_with(end))
        .map(<[u8]>::len)
        .max();
    name.split_at(name.len() - length.unwrap_or(0))
}

/// Returns the number of the rotation if `name` is a rotated name of `current`.
pub(super) fn rotation_number(current: &OsStr, name: &OsStr) -> Option<u64> {
    let (current, end) = split_end(current.as_bytes());
    let rest = name
        .as_bytes()
        .strip_prefix(current)?
        .strip_prefix(b".")?
        .strip_suffix(end)?;
    let rest = str::from_utf8(rest).ok()?;
    let mut parts = rest.split('-');
    let (date, time, number) = (parts.next()?, parts.next()?, parts.next()?);
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_one =
        date.len() == 8 && time.len() == 6 && digits(date) && digits(time) && digits(number);
    if !is_one || parts.next().is_some() {
        None
    } else {
        number.parse().ok()
    }
}

/// Returns the number of the rotation if a path is named like a rotation of any file.
fn number_in(path: &[u8]) -> Option<u64> {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let (start, end) = split_end(name);
    let dot = start.iter().rposition(|byte| *byte == b'.')?;
    let current = [&start[..dot], end].concat();
    rotation_number(OsStr::from_bytes(&current), OsStr::from_bytes(name))
}

/// Returns the lowest number that is higher than those of all rotated files among `names`. Ignores numbers that are too high to be
/// reached by counting, so that the numbers after the result never overflow.
pub(super) fn next_number(names: &[OsString]) -> u64 {
    let numbers = names.iter().filter_map(|name| number_in(name.as_bytes()));
    let highest = numbers.filter(|number| *number < u64::MAX / 2).max();
    highest.map_or(0, |highest| highest + 1)
}

/// Returns those of `names` that are rotations of `current`, except the `keep` newest ones. The oldest is first.
pub(super) fn superfluous(current: &OsStr, names: Vec<OsString>, keep: usize) -> Vec<OsString> {
    let mut rotations: Vec<_> = names
        .into_iter()
        .filter_map(|name| Some((rotation_number(current, &name)?, name)))
        .collect();
    rotations.sort();
    rotations.truncate(rotations.len().saturating_sub(keep));
    rotations.into_iter().map(|(_, name)| name).collect()
}
