//! Formats times with strftime. Recent texts are cached, because many records of a stream have the same second.

use std::sync::Arc;

use jiff::{
    fmt::{StdIoWrite, strtime::BrokenDownTime},
    tz::TimeZone,
};
use millstream_record::Time;

use super::{Changes, Missing};
use crate::rfc3339::{SLOTS, timestamp};

/// From this second on, a minute begins at the same moment in all time zones, because all offsets are whole numbers of
/// minutes. The last offset with seconds, in Africa/Monrovia, ended at 1972-01-07T00:44:30Z.
const WHOLE_MINUTES_SINCE: i64 = 63_593_100;

/// A strftime format and its recent texts.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    format: Box<str>,
    /// The name to report in [`Missing`], if the format has no text for a time.
    name: Arc<str>,
    changes: Changes,
    slots: [Option<(i64, Vec<u8>)>; SLOTS],
}

impl Clock {
    pub(super) fn new(format: &str, changes: Changes) -> Self {
        Self {
            format: format.into(),
            name: format.into(),
            changes,
            slots: [const { None }; SLOTS],
        }
    }

    /// Appends the text of `time` in `zone`.
    pub(super) fn write(
        &mut self,
        time: Time,
        zone: &TimeZone,
        out: &mut Vec<u8>,
    ) -> Result<(), Missing> {
        let Some(key) = key(self.changes, time) else {
            return self.format(time, zone, out);
        };
        let place = slot(key);
        match self.slots.get(place) {
            Some(Some((known, text))) if *known == key => out.extend_from_slice(text),
            _ => {
                let start = out.len();
                self.format(time, zone, out)?;
                let text = out.get(start..).unwrap_or_default();
                match self.slots.get_mut(place) {
                    Some(Some(old)) => {
                        old.0 = key;
                        old.1.clear();
                        old.1.extend_from_slice(text);
                    }
                    Some(empty) => *empty = Some((key, text.to_vec())),
                    None => {}
                }
            }
        }
        Ok(())
    }

    fn format(&self, time: Time, zone: &TimeZone, out: &mut Vec<u8>) -> Result<(), Missing> {
        let missing = || Missing {
            name: self.name.clone(),
        };
        let zoned = timestamp(time).to_zoned(zone.clone());
        BrokenDownTime::from(&zoned)
            .format(&*self.format, StdIoWrite(out))
            .map_err(|_| missing())
    }
}

/// Returns the key under which the text of `time` is cached. Times with equal keys have the same text. Returns `None` if the text
/// changes within a second.
pub(super) fn key(changes: Changes, time: Time) -> Option<i64> {
    match changes {
        Changes::Always => None,
        Changes::EveryMinute if time.seconds() >= WHOLE_MINUTES_SINCE => {
            Some(time.seconds() - time.seconds() % 60)
        }
        _ => Some(time.seconds()),
    }
}

/// The index of the slot for a key. Adjacent seconds, and adjacent minutes, use different slots.
fn slot(second: i64) -> usize {
    (second + second / 60).rem_euclid(SLOTS as i64) as usize
}
