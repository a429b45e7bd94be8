//! Timestamps: RFC 3164 (no year, no zone), RFC 3339, and the variants that devices send.
//!
//! A date without a year gets the newest year in which it is at most a day after the receive time. The day is for clocks that are
//! ahead, and for senders in other zones: logs are of the past, so a date in May that is read in November is not one of next year.

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use millstream_record::Time;

use super::{
    civil::{Civil, DAY, date_of},
    digits::{clock_time, few_digits, fraction, iso_date_time, month, number, offset, second},
};

/// A date without a year may be this much later than the receive time.
const AHEAD_MAX: i64 = DAY;
/// In a year that brings a date to between this much before the receive time and [`AHEAD_MAX`] after it, the date is certainly the
/// newest one.
const SURELY_NEWEST: i64 = 363 * DAY;
/// A date exists at least once in this many years: February 29 is missing in 1900 and 2100.
const LEAP_YEARS: i64 = 8;
/// Length of `Mmm dd hh:mm`.
const SHORT_BYTES: usize = 12;
/// Length of `Mmm dd hh:mm:ss`.
const SHORT_WHOLE_BYTES: usize = SHORT_BYTES + 3;
/// Length of `YYYY-MM-DDThh:mm`.
const MINUTE_BYTES: usize = 16;

/// Reads timestamps. The minute of the last timestamp is cached, separately for times without and with a year, because a stream
/// repeats a minute many times. Clocks are adjusted only at full minutes, so all seconds of a minute have the same offset in any
/// zone.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    zone: TimeZone,
    utc: bool,
    /// The cached text without a year, and the start of its minute.
    short: [u8; SHORT_BYTES],
    short_seconds: i64,
    /// The cached text with a year, and the start of its minute as if the text were in UTC.
    minute: [u8; MINUTE_BYTES],
    minute_seconds: i64,
}

/// A zone that follows a time: seconds east of Greenwich, and its name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Zone<'a> {
    Offset(i64),
    Name(&'a [u8], i64),
}

/// A time and the length of its text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) seconds: i64,
    pub(super) nanos: u32,
    pub(super) length: usize,
}

/// A text in the format of a time. It may not be a valid date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// `None` if the text is not a valid date.
    pub(super) time: Option<Time>,
    /// The length of the text.
    pub(super) length: usize,
}

impl Clock {
    pub(super) fn new(zone: TimeZone) -> Self {
        Self {
            utc: zone == TimeZone::UTC,
            zone,
            short: [0; SHORT_BYTES],
            // This value is not near any receive time, so the first timestamp is not taken from the cache.
            short_seconds: i64::MIN / 2,
            minute: *b"1970-01-01T00:00",
            minute_seconds: 0,
        }
    }

    /// Returns the time at the start of `text` if it is in the cached minute. A time without a year must be followed by a space.
    #[inline(always)]
    pub(super) fn again(&self, text: &[u8], now: Time) -> Option<Moment> {
        let (short, rest) = text.split_first_chunk::<SHORT_BYTES>()?;
        if *short != self.short {
            return self.iso_again(text);
        }
        let (second, rest) = second(rest)?;
        let seconds = self.short_seconds + second;
        let near = is_surely_newest(seconds, now);
        match rest {
            // A time that is followed by a year has another format, which [`Clock::short`] reads.
            [b' ', b'0'..=b'9', a, b, c, ..] if [a, b, c].into_iter().all(u8::is_ascii_digit) => {
                None
            }
            [b' ', ..] if near => Some(Moment {
                seconds,
                nanos: 0,
                length: SHORT_WHOLE_BYTES,
            }),
            _ => None,
        }
    }

    /// Like [`Clock::again`], but only for times in the format of [`Clock::iso`]. The time must have a zone, and its fraction, if
    /// there is one, must have at most seven digits.
    #[inline(always)]
    pub(super) fn iso_again(&self, text: &[u8]) -> Option<Moment> {
        let (minute, rest) = text.split_first_chunk::<MINUTE_BYTES>()?;
        if *minute != self.minute {
            return None;
        }
        let (second, rest) = second(rest)?;
        let seconds = self.minute_seconds + second;
        let (nanos, rest) = match rest {
            [b'.' | b',', digits @ ..] => few_digits(digits)?,
            _ => (0, rest),
        };
        let (offset, rest) = match rest {
            [b'Z' | b'z', rest @ ..] => (0, rest),
            [sign @ (b'+' | b'-'), rest @ ..] => {
                let (offset, rest) = offset(rest)?;
                (if *sign == b'-' { -offset } else { offset }, rest)
            }
            _ => return None,
        };
        Some(Moment {
            seconds: seconds - offset,
            nanos,
            length: text.len() - rest.len(),
        })
    }

