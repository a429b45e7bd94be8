//! Timestamps: RFC 3164 (no year, no zone), RFC 3339, and the forms between that devices send.
//!
//! The year rule: a date without a year is of the year that brings it nearest to the receive time, so that the last
//! second of December that comes in January is of the year before.

use jiff::{civil::DateTime, tz::TimeZone};
use millstream_record::Time;

/// Seconds of a day.
const DAY: i64 = 86_400;
/// A date without a year that is this near to the receive time is nearest in its year, whatever the year's length.
const SURELY_NEAREST: i64 = 180 * DAY;
/// Bytes of `Mmm dd hh:mm`.
const SHORT_BYTES: usize = 12;
/// Bytes of `Mmm dd hh:mm:ss`.
const SHORT_WHOLE_BYTES: usize = SHORT_BYTES + 3;
/// Bytes of `YYYY-MM-DDThh:mm`.
const MINUTE_BYTES: usize = 16;

/// Reads timestamps. Remembers the last minute in either form, as a stream shows the same one many times. (Clocks are set
/// at whole minutes, so that it is one minute in any zone.)
#[derive(Clone, Debug)]
pub(super) struct Clock {
    zone: TimeZone,
    utc: bool,
    /// Without a year: as it was written, and when it begins.
    short: [u8; SHORT_BYTES],
    short_seconds: i64,
    /// With one: as it was written, and when it begins as if it were one of UTC.
    minute: [u8; MINUTE_BYTES],
    minute_seconds: i64,
}

/// A time that was read, and its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) seconds: i64,
    pub(super) nanos: u32,
    pub(super) length: usize,
}

/// What stands where a time may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// `None`: it has the form of a time, but names no date that there is.
    pub(super) time: Option<Time>,
    /// Its bytes.
    pub(super) length: usize,
}

/// Date and time as written.
#[derive(Clone, Copy)]
struct Civil {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Clock {
    pub(super) fn new(zone: TimeZone) -> Self {
        Self {
            utc: zone == TimeZone::UTC,
            zone,
            short: [0; SHORT_BYTES],
            // Near to no time.
            short_seconds: i64::MIN / 2,
            minute: *b"1970-01-01T00:00",
            minute_seconds: 0,
        }
    }

