//! Writes times as RFC 3339 with nanoseconds. The texts of recent seconds are cached, because many records of a stream
//! have the same second.

use jiff::{Timestamp, tz::TimeZone};
use millstream_record::Time;

/// The number of cached texts. A single one would not be enough: the records of different senders interleave, and their
/// times are a few seconds apart.
pub(crate) const SLOTS: usize = 8;

/// Converts a time to jiff's type.
pub(crate) fn timestamp(time: Time) -> Timestamp {
    // Every Time lies between 1677 and 2262, well within jiff's range.
    Timestamp::from_nanosecond(i128::from(time.0)).unwrap_or_default()
}

/// Length of `2026-11-21T03:46:12.123456789Z`.
pub(crate) const RFC3339_BYTES: usize = 30;
/// The length up to and including the dot.
const WHOLE_BYTES: usize = 20;

/// Formats times as RFC 3339 with nanoseconds, in UTC.
#[derive(Clone, Debug)]
pub(crate) struct Rfc3339 {
    slots: [(i64, [u8; WHOLE_BYTES]); SLOTS],
}

impl Rfc3339 {
    pub(crate) fn new() -> Self {
        Self {
            slots: [(i64::MIN, *b"0000-00-00T00:00:00."); SLOTS],
        }
    }

    /// The text of `time`.
    #[inline]
    pub(crate) fn text(&mut self, time: Time) -> [u8; RFC3339_BYTES] {
        let seconds = time.seconds();
        let mut text = [b'Z'; RFC3339_BYTES];
        let (whole, fraction) = text.split_at_mut(WHOLE_BYTES);
        if let Some(slot) = self
            .slots
            .get_mut(seconds.rem_euclid(SLOTS as i64) as usize)
        {
            if slot.0 != seconds {
                *slot = (seconds, whole_seconds(time));
            }
            whole.copy_from_slice(&slot.1);
        }
        if let Some(digits) = fraction.first_chunk_mut() {
            *digits = nanos_text(time.subsec_nanos());
        }
        text
    }
}

#[cold]
fn whole_seconds(time: Time) -> [u8; WHOLE_BYTES] {
    let utc = timestamp(time).to_zoned(TimeZone::UTC);
    let mut text = *b"0000-00-00T00:00:00.";
    let parts = [
        (0, 4, i64::from(utc.year())),
        (5, 2, i64::from(utc.month())),
        (8, 2, i64::from(utc.day())),
        (11, 2, i64::from(utc.hour())),
        (14, 2, i64::from(utc.minute())),
        (17, 2, i64::from(utc.second())),
    ];
    for (start, length, mut number) in parts {
        for place in (start..start + length).rev() {
            if let Some(digit) = text.get_mut(place) {
                *digit = b'0' + (number % 10) as u8;
            }
            number /= 10;
        }
    }
    text
}

/// The nanoseconds as nine digits.
#[inline]
pub(crate) fn nanos_text(nanos: u32) -> [u8; 9] {
    let [a, b, c] = three(nanos / 1_000_000);
    let [d, e, f] = three(nanos / 1_000 % 1_000);
    let [g, h, i] = three(nanos % 1_000);
    [a, b, c, d, e, f, g, h, i]
}

#[inline(always)]
fn three(number: u32) -> [u8; 3] {
    THREE_DIGITS
        .get(number as usize)
        .copied()
        .unwrap_or(*b"999")
}

/// The digits of 0 to 999: a lookup costs less than the divisions.
static THREE_DIGITS: [[u8; 3]; 1000] = three_digits();

const fn three_digits() -> [[u8; 3]; 1000] {
    let mut table = [[b'0'; 3]; 1000];
    let mut number = 0;
    while number < 1000 {
        table[number][0] += (number / 100) as u8;
        table[number][1] += (number / 10 % 10) as u8;
        table[number][2] += (number % 10) as u8;
        number += 1;
    }
    table
}
