//! Sizes and durations on the command line, in the units of Millstream's configuration: `128KiB`, `1MB`, `500ms`, `10s`.

use std::time::Duration;

const SIZES: [(&str, u64); 10] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// Parses a size in bytes. A number other than 0 needs a unit.
pub fn size(text: &str) -> Result<u64, String> {
    if text == "0" {
        return Ok(0);
    }
    SIZES
        .iter()
        .find_map(|(unit, bytes)| {
            let count: u64 = text.strip_suffix(unit)?.trim().parse().ok()?;
            count.checked_mul(*bytes)
        })
        .ok_or_else(|| format!("`{text}` is not a size; write 64KiB, 1MiB, 1MB or 4096B"))
}

/// Parses a duration. A number other than 0 needs a unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    let units = [
        ("ms", 1),
        ("s", 1_000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
    ];
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    units
        .iter()
        .find_map(|(unit, millis)| {
            let count: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
            Duration::try_from_secs_f64(count * f64::from(*millis) / 1e3).ok()
        })
        .ok_or_else(|| format!("`{text}` is not a duration; write 500ms, 10s, 5m, 1h or 1d"))
}

/// Parses a count with an optional decimal suffix: `500k`, `20M`, `1G`.
pub fn count(text: &str) -> Result<u64, String> {
    let (digits, scale) = match text.strip_suffix(['k', 'M', 'G']) {
        Some(digits) if text.ends_with('k') => (digits, 1_000),
        Some(digits) if text.ends_with('M') => (digits, 1_000_000),
        Some(digits) => (digits, 1_000_000_000),
        None => (text, 1),
    };
    digits
        .parse()
        .ok()
        .and_then(|count: u64| count.checked_mul(scale))
        .ok_or_else(|| format!("`{text}` is not a count; write 1000, 500k, 20M or 1G"))
}

/// Formats a number of bytes for display: `1.50 GB`.
pub fn bytes_text(bytes: f64) -> String {
    match bytes {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB", b / 1e3),
        b => format!("{b:.0} B"),
    }
}

/// Formats a count for display: `12.30 M`.
pub fn count_text(count: f64) -> String {
    match count {
        c if c >= 1e9 => format!("{:.2} G", c / 1e9),
        c if c >= 1e6 => format!("{:.2} M", c / 1e6),
        c if c >= 1e4 => format!("{:.1} k", c / 1e3),
        c => format!("{c:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_durations_and_counts_are_read_with_their_units() {
        assert_eq!(size("128KiB"), Ok(131_072));
        assert_eq!(size("1MB"), Ok(1_000_000));
        assert_eq!(size("0"), Ok(0));
        assert!(size("128").is_err());
        assert!(size("99999999999999GiB").is_err());
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert!(duration("10").is_err());
        assert!(duration("-1s").is_err());
        assert_eq!(count("20M"), Ok(20_000_000));
        assert_eq!(count("7"), Ok(7));
        assert!(count("M").is_err());
    }
}
