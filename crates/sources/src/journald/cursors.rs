//! Cursors: which entry of the journal stands behind a number of entries that were sent.
//!
//! A durable channel keeps, with the data, how many entries it has (as the offset of a file); this file says which
//! cursor of the journal that is. A line is written, and synced, before the batch that it ends is sent, so whatever a
//! crash took away, what the channel has stands here. Behind memory a line is written when its entries are settled.
//!
//! ```text
//! millstream journald cursors 1 ID        16 hex digits, random: the "file" whose offset it is
//! COUNT CRC CURSOR                        CRC-32C of COUNT, a space and CURSOR, in hex; CURSOR may be empty: the beginning
//! ```
//!
//! A last line that is torn or of another checksum ends the file. When it grows long it is written anew beside and
//! renamed, from the last line on that is kept.

use std::{
    collections::VecDeque,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use crc_fast::{CrcAlgorithm::Crc32Iscsi, checksum};
use millstream_pipeline::failure::Failure;
use millstream_record::FileId;
use millstream_sys::private;
use rustix::rand::{GetRandomFlags, getrandom};

const NAME: &str = "cursors";
const NEW_NAME: &str = "cursors.new";
const TITLE: &str = "millstream journald cursors ";
const VERSION: &str = "1";
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
    folder: PathBuf,
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

fn new_id() -> io::Result<u64> {
    let mut random = [0; 8];
    getrandom(&mut random, GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(random))
}

impl Cursors {
    /// Reads what earlier runs have left; None: this is the first one.
    pub(super) fn load(folder: &Path) -> Result<Option<Self>, Failure> {
        let path = folder.join(NAME);
        let text = match fs::read(&path) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let text = format!("cannot read {}: {error}", path.display());
                return Err(Failure::disk(text));
            }
        };
        let wrong = |why: String| {
            let path = path.display();
            let what = "if it is removed, the journal is read again as `start` says";
            Failure::disk(format!("{path} {why}; {what}")).never_again()
        };
        // A line counts with its newline only.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.split('\n');
        let title = lines.next().and_then(|title| title.strip_prefix(TITLE));
        let (version, id) = title
            .and_then(|title| title.split_once(' '))
            .ok_or_else(|| wrong("is damaged: it has no title".to_owned()))?;
        if version != VERSION {
            return Err(wrong(format!(
                "has the format version {version}; this program knows {VERSION}"
            )));
        }
        let id = u64::from_str_radix(id, 16);
        let id = id.map_err(|_| wrong("is damaged: it has no id".to_owned()))?;
        let places: VecDeque<Place> = lines.map_while(place).collect();
        if places.is_empty() {
            return Err(wrong("is damaged: it names no place".to_owned()));
        }
        Ok(Some(Self {
            folder: folder.to_owned(),
            id,
            places,
            file: None,
            grown: 0,
        }))
    }

    /// Begins at a cursor; nothing is written yet.
    pub(super) fn begin(folder: &Path, cursor: String) -> Result<Self, Failure> {
        let id = new_id().map_err(|error| Failure::us(format!("no random number: {error}")))?;
        Ok(Self {
            folder: folder.to_owned(),
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
        *self = Self::begin(&self.folder, self.last().cursor)?;
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
        private::create_dir_all(&self.folder)?;
        let new = self.folder.join(NEW_NAME);
        let mut file = private::create(&new)?;
        let mut text = format!("{TITLE}{VERSION} {:016x}\n", self.id);
        text.extend(self.places.iter().map(line));
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, self.folder.join(NAME))?;
        fs::File::open(&self.folder)?.sync_all()?;
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
        let folder = tempfile::tempdir().unwrap();
        assert!(Cursors::load(folder.path()).unwrap().is_none());
        let mut cursors = Cursors::begin(folder.path(), String::new()).unwrap();
        for count in [3, 5, 9] {
            cursors.add(at(count)).unwrap();
        }
        for (known, last) in [(Some(5), at(5)), (Some(9), at(9)), (None, Place::default())] {
            let mut read = Cursors::load(folder.path()).unwrap().unwrap();
            assert!(read.resume(known).unwrap());
            assert_eq!((read.last(), read.file_id()), (last, cursors.file_id()));
        }
        let mut read = Cursors::load(folder.path()).unwrap().unwrap();
        assert!(!read.resume(Some(6)).unwrap());
        assert_eq!((read.last().count, read.last().cursor), (0, at(5).cursor));
        assert_ne!(read.file_id(), cursors.file_id());
    }

    #[test]
    fn what_is_settled_is_forgotten_and_what_is_void_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut cursors = Cursors::begin(folder.path(), String::new()).unwrap();
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
        let read = Cursors::load(folder.path()).unwrap().unwrap();
        let counts: Vec<u64> = read.places.iter().map(|place| place.count).collect();
        assert_eq!(counts, [5, 6, 8]);
        assert_eq!(read.last().cursor, "other");
    }

    #[test]
    fn a_torn_line_ends_the_file_and_a_newer_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut cursors = Cursors::begin(folder.path(), "c".to_owned()).unwrap();
        cursors.add(at(1)).unwrap();
        let path = folder.path().join(NAME);
        let text = fs::read_to_string(&path).unwrap();
        for torn in [
            &text[..text.len() - 1],
            &text[..text.len() - 4],
            &text.replace("i=1", "i=2"),
        ] {
            fs::write(&path, torn).unwrap();
            assert_eq!(
                Cursors::load(folder.path()).unwrap().unwrap().last().count,
                0
            );
        }
        fs::write(&path, text.replace("cursors 1", "cursors 2")).unwrap();
        let failure = Cursors::load(folder.path()).unwrap_err();
        assert!(failure.message.contains("version 2"), "{failure}");
        fs::write(&path, "").unwrap();
        assert!(Cursors::load(folder.path()).is_err());
    }
}