    /// Reads the time at the start of `text`, in one of the formats of [`Clock::short`] and [`Clock::iso`].
    #[inline(always)]
    pub(super) fn read(&mut self, text: &[u8], now: Time) -> Option<Stamp> {
        if let Some(moment) = self.again(text, now) {
            return Some(moment.into());
        }
        match text.first()? {
            b'0'..=b'9' => self.iso(text).or_else(|| self.year_first(text, now)),
            _ => self.short(text, None, now),
        }
    }

    /// Reads `yyyy Mmm dd hh:mm:ss`, as in Cisco's NX-OS.
    #[cold]
    fn year_first(&mut self, text: &[u8], now: Time) -> Option<Stamp> {
        let (year, rest) = number(text, 4, 4)?;
        let rest = rest.strip_prefix(b" ")?;
        let mut stamp = self.short(rest, Some(year), now)?;
        stamp.length += text.len() - rest.len();
        Some(stamp)
    }

    /// Reads `Mmm dd hh:mm:ss` with a day of one or two characters, and the additions of devices: a fraction after the seconds, and
    /// a year after the day or after the time.
    #[inline(never)]
    fn short(&mut self, text: &[u8], mut year: Option<i64>, now: Time) -> Option<Stamp> {
        let month = month(text.first_chunk()?)?;
        let rest = text.get(3..)?.strip_prefix(b" ")?;
        let rest = rest.strip_prefix(b" ").unwrap_or(rest);
        let (day, rest) = number(rest, 1, 2)?;
        let mut rest = rest.strip_prefix(b" ")?;
        if year.is_none()
            && let Some((found, behind)) = number(rest, 4, 4)
            && let Some(behind) = behind.strip_prefix(b" ")
        {
            (year, rest) = (Some(found), behind);
        }
        let (hour, minute, second, rest) = clock_time(rest)?;
        let (nanos, mut rest) = fraction(rest);
        if year.is_none()
            && let Some(behind) = rest.strip_prefix(b" ")
            && let Some((found, behind)) = number(behind, 4, 4)
            && matches!(behind, [] | [b' ', ..] | [b':', b' ', ..])
            && (1970..2200).contains(&found)
        {
            (year, rest) = (Some(found), behind);
        }
        let length = text.len() - rest.len();
        let civil = Civil {
            year: year.unwrap_or(0),
            month,
            day,
            hour,
            minute,
            second,
        };
        let seconds = match year {
            Some(_) => self.local(civil),
            None => self.newest(civil, now),
        };
        // The minute is cached only if the text has the usual length, with a two-digit hour and without a fraction.
        if let (Some(seconds), Some(short)) = (seconds, text.first_chunk())
            && year.is_none()
            && length == SHORT_WHOLE_BYTES
            && text.get(SHORT_BYTES) == Some(&b':')
        {
            (self.short, self.short_seconds) = (*short, seconds - second);
        }
        Some(Stamp {
            time: seconds.map(|seconds| Time::from_parts(seconds, nanos)),
            length,
        })
    }

    /// Reads `YYYY-MM-DDThh:mm:ss`, also with a space instead of the `T`, with a fraction, and with `Z`, `+hh:mm`, `+hhmm` or no
    /// zone.
    #[inline(always)]
    pub(super) fn iso(&mut self, text: &[u8]) -> Option<Stamp> {
        match self.iso_again(text) {
            Some(moment) => Some(moment.into()),
            None => self.iso_anew(text),
        }
    }

    #[inline(never)]
    fn iso_anew(&mut self, text: &[u8]) -> Option<Stamp> {
        let (civil, rest) = iso_date_time(text)?;
        self.learn_minute(text, civil);
        let (nanos, rest) = match rest.first() {
            Some(b'.' | b',') => fraction(rest),
            _ => (0, rest),
        };
        let (seconds, rest) = match rest {
            [b'Z' | b'z', rest @ ..] => (civil.seconds(), rest),
            [sign @ (b'+' | b'-'), rest @ ..] => {
                let (offset, rest) = offset(rest)?;
                let offset = if *sign == b'-' { -offset } else { offset };
                (civil.seconds().map(|seconds| seconds - offset), rest)
            }
            rest => (self.local(civil), rest),
        };
        Some(Stamp {
            time: seconds.map(|seconds| Time::from_parts(seconds, nanos)),
            length: text.len() - rest.len(),
        })
    }

    /// Caches the minute of a valid time if its hour has two digits.
    fn learn_minute(&mut self, text: &[u8], civil: Civil) {
        if let Some(seconds) = civil.seconds()
            && let Some(minute) = text.first_chunk()
            && minute[MINUTE_BYTES - 3] == b':'
        {
            self.minute = *minute;
            self.minute_seconds = seconds - civil.second;
        }
    }

