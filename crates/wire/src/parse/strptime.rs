//! Time formats as in strptime, which are compiled once.
//!
//! jiff's own strptime lacks three features that users of Fluentd expect: fractions of any length at any position (`%L`, `%N`), `Z`
//! for `%z`, and years that are derived from the receive time. Calendars and time zones are jiff's.
//!
//! ```text
//! %Y %y %m %b %B %h %d %e      year, month (number or English name), day
//! %H %k %I %l %p %P %M %S      hour (of 24 or 12, with AM or PM), minute, second (60 is the next minute)
//! %L %N %f %3N ...             digits of a fraction, any number of them
//! %z %:z %Z                    Z, UTC, GMT, +hh:mm, +hhmm, +hh, or a name (EST, CET, JST, ...). If the configured zone uses the
//!                              name, it means the configured zone. Other names are looked up in `crate::zone`. An unknown
//!                              name is an error.
//! %s %Q                        seconds, milliseconds since 1970
//! %F %T %D %R                  %Y-%m-%d, %H:%M:%S, %m/%d/%y, %H:%M
//! %a %A %j %%                  a day of the week (not checked), a day of the year (not used), %
//! ```

use jiff::{
    Timestamp,
    civil::DateTime,
    tz::{Offset, TimeZone},
};
use millstream_record::Time;

use super::Fault;
use crate::{syslog::newest, zone::named};

/// A piece of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Byte(u8),
    /// Any white space, or none.
    Space,
    /// The separator of date and time: `T` or a space.
    Between,
    Year,
    ShortYear,
    Month,
    MonthName,
    Day,
    Hour,
    Hour12,
    HalfDay,
    Minute,
    Second,
    Fraction,
    /// A fraction after a dot or comma, or nothing.
    OptionalFraction,
    Zone,
    /// Like `Zone`, or nothing.
    OptionalZone,
    Letters,
    Digits,
    Seconds,
    Millis,
}

/// A compiled format.
#[derive(Clone, Debug)]
pub(super) struct Strptime {
    items: Vec<Item>,
    /// Whether the format has no year, so that the year is derived from the receive time.
    pub(super) yearless: bool,
    /// Whether the fraction determines only the nanoseconds. If so, a cached second can be reused for texts with another fraction.
    pub(super) repeats: bool,
}

/// A time, and the range of the digits of its fraction (empty if it has none).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) seconds: i64,
    pub(super) nanos: u32,
    pub(super) fraction: (usize, usize),
}

/// The parts of a time that have been read so far.
#[derive(Default)]
struct Parts<'t> {
    year: Option<i64>,
    month: i64,
    day: i64,
    hour: i64,
    afternoon: Option<bool>,
    minute: i64,
    second: i64,
    nanos: u32,
    fraction: (usize, usize),
    offset: Option<i64>,
    /// The name of a zone.
    zone: Option<&'t [u8]>,
    since_1970: Option<i64>,
}

impl Strptime {
    /// RFC 3339 and its variants: a space instead of the `T`, a comma before the fraction, no fraction, no zone.
    pub(super) fn iso8601() -> Self {
        use Item::{
            Between, Byte, Day, Hour, Minute, Month, OptionalFraction, OptionalZone, Second, Year,
        };
        Self {
            items: vec![
                Year,
                Byte(b'-'),
                Month,
                Byte(b'-'),
                Day,
                Between,
                Hour,
                Byte(b':'),
                Minute,
                Byte(b':'),
                Second,
                OptionalFraction,
                OptionalZone,
            ],
            yearless: false,
            repeats: true,
        }
    }

    /// Compiles a format.
    ///
    /// # Errors
    /// If the format has an unknown part, or a necessary part is missing. The returned message names the part.
    pub(super) fn compile(format: &str) -> Result<Self, String> {
        let mut items = Vec::new();
        let mut characters = format.chars();
        while let Some(character) = characters.next() {
            match character {
                '%' => directive(&mut characters, &mut items)?,
                space if space.is_ascii_whitespace() => items.push(Item::Space),
                other => {
                    let mut utf8 = [0; 4];
                    let bytes = other.encode_utf8(&mut utf8).bytes();
                    items.extend(bytes.map(Item::Byte));
                }
            }
        }
        let has = |item: &Item| items.contains(item);
        let complete = has(&Item::Seconds) || has(&Item::Millis);
        let month = has(&Item::Month) || has(&Item::MonthName);
        let date = month && has(&Item::Day);
        if !complete && !date {
            return Err(format!(
                "`{format}` has no date: it needs month and day, or `%s`"
            ));
        }
        let digits_behind = |pair: &[Item]| {
            let free = matches!(
                pair,
                [Item::Fraction, Item::Byte(byte)] if !byte.is_ascii_digit()
            ) || matches!(pair, [Item::Fraction, Item::Zone]);
            pair.first() == Some(&Item::Fraction) && !free
        };
        let fractions = items.iter().filter(|item| **item == Item::Fraction);
        Ok(Self {
            yearless: !complete && !has(&Item::Year) && !has(&Item::ShortYear),
            repeats: fractions.count() < 2
                && !items.windows(2).any(digits_behind)
                && !has(&Item::Millis),
            items,
        })
    }

