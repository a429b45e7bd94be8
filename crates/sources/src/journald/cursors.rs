//! Stores places, which show how far the journal of systemd was read. A place is a count of sent entries, with the journald cursor
//! of the last of these entries. A journald cursor is the text by which journald identifies an entry. It has nothing to do with
//! the cursors of channels.
//!
//! A durable channel remembers how far it has kept the input of a source, as a file id and an offset in this file. The journal is no
//! such file, so this source invents a file id and uses the count of entries as the offset. The file `cursors` maps counts to
//! journald cursors. A place is appended and synced before the batch that ends at this place is sent. So the file has every count
//! that the channel may know after a crash. With a memory channel, a place is stored once all entries up to it are settled.
//!
//! ```text
//! SOURCE/cursors     a `millstream_state::Journal`
//!     first record   0 id, 8 random bytes: the inode of the invented file | 8 the first place
//!     others         a place each
//!     a place        0 count u64, little-endian | 8 cursor; empty for the beginning of the journal
//! ```
//! A damaged record is skipped: the others still have their cursors. The first record must be intact, because the source
//! resumes at the first place if the channel has stored no count. Versions 1 and 2 were text files: see [`older`].

use std::{collections::VecDeque, fmt, io, path::Path, sync::Arc};

use millstream_pipeline::failure::Failure;
use millstream_record::FileId;
use millstream_state::{Error, Format, Journal, JournalFormat, Recovered};
use millstream_sys::{
    checksum::crc32c,
    disk::{Disk, HostDisk},
    random,
};

const FORMAT: JournalFormat = JournalFormat {
    format: Format {
        magic: b"MILLJCUR",
        version: 3,
        // The file is replaced long before it reaches this size.
        bytes_max: 64 << 20,
        remedy: "restore it from a backup, or remove it and restart Millstream: Millstream then reads the journal again from where \
                 the source's option `start` says",
    },
    record_bytes_max: 64 << 10,
    copied: false,
};
/// `journal` in ASCII: no device has this number.
const DEVICE: u64 = 0x6a_6f75_726e_616c;
/// The file is replaced when it has grown by this many bytes.
const GROWN_BYTES: u64 = 256 << 10;

/// A count of entries, and the journald cursor of the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of entries sent up to and including this place.
    pub count: u64,
    /// The cursor of the last entry; empty if there is none.
    pub cursor: String,
}

/// The last settled place and all later ones, and the file that stores them.
pub(super) struct Cursors {
    journal: Journal,
    id: u64,
    places: VecDeque<Place>,
    /// The length of the file when it was last replaced, in bytes.
    replaced_bytes: u64,
}

impl fmt::Debug for Cursors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cursors({:x}, {:?})", self.id, self.places)
    }
}

impl Cursors {
    /// Loads the places that earlier runs stored. Returns `None` in the first run.
    pub(super) fn load(directory: &Path) -> Result<Option<Self>, Failure> {
        Ok(Self::load_on(Arc::new(HostDisk), directory)?)
    }

    fn load_on(disk: Arc<dyn Disk>, directory: &Path) -> Result<Option<Self>, Error> {
        let (journal, recovered) = Journal::open(disk, directory.join("cursors"), FORMAT, older)?;
        let Some(recovered) = recovered else {
            return Ok(None);
        };
        let mut bodies = recovered.records.iter().map(|record| &*record.body);
        let first = match recovered.lost_first() {
            true => None,
            false => bodies.next().and_then(decode_first),
        };
        let Some((id, first)) = first else {
            return Err(journal.damaged("its first record is invalid"));
        };
        let places = std::iter::once(first)
            .chain(bodies.filter_map(decode))
            .collect();
        Ok(Some(Self {
            journal,
            id,
            places,
            replaced_bytes: 0,
        }))
    }

    /// Begins at a cursor. Nothing is written yet.
    pub(super) fn begin(directory: &Path, cursor: String) -> Result<Self, Failure> {
        Self::begin_on(Arc::new(HostDisk), directory, cursor)
    }

    fn begin_on(disk: Arc<dyn Disk>, directory: &Path, cursor: String) -> Result<Self, Failure> {
        let (journal, _) = Journal::open(disk, directory.join("cursors"), FORMAT, older)?;
        Ok(Self {
            journal,
            id: new_id()?,
            places: [Place { count: 0, cursor }].into(),
            replaced_bytes: 0,
        })
    }

