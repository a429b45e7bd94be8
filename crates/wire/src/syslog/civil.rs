//! Days of the Gregorian calendar, and seconds since 1970.

/// Seconds per day.
pub(super) const DAY: i64 = 86_400;

/// Date and time of day.
#[derive(Clone, Copy)]
pub(super) struct Civil {
    pub(super) year: i64,
    pub(super) month: i64,
    pub(super) day: i64,
    pub(super) hour: i64,
    pub(super) minute: i64,
    pub(super) second: i64,
}

impl Civil {
    /// Returns the seconds since 1970 as if the date were in UTC. Returns `None` if the date or the time of day is invalid. A
    /// leap second becomes the first second of the next minute.
    #[inline(always)]
    pub(super) fn seconds(&self) -> Option<i64> {
        let there_is = (1..=12).contains(&self.month)
            && (1..=days_of(self.year, self.month)).contains(&self.day)
            && self.hour < 24
            && self.minute < 60
            && self.second <= 60;
        let days = days_since_1970(self.year, self.month, self.day);
        there_is.then_some(days * DAY + self.hour * 3600 + self.minute * 60 + self.second)
    }
}

/// Returns the number of days of a month.
fn days_of(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the days since 1970-01-01. In this calculation years begin in March, so that the leap day is their last day.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    // 400 years have 146,097 days; 719,468 days lie between 0000-03-01 and 1970-01-01.
    era * 146_097 + day_of_era - 719_468
}

/// Returns year, month and day for a number of days since 1970-01-01: the inverse of [`days_since_1970`].
pub(super) fn date_of(days: i64) -> (i64, i64, i64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_agree() {
        for days in (-800_000..800_000).step_by(97) {
            let (year, month, day) = date_of(days);
            assert_eq!(days_since_1970(year, month, day), days);
        }
        assert_eq!(date_of(0), (1970, 1, 1));
    }
}
