//! The stored positions: one small file that is replaced as a whole. A durable channel stores the offsets as well, but not the
//! marks (checksums of the bytes before the offsets). The marks reveal a file that was truncated and grew while the source did
//! not run.
//!
//! The body of the file is text:
//!
//! ```text
//! ran NANOSECONDS                                    when the last scan of the directories began, since 1970
//! was DEVICE INODE BIRTH HEAD OFFSET CRC END PATH    a recently truncated file: one line for each of its last marks
//! left LEN DEVICE INODE ... PATH                     a file of which more was expected, and its length then
//! DEVICE INODE BIRTH HEAD OFFSET CRC SEEN PATH       one line per file; HEAD and CRC in hex, SEEN in seconds since 1970;
//!                                                    HEAD 0: the file was seen, but nothing of it was sent
//! ```
//!
//! HEAD stands for the first line of the file; see `identity.rs`. OFFSET and CRC are a mark. END is the offset up to which the
//! file was settled before it was truncated. SEEN is the time at which a scan last saw the file.
//!
//! Version 4 had no `left LEN`. Up to version 3 the file was all text, with a title line `millstream tail positions VERSION` and a last line `end CRC`.
//! Version 2 had no line `ran`. Version 1 had neither the line `ran` nor lines `was`.
//!
//! The positions file exists from the first run on, even if it has no entry. If it exists, every tailed file without an entry is
//! new and is read from its beginning.

use std::{
    fmt::Write as _,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use millstream_pipeline::failure::Failure;
use millstream_record::{FileId, Time};
use millstream_state::{Error, Format, WholeFile};
use millstream_sys::{checksum::crc32c, disk::Disk};

use super::identity::Mark;

const NAME: &str = "positions";
const FORMAT: Format = Format {
    magic: b"MILLTAIL",
    version: 5,
    // A file of this size names more than half a million files.
    bytes_max: 256 << 20,
    remedy: "restore it from a backup, or remove it and restart Millstream: the files that it names are then read again as \
             `start` says, unless a disk channel knows their positions",
};
/// The beginning of the first line of older formats, before the version.
const OLD_TITLE: &str = "millstream tail positions ";
/// The version before `left LEN`.
const WITHOUT_LEFT: u32 = 4;
/// The last version of the older formats.
const OLD_VERSION: u32 = 3;
/// Begins the line with the time of the last scan.
const RAN: &str = "ran ";
/// Begins the line of a file of which more was expected.
const LEFT: &str = "left ";
/// Begins the line of a file that was truncated.
const WAS: &str = "was ";
/// A file that no scan has seen for this long is forgotten. Until then it may return, for example when a directory is mounted
/// again.
const FORGET_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// The position of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub id: FileId,
    pub mark: Mark,
    /// When a scan last saw the file, in seconds since 1970.
    pub seen: u64,
    /// The length of the file, if it was not read to its end, or could still grow. None if nothing more was expected of it.
    pub left: Option<u64>,
    /// The path of the file. If log rotation has renamed the file, this is its first path.
    pub path: String,
}

/// One mark of a content that was truncated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Truncated {
    pub id: FileId,
    /// Where a batch ended.
    pub mark: Mark,
    /// The offset up to which the content was settled.
    pub end: u64,
    pub path: String,
}

/// Everything that is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Positions {
    /// When the last scan of the directories began. No scan has seen files that were created later.
    pub ran: Option<Time>,
    /// The positions of the files.
    pub entries: Vec<Entry>,
    /// Recently truncated contents. Marks of the same content are adjacent and in ascending order.
    pub truncated: Vec<Truncated>,
}

/// The current time in seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// The file of the positions. All calls block.
pub(super) struct PositionsFile(WholeFile);

impl PositionsFile {
    /// The file in `directory`. The first store creates the directory if necessary.
    pub(super) fn new(disk: Arc<dyn Disk>, directory: &Path) -> Self {
        Self(WholeFile::new(disk, directory.join(NAME), FORMAT))
    }

    /// Reads the positions; None if none are stored.
    pub(super) fn load(&self) -> Result<Option<Positions>, Failure> {
        let old = |bytes: &[u8]| {
            let before = self.0.body_of(WITHOUT_LEFT, bytes);
            before.or_else(|| body_of_old(bytes)).map(Vec::from)
        };
        let Some(body) = self.0.load(old)? else {
            return Ok(None);
        };
        let positions = parse(&body).map_err(|why| self.0.damaged(why))?;
        Ok(Some(positions))
    }

    /// Replaces the positions. They are durable when this returns.
    pub(super) fn store(&mut self, positions: &Positions) -> Result<(), Error> {
        self.0.store(text(positions).as_bytes())
    }
}