    /// The id of the invented file. A durable channel keeps the count of entries under this id.
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

    /// Resumes after the first `count` entries. `count` is the count that a durable channel has stored; `None` if it has stored none.
    /// Returns false if no place has this count. Further entries are then counted from 0 under a new id, and some entries may be sent
    /// twice.
    pub(super) fn resume(&mut self, count: Option<u64>) -> Result<bool, Failure> {
        self.journal.invalidate();
        let Some(count) = count else {
            // The channel has stored no count, so only the first place is known to be kept.
            self.places.truncate(1);
            return Ok(true);
        };
        let before = self.places.iter().rposition(|place| place.count <= count);
        self.places.truncate(before.map_or(1, |before| before + 1));
        let Place {
            count: last,
            cursor,
        } = self.last();
        if last == count {
            return Ok(true);
        }
        self.id = new_id()?;
        self.places = [Place { count: 0, cursor }].into();
        Ok(false)
    }

    /// Notes that everything up to `count` is settled. The last place at or before `count` stays. All places before it are forgotten.
    pub(super) fn settled(&mut self, count: u64) {
        while self.places.get(1).is_some_and(|next| next.count <= count) {
            self.places.pop_front();
        }
    }

    /// Forgets the places after `count`, because their batches were dropped.
    pub(super) fn go_back(&mut self, count: u64) {
        while self.places.len() > 1 && self.last().count > count {
            self.places.pop_back();
        }
        // Forces a replacement, because the file still has the forgotten places.
        self.journal.invalidate();
    }

    /// Adds a place. It is durable when this returns. Blocks.
    pub(super) fn add(&mut self, place: Place) -> io::Result<()> {
        let grown = self.journal.bytes().saturating_sub(self.replaced_bytes);
        if self.journal.needs_replace() || grown > GROWN_BYTES {
            self.replace()?;
        }
        let count = place.count.to_le_bytes();
        self.journal.append(&[&count, place.cursor.as_bytes()])?;
        self.journal.sync()?;
        self.places.push_back(place);
        Ok(())
    }

    /// Replaces the file with one that holds the current places. Blocks.
    pub(super) fn replace(&mut self) -> io::Result<()> {
        let mut records = self.journal.replacement();
        for (number, place) in self.places.iter().enumerate() {
            let (id, count) = (self.id.to_le_bytes(), place.count.to_le_bytes());
            let id = if number == 0 { &id[..] } else { &[] };
            records.add(&[id, &count, place.cursor.as_bytes()]);
        }
        self.journal.replace(records)?;
        self.replaced_bytes = self.journal.bytes();
        Ok(())
    }
}

fn new_id() -> Result<u64, Failure> {
    let random = random::bytes();
    let failed = |error| Failure::us(format!("cannot draw a random number: {error}"));
    random.map(u64::from_le_bytes).map_err(failed)
}

fn decode_first(body: &[u8]) -> Option<(u64, Place)> {
    let (id, body) = body.split_first_chunk()?;
    Some((u64::from_le_bytes(*id), decode(body)?))
}

fn decode(body: &[u8]) -> Option<Place> {
    let (count, cursor) = body.split_first_chunk()?;
    Some(Place {
        count: u64::from_le_bytes(*count),
        cursor: String::from_utf8(cursor.to_vec()).ok()?,
    })
}

/// Converts a text file of version 1 or 2:
///
/// ```text
/// millstream journald cursors 2 ID CRC    ID: 16 hex digits; CRC: CRC-32C of the text before it; absent in version 1
/// COUNT CRC CURSOR                        CRC: CRC-32C of COUNT, a space and CURSOR, in hex
/// ```
fn older([bytes, _]: [Option<&[u8]>; 2]) -> Option<Recovered> {
    let text = String::from_utf8_lossy(bytes?);
    // A last line without a newline was not written completely, so it is ignored.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = whole.split('\n');
    let title = lines.next()?;
    let words = title.strip_prefix("millstream journald cursors ")?;
    let mut words = words.split(' ');
    let (version, id, sum) = (words.next()?, words.next()?, words.next());
    let covered = title.rsplit_once(' ')?.0;
    match (version, sum) {
        ("1", None) => {}
        ("2", Some(sum)) if is_sum(sum, covered) => {}
        _ => return None,
    }
    let id = u64::from_str_radix(id, 16).ok()?.to_le_bytes();
    let mut bodies = Vec::new();
    if let Some(first) = lines.next().and_then(older_place) {
        bodies.push([&id[..], &first].concat());
        bodies.extend(lines.filter_map(older_place));
    }
    Some(Recovered::of(bodies))
}

