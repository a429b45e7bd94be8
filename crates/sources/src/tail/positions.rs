//! The stored positions: one small file that is replaced as a whole. Behind a durable channel, which has the offsets, it still
//! has the marks, which reveal a file that was truncated and grew while the source did not run.
//!
//! ```text
//! millstream tail positions 3
//! ran NANOSECONDS                                    when the last walk through the directories began, since 1970
//! was DEVICE INODE BIRTH HEAD OFFSET CRC END PATH    a recently truncated file: one line for each of its last marks
//! DEVICE INODE BIRTH HEAD OFFSET CRC SEEN PATH       one line per file; HEAD and CRC in hex, SEEN in seconds since 1970;
//!                                                    HEAD 0: the file was seen, but nothing of it was sent
//! end CRC                                            CRC-32C of everything before this line, in hex
//! ```
//!
//! Version 2 had no line `ran`, version 1 no lines `was` either.
//!
//! The new file is written beside the old one, synced and renamed over it, and the directory is synced: after a crash there is
//! the old one or the new one. It exists from the first run on, even without a file in it: what an existing file does not name is
//! new, and is read from its beginning.

use std::{
    fmt::Write as _,
    fs, io,
    io::Write as _,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use millstream_pipeline::{failure::Failure, state};
use millstream_record::{FileId, Time};
use millstream_sys::private;

use super::identity::{Mark, crc32c};

const NAME: &str = "positions";
const NEW_NAME: &str = "positions.new";
/// The first line without the version.
const TITLE: &str = "millstream tail positions ";
const VERSION: u32 = 3;
/// A larger file is damaged: one of this size names more than half a million files.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// What to do when the positions cannot be used.
const REMEDY: &str = "restore it from a backup, or remove it and restart Millstream: the files that it names are then read \
                      again as `start` says, unless a disk channel knows their positions";
/// Begins the line with the time of the last walk.
const RAN: &str = "ran ";
/// Begins the line of a file that was truncated.
const WAS: &str = "was ";
/// A file that was not seen for this long is forgotten; until then it may return (an unmounted directory).
const FORGET_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// The position of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub id: FileId,
    pub mark: Mark,
    /// When a scan last saw the file, in seconds since 1970.
    pub seen: u64,
    /// For people who look into the stored positions.
    pub path: String,
}

/// One mark of a content that was truncated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Truncated {
    pub id: FileId,
    /// Where a batch ended.
    pub mark: Mark,
    /// How far the content was settled.
    pub end: u64,
    pub path: String,
}

/// Everything that is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Positions {
    /// When the last walk through the directories began: a file created later was never seen.
    pub ran: Option<Time>,
    /// The positions of the files.
    pub entries: Vec<Entry>,
    /// Recently truncated contents: the marks of one follow each other, in ascending order.
    pub truncated: Vec<Truncated>,
}

/// The current time in seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// Reads the positions; None if there are none yet.
pub(super) fn load(directory: &Path) -> Result<Option<Positions>, Failure> {
    let path = directory.join(NAME);
    let Some(text) = state::read(&path, FILE_BYTES_MAX, REMEDY)? else {
        return Ok(None);
    };
    let unusable = |why| Failure::state(format!("{} {why}; {REMEDY}", path.display()));
    parse(&text).map(Some).map_err(unusable)
}

