//! Cursors: which entry of the journal stands behind a number of entries that were sent.
//!
//! A durable channel keeps, with the data, how many entries it has (as the offset of a file); this file says which
//! cursor of the journal that is. A line is written, and synced, before the batch that it ends is sent, so whatever a
//! crash took away, what the channel has stands here. Behind memory a line is written when its entries are settled.
//!
//! ```text
//! millstream journald cursors 2 ID CRC    16 hex digits, random: the "file" whose offset it is; CRC-32C of what is before it
//! COUNT CRC CURSOR                        CRC-32C of COUNT, a space and CURSOR, in hex; CURSOR may be empty: the beginning
//! ```
//!
//! Version 1 had no checksum in the title. A last line that is torn is left out, and so is a damaged one: the others still
//! say which cursor stands behind their count. The first one must be whole, because it is where to go on when nothing else
//! is known. When it grows long it is written anew beside and
//! renamed, from the last line on that is kept.

use std::{
    collections::VecDeque,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use crc_fast::{CrcAlgorithm::Crc32Iscsi, checksum};
use millstream_pipeline::{failure::Failure, state};
use millstream_record::FileId;
use millstream_sys::private;
use rustix::rand::{GetRandomFlags, getrandom};

const NAME: &str = "cursors";
const NEW_NAME: &str = "cursors.new";
const TITLE: &str = "millstream journald cursors ";
const VERSION: &str = "2";
/// The version whose title has no checksum.
const VERSION_BEFORE: &str = "1";
/// A larger file is damaged: it is written anew long before.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// What helps when the cursors cannot be used.
const REMEDY: &str = "restore it from a backup, or remove it and restart Millstream: the journal is then read again as \
                      `start` says";
/// `journal` in ASCII: no device has this number.
const DEVICE: u64 = 0x6a_6f75_726e_616c;
/// The file is written anew when it has grown by so many bytes.
const GROWN_BYTES: usize = 256 << 10;

/// So many entries, and the cursor of the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// How many entries were sent up to here.
    pub count: u64,
    /// The last one; empty: none.
    pub cursor: String,
}

/// The file and what stands in it from the last kept place on.
#[derive(Debug)]
pub(super) struct Cursors {
    directory: PathBuf,
    id: u64,
    places: VecDeque<Place>,
    file: Option<fs::File>,
    grown: usize,
}

fn crc(text: &str) -> u32 {
    // The algorithm is one of 32 bits.
    checksum(Crc32Iscsi, text.as_bytes()) as u32
}

fn line(place: &Place) -> String {
    let crc = crc(&format!("{} {}", place.count, place.cursor));
    format!("{} {crc:08x} {}\n", place.count, place.cursor)
}

fn place(line: &str) -> Option<Place> {
    let mut words = line.splitn(3, ' ');
    let (count, sum, cursor) = (words.next()?, words.next()?, words.next()?);
    let right = u32::from_str_radix(sum, 16).ok()? == crc(&format!("{count} {cursor}"));
    Some(Place {
        count: count.parse().ok()?,
        cursor: cursor.to_owned(),
    })
    .filter(|_| right)
}

/// The first line.
fn title(id: u64) -> String {
    let text = format!("{TITLE}{VERSION} {id:016x}");
    format!("{text} {:08x}\n", crc(&text))
}

/// The id in the first line, or what is wrong with it.
fn id_in(line: &str) -> Result<u64, String> {
    let damaged = || "is damaged: it has no title".to_owned();
    let mut words = line.strip_prefix(TITLE).ok_or_else(damaged)?.split(' ');
    let (version, id, sum) = (words.next(), words.next(), words.next());
    // The checksum comes first: a version that was damaged is no newer format.
    let text = line.rsplit_once(' ').map_or("", |(text, _)| text);
    let is_whole = sum.and_then(|sum| u32::from_str_radix(sum, 16).ok()) == Some(crc(text));
    match version {
        Some(VERSION) if is_whole => {}
        Some(VERSION_BEFORE) if sum.is_none() => {}
        Some(version) if is_whole => {
            return Err(format!(
                "has the format version {version}; this program knows {VERSION}: run the newer one that wrote it"
            ));
        }
        _ => return Err(damaged()),
    }
    let id = id.and_then(|id| u64::from_str_radix(id, 16).ok());
    id.ok_or_else(damaged)
}

fn new_id() -> io::Result<u64> {
    let mut random = [0; 8];
    getrandom(&mut random, GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(random))
}