fn older_place(line: &str) -> Option<Vec<u8>> {
    let mut words = line.splitn(3, ' ');
    let (count, sum, cursor) = (words.next()?, words.next()?, words.next()?);
    if !is_sum(sum, &format!("{count} {cursor}")) {
        return None;
    }
    let count: u64 = count.parse().ok()?;
    Some([&count.to_le_bytes(), cursor.as_bytes()].concat())
}

fn is_sum(hex: &str, text: &str) -> bool {
    u32::from_str_radix(hex, 16).is_ok_and(|sum| sum == crc32c(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use millstream_testkit::trial::{DIRECTORY, DurableState, Trial};

    use super::*;

    fn at(count: u64) -> Place {
        Place {
            count,
            cursor: format!("s=1;i={count}"),
        }
    }

    /// A text file of version 2, as earlier versions of Millstream wrote it.
    fn golden(first: &Place, others: &[Place]) -> String {
        let title = "millstream journald cursors 2 00000000deadbeef";
        let line = |place: &Place| {
            let text = format!("{} {}", place.count, place.cursor);
            format!(
                "{} {:08x} {}\n",
                place.count,
                crc32c(text.as_bytes()),
                place.cursor
            )
        };
        let lines: String = std::iter::once(first).chain(others).map(line).collect();
        format!("{title} {:08x}\n{lines}", crc32c(title.as_bytes()))
    }

    #[test]
    fn places_are_found_by_the_count_that_a_channel_has() {
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
    fn settled_places_and_places_of_dropped_batches_are_forgotten() {
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
    fn a_torn_record_is_ignored_and_a_newer_version_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut cursors = Cursors::begin(directory.path(), "c".to_owned()).unwrap();
        cursors.add(at(1)).unwrap();
        let path = directory.path().join("cursors");
        let whole = fs::read(&path).unwrap();
        let flipped = |place: usize| {
            let mut bytes = whole.clone();
            bytes[place] ^= 1;
            bytes
        };
        let last = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            Cursors::load(directory.path()).unwrap().unwrap().last()
        };
        // The last byte of the record. Only padding follows.
        let end = whole.iter().rposition(|byte| *byte != 0).unwrap();
        for torn in [&whole[..end], &whole[..end - 4], &flipped(end)] {
            assert_eq!(last(torn).count, 0);
        }
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            Cursors::load(directory.path()).unwrap_err().message
        };
        for place in 0..24 {
            assert!(refused(&flipped(place)).contains("damaged"));
        }
        assert!(refused(&flipped(40)).contains("first record"));
        assert!(refused(b"").contains("damaged"));
        let mut newer = FORMAT;
        newer.format.version = 4;
        let (mut journal, _) = Journal::open(Arc::new(HostDisk), path.clone(), newer, |_| {
            Some(Recovered::default())
        })
        .unwrap();
        journal.replace(journal.replacement()).unwrap();
        let failure = Cursors::load(directory.path()).unwrap_err();
        assert!(failure.message.contains("version 4"), "{failure}");
    }

    #[test]
    fn text_files_of_versions_1_and_2_are_read_and_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cursors");
        let text = golden(&at(0), &[at(1), at(4)]);
        assert_eq!(
            golden(&at(0), &[]),
            "millstream journald cursors 2 00000000deadbeef 61752579\n0 3f6c92b6 s=1;i=0\n"
        );
        let version_1 = text.replacen("cursors 2", "cursors 1", 1);
        let version_1 = version_1.replacen(&version_1[46..55], "", 1);
        for old in [&text, &version_1] {
            fs::write(&path, old).unwrap();
            let mut read = Cursors::load(directory.path()).unwrap().unwrap();
            assert!(read.resume(Some(4)).unwrap());
            assert_eq!((read.file_id().inode, read.last()), (0xdead_beef, at(4)));
            read.add(at(7)).unwrap();
            assert!(fs::read(&path).unwrap().starts_with(FORMAT.format.magic));
            let read = Cursors::load(directory.path()).unwrap().unwrap();
            assert_eq!((read.file_id().inode, read.last()), (0xdead_beef, at(7)));
        }
        // A torn or damaged last line is ignored.
        for torn in [
            &text[..text.len() - 1],
            &text[..text.len() - 4],
            &text.replace("i=4", "i=2"),
        ] {
            fs::write(&path, torn).unwrap();
            assert_eq!(
                Cursors::load(directory.path()).unwrap().unwrap().last(),
                at(1)
            );
        }
        let refused = |text: &str| {
            fs::write(&path, text).unwrap();
            Cursors::load(directory.path()).unwrap_err().message
        };
        assert!(refused(&text.replace("cursors 2", "cursors 3")).contains("damaged"));
        assert!(refused(&text.replace("deadbeef", "deadbee0")).contains("damaged"));
        assert!(refused(&text.replace("i=0\n", "i=9\n")).contains("first record"));
    }

    #[test]
    fn no_flipped_bit_and_no_truncation_leads_to_a_wrong_place() {
        let directory = tempfile::tempdir().unwrap();
        let mut cursors = Cursors::begin(directory.path(), "s=1;i=0".to_owned()).unwrap();
        for count in 1..5 {
            cursors.add(at(count)).unwrap();
        }
        let path = directory.path().join("cursors");
        let places: Vec<Place> = (1..5).map(at).collect();
        let old = golden(&at(0), &places).into_bytes();
        for (whole, id) in [
            (fs::read(&path).unwrap(), cursors.file_id().inode),
            (old, 0xdead_beef),
        ] {
            let check = |bytes: &[u8]| {
                fs::write(&path, bytes).unwrap();
                for count in 1..5 {
                    let Ok(Some(mut read)) = Cursors::load(directory.path()) else {
                        continue;
                    };
                    assert_eq!(read.file_id().inode, id);
                    // If the place was lost, `resume` returns false, and reading continues at an earlier place.
                    let is_known = read.resume(Some(count)).unwrap();
                    let last = read.last().cursor;
                    let (_, number) = last.rsplit_once('=').unwrap();
                    let number: u64 = number.parse().unwrap();
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
    }

    #[test]
    fn a_damaged_place_does_not_affect_other_places() {
        let directory = tempfile::tempdir().unwrap();
        let mut cursors = Cursors::begin(directory.path(), String::new()).unwrap();
        for count in 1..5 {
            cursors.add(at(count)).unwrap();
        }
        let path = directory.path().join("cursors");
        let mut bytes = fs::read(&path).unwrap();
        let place = bytes
            .windows(3)
            .position(|window| window == b"i=2")
            .unwrap();
        bytes[place + 2] = b'7';
        fs::write(&path, bytes).unwrap();
        let mut read = Cursors::load(directory.path()).unwrap().unwrap();
        assert!(read.resume(Some(4)).unwrap());
        assert_eq!(read.last(), at(4));
        // The damaged place itself is unknown. The source continues at the place before it, under another id.
        let mut read = Cursors::load(directory.path()).unwrap().unwrap();
        assert!(!read.resume(Some(2)).unwrap());
        assert_eq!(read.last().cursor, at(1).cursor);
    }

    impl DurableState for Cursors {
        fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
            let directory = Path::new(DIRECTORY);
            let load = || -> Result<Self, Failure> {
                let mut cursors = match Self::load_on(disk.clone(), directory)? {
                    Some(cursors) => cursors,
                    None => Self::begin_on(disk, directory, at(0).cursor)?,
                };
                cursors
                    .replace()
                    .map_err(|error| Failure::disk(error.to_string()))?;
                Ok(cursors)
            };
            load().map_err(|failure| failure.message)
        }

        fn number(&self) -> u64 {
            let Place { count, cursor } = self.last();
            assert_eq!(cursor, at(count).cursor);
            count
        }

        fn advance(&mut self, number: u64) -> Result<(), String> {
            self.settled(number.saturating_sub(4));
            self.add(at(number)).map_err(|error| error.to_string())
        }
    }

    #[test]
    fn an_added_place_survives_power_cuts_and_failing_disks() {
        Trial::default().run::<Cursors>();
    }
}