    /// Returns the seconds since 1970 for a date without a year.
    fn newest(&self, civil: Civil, now: Time) -> Option<i64> {
        let (year, ..) = date_of(now.seconds().div_euclid(DAY));
        newest(year, now, |year| self.local(Civil { year, ..civil }))
    }

    /// Returns the seconds since 1970 for a local time. If the clocks are set back and the local time occurs twice, the earlier
    /// time is used.
    fn local(&self, civil: Civil) -> Option<i64> {
        let seconds = civil.seconds()?;
        if self.utc {
            return Some(seconds);
        }
        let date = DateTime::new(
            i16::try_from(civil.year).ok()?,
            civil.month as i8,
            civil.day as i8,
            civil.hour as i8,
            civil.minute as i8,
            civil.second.min(59) as i8,
            0,
        );
        let zoned = self.zone.to_ambiguous_timestamp(date.ok()?).compatible();
        Some(zoned.ok()?.as_second() + civil.second / 60)
    }

    /// Reads the time in the first `length` bytes of `text` in the zone behind it. `None` if the time names a zone itself, or if the
    /// zone is the configured one.
    #[cold]
    pub(super) fn in_zone(
        &self,
        text: &[u8],
        length: usize,
        zone: Zone<'_>,
        now: Time,
    ) -> Option<Time> {
        let behind_date = text.get(SHORT_BYTES..length)?;
        if behind_date.iter().any(|byte| b"+-Zz".contains(byte)) {
            return None;
        }
        let utc = Self::read_utc(text, now)?.time?;
        let offset = match zone {
            Zone::Offset(offset) => offset,
            Zone::Name(name, offset) => {
                let at = Timestamp::from_second(utc.seconds()).ok()?;
                let own = self.zone.to_offset_info(at);
                if own.abbreviation().as_bytes() == name {
                    return None;
                }
                offset
            }
        };
        let seconds = utc.seconds().checked_sub(offset)?;
        Some(Time::from_parts(seconds, utc.subsec_nanos()))
    }

    /// Reads the time at the start of `text` as UTC. Called if the text after the time names UTC or GMT.
    #[cold]
    pub(super) fn read_utc(text: &[u8], now: Time) -> Option<Stamp> {
        Self::new(TimeZone::UTC).read(text, now)
    }
}

/// Whether a date without a year, in the year that makes it `seconds`, cannot be in a later year.
pub(crate) fn is_surely_newest(seconds: i64, now: Time) -> bool {
    (-SURELY_NEWEST..=AHEAD_MAX).contains(&(seconds - now.seconds()))
}

/// Returns a date without a year in the newest year in which it is at most [`AHEAD_MAX`] after `now`. `year` is the year of `now`, and
/// `in_year` returns the date in a year, or `None` if that year does not have it.
pub fn newest(year: i64, now: Time, in_year: impl Fn(i64) -> Option<i64>) -> Option<i64> {
    let years = (year - LEAP_YEARS..=year + 1).rev();
    let mut dates = years.filter_map(in_year);
    dates.find(|seconds| *seconds - now.seconds() <= AHEAD_MAX)
}

