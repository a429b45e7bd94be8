//! Reads the event time from a parsed field. The seconds read last are cached, because the times of many records are in the
//! same second.

use jiff::tz::TimeZone;
use millstream_record::Time;

use super::{
    Fault, OptionError, TextFormat, TimeOptions,
    kind::plain_float,
    strptime::{Read, Strptime, nanos},
};
use crate::{msgpack::Reader, syslog::is_surely_newest};

/// The number of cached seconds per format. One would not be enough, because records of different senders interleave.
const SLOTS: usize = 4;
/// A text with more bytes than this is not cached.
const TEXT_BYTES_MAX: usize = 64;
/// The time format of access logs.
const ACCESS: &str = "%d/%b/%Y:%H:%M:%S %z";
/// The time format of access logs, with the brackets around it.
const BRACKETED: &str = "[%d/%b/%Y:%H:%M:%S %z]";

/// Converts texts and values to times.
#[derive(Debug)]
pub(super) struct Stamps {
    formats: Vec<Remembered>,
    unit: Unit,
    zone: TimeZone,
    /// Whether the field stays in the record.
    pub(super) keep: bool,
    /// Whether a field that does not hold a time is an error.
    pub(super) required: bool,
    /// Whether the whole record is in error then. Otherwise its fields are kept, and [`Stamps::unread`] says why.
    pub(super) strict: bool,
    /// Why the field of the last record does not hold a time.
    pub(super) unread: Option<Fault>,
}

/// How numbers become times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// Numbers are not times.
    None,
    /// A number counts units of this many nanoseconds.
    Of(i64),
    /// Numbers are seconds or milliseconds, depending on their size.
    Auto,
}

impl Stamps {
    /// Creates the converter for the time field of a text in `format`. Times without a zone are in `zone`.
    pub(super) fn new(
        options: Option<&TimeOptions>,
        format: TextFormat,
        zone: TimeZone,
    ) -> Result<Self, OptionError> {
        let access = matches!(format, TextFormat::Apache | TextFormat::Nginx);
        let named = options.and_then(|options| options.format.as_deref());
        let (formats, unit) = match named {
            None if access => (vec![strftime(ACCESS)?], Unit::None),
            None | Some("auto") => {
                let formats = vec![Strptime::iso8601(), strftime(ACCESS)?, strftime(BRACKETED)?];
                (formats, Unit::Auto)
            }
            Some("iso8601" | "%iso8601" | "rfc3339") => (vec![Strptime::iso8601()], Unit::None),
            Some("unix" | "%s") => (Vec::new(), Unit::Of(1_000_000_000)),
            Some("unix_ms") => (Vec::new(), Unit::Of(1_000_000)),
            Some("unix_us") => (Vec::new(), Unit::Of(1_000)),
            Some("unix_ns") => (Vec::new(), Unit::Of(1)),
            Some("none") => (Vec::new(), Unit::None),
            Some(text) => (vec![strftime(text)?], Unit::None),
        };
        let none = named == Some("none");
        Ok(Self {
            formats: formats.into_iter().map(Remembered::new).collect(),
            unit,
            zone,
            keep: options.is_some_and(|options| options.keep),
            required: !none && (access || options.is_some()),
            strict: true,
            unread: None,
        })
    }

    /// Returns the time in a text, or `None` if it is not a time.
    pub(super) fn text(&mut self, text: &[u8], now: Time) -> Option<Time> {
        let zone = &self.zone;
        let mut formats = self.formats.iter_mut();
        formats
            .find_map(|format| format.read(text, zone, now))
            .or_else(|| self.digits(text))
    }

    /// Returns the reason why a MessagePack value or a text is not a time.
    pub(super) fn fault(&self, text: &[u8], now: Time) -> Fault {
        let text = Reader::new(text).bytes().unwrap_or(text);
        let faults = self
            .formats
            .iter()
            .map(|it| it.format.read(text, &self.zone, now));
        match faults.into_iter().any(|read| read == Err(Fault::Zone)) {
            true => Fault::Zone,
            false => Fault::Time,
        }
    }