    /// Reads the time in `text`. Behind the part that matches, only a fraction and a zone may follow, if the format has neither. A time without a zone is in `zone`. A date without a year gets the
    /// newest year in which it is at most a day after `now`.
    ///
    /// # Errors
    /// [`Fault::Zone`] if only the name of the time zone is unknown, otherwise [`Fault::Time`].
    pub(super) fn read(&self, text: &[u8], zone: &TimeZone, now: Time) -> Result<Read, Fault> {
        let mut parts = Parts {
            month: 1,
            day: 1,
            ..Parts::default()
        };
        let mut rest = text;
        for item in &self.items {
            rest = parts.take(item, rest, text.len()).ok_or(Fault::Time)?;
        }
        if !rest.is_empty() {
            let rest = self.forgotten(&mut parts, rest, text.len());
            if !rest.is_some_and(<[u8]>::is_empty) {
                return Err(Fault::Time);
            }
        }
        let is_unknown = |name: &[u8]| named(name).is_none();
        let fault = match parts.zone.is_some_and(is_unknown) {
            true => Fault::Zone,
            false => Fault::Time,
        };
        Ok(Read {
            seconds: parts.seconds(zone, now).ok_or(fault)?,
            nanos: parts.nanos,
            fraction: parts.fraction,
        })
    }
}

impl Strptime {
    /// Reads what a format for seconds forgets: a fraction, then a zone. For example, Fluent Bit ignores the zone of `docker`.
    #[cold]
    fn forgotten<'t>(
        &self,
        parts: &mut Parts<'t>,
        mut rest: &'t [u8],
        whole: usize,
    ) -> Option<&'t [u8]> {
        let has = |items: &[Item]| items.iter().any(|item| self.items.contains(item));
        if !has(&[Item::Second]) {
            return None;
        }
        if !has(&[Item::Fraction, Item::OptionalFraction])
            && let [b'.' | b',', digits @ ..] = rest
        {
            rest = parts.fraction(digits, whole)?;
        }
        if !rest.is_empty() && !has(&[Item::Zone, Item::OptionalZone]) {
            rest = parts.zone(rest)?;
        }
        Some(rest)
    }
}

/// Compiles the directive after a `%`.
fn directive(characters: &mut std::str::Chars<'_>, items: &mut Vec<Item>) -> Result<(), String> {
    let mut letters = characters.skip_while(|c| matches!(c, '0'..='9' | '-' | ':' | '^' | '_'));
    let Some(letter) = letters.next() else {
        return Err("a `%` at the end; write `%%` for `%`".to_owned());
    };
    let short = |text: &str| Strptime::compile(text).map(|format| format.items);
    match letter {
        'Y' => items.push(Item::Year),
        'y' => items.push(Item::ShortYear),
        'm' => items.push(Item::Month),
        'b' | 'B' | 'h' => items.push(Item::MonthName),
        'd' | 'e' => items.push(Item::Day),
        'H' | 'k' => items.push(Item::Hour),
        'I' | 'l' => items.push(Item::Hour12),
        'p' | 'P' => items.push(Item::HalfDay),
        'M' => items.push(Item::Minute),
        'S' => items.push(Item::Second),
        'L' | 'N' | 'f' => items.push(Item::Fraction),
        'z' | 'Z' => items.push(Item::Zone),
        's' => items.push(Item::Seconds),
        'Q' => items.push(Item::Millis),
        'a' | 'A' => items.push(Item::Letters),
        'j' => items.push(Item::Digits),
        'n' | 't' => items.push(Item::Space),
        '%' => items.push(Item::Byte(b'%')),
        'F' => items.extend(short("%Y-%m-%d")?),
        'D' => items.extend(short("%m/%d/%y")?),
        'T' => {
            items.extend([Item::Hour, Item::Byte(b':'), Item::Minute]);
            items.extend([Item::Byte(b':'), Item::Second]);
        }
        'R' => items.extend([Item::Hour, Item::Byte(b':'), Item::Minute]),
        other => {
            return Err(format!(
                "`%{other}` is not a part of a time that can be read"
            ));
        }
    }
    Ok(())
}