impl From<Moment> for Stamp {
    fn from(moment: Moment) -> Self {
        Self {
            time: Some(Time::from_parts(moment.seconds, moment.nanos)),
            length: moment.length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Time {
        let stamp = text.parse::<jiff::Timestamp>().unwrap();
        Time(i64::try_from(stamp.as_nanosecond()).unwrap())
    }

    fn read(zone: &str, now: &str, text: &str) -> (Option<Time>, usize) {
        let zone = TimeZone::get(zone).unwrap();
        let mut clock = Clock::new(zone);
        let first = clock.read(text.as_bytes(), at(now)).unwrap();
        // The second result may come from the cache.
        assert_eq!(clock.read(text.as_bytes(), at(now)), Some(first));
        (first.time, first.length)
    }

    #[test]
    fn a_date_without_a_year_gets_the_newest_year_that_is_not_in_the_future() {
        for (now, text, expected) in [
            (
                "2026-01-01T00:00:05Z",
                "Dec 31 23:59:59 h",
                "2025-12-31T23:59:59Z",
            ),
            // A clock that is ahead.
            (
                "2025-12-31T23:59:58Z",
                "Jan  1 00:00:00 h",
                "2026-01-01T00:00:00Z",
            ),
            (
                "2026-11-20T12:00:00Z",
                "Nov 21 12:00:00 h",
                "2026-11-21T12:00:00Z",
            ),
            (
                "2026-11-20T12:00:00Z",
                "Nov 21 12:00:01 h",
                "2025-11-21T12:00:01Z",
            ),
            (
                "2026-11-28T00:00:00Z",
                "May  1 10:00:00 h",
                "2026-05-01T10:00:00Z",
            ),
            (
                "2026-07-01T00:00:00Z",
                "Jan 10 00:00:00 h",
                "2026-01-10T00:00:00Z",
            ),
            (
                "2026-11-21T00:00:00Z",
                "Dec 11 22:14:15 h",
                "2025-12-11T22:14:15Z",
            ),
            (
                "2026-02-01T00:00:00Z",
                "Mar 11 22:14:15 h",
                "2025-03-11T22:14:15Z",
            ),
            // The newest year with a February 29.
            (
                "2025-03-01T00:00:00Z",
                "Feb 29 12:00:00 h",
                "2024-02-29T12:00:00Z",
            ),
            (
                "2027-12-01T00:00:00Z",
                "Feb 29 12:00:00 h",
                "2024-02-29T12:00:00Z",
            ),
        ] {
            let found = read("UTC", now, text);
            assert_eq!(found, (Some(at(expected)), 15), "{text} at {now}");
        }
        // A time that was cached in one year is not used in another one.
        let mut clock = Clock::new(TimeZone::UTC);
        for (now, expected) in [
            ("2026-11-28T00:00:00Z", "2026-05-01T10:00:00Z"),
            ("2027-04-29T10:00:00Z", "2026-05-01T10:00:00Z"),
            ("2027-04-30T10:00:00Z", "2027-05-01T10:00:00Z"),
            ("2026-04-29T10:00:00Z", "2025-05-01T10:00:00Z"),
        ] {
            let stamp = clock.read(b"May  1 10:00:00 h", at(now)).unwrap();
            assert_eq!(stamp.time, Some(at(expected)), "{now}");
        }
    }

    #[test]
    fn times_without_a_zone_are_in_the_configured_zone() {
        let now = "2026-07-21T00:00:00Z";
        let berlin = |text| read("Europe/Berlin", now, text).0;
        assert_eq!(
            berlin("Jul 21 02:00:00 h"),
            Some(at("2026-07-21T00:00:00Z"))
        );
        assert_eq!(
            berlin("2026-01-21T02:00:00 h"),
            Some(at("2026-01-21T01:00:00Z"))
        );
        assert_eq!(
            berlin("2026-01-21T02:00:00Z h"),
            Some(at("2026-01-21T02:00:00Z"))
        );
    }

    #[test]
    fn every_format_of_a_timestamp_is_parsed() {
        let now = "2026-11-21T00:00:00Z";
        for (text, expected, length) in [
            ("Nov 21 06:40:31.123 x", "2026-11-21T06:40:31.123Z", 19),
            ("Nov  1 06:40:31", "2026-11-01T06:40:31Z", 15),
            ("Nov 1 06:40:31 x", "2026-11-01T06:40:31Z", 14),
            ("nov 01 06:40:31 x", "2026-11-01T06:40:31Z", 15),
            ("Nov 21 2024 06:40:31: x", "2024-11-21T06:40:31Z", 20),
            ("Nov 21 06:40:31 2024 x", "2024-11-21T06:40:31Z", 20),
            (
                "2026-11-21T06:40:31.123456+01:00 x",
                "2026-11-21T05:40:31.123456Z",
                32,
            ),
            ("2026-11-21T06:40:31-0130 x", "2026-11-21T08:10:31Z", 24),
            ("2026-11-21 06:40:31,5 x", "2026-11-21T06:40:31.5Z", 21),
            (
                "2026-11-21T06:40:31.1234567891Z",
                "2026-11-21T06:40:31.123456789Z",
                31,
            ),
            ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z", 20),
        ] {
            assert_eq!(
                read("UTC", now, text),
                (Some(at(expected)), length),
                "{text}"
            );
        }
    }

    #[test]
    fn an_invalid_date_is_distinguished_from_text_that_is_not_a_time() {
        let now = "2026-11-21T00:00:00Z";
        for text in [
            "Feb 30 00:00:00",
            "Nov 21 25:00:00",
            "2026-13-01T00:00:00",
            "Nov  0 10:00:00",
        ] {
            assert_eq!(read("UTC", now, text).0, None, "{text}");
        }
        for text in [
            "Nox 21 06:40:31",
            "Nov 21 06:40",
            "21 Nov 06:40:31",
            "2026-11-21",
            "",
            "Nov",
            "2026-11-21T06:40:31+9",
        ] {
            let mut clock = Clock::new(TimeZone::UTC);
            assert_eq!(clock.read(text.as_bytes(), at(now)), None, "{text}");
        }
    }
}
