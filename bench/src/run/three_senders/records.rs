//! The records of `three_senders`: their writers, and the integrity report.
//!
//! A record is a line of digits: the number of its sender, zeros, the number of its `write`, and in the last four digits its number in
//! that `write`.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufRead, BufReader, Write as _},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use memchr::memmem;

/// The digits of a record's number in its `write`.
const LOW_DIGITS: usize = 4;
/// About this many bytes are written at a time, as `cat` does.
const WRITE_BYTES: usize = 128 << 10;
/// The writer looks for the mount this often after a kill.
const POLL: Duration = Duration::from_millis(2);

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The lines as they were written.
    Raw,
    /// JSON with the time, the host and the line.
    Json,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw",
            Self::Json => "JSON",
        })
    }
}

/// The `write` calls of a writer.
#[derive(Debug, Default)]
pub struct Sent {
    /// The number of `write` calls, failed ones included.
    pub writes: u64,
    /// The numbers of the calls that failed. Their records may have arrived.
    pub failed: Vec<u64>,
    /// Why the writer has ended early.
    pub error: Option<String>,
}

/// Writes the records of one sender.
pub struct Writer {
    text: Vec<u8>,
    size: usize,
}

/// The number of records in a `write`.
fn records_per_write(size: usize) -> usize {
    (WRITE_BYTES / size).min(10_usize.pow(LOW_DIGITS as u32))
}

impl Writer {
    /// `size`: the bytes of a record, including its newline.
    pub fn new(sender: usize, size: usize) -> Self {
        let mut text = Vec::with_capacity(WRITE_BYTES);
        for n in 0..records_per_write(size) {
            let digits = size - 2;
            let _ = writeln!(text, "{sender}{n:0digits$}");
        }
        Self { text, size }
    }

    /// The records of a `write`. `None` if their numbers have too many digits.
    fn numbered(&mut self, number: u64) -> Option<&[u8]> {
        let digits = (self.size - 2 - LOW_DIGITS).min(12);
        let high = format!("{number:0digits$}");
        for record in self.text.chunks_exact_mut(self.size) {
            let end = record.len() - 1 - LOW_DIGITS;
            record[end - digits..end].copy_from_slice(high.as_bytes().get(..digits)?);
        }
        (high.len() == digits).then_some(&self.text)
    }

    /// Writes to a file of the mount until `end`. `opens_again`: after an error, waits for the mount and opens the file again.
    pub fn write_until(mut self, mount: &Path, end: Instant, opens_again: bool) -> Sent {
        let mut sent = Sent::default();
        let mut file = None;
        while Instant::now() < end {
            if file.is_none() && (is_mounted(mount) || !opens_again) {
                match File::options()
                    .append(true)
                    .create(true)
                    .open(mount.join("log"))
                {
                    Ok(opened) => file = Some(opened),
                    Err(error) if !opens_again => {
                        sent.error = Some(error.to_string());
                        return sent;
                    }
                    Err(_) => {}
                }
            }
            let Some(to) = &mut file else {
                thread::sleep(POLL);
                continue;
            };
            let Some(text) = self.numbered(sent.writes) else {
                return sent;
            };
            match to.write(text) {
                Ok(written) if written == text.len() => {}
                Err(_) if opens_again => {
                    sent.failed.push(sent.writes);
                    file = None;
                }
                other => {
                    sent.failed.push(sent.writes);
                    sent.error = Some(format!("a write: {other:?}"));
                    return sent;
                }
            }
            sent.writes += 1;
        }
        sent
    }
}

/// Whether a directory is mounted, and its process lives.
pub fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_mount = |path: &Path| {
        let mut lines = table.lines();
        lines.any(|line| line.split(' ').nth(4) == path.to_str())
    };
    let is_there = path.canonicalize().is_ok_and(|path| is_mount(&path));
    is_there && fs::metadata(path).is_ok()
}

/// The integrity report.
#[derive(Debug, Default)]
pub struct Integrity {
    /// The records of the output.
    pub arrived: u64,
    /// The records whose `write` has returned.
    acked: u64,
    /// The records whose `write` has failed, and how many of these have arrived.
    doubtful: (u64, u64),
    lost: u64,
    twice: u64,
    /// The lines that are no record of a sender.
    foreign: u64,
    errors: Vec<String>,
}