impl Cursors {
    /// Reads what earlier runs have left; None: this is the first one.
    pub(super) fn load(directory: &Path) -> Result<Option<Self>, Failure> {
        let path = directory.join(NAME);
        let Some(text) = state::read(&path, FILE_BYTES_MAX, REMEDY)? else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&text);
        let wrong = |why: String| Failure::state(format!("{} {why}; {REMEDY}", path.display()));
        // A line counts with its newline only.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.split('\n');
        let id = id_in(lines.next().unwrap_or_default()).map_err(wrong)?;
        let first = lines.next().and_then(place);
        let first =
            first.ok_or_else(|| wrong("is damaged: its first place cannot be read".to_owned()))?;
        let places = std::iter::once(first)
            .chain(lines.filter_map(place))
            .collect();
        Ok(Some(Self {
            directory: directory.to_owned(),
            id,
            places,
            file: None,
            grown: 0,
        }))
    }

    /// Begins at a cursor; nothing is written yet.
    pub(super) fn begin(directory: &Path, cursor: String) -> Result<Self, Failure> {
        let id = new_id().map_err(|error| Failure::us(format!("no random number: {error}")))?;
        Ok(Self {
            directory: directory.to_owned(),
            id,
            places: [Place { count: 0, cursor }].into(),
            file: None,
            grown: 0,
        })
    }

    /// What a durable channel knows it by.
    pub(super) fn file_id(&self) -> FileId {
        FileId {
            device: DEVICE,
            inode: self.id,
            birth: 0,
            head: 0,
        }
    }

    /// The last place.
    pub(super) fn last(&self) -> Place {
        self.places.back().cloned().unwrap_or_default()
    }

    /// A durable channel has `count` entries, or knows nothing: goes on from there. False: it has another number of
    /// entries than any place says, so what follows is numbered anew, and may come twice.
    pub(super) fn resume(&mut self, count: Option<u64>) -> Result<bool, Failure> {
        let Some(count) = count else {
            // Of what was sent nothing is known to be kept but what the first place says.
            self.places.truncate(1);
            return Ok(true);
        };
        let before = self.places.iter().rposition(|place| place.count <= count);
        self.places.truncate(before.map_or(1, |before| before + 1));
        if self.last().count == count {
            return Ok(true);
        }
        *self = Self::begin(&self.directory, self.last().cursor)?;
        Ok(false)
    }

    /// Forgets the places before the one of `count`.
    pub(super) fn settled(&mut self, count: u64) {
        while self.places.get(1).is_some_and(|next| next.count <= count) {
            self.places.pop_front();
        }
    }

    /// After a failure: the places behind the one of `count` are void.
    pub(super) fn go_back(&mut self, count: u64) {
        while self.places.len() > 1 && self.last().count > count {
            self.places.pop_back();
        }
        // The next line must not stand behind those that are void.
        self.file = None;
    }

    /// Adds a place. It is on the disk when this returns. Blocks.
    pub(super) fn add(&mut self, place: Place) -> io::Result<()> {
        if self.grown > GROWN_BYTES {
            self.file = None;
        }
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.write_anew()?,
        };
        let line = line(&place);
        file.write_all(line.as_bytes())?;
        file.sync_data()?;
        self.grown += line.len();
        self.file = Some(file);
        self.places.push_back(place);
        Ok(())
    }

    /// Writes the file with the places that are not forgotten. Blocks.
    pub(super) fn write_anew(&mut self) -> io::Result<fs::File> {
        private::create_dir_all(&self.directory)?;
        let new = self.directory.join(NEW_NAME);
        let mut file = private::create(&new)?;
        let mut text = title(self.id);
        text.extend(self.places.iter().map(line));
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, self.directory.join(NAME))?;
        fs::File::open(&self.directory)?.sync_all()?;
        self.grown = 0;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(count: u64) -> Place {
        Place {
            count,
            cursor: format!("s=1;i={count}"),
        }
    }

    #[test]
    fn places_are_found_again_by_what_a_channel_has() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Cursors::load(directory.path()).unwrap().is_none());
        let mut cursors = Cursors::begin(directory.path(), String::new()).unwrap();
        for count in [3, 5, 9] {
            cursors.add(at(count)).unwrap();
        }
        for (known, last) in [(Some(5), at(5)), (Some(9), at(9)), (None, Place::default())] {
            let mut read = Cursors::load(directory.path()).unwrap().unwrap();
            assert!(read.resume(known).unwrap());
            assert_eq!((read.last(), read.file_id()), (last, cursors.file_id()));
        }
        let mut read = Cursors::load(directory.path()).unwrap().unwrap();
        assert!(!read.resume(Some(6)).unwrap());
        assert_eq!((read.last().count, read.last().cursor), (0, at(5).cursor));
        assert_ne!(read.file_id(), cursors.file_id());
    }

    #[test]
    fn what_is_settled_is_forgotten_and_what_is_void_is_not_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut cursors = Cursors::begin(directory.path(), String::new()).unwrap();
        for count in 1..9 {
            cursors.add(at(count)).unwrap();
        }
        cursors.settled(5);
        cursors.go_back(6);
        cursors
            .add(Place {
                count: 8,
                cursor: "other".to_owned(),
            })
            .unwrap();
        let read = Cursors::load(directory.path()).unwrap().unwrap();
        let counts: Vec<u64> = read.places.iter().map(|place| place.count).collect();
        assert_eq!(counts, [5, 6, 8]);
        assert_eq!(read.last().cursor, "other");
    }

    #[test]
    fn a_torn_line_is_left_out_and_a_newer_version_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut cursors = Cursors::begin(directory.path(), "c".to_owned()).unwrap();
        cursors.add(at(1)).unwrap();
        let path = directory.path().join(NAME);
        let text = fs::read_to_string(&path).unwrap();
        for torn in [
            &text[..text.len() - 1],
            &text[..text.len() - 4],
            &text.replace("i=1", "i=2"),
        ] {
            fs::write(&path, torn).unwrap();
            assert_eq!(
                Cursors::load(directory.path())
                    .unwrap()
                    .unwrap()
                    .last()
                    .count,
                0
            );
        }
        let refused = |text: &str| {
            fs::write(&path, text).unwrap();
            Cursors::load(directory.path()).unwrap_err().message
        };
        let id = cursors.file_id().inode;
        let newer = format!("{TITLE}3 {id:016x}");
        let newer = format!("{newer} {:08x}\n", crc(&newer));
        assert!(refused(&newer).contains("version 3"));
        assert!(refused(&text.replace("cursors 2", "cursors 3")).contains("damaged"));
        assert!(
            refused(&text.replacen(&format!("{id:016x}"), "0000000000000001", 1))
                .contains("damaged")
        );
        assert!(refused(&text.replace(" c\n", " d\n")).contains("first place"));
        assert!(refused("").contains("damaged"));
        let before = format!("{TITLE}1 {id:016x}\n{}", line(&at(4)));
        fs::write(&path, before).unwrap();
        let read = Cursors::load(directory.path()).unwrap().unwrap();
        assert_eq!((read.file_id(), read.last()), (cursors.file_id(), at(4)));
    }

    #[test]
    fn no_flipped_bit_and_no_cut_leads_to_a_wrong_place() {
        let directory = tempfile::tempdir().unwrap();
        let mut cursors = Cursors::begin(directory.path(), "s=1;i=0".to_owned()).unwrap();
        for count in 1..5 {
            cursors.add(at(count)).unwrap();
        }
        let path = directory.path().join(NAME);
        let whole = fs::read(&path).unwrap();
        let check = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            for count in 1..5 {
                let Ok(Some(mut read)) = Cursors::load(directory.path()) else {
                    continue;
                };
                assert_eq!(read.file_id(), cursors.file_id());
                // If it does not know the place, it says so, and goes on before it.
                let is_known = read.resume(Some(count)).unwrap();
                let number = read
                    .last()
                    .cursor
                    .rsplit_once('=')
                    .map(|(_, number)| number.to_owned());
                let number: u64 = number.unwrap().parse().unwrap();
                assert!(
                    number <= count && (number == count || !is_known),
                    "{read:?}"
                );
            }
        };
        for place in 0..whole.len() {
            check(&whole[..place]);
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[place] ^= 1 << bit;
                check(&damaged);
            }
        }
    }

    #[test]
    fn a_damaged_line_takes_no_other_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let mut cursors = Cursors::begin(directory.path(), String::new()).unwrap();
        for count in 1..5 {
            cursors.add(at(count)).unwrap();
        }
        let path = directory.path().join(NAME);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("i=2", "i=7")).unwrap();
        let mut read = Cursors::load(directory.path()).unwrap().unwrap();
        assert!(read.resume(Some(4)).unwrap());
        assert_eq!(read.last(), at(4));
        // What its line said is not known: it begins at the place before, with another identity.
        let mut read = Cursors::load(directory.path()).unwrap().unwrap();
        assert!(!read.resume(Some(2)).unwrap());
        assert_eq!(read.last().cursor, at(1).cursor);
    }
}