    /// Returns the time in a MessagePack value, or `None` if it is not a time.
    pub(super) fn value(&mut self, value: &[u8], now: Time) -> Option<Time> {
        let reader = Reader::new(value);
        if let Ok(text) = { reader }.bytes() {
            return self.text(text, now);
        }
        if let Ok(number) = { reader }.int() {
            return self.integer(i64::try_from(number).ok()?);
        }
        self.float({ reader }.float().ok()?)
    }

    /// Reads a number that is given as text. If the number counts seconds and has no minus sign, its fraction is read without a
    /// float, so the time is exact to the nanosecond.
    fn digits(&self, text: &[u8]) -> Option<Time> {
        if self.unit == Unit::None {
            return None;
        }
        let text = std::str::from_utf8(text.trim_ascii()).ok()?;
        if let Ok(number) = text.parse() {
            return self.integer(number);
        }
        match text
            .split_once('.')
            .map(|(whole, part)| (whole.parse(), part))
        {
            Some((Ok(seconds), part))
                if self.unit(seconds)? == 1_000_000_000 && !text.starts_with('-') =>
            {
                let (nanos, rest) = nanos(part.as_bytes())?;
                rest.is_empty().then_some(())?;
                self.integer(seconds)?
                    .0
                    .checked_add(i64::from(nanos))
                    .map(Time)
            }
            _ => self.float(plain_float(text)?),
        }
    }

    /// Returns the unit that a number counts, in nanoseconds. Returns `None` if the number is not a time.
    fn unit(&self, number: i64) -> Option<i64> {
        match self.unit {
            Unit::None => None,
            Unit::Of(nanos) => Some(nanos),
            // Both ranges cover the years 1973 to 5138: the first one in seconds, the second one in milliseconds.
            Unit::Auto => match number {
                100_000_000..100_000_000_000 => Some(1_000_000_000),
                100_000_000_000..100_000_000_000_000 => Some(1_000_000),
                _ => None,
            },
        }
    }

    fn integer(&self, number: i64) -> Option<Time> {
        number.checked_mul(self.unit(number)?).map(Time)
    }

    /// Converts a float. The result is precise to about a microsecond for current times.
    fn float(&self, number: f64) -> Option<Time> {
        const MICROS_MAX: f64 = (i64::MAX / 1000) as f64;
        let unit = self.unit(number as i64)?;
        let micros = (number * (unit as f64 / 1000.0)).round();
        (micros.abs() < MICROS_MAX).then(|| Time(micros as i64 * 1000))
    }
}

fn strftime(format: &str) -> Result<Strptime, OptionError> {
    Strptime::compile(format).map_err(|message| {
        OptionError::new(
            "time.format",
            message,
            "such as `%d/%b/%Y:%H:%M:%S %z` or `%Y-%m-%dT%H:%M:%S.%L%z`, or `iso8601`, `unix`, `unix_ms`",
        )
    })
}

/// A format, and a cache of the last seconds that were read.
#[derive(Debug)]
struct Remembered {
    format: Strptime,
    slots: [Second; SLOTS],
    next: usize,
}

/// A cached second: the text before and after its fraction, and the seconds since 1970.
#[derive(Debug, Default)]
struct Second {
    before: Vec<u8>,
    behind: Vec<u8>,
    has_fraction: bool,
    seconds: i64,
}

impl Remembered {
    fn new(format: Strptime) -> Self {
        Self {
            format,
            slots: Default::default(),
            next: 0,
        }
    }

    #[inline]
    fn read(&mut self, text: &[u8], zone: &TimeZone, now: Time) -> Option<Time> {
        for slot in &self.slots {
            if let Some(nanos) = slot.nanos(text)
                && (!self.format.yearless || is_surely_newest(slot.seconds, now))
            {
                return time(slot.seconds, nanos);
            }
        }
        self.anew(text, zone, now)
    }