impl<'t> Parts<'t> {
    /// Reads one piece at the start of `text`, and returns the text after it. `whole` is the length of the complete text. Returns
    /// `None` if the text does not match.
    fn take(&mut self, item: &Item, text: &'t [u8], whole: usize) -> Option<&'t [u8]> {
        let number = |place: &mut i64, digits: usize| {
            let text = text.trim_ascii_start();
            let (value, rest) = number(text, digits)?;
            *place = value;
            Some(rest)
        };
        match item {
            Item::Byte(byte) => text.strip_prefix(&[*byte]),
            Item::Space => Some(text.trim_ascii_start()),
            Item::Between => match text {
                [b'T' | b't' | b' ', rest @ ..] => Some(rest),
                _ => None,
            },
            Item::Year => {
                let (year, rest) = self::number(text, 4)?;
                self.year = Some(year);
                Some(rest)
            }
            Item::ShortYear => {
                let (year, rest) = self::number(text, 2)?;
                self.year = Some(year + if year < 69 { 2000 } else { 1900 });
                Some(rest)
            }
            Item::Month => number(&mut self.month, 2),
            Item::MonthName => {
                let (month, rest) = month_name(text)?;
                self.month = month;
                Some(rest)
            }
            Item::Day => number(&mut self.day, 2),
            Item::Hour | Item::Hour12 => number(&mut self.hour, 2),
            Item::HalfDay => {
                let (half, rest) = text.split_first_chunk::<2>()?;
                self.afternoon = Some(match &half.map(|byte| byte.to_ascii_lowercase()) {
                    b"am" => false,
                    b"pm" => true,
                    _ => return None,
                });
                Some(rest)
            }
            Item::Minute => number(&mut self.minute, 2),
            Item::Second => number(&mut self.second, 2),
            Item::Fraction => self.fraction(text, whole),
            Item::OptionalFraction => match text {
                [b'.' | b',', digits @ ..] => self.fraction(digits, whole),
                _ => Some(text),
            },
            Item::OptionalZone if text.is_empty() => Some(text),
            Item::Zone | Item::OptionalZone => self.zone(text),
            Item::Letters => Some(text.trim_ascii_start().trim_start_letters()),
            Item::Digits => Some(self::number(text, 3)?.1),
            Item::Seconds => {
                let (seconds, rest) = self::number(text, 12)?;
                self.since_1970 = Some(seconds);
                Some(rest)
            }
            Item::Millis => {
                let (millis, rest) = self::number(text, 15)?;
                self.since_1970 = Some(millis / 1000);
                self.nanos = (millis % 1000) as u32 * 1_000_000;
                Some(rest)
            }
        }
    }

    fn fraction(&mut self, digits: &'t [u8], whole: usize) -> Option<&'t [u8]> {
        let (nanos, rest) = nanos(digits)?;
        self.nanos = nanos;
        self.fraction = (whole - digits.len(), whole - rest.len());
        Some(rest)
    }

    fn zone(&mut self, text: &'t [u8]) -> Option<&'t [u8]> {
        let text = text.trim_ascii_start();
        match text {
            [b'Z' | b'z', rest @ ..]
            | [b'U', b'T', b'C', rest @ ..]
            | [b'G', b'M', b'T', rest @ ..] => {
                self.offset = Some(0);
                Some(rest)
            }
            [sign @ (b'+' | b'-'), rest @ ..] => {
                let (hours, rest) = two_digits(rest)?;
                let minutes = rest.strip_prefix(b":").unwrap_or(rest);
                let (minutes, rest) = two_digits(minutes).unwrap_or((0, rest));
                let seconds = hours * 3600 + minutes * 60;
                self.offset = Some(if *sign == b'-' { -seconds } else { seconds });
                Some(rest)
            }
            [b'A'..=b'Z', ..] => {
                let rest = text.trim_start_letters();
                self.zone = text.get(..text.len() - rest.len());
                Some(rest)
            }
            _ => None,
        }
    }

    /// Returns the seconds since 1970, or `None` if the parts are not a valid time.
    fn seconds(&self, zone: &TimeZone, now: Time) -> Option<i64> {
        if let Some(seconds) = self.since_1970 {
            return Some(seconds);
        }
        let Some(year) = self.year else {
            let today = crate::rfc3339::timestamp(now).to_zoned(TimeZone::UTC);
            return newest(today.year().into(), now, |year| self.in_year(year, zone));
        };
        self.in_year(year, zone)
    }

    fn in_year(&self, year: i64, zone: &TimeZone) -> Option<i64> {
        let hour = match self.afternoon {
            None => self.hour,
            Some(_) if !(1..=12).contains(&self.hour) => return None,
            Some(afternoon) => self.hour % 12 + 12 * i64::from(afternoon),
        };
        let small = |number: i64| i8::try_from(number).ok();
        // A leap second becomes the first second of the next minute.
        let leap = i64::from(self.second == 60);
        let civil = DateTime::new(
            i16::try_from(year).ok()?,
            small(self.month)?,
            small(self.day)?,
            small(hour)?,
            small(self.minute)?,
            small(self.second - leap)?,
            0,
        );
        let civil = civil.ok()?;
        let at = |offset: i64| {
            let offset = Offset::from_seconds(i32::try_from(offset).ok()?).ok()?;
            Some(offset.to_timestamp(civil))
        };
        let stamp = match (self.offset, self.zone) {
            (Some(offset), _) => at(offset)?,
            (None, Some(name)) => match in_own_zone(civil, zone, name) {
                Some(stamp) => Ok(stamp),
                None => at(named(name)?)?,
            },
            // If the clocks are set back and the local time occurs twice, the earlier time is used.
            (None, None) => zone.to_ambiguous_timestamp(civil).compatible(),
        };
        Some(stamp.ok()?.as_second() + leap)
    }
}

/// Returns the time in `zone`, if `name` is the abbreviation of `zone` at that time. For example, `CST` is China Standard Time in Shanghai
/// and Central Standard Time in Chicago.
fn in_own_zone(civil: DateTime, zone: &TimeZone, name: &[u8]) -> Option<Timestamp> {
    let is_named = |stamp: &Timestamp| {
        let info = zone.to_offset_info(*stamp);
        info.abbreviation().as_bytes().eq_ignore_ascii_case(name)
    };
    let ambiguous = zone.to_ambiguous_timestamp(civil);
    let both = [ambiguous.earlier(), ambiguous.later()];
    both.into_iter().flatten().find(is_named)
}

trait Letters {
    /// Returns the text after the letters at its start.
    fn trim_start_letters(&self) -> &Self;
}

impl Letters for [u8] {
    fn trim_start_letters(&self) -> &[u8] {
        let letters = self.iter().take_while(|byte| byte.is_ascii_alphabetic());
        let count = letters.count();
        self.get(count..).unwrap_or_default()
    }
}

/// Reads a number of one to `digits` digits. Returns the number, and the text after it.
fn number(text: &[u8], digits: usize) -> Option<(i64, &[u8])> {
    let (mut value, mut rest) = (0, text);
    for _ in 0..digits {
        let [digit @ b'0'..=b'9', behind @ ..] = rest else {
            break;
        };
        value = value * 10 + i64::from(digit - b'0');
        rest = behind;
    }
    (rest.len() < text.len()).then_some((value, rest))
}

fn two_digits(text: &[u8]) -> Option<(i64, &[u8])> {
    match text {
        [a @ b'0'..=b'9', b @ b'0'..=b'9', rest @ ..] => {
            Some((i64::from((a - b'0') * 10 + (b - b'0')), rest))
        }
        _ => None,
    }
}

/// Reads a fraction of at least one digit. Returns its nanoseconds, and the text after it. Digits after the ninth are ignored.
pub(super) fn nanos(text: &[u8]) -> Option<(u32, &[u8])> {
    let (mut nanos, mut unit, mut rest) = (0, 100_000_000, text);
    while let [digit @ b'0'..=b'9', behind @ ..] = rest {
        nanos += u32::from(digit - b'0') * unit;
        unit /= 10;
        rest = behind;
    }
    (rest.len() < text.len()).then_some((nanos, rest))
}

/// Reads the name of a month, which is identified by its first three letters. Returns the month, and the text after its name.
fn month_name(text: &[u8]) -> Option<(i64, &[u8])> {
    const NAMES: &[u8; 36] = b"janfebmaraprmayjunjulaugsepoctnovdec";
    let text = text.trim_ascii_start();
    let name = text
        .first_chunk::<3>()?
        .map(|byte| byte.to_ascii_lowercase());
    let (names, _) = NAMES.as_chunks::<3>();
    let at = names.iter().position(|known| *known == name)?;
    Some((i64::try_from(at + 1).ok()?, text.trim_start_letters()))
}
