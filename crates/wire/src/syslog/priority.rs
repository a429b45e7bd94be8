//! Priorities: `<PRI>` at the start of a message, and the beginning of a record, which contains the facility and severity of
//! the priority.

/// Facilities by number, with the names of rsyslog and syslog.conf (RFC 5424, table 1).
pub(crate) const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv",
    "ftp", "ntp", "audit", "alert", "clock", "local0", "local1", "local2", "local3", "local4",
    "local5", "local6", "local7",
];
/// Severities by number (RFC 5424, table 2).
pub(crate) const SEVERITIES: [&str; 8] = [
    "emerg", "alert", "crit", "err", "warning", "notice", "info", "debug",
];
/// The number of priorities: facility * 8 + severity.
const PRIORITIES: usize = FACILITIES.len() * SEVERITIES.len();

/// The number of bytes before the fields in a record without a priority.
pub(super) const BARE_BYTES: usize = 12;
/// The size of the longest beginning of a record (`authpriv`, `warning`: 47 bytes), rounded up for one store.
pub(super) const START_BYTES: usize = 48;
/// The offset of the time's eight bytes.
pub(super) const TIME_AT: usize = 3;
/// The offset of the map's header.
pub(super) const MAP_AT: usize = 11;

/// The beginning of a record. It is stored as one block; the time and the header of the map are then overwritten.
///
/// ```text
/// 0   92                       array of 2
/// 1   d7 00 ssss nnnn          EventTime
/// 11  80+n                     map of n
/// 12  a8 "facility" a0+k name
///     a8 "severity" a0+k name
/// ```
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub(super) bytes: [u8; START_BYTES],
    pub(super) length: usize,
}

static STARTS: [Start; PRIORITIES] = {
    let mut starts = [bare(); PRIORITIES];
    let mut number = 0;
    while number < PRIORITIES {
        let start = &mut starts[number];
        append(start, "facility");
        append(start, FACILITIES[number / 8]);
        append(start, "severity");
        append(start, SEVERITIES[number % 8]);
        number += 1;
    }
    starts
};

static BARE: Start = bare();

const fn bare() -> Start {
    let mut bytes = [0; START_BYTES];
    bytes[0] = 0x92;
    bytes[1] = 0xd7;
    Start {
        bytes,
        length: BARE_BYTES,
    }
}

const fn append(start: &mut Start, text: &str) {
    let text = text.as_bytes();
    start.bytes[start.length] = 0xa0 | text.len() as u8;
    let mut at = 0;
    while at < text.len() {
        start.bytes[start.length + 1 + at] = text[at];
        at += 1;
    }
    start.length += 1 + text.len();
}

/// Returns the beginning of a record with this priority.
#[inline(always)]
pub(super) fn start(priority: Option<u8>) -> &'static Start {
    priority
        .and_then(|priority| STARTS.get(usize::from(priority)))
        .unwrap_or(&BARE)
}

/// Reads the priority at the start of `line`: `<`, one to three digits, and `>`; at most 191. Also returns the bytes after it.
#[inline(always)]
pub(super) fn read(line: &[u8]) -> Option<(u8, &[u8])> {
    let digit = |byte: u8| byte.wrapping_sub(b'0');
    let (value, rest) = match line {
        [b'<', a, b'>', rest @ ..] => (u32::from(digit(*a)), rest),
        [b'<', a, b, b'>', rest @ ..] if digit(*a) < 10 => {
            (u32::from(digit(*a)) * 10 + u32::from(digit(*b)), rest)
        }
        [b'<', a, b, c, b'>', rest @ ..] if digit(*a) < 10 && digit(*b) < 10 => {
            let tens = u32::from(digit(*a)) * 10 + u32::from(digit(*b));
            (tens * 10 + u32::from(digit(*c)), rest)
        }
        _ => return None,
    };
    // The last character is checked here: if it is not a digit, `digit` returns 10 or more. Then the value is wrong, but may be
    // below `PRIORITIES`.
    let last = line.get(line.len() - rest.len() - 2)?;
    let fits = last.is_ascii_digit() && (value as usize) < PRIORITIES;
    fits.then_some((value as u8, rest))
}

/// Other names of severities in records, in addition to [`SEVERITIES`].
const OTHER_SEVERITIES: [(&str, u8); 10] = [
    ("emergency", 0),
    ("panic", 0),
    ("critical", 2),
    ("fatal", 2),
    ("error", 3),
    ("warn", 4),
    ("information", 6),
    ("informational", 6),
    ("trace", 7),
    ("verbose", 7),
];

/// Returns the number of a facility for its name, or for a number from 0 to 23 as text.
pub fn facility(name: &str) -> Option<u8> {
    of(&FACILITIES, name)
}

/// Returns the number of a severity for its name, for a name that loggers use, or for a number from 0 to 7 as text.
pub fn severity(name: &str) -> Option<u8> {
    let other = || {
        let found = OTHER_SEVERITIES
            .iter()
            .find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, number)| *number)
    };
    of(&SEVERITIES, name).or_else(other)
}

fn of(names: &[&str], name: &str) -> Option<u8> {
    let place = names
        .iter()
        .position(|known| known.eq_ignore_ascii_case(name));
    let place = place.or_else(|| name.parse().ok().filter(|number| *number < names.len()));
    place.and_then(|place| u8::try_from(place).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_have_one_to_three_digits_up_to_191() {
        assert_eq!(read(b"<0>x"), Some((0, &b"x"[..])));
        assert_eq!(read(b"<13>"), Some((13, &b""[..])));
        assert_eq!(read(b"<191>"), Some((191, &b""[..])));
        for bad in [
            "<192>", "<999>", "<>", "<1234>", "<a>", "<1a>", "<1", "13>", "", "<:>", "<1:>",
            "<11:>", "<-1>",
        ] {
            assert_eq!(read(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn every_beginning_of_a_record_fits_and_names_facility_and_severity() {
        for number in 0..PRIORITIES {
            let start = start(u8::try_from(number).ok());
            let text = String::from_utf8_lossy(&start.bytes[..start.length]).into_owned();
            assert!(text.contains(FACILITIES[number / 8]) && text.contains(SEVERITIES[number % 8]));
        }
        assert_eq!(start(None).length, BARE_BYTES);
    }
}