/// The lines between title and checksum of a file of version 1 to 3. None if the file has another version or is damaged.
fn body_of_old(bytes: &[u8]) -> Option<&[u8]> {
    let text = str::from_utf8(bytes).ok()?;
    let (whole, end) = text.split_at(text.rfind("end ")?);
    let crc = u32::from_str_radix(end.strip_prefix("end ")?.trim_end(), 16).ok()?;
    if crc != crc32c(whole.as_bytes()) {
        return None;
    }
    let (version, body) = whole.strip_prefix(OLD_TITLE)?.split_once('\n')?;
    let version: u32 = version.parse().ok()?;
    (1..=OLD_VERSION)
        .contains(&version)
        .then_some(body.as_bytes())
}

fn parse(body: &[u8]) -> Result<Positions, String> {
    let body = str::from_utf8(body).map_err(|_| "it is not text".to_owned())?;
    let mut positions = Positions::default();
    for line in body.lines() {
        let damaged = || format!("line `{line}`");
        if let Some(nanos) = line.strip_prefix(RAN) {
            positions.ran = Some(Time(nanos.parse().map_err(|_| damaged())?));
        } else if let Some(was) = line.strip_prefix(WAS) {
            let (id, mark, end, path) = fields(was).ok_or_else(damaged)?;
            positions.truncated.push(Truncated {
                id,
                mark,
                end,
                path,
            });
        } else {
            let (left, line) = match line.strip_prefix(LEFT).map(|line| line.split_once(' ')) {
                None => (None, line),
                Some(Some((len, line))) => (Some(len.parse().map_err(|_| damaged())?), line),
                Some(None) => return Err(damaged()),
            };
            let (id, mark, seen, path) = fields(line).ok_or_else(damaged)?;
            positions.entries.push(Entry {
                id,
                mark,
                seen,
                left,
                path,
            });
        }
    }
    Ok(positions)
}

/// The text of the positions, which [`parse`] reads. Leaves out files that no scan has seen for [`FORGET_AFTER`].
fn text(positions: &Positions) -> String {
    let oldest = now().saturating_sub(FORGET_AFTER.as_secs());
    let mut text = String::new();
    if let Some(ran) = positions.ran {
        let _ = writeln!(text, "{RAN}{}", ran.0);
    }
    for was in &positions.truncated {
        text.push_str(WAS);
        write_fields(&mut text, &was.id, was.mark, was.end, &was.path);
    }
    let recent = |entry: &&Entry| entry.seen >= oldest;
    for entry in positions.entries.iter().filter(recent) {
        if let Some(len) = entry.left {
            let _ = write!(text, "{LEFT}{len} ");
        }
        write_fields(&mut text, &entry.id, entry.mark, entry.seen, &entry.path);
    }
    text
}

/// Parses a line into identity, mark, number (SEEN or END) and path.
fn fields(line: &str) -> Option<(FileId, Mark, u64, String)> {
    let mut words = line.splitn(8, ' ');
    let id = FileId {
        device: words.next()?.parse().ok()?,
        inode: words.next()?.parse().ok()?,
        birth: words.next()?.parse().ok()?,
        head: u64::from_str_radix(words.next()?, 16).ok()?,
    };
    let mark = Mark {
        offset: words.next()?.parse().ok()?,
        crc: u32::from_str_radix(words.next()?, 16).ok()?,
    };
    Some((
        id,
        mark,
        words.next()?.parse().ok()?,
        words.next()?.to_owned(),
    ))
}