impl Integrity {
    /// Reads the output.
    pub fn of(out: &Path, form: Form, size: usize, sent: &[Sent]) -> io::Result<Self> {
        let per_write = records_per_write(size) as u64;
        let of_sender = |sent: &Sent| vec![false; (sent.writes * per_write) as usize];
        let mut seen: Vec<Vec<bool>> = sent.iter().map(of_sender).collect();
        let mut found = Self::default();
        let (mut input, mut line) = (
            BufReader::with_capacity(1 << 20, File::open(out)?),
            Vec::new(),
        );
        let key = memmem::Finder::new(b"\"message\":\"");
        while input.read_until(b'\n', &mut line)? > 0 {
            found.arrived += 1;
            let record = match form {
                Form::Raw => line.strip_suffix(b"\n"),
                Form::Json => key.find(&line).and_then(|at| {
                    let text = &line[at + key.needle().len()..];
                    let end = memchr::memchr(b'"', text)?;
                    text.get(..end)
                }),
            };
            let place = record.and_then(|record| place(record, size));
            let seen = place.and_then(|(sender, at)| seen.get_mut(sender)?.get_mut(at as usize));
            match seen {
                None => found.foreign += 1,
                Some(seen) => found.twice += u64::from(std::mem::replace(seen, true)),
            }
            line.clear();
        }
        for (sent, seen) in sent.iter().zip(&seen) {
            found.errors.extend(sent.error.clone());
            for (write, seen) in (0..).zip(seen.chunks(per_write as usize)) {
                let there = seen.iter().filter(|seen| **seen).count() as u64;
                if sent.failed.contains(&write) {
                    found.doubtful.0 += per_write;
                    found.doubtful.1 += there;
                } else {
                    found.acked += per_write;
                    found.lost += per_write - there;
                }
            }
        }
        Ok(found)
    }

    /// The defects; `None` if there are none.
    pub fn wrong(&self) -> Option<String> {
        let is_right = self.lost + self.twice + self.foreign == 0 && self.errors.is_empty();
        let is_empty = self.acked == 0;
        (!is_right || is_empty).then(|| self.to_string())
    }
}

impl fmt::Display for Integrity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (doubtful, arrived) = self.doubtful;
        write!(
            f,
            "{} records written, {} lost, {} twice, {} foreign lines; {doubtful} more in doubt, of which {arrived} arrived",
            self.acked, self.lost, self.twice, self.foreign
        )?;
        self.errors
            .iter()
            .try_for_each(|error| write!(f, "; {error}"))
    }
}

/// The sender of a record, and its number among the records of the sender. `None` if this is not a record.
fn place(record: &[u8], size: usize) -> Option<(usize, u64)> {
    let digits = |text: &[u8]| {
        let add = |number: u64, byte: &u8| match byte {
            b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
            _ => None,
        };
        text.iter().try_fold(0, add)
    };
    let (sender, number) = record.split_first()?;
    let (high, low) = number.split_at_checked(number.len().checked_sub(LOW_DIGITS)?)?;
    let (low, per_write) = (digits(low)?, records_per_write(size) as u64);
    let is_record = record.len() + 1 == size && low < per_write;
    let at = digits(high)?.checked_mul(per_write)?.checked_add(low)?;
    is_record.then_some((usize::from(sender.checked_sub(b'0')?), at))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An output of two senders. The first has written three times, and the last `write` has failed.
    fn output(form: Form) -> (Vec<Vec<u8>>, [Sent; 2]) {
        let mut lines = Vec::new();
        for (sender, writes) in [(0, 3), (1, 2)] {
            let mut writer = Writer::new(sender, 4096);
            for number in 0..writes {
                let text = writer.numbered(number).unwrap();
                lines.extend(
                    text.split_inclusive(|byte| *byte == b'\n')
                        .map(|line| match form {
                            Form::Raw => line.to_vec(),
                            Form::Json => {
                                [b"{\"message\":\"", &line[..4095], b"\",\"host\":\"h\"}\n"]
                                    .concat()
                            }
                        }),
                );
            }
        }
        let sent = |writes, failed| Sent {
            writes,
            failed,
            error: None,
        };
        (lines, [sent(3, vec![2]), sent(2, Vec::new())])
    }

    fn report(lines: &[Vec<u8>], form: Form, sent: &[Sent]) -> Integrity {
        let out = tempfile::NamedTempFile::new().unwrap();
        fs::write(out.path(), lines.concat()).unwrap();
        Integrity::of(out.path(), form, 4096, sent).unwrap()
    }

    #[test]
    fn every_lost_repeated_and_foreign_record_is_found() {
        for form in [Form::Raw, Form::Json] {
            let (mut lines, sent) = output(form);
            let whole = report(&lines, form, &sent);
            assert_eq!(
                (whole.wrong(), whole.acked, whole.doubtful),
                (None, 128, (32, 32))
            );
            // A record of the failed `write` may be missing, but others may not.
            lines.remove(64);
            let found = report(&lines, form, &sent);
            assert_eq!((found.wrong(), found.doubtful), (None, (32, 31)));
            lines.remove(3);
            lines.push(lines[9].clone());
            lines.push(lines[70].clone());
            lines.push(b"x\n".to_vec());
            lines.push(lines[9][..100].to_vec());
            let found = report(&lines, form, &sent);
            assert_eq!((found.lost, found.twice, found.foreign), (1, 2, 2));
            assert!(found.wrong().unwrap().contains("1 lost, 2 twice"));
        }
    }

    #[test]
    fn records_of_ten_bytes_are_numbered_up_to_the_published_count() {
        let mut writer = Writer::new(2, 10);
        let last = writer.numbered(9999).unwrap();
        assert_eq!(&last[last.len() - 10..], b"299999999\n");
        assert_eq!(place(&last[..9], 10), Some((2, 99_990_000)));
        assert_eq!(writer.numbered(10_000), None);
    }

    #[test]
    fn without_records_the_run_has_failed() {
        let found = report(&[], Form::Raw, &[Sent::default()]);
        assert!(found.wrong().is_some());
    }
}