    #[inline(never)]
    fn anew(&mut self, text: &[u8], zone: &TimeZone, now: Time) -> Option<Time> {
        let Read {
            seconds,
            nanos,
            fraction: (start, end),
        } = self.format.read(text, zone, now).ok()?;
        if self.format.repeats
            && text.len() <= TEXT_BYTES_MAX
            && let Some(slot) = self.slots.get_mut(self.next)
        {
            let has_fraction = end > start;
            let (before, behind) = match has_fraction {
                true => (text.get(..start), text.get(end..)),
                false => (Some(text), None),
            };
            slot.before.clear();
            slot.before.extend_from_slice(before.unwrap_or_default());
            slot.behind.clear();
            slot.behind.extend_from_slice(behind.unwrap_or_default());
            slot.has_fraction = has_fraction;
            slot.seconds = seconds;
            self.next = (self.next + 1) % SLOTS;
        }
        time(seconds, nanos)
    }
}

impl Second {
    /// Returns the nanoseconds if `text` is in this second.
    #[inline]
    fn nanos(&self, text: &[u8]) -> Option<u32> {
        let rest = text.strip_prefix(&*self.before)?;
        if !self.has_fraction {
            return (rest.is_empty() && !self.before.is_empty()).then_some(0);
        }
        let (nanos, rest) = nanos(rest)?;
        (rest == self.behind).then_some(nanos)
    }
}