/// Writes a line that [`fields`] parses.
fn write_fields(text: &mut String, id: &FileId, mark: Mark, number: u64, path: &str) {
    // A control character in the path, for example a newline, must not break the line.
    let path = path.replace(char::is_control, "?");
    let _ = writeln!(
        text,
        "{} {} {} {:016x} {} {:08x} {number} {path}",
        id.device, id.inode, id.birth, id.head, mark.offset, mark.crc
    );
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use millstream_pipeline::failure::Again;
    use millstream_sys::disk::HostDisk;
    use millstream_testkit::trial::{DIRECTORY, DurableState, Trial};

    use super::*;

    fn example() -> Positions {
        let id = FileId {
            device: 1,
            inode: 2,
            birth: -3,
            head: 0xffff_0000_0000_0001,
        };
        let mark = Mark {
            offset: 12,
            crc: 0xabc,
        };
        let path = "/var/log/end of a name".to_owned();
        Positions {
            ran: Some(Time(1_700_000_000_123_456_789)),
            entries: vec![Entry {
                id,
                mark,
                seen: now(),
                left: Some(20),
                path: path.clone(),
            }],
            truncated: vec![Truncated {
                id,
                mark,
                end: 13,
                path,
            }],
        }
    }

    fn file(directory: &Path) -> PositionsFile {
        PositionsFile::new(Arc::new(HostDisk), directory)
    }

    #[test]
    fn positions_are_read_as_they_were_written() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("made/when/needed");
        let mut file = file(&directory);
        assert_eq!(file.load().unwrap(), None);
        file.store(&Positions::default()).unwrap();
        assert_eq!(file.load().unwrap(), Some(Positions::default()));
        let mut positions = example();
        let forgotten = Entry {
            seen: 5,
            ..positions.entries[0].clone()
        };
        positions.entries.push(forgotten);
        file.store(&positions).unwrap();
        assert_eq!(file.load().unwrap(), Some(example()));
    }

    #[test]
    fn positions_of_versions_1_to_3_are_read_and_converted() {
        let directory = tempfile::tempdir().unwrap();
        let line = "1 2 -3 ffff000000000001 12 00000abc 77 /var/log/a\n";
        let (was, ran) = (format!("was {line}"), "ran 5\n");
        for (version, more, crc) in [
            (1, String::new(), "09d26b01"),
            (2, was.clone(), "50e68369"),
            (3, format!("{ran}{was}"), "a3bfcdaa"),
        ] {
            let text = format!("millstream tail positions {version}\n{more}{line}end {crc}\n");
            fs::write(directory.path().join(NAME), text).unwrap();
            let mut file = file(directory.path());
            let positions = file.load().unwrap().unwrap();
            let [entry] = &positions.entries[..] else {
                panic!("{positions:?}");
            };
            assert_eq!((entry.mark.offset, entry.seen), (12, 77));
            assert_eq!(positions.truncated.len(), usize::from(version >= 2));
            assert_eq!(positions.ran, (version == 3).then_some(Time(5)));
            file.store(&positions).unwrap();
            let bytes = fs::read(directory.path().join(NAME)).unwrap();
            assert!(bytes.starts_with(FORMAT.magic));
        }
    }

    #[test]
    fn positions_of_version_4_are_read_without_lengths() {
        let directory = tempfile::tempdir().unwrap();
        let format = Format {
            version: WITHOUT_LEFT,
            ..FORMAT
        };
        let mut before = example();
        before.entries[0].left = None;
        let path = directory.path().join(NAME);
        let mut old = WholeFile::new(Arc::new(HostDisk), path, format);
        old.store(text(&before).as_bytes()).unwrap();
        assert_eq!(file(directory.path()).load().unwrap(), Some(before));
    }

    #[test]
    fn a_damaged_or_newer_file_is_refused_and_named() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = file(directory.path());
        file.store(&example()).unwrap();
        let path = directory.path().join(NAME);
        let bytes = fs::read(&path).unwrap();
        let flipped = |at: usize| {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            flipped
        };
        let old = format!("{OLD_TITLE}4\n");
        let old_of_no_version = format!("{old}end {:08x}\n", crc32c(old.as_bytes()));
        for broken in [
            flipped(bytes.len() - 30),
            // This flip changes the version number.
            flipped(8),
            bytes[..bytes.len() / 2].to_owned(),
            Vec::new(),
            old_of_no_version.into_bytes(),
        ] {
            fs::write(&path, broken).unwrap();
            let failure = file.load().unwrap_err();
            assert_eq!(failure.again, Again::Never);
            assert!(
                failure.message.contains("positions is damaged"),
                "{failure}"
            );
        }
        let format = Format {
            version: 6,
            ..FORMAT
        };
        let mut newer = WholeFile::new(Arc::new(HostDisk), path.clone(), format);
        newer.store(b"").unwrap();
        let failure = file.load().unwrap_err();
        assert!(failure.message.contains("version 6"), "{failure}");
        fs::File::create(&path).unwrap().set_len(8 << 30).unwrap();
        let failure = file.load().unwrap_err();
        assert!(failure.message.contains("at most 256MiB"), "{failure}");
    }

    /// Positions whose number of entries is the number of the state.
    struct Numbered(PositionsFile, u64);

    impl DurableState for Numbered {
        fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
            let file = PositionsFile::new(disk, &PathBuf::from(DIRECTORY));
            let positions = file.load().map_err(|failure| failure.message)?;
            let number = positions.map_or(0, |positions| {
                let number = positions.entries.len() as u64;
                assert_eq!(positions.ran, Some(Time(number as i64)));
                number
            });
            Ok(Self(file, number))
        }

        fn number(&self) -> u64 {
            self.1
        }

        fn advance(&mut self, number: u64) -> Result<(), String> {
            let mut positions = example();
            positions.ran = Some(Time(number as i64));
            let entry = positions.entries[0].clone();
            positions.entries = (0..number).map(|_| entry.clone()).collect();
            let stored = self.0.store(&positions);
            stored.map_err(|error| error.to_string())?;
            self.1 = number;
            Ok(())
        }
    }

    #[test]
    fn positions_survive_power_cuts_failing_calls_and_damage() {
        Trial::default().run::<Numbered>();
    }
}
