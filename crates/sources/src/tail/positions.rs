//! The positions of a tail: one small file, replaced as a whole. Where a durable channel knows the offsets better, it
//! still has the marks, by which a file is recognised that was truncated and grew while we did not run.
//!
//! ```text
//! millstream tail positions 3
//! ran NANOSECONDS                                    when the last walk through the directories began, since 1970
//! was DEVICE INODE BIRTH HEAD OFFSET CRC END PATH    a file that was truncated lately: one line for each of its last marks
//! DEVICE INODE BIRTH HEAD OFFSET CRC SEEN PATH       one line a file; HEAD and CRC in hex, SEEN in seconds since 1970;
//!                                                    HEAD 0: the file was seen, and nothing of it was sent
//! end CRC                                            CRC-32C of all that stands before this line, in hex
//! ```
//!
//! Version 2 had no line `ran`, and version 1 no lines `was` either.
//!
//! The new file is written beside the old one, synced, renamed over it, and the directory is synced: after a crash there is
//! the old one or the new one. It stands there from the first run on, also without a line: that it is there says that what
//! is not in it is new, and is read from its beginning.

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
/// A larger file is damaged: more than half a million files stand in one of this size.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// What helps when the positions cannot be used.
const REMEDY: &str = "restore it from a backup, or remove it and restart Millstream: the files that it names are then read \
                      again as `start` says, unless a disk channel knows where they go on";
/// Begins the line with the time of the last walk.
const RAN: &str = "ran ";
/// Begins the line of a file that was truncated.
const WAS: &str = "was ";
/// A file that nobody has seen for so long is forgotten; until then it may come back (an unmounted directory).
const FORGET_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// Where one file goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Which file.
    pub id: FileId,
    /// Where.
    pub mark: Mark,
    /// When a scan last saw it, in seconds since 1970.
    pub seen: u64,
    /// Where; for people who look into the file.
    pub path: String,
}

/// Up to where a file was read that was truncated since, and one of its marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Truncated {
    /// Which file.
    pub id: FileId,
    /// Where a batch ended.
    pub mark: Mark,
    /// Up to where it was settled.
    pub end: u64,
    /// Where it was.
    pub path: String,
}

/// All that is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Positions {
    /// When the last walk through the directories began: a file born later was never seen.
    pub ran: Option<Time>,
    pub entries: Vec<Entry>,
    /// What was truncated lately: lines of one content follow each other, with ascending marks.
    pub truncated: Vec<Truncated>,
}

/// Seconds since 1970, now.
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
    let text = std::str::from_utf8(text).map_err(|_| "is damaged: it is no text".to_owned())?;
    // The checksum comes first: a version that was damaged is no newer format.
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

/// What a line holds: the third is SEEN or END.
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

/// What [`fields`] reads.
fn write_fields(text: &mut String, id: &FileId, mark: Mark, number: u64, path: &str) {
    // The path is for people only, and stays on its line.
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
