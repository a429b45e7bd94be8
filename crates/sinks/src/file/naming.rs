//! Names of rotated files: pure.
//!
//! `app.log` becomes `app.log.20261121-035051-7`: the keep time of the batch that did not fit any more, in UTC, and the
//! number of the rotation, which the journal keeps and never repeats. A replay gives the same names.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use jiff::{Timestamp, tz::TimeZone};
use millstream_record::Time;

/// The name of `path` when it is rotated.
pub(super) fn rotated(path: &Path, time: Time, number: u64) -> PathBuf {
    // Every 64-bit count of nanoseconds is a time that jiff knows.
    let time = Timestamp::from_nanosecond(i128::from(time.0))
        .unwrap_or_default()
        .to_zoned(TimeZone::UTC);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{number}", time.strftime("%Y%m%d-%H%M%S")));
    PathBuf::from(name)
}

/// The number of a rotation of the file called `current`, if `name` is the name of one.
pub(super) fn rotation_number(current: &OsStr, name: &OsStr) -> Option<u64> {
    let rest = name
        .as_bytes()
        .strip_prefix(current.as_bytes())?
        .strip_prefix(b".")?;
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

/// Those of `names` that are rotations of `current` beyond the `keep` newest ones, the oldest first.
pub(super) fn superfluous(current: &OsStr, names: Vec<OsString>, keep: usize) -> Vec<OsString> {
    let mut rotations: Vec<_> = names
        .into_iter()
        .filter_map(|name| Some((rotation_number(current, &name)?, name)))
        .collect();
    rotations.sort();
    rotations.truncate(rotations.len().saturating_sub(keep));
    rotations.into_iter().map(|(_, name)| name).collect()
}