fn parse(text: &[u8]) -> Result<Positions, String> {
    let text = std::str::from_utf8(text).map_err(|_| "is damaged: it is not text".to_owned())?;
    // The checksum comes first, so that a damaged version does not look like a newer format.
    let end = text.rfind("end ").ok_or("is damaged: it has no end")?;
    let (body, end) = text.split_at(end);
    let crc = end.strip_prefix("end ").map(str::trim_end);
    if crc.and_then(|crc| u32::from_str_radix(crc, 16).ok()) != Some(crc32c(body.as_bytes())) {
        return Err("is damaged: its checksum is wrong".to_owned());
    }
    let version = text
        .strip_prefix(TITLE)
        .and_then(|rest| rest.lines().next());
    let version: u32 = version
        .and_then(|version| version.parse().ok())
        .ok_or("is damaged: it has no title")?;
    if !(1..=VERSION).contains(&version) {
        return Err(format!(
            "has the format version {version}; this program knows {VERSION}: run the newer one that wrote it"
        ));
    }
    let mut positions = Positions::default();
    for line in body.lines().skip(1) {
        if let Some(nanos) = line.strip_prefix(RAN) {
            let nanos = nanos.parse();
            positions.ran = Some(Time(nanos.map_err(|_| format!("is damaged at `{line}`"))?));
            continue;
        }
        let (was, rest) = match line.strip_prefix(WAS) {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let (id, mark, number, path) =
            fields(rest).ok_or_else(|| format!("is damaged at `{line}`"))?;
        match was {
            true => positions.truncated.push(Truncated {
                id,
                mark,
                end: number,
                path,
            }),
            false => positions.entries.push(Entry {
                id,
                mark,
                seen: number,
                path,
            }),
        }
    }
    Ok(positions)
}

/// The fields of a line; the number is SEEN or END.
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

/// Writes a line for [`fields`].
fn write_fields(text: &mut String, id: &FileId, mark: Mark, number: u64, path: &str) {
    // The path is only for people, and must not break the line.
    let path = path.replace(char::is_control, "?");
    let _ = writeln!(
        text,
        "{} {} {} {:016x} {} {:08x} {number} {path}",
        id.device, id.inode, id.birth, id.head, mark.offset, mark.crc
    );
}

/// Replaces the positions; they survive a power cut when this returns. Blocks.
pub(super) fn store(directory: &Path, positions: &Positions) -> io::Result<()> {
    private::create_dir_all(directory)?;
    let oldest = now().saturating_sub(FORGET_AFTER.as_secs());
    let mut text = format!("{TITLE}{VERSION}\n");
    if let Some(ran) = positions.ran {
        let _ = writeln!(text, "{RAN}{}", ran.0);
    }
    for was in &positions.truncated {
        text.push_str(WAS);
        write_fields(&mut text, &was.id, was.mark, was.end, &was.path);
    }
    let recent = |entry: &&Entry| entry.seen >= oldest;
    for entry in positions.entries.iter().filter(recent) {
        write_fields(&mut text, &entry.id, entry.mark, entry.seen, &entry.path);
    }
    let crc = crc32c(text.as_bytes());
    let _ = writeln!(text, "end {crc:08x}");
    let new = directory.join(NEW_NAME);
    let mut file = private::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, directory.join(NAME))?;
    fs::File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use millstream_pipeline::failure::Who;

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

    #[test]
    fn positions_are_read_as_they_were_written() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("made/when/needed");
        assert_eq!(load(&directory).unwrap(), None);
        store(&directory, &Positions::default()).unwrap();
        assert_eq!(load(&directory).unwrap(), Some(Positions::default()));
        let mut positions = example();
        let forgotten = Entry {
            seen: 5,
            ..positions.entries[0].clone()
        };
        positions.entries.push(forgotten);
        store(&directory, &positions).unwrap();
        assert_eq!(load(&directory).unwrap(), Some(example()));
    }

    #[test]
    fn positions_of_versions_1_and_2_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = "1 2 -3 ffff000000000001 12 00000abc 77 /var/log/a\n";
        for (version, was) in [(1, String::new()), (2, format!("was {file}"))] {
            let body = format!("{TITLE}{version}\n{was}{file}");
            let text = format!("{body}end {:08x}\n", crc32c(body.as_bytes()));
            fs::write(directory.path().join(NAME), text).unwrap();
            let positions = load(directory.path()).unwrap().unwrap();
            let [entry] = &positions.entries[..] else {
                panic!("{positions:?}");
            };
            assert_eq!((entry.mark.offset, entry.seen), (12, 77));
            assert_eq!(positions.truncated.len(), usize::from(version == 2));
            assert_eq!(positions.ran, None);
        }
    }

    #[test]
    fn a_damaged_or_newer_file_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        store(directory.path(), &example()).unwrap();
        let path = directory.path().join(NAME);
        let text = fs::read_to_string(&path).unwrap();
        for broken in [
            text.replace(" 12 ", " 13 "),
            text[..text.len() / 2].to_owned(),
            String::new(),
            text.replace("positions 3", "positions 4"),
        ] {
            fs::write(&path, broken).unwrap();
            let failure = load(directory.path()).unwrap_err();
            assert_eq!(failure.who, Who::State);
            assert!(
                failure.message.contains("positions is damaged"),
                "{failure}"
            );
        }
        let body = format!("{TITLE}4\n");
        let newer = format!("{body}end {:08x}\n", crc32c(body.as_bytes()));
        fs::write(&path, newer).unwrap();
        let failure = load(directory.path()).unwrap_err();
        assert!(failure.message.contains("version 4"), "{failure}");
        fs::File::create(&path).unwrap().set_len(8 << 30).unwrap();
        let failure = load(directory.path()).unwrap_err();
        assert!(failure.message.contains("at most 256MiB"), "{failure}");
    }
}