/// Returns the time, or `None` if it is outside the range of [`Time`].
fn time(seconds: i64, nanos: u32) -> Option<Time> {
    let whole = seconds.checked_mul(1_000_000_000)?;
    whole.checked_add(i64::from(nanos)).map(Time)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-11-21T06:40:31.5Z
    const NOW: Time = Time(1_795_243_231_500_000_000);

    fn stamps(format: &str, zone: &str) -> Stamps {
        let options = TimeOptions {
            format: Some(format.to_owned()),
            ..TimeOptions::default()
        };
        let zone = TimeZone::get(zone).unwrap();
        Stamps::new(Some(&options), TextFormat::Json, zone).unwrap()
    }

    /// Reads each text twice, because the second result may come from the cache.
    fn read(format: &str, text: &str) -> Option<String> {
        let mut stamps = stamps(format, "Europe/Berlin");
        let time = stamps.text(text.as_bytes(), NOW);
        assert_eq!(stamps.text(text.as_bytes(), NOW), time, "{text}");
        time.map(|time| crate::rfc3339::timestamp(time).to_string())
    }

    /// A format, a text and the time in it.
    const READ: &[(&str, &str, &str)] = &[
        (
            "%d/%b/%Y:%H:%M:%S %z",
            "28/Feb/2013:12:00:00 +0900",
            "2013-02-28T03:00:00Z",
        ),
        (
            "%Y-%m-%dT%H:%M:%S.%L%z",
            "2026-11-23T12:03:24.123+01:00",
            "2026-11-23T11:03:24.123Z",
        ),
        (
            "%Y-%m-%dT%H:%M:%S.%N%z",
            "2026-11-23T12:03:24.123456789Z",
            "2026-11-23T12:03:24.123456789Z",
        ),
        (
            "%Y-%m-%d %H:%M:%S,%3N",
            "2026-07-23 12:03:24,5",
            "2026-07-23T10:03:24.5Z",
        ),
        (
            "%a %b %e %T %Y",
            "Mon Nov  2 12:03:24 2026",
            "2026-11-02T11:03:24Z",
        ),
        ("%b %d %H:%M:%S", "Dec 31 23:59:59", "2025-12-31T22:59:59Z"),
        (
            "%m/%d/%y %I:%M:%S %p",
            "11/23/26 12:03:24 AM",
            "2026-11-22T23:03:24Z",
        ),
        (
            "%m/%d/%y %I:%M:%S %p",
            "11/23/26 1:03:24 pm",
            "2026-11-23T12:03:24Z",
        ),
        (
            "%F %T %Z",
            "2026-11-23 12:03:24 UTC",
            "2026-11-23T12:03:24Z",
        ),
        (
            "%F %T %Z",
            "2026-11-23 12:03:24 CET",
            "2026-11-23T11:03:24Z",
        ),
        (
            "%F %T %Z",
            "2026-11-23 12:03:24 EST",
            "2026-11-23T17:03:24Z",
        ),
        (
            "%F %T %Z",
            "2026-11-23 12:03:24 JST",
            "2026-11-23T03:03:24Z",
        ),
        // In Berlin, this time occurs twice on that day, because the clocks are set back.
        (
            "%F %T %Z",
            "2026-10-25 02:30:00 CEST",
            "2026-10-25T00:30:00Z",
        ),
        (
            "%F %T %Z",
            "2026-10-25 02:30:00 CET",
            "2026-10-25T01:30:00Z",
        ),
        ("%iso8601", "2026-11-23T12:03:24Z", "2026-11-23T12:03:24Z"),
        ("%FT%TZ", "2016-12-31T23:59:60Z", "2016-12-31T23:00:00Z"),
        ("%s.%L", "1795435404.5", "2026-11-23T12:03:24.5Z"),
        (
            "%Y%m%d%H%M%S%L",
            "20261123120324123",
            "2026-11-23T11:03:24.123Z",
        ),
        ("iso8601", "2026-11-23 12:03:24", "2026-11-23T11:03:24Z"),
        (
            "iso8601",
            "2026-11-23T12:03:24,25-0130",
            "2026-11-23T13:33:24.25Z",
        ),
        (
            "unix",
            "1795435404.123456789",
            "2026-11-23T12:03:24.123456789Z",
        ),
        ("unix", "-1.5", "1969-12-31T23:59:58.5Z"),
        ("unix_ms", "1795435404123", "2026-11-23T12:03:24.123Z"),
        ("unix_us", "1795435404123456", "2026-11-23T12:03:24.123456Z"),
        (
            "unix_ns",
            "1795435404123456789",
            "2026-11-23T12:03:24.123456789Z",
        ),
        // The stock parsers of Fluent Bit: docker, and others that forget the zone or the fraction.
        (
            "%Y-%m-%dT%H:%M:%S.%L",
            "2026-11-23T12:03:24.123456789Z",
            "2026-11-23T12:03:24.123456789Z",
        ),
        (
            "%Y-%m-%dT%H:%M:%S",
            "2026-11-23T12:03:24,5+01:00",
            "2026-11-23T11:03:24.5Z",
        ),
        (
            "%d/%b/%Y:%H:%M:%S",
            "28/Feb/2013:12:00:00 +0900",
            "2013-02-28T03:00:00Z",
        ),
        (
            "%b %d %H:%M:%S",
            "Nov 21 06:00:00.25 UTC",
            "2026-11-21T06:00:00.25Z",
        ),
        ("auto", "1795435404123", "2026-11-23T12:03:24.123Z"),
        (
            "auto",
            "[28/Feb/2013:12:00:00 +0900]",
            "2013-02-28T03:00:00Z",
        ),
    ];

    #[test]
    fn the_formats_of_fluentd_are_read() {
        for (format, text, time) in READ.iter().copied() {
            assert_eq!(
                read(format, text).as_deref(),
                Some(time),
                "{format} of {text}"
            );
        }
    }

    #[test]
    fn other_texts_are_not_times() {
        for (format, text) in [
            ("%Y-%m-%d", "2026-02-30"),
            ("%F %T %Z", "2026-11-23 12:03:24 XYZ"),
            ("%Y-%m-%d", "2026-02-3x"),
            ("%Y-%m-%d", "2026-02-03T10:00:00Z"),
            ("%F %H:%M", "2026-02-03 10:00Z"),
            ("%F %T", "2026-11-23 12:03:24 XYZ"),
            ("%F %T", "2026-11-23 12:03:24Z x"),
            ("%F %T%z", "2026-11-23 12:03:24Z UTC"),
            ("%F %T", "2026-11-23 12:03:24 "),
            ("%F %T", "2026-11-23 25:03:24"),
            ("%F %I %p", "2026-11-23 13 PM"),
            ("iso8601", "2026-11-23T12:03:24."),
            ("iso8601", "2026-11-23T12:03:24+1"),
            ("iso8601", "9999-11-23T12:03:24Z"),
            ("unix", "99999999999999999999"),
            ("unix", "inf"),
            ("unix_ns", "1e300"),
            ("auto", "12.5"),
            ("auto", "1795435404123456"),
            ("auto", ""),
            ("none", "1795435404"),
        ] {
            assert_eq!(read(format, text), None, "{format} of {text}");
        }
        for format in ["%Q%", "%H:%M", "%x %F", "text", ""] {
            assert!(Strptime::compile(format).is_err(), "{format}");
        }
    }

    #[test]
    fn a_zone_name_that_the_configured_zone_uses_means_that_zone() {
        let mut shanghai = stamps("%F %T %Z", "Asia/Shanghai");
        let text = b"2026-11-23 12:03:24 CST";
        let found = |time: Option<Time>| crate::rfc3339::timestamp(time.unwrap()).to_string();
        assert_eq!(found(shanghai.text(text, NOW)), "2026-11-23T04:03:24Z");
        let mut chicago = stamps("%F %T %Z", "UTC");
        assert_eq!(found(chicago.text(text, NOW)), "2026-11-23T18:03:24Z");
        assert_eq!(chicago.fault(b"2026-11-23 12:03:24 XYZ", NOW), Fault::Zone);
        assert_eq!(chicago.fault(b"yesterday", NOW), Fault::Time);
    }

    #[test]
    fn a_date_without_a_year_is_not_in_the_future_even_if_it_is_cached() {
        let mut stamps = stamps("%b %d %H:%M:%S", "UTC");
        let mut read = |text: &str, days: i64| {
            let now = Time(NOW.0 + days * 86_400_000_000_000);
            crate::rfc3339::timestamp(stamps.text(text.as_bytes(), now).unwrap()).to_string()
        };
        assert_eq!(read("May  1 10:00:00", 0), "2026-05-01T10:00:00Z");
        assert_eq!(read("Dec 31 23:59:59", 0), "2025-12-31T23:59:59Z");
        assert_eq!(read("Dec 31 23:59:59", 20), "2025-12-31T23:59:59Z");
        assert_eq!(read("Dec 31 23:59:59", 300), "2026-12-31T23:59:59Z");
        assert_eq!(read("May  1 10:00:00", 300), "2027-05-01T10:00:00Z");
        assert_eq!(read("Feb 29 10:00:00", 300), "2024-02-29T10:00:00Z");
    }

    proptest! {
        #[test]
        fn a_cached_time_equals_the_time_read_without_a_cache(
            texts in prop::collection::vec((0..6_i64, prop_oneof![Just(String::new()), "\\.[0-9]{1,12}"], "(Z|[+-]0[0-9]:?30|)"), 1..40),
        ) {
            let mut remembering = stamps("iso8601", "Europe/Berlin");
            for (second, fraction, zone) in texts {
                let text = format!("2026-11-23T12:03:2{second}{fraction}{zone}");
                let anew = stamps("iso8601", "Europe/Berlin").text(text.as_bytes(), NOW);
                prop_assert!(anew.is_some(), "{}", text);
                prop_assert_eq!(remembering.text(text.as_bytes(), NOW), anew, "{}", text);
            }
        }

        #[test]
        fn no_text_makes_the_reader_panic(format in "(%[a-zA-Z]|[0-9:. /-]){0,8}", text in "[0-9:. /+ZJanTPM-]{0,30}", bytes: Vec<u8>) {
            if let Ok(format) = Strptime::compile(&format) {
                let _ = format.read(text.as_bytes(), &TimeZone::UTC, NOW);
                let _ = format.read(&bytes, &TimeZone::UTC, NOW);
            }
        }
    }
}