    /// The time at the start of `text` if it is of the minute that was read last. A space must stand behind one without a
    /// year.
    #[inline(always)]
    pub(super) fn again(&self, text: &[u8], now: Time) -> Option<Moment> {
        let (short, rest) = text.split_first_chunk::<SHORT_BYTES>()?;
        if *short != self.short {
            return self.iso_again(text);
        }
        let (second, rest) = second(rest)?;
        let seconds = self.short_seconds + second;
        let near = (seconds - now.seconds()).abs() < SURELY_NEAREST;
        match rest {
            // A year behind the time makes it another one.
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

    /// The same for a time as [`Clock::iso`] reads it: with its zone, and up to eight digits of a fraction.
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

    /// The time at the start of `text`, in one of the forms of [`Clock::short`] and [`Clock::iso`].
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

    /// `yyyy Mmm dd hh:mm:ss`, as Cisco's NX-OS has it.
    #[cold]
    fn year_first(&mut self, text: &[u8], now: Time) -> Option<Stamp> {
        let (year, rest) = number(text, 4, 4)?;
        let rest = rest.strip_prefix(b" ")?;
        let mut stamp = self.short(rest, Some(year), now)?;
        stamp.length += text.len() - rest.len();
        Some(stamp)
    }

    /// `Mmm dd hh:mm:ss` with a day of one or two characters, and what devices add: a fraction behind the seconds, a year
    /// behind the day or behind the time.
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
            None => self.nearest(civil, now),
        };
        // So long it is with its seconds as the last three bytes, unless it has a fraction.
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

    /// `YYYY-MM-DDThh:mm:ss`, with a space for the `T`, a fraction, and `Z`, `+hh:mm`, `+hhmm`, or no zone.
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

    /// Remembers the minute of a time that there is, if it is written with two digits for each part.
    fn learn_minute(&mut self, text: &[u8], civil: Civil) {
        if let Some(seconds) = civil.seconds()
            && let Some(minute) = text.first_chunk()
            && minute[MINUTE_BYTES - 3] == b':'
        {
            self.minute = *minute;
            self.minute_seconds = seconds - civil.second;
        }
    }

    /// The seconds of a date without a year.
    fn nearest(&self, civil: Civil, now: Time) -> Option<i64> {
        let (year, ..) = date_of(now.seconds().div_euclid(DAY));
        let candidates = [year - 1, year, year + 1].map(|year| Civil { year, ..civil });
        // A zone moves all three alike, so it does not count here. February 29 is not there in every year.
        let far = |civil: &Civil| Some((civil.seconds()? - now.seconds()).abs());
        let nearest = candidates
            .iter()
            .filter_map(|civil| Some((far(civil)?, civil)));
        self.local(*nearest.min_by_key(|(far, _)| *far)?.1)
    }

    /// The seconds of a time in the zone; where clocks are set back it is the earlier one.
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

    /// The time at the start of `text` as one of UTC: what stands behind it said so.
    #[cold]
    pub(super) fn read_utc(text: &[u8], now: Time) -> Option<Stamp> {
        Self::new(TimeZone::UTC).read(text, now)
    }
}

impl From<Moment> for Stamp {
    fn from(moment: Moment) -> Self {
        Self {
            time: Some(Time::from_parts(moment.seconds, moment.nanos)),
            length: moment.length,
        }
    }
}

impl Civil {
    /// Seconds since 1970, as if it were UTC; `None`: there is no such time. A leap second is the first of the next minute.
    #[inline(always)]
    fn seconds(&self) -> Option<i64> {
        let there_is = (1..=12).contains(&self.month)
            && (1..=days_of(self.year, self.month)).contains(&self.day)
            && self.hour < 24
            && self.minute < 60
            && self.second <= 60;
        let days = days_since_1970(self.year, self.month, self.day);
        there_is.then_some(days * DAY + self.hour * 3600 + self.minute * 60 + self.second)
    }
}

/// Days of a month in the Gregorian calendar.
fn days_of(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01: years begin in March, so that the day that is not always there is their last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    // 146,097 days are 400 years; 719,468 days lie between 0000-03-01 and 1970-01-01.
    era * 146_097 + day_of_era - 719_468
}

/// The year, month and day of a number of days from 1970-01-01: the other way round.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn month(name: &[u8; 3]) -> Option<i64> {
    const NAMES: &[u8; 36] = b"janfebmaraprmayjunjulaugsepoctnovdec";
    let name = name.map(|byte| byte.to_ascii_lowercase());
    let (names, _) = NAMES.as_chunks::<3>();
    let at = names.iter().position(|known| *known == name)?;
    i64::try_from(at + 1).ok()
}

/// A number of at least `min` and at most `max` digits, and what is behind it.
#[inline(always)]
fn number(text: &[u8], min: usize, max: usize) -> Option<(i64, &[u8])> {
    let (mut value, mut rest) = (0, text);
    for _ in 0..max {
        let [digit @ b'0'..=b'9', behind @ ..] = rest else {
            break;
        };
        value = value * 10 + i64::from(digit - b'0');
        rest = behind;
    }
    (text.len() - rest.len() >= min).then_some((value, rest))
}

/// `hh:mm:ss`
#[inline(always)]
fn clock_time(text: &[u8]) -> Option<(i64, i64, i64, &[u8])> {
    let (hour, rest) = number(text, 1, 2)?;
    let (minute, rest) = number(rest.strip_prefix(b":")?, 2, 2)?;
    let (second, rest) = number(rest.strip_prefix(b":")?, 2, 2)?;
    Some((hour, minute, second, rest))
}

/// `:ss`, but no leap second.
#[inline(always)]
fn second(text: &[u8]) -> Option<(i64, &[u8])> {
    match text {
        [b':', tens @ b'0'..=b'5', ones @ b'0'..=b'9', rest @ ..] => {
            Some((i64::from((tens - b'0') * 10 + (ones - b'0')), rest))
        }
        _ => None,
    }
}

#[inline(always)]
fn iso_date_time(text: &[u8]) -> Option<(Civil, &[u8])> {
    let (year, rest) = number(text, 4, 4)?;
    let (month, rest) = number(rest.strip_prefix(b"-")?, 2, 2)?;
    let (day, rest) = number(rest.strip_prefix(b"-")?, 2, 2)?;
    let [b'T' | b't' | b' ', rest @ ..] = rest else {
        return None;
    };
    let (hour, minute, second, rest) = clock_time(rest)?;
    let civil = Civil {
        year,
        month,
        day,
        hour,
        minute,
        second,
    };
    Some((civil, rest))
}

/// The nanoseconds of a fraction, if there is one; digits beyond the ninth are not looked at.
fn fraction(text: &[u8]) -> (u32, &[u8]) {
    let [b'.' | b',', digits @ ..] = text else {
        return (0, text);
    };
    let count = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    if count == 0 {
        return (0, text);
    }
    let (mut nanos, mut unit) = (0, 100_000_000);
    for digit in digits.iter().take(count.min(9)) {
        nanos += u32::from(digit - b'0') * unit;
        unit /= 10;
    }
    (nanos, digits.get(count..).unwrap_or_default())
}

/// The nanoseconds of one to seven digits, read all at once; `None`: they are none, or more.
#[inline(always)]
fn few_digits(text: &[u8]) -> Option<(u32, &[u8])> {
    let word = u64::from_le_bytes(*text.first_chunk()?);
    let digits = word ^ 0x3030_3030_3030_3030;
    // The high bit of what is above 9; a carry out of one byte sets it only in those behind, which are not looked at.
    let others = (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080;
    let count = others.trailing_zeros() / 8;
    if !(1..8).contains(&count) {
        return None;
    }
    // The digits behind the last are zeros. Pairs, then fours, then eights: each time the first counts more.
    let digits = digits & ((1 << (8 * count)) - 1);
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    let eights = (fours * 10_000 + (fours >> 32)) as u32;
    Some((eights * 10, text.get(count as usize..)?))
}

/// `hh:mm`, `hhmm` or `hh`, in seconds.
#[inline(always)]
fn offset(text: &[u8]) -> Option<(i64, &[u8])> {
    let (hours, rest) = number(text, 2, 2)?;
    let digits = rest.strip_prefix(b":").unwrap_or(rest);
    let (minutes, rest) = number(digits, 2, 2).unwrap_or((0, rest));
    (hours < 24 && minutes < 60).then_some((hours * 3600 + minutes * 60, rest))
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
        // The second time it may come from memory.
        assert_eq!(clock.read(text.as_bytes(), at(now)), Some(first));
        (first.time, first.length)
    }

    #[test]
    fn a_date_without_a_year_is_of_the_year_that_brings_it_nearest() {
        for (now, text, expected) in [
            (
                "2026-01-01T00:00:05Z",
                "Dec 31 23:59:59 h",
                "2025-12-31T23:59:59Z",
            ),
            (
                "2025-12-31T23:59:58Z",
                "Jan  1 00:00:00 h",
                "2026-01-01T00:00:00Z",
            ),
            (
                "2026-07-01T00:00:00Z",
                "Jan 10 00:00:00 h",
                "2026-01-10T00:00:00Z",
            ),
            (
                "2026-11-21T00:00:00Z",
                "Oct 11 22:14:15 h",
                "2026-10-11T22:14:15Z",
            ),
            (
                "2026-02-01T00:00:00Z",
                "Oct 11 22:14:15 h",
                "2025-10-11T22:14:15Z",
            ),
            // The nearest February 29 there is.
            (
                "2025-03-01T00:00:00Z",
                "Feb 29 12:00:00 h",
                "2024-02-29T12:00:00Z",
            ),
        ] {
            assert_eq!(
                read("UTC", now, text),
                (Some(at(expected)), 15),
                "{text} at {now}"
            );
        }
    }

    #[test]
    fn times_without_a_zone_are_of_the_zone_that_is_set() {
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
    fn every_form_is_read_to_its_end() {
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
    fn the_right_form_without_a_date_is_told_apart_from_no_time() {
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

    #[test]
    fn days_and_dates_agree() {
        for days in (-800_000..800_000).step_by(97) {
            let (year, month, day) = date_of(days);
            assert_eq!(days_since_1970(year, month, day), days);
        }
        assert_eq!(date_of(0), (1970, 1, 1));
    }
}
