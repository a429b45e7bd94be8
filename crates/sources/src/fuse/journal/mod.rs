//! Unfinished lines that have been answered for: they survive a crash here until the line is whole and kept elsewhere.
//!
//! An open file with an unfinished line has a slot; the unfinished bytes between two whole lines are one generation. When a
//! batch makes them whole, it carries the slot as a file and the generation as the offset of its origin (`begin`
//! generation, `next` the one behind): what a durable channel says of its origins then tells after a crash which
//! generation is left. Behind memory `done` says it.
//!
//! The journal is written twice, in two files: damage to one of them loses nothing. Where both are damaged in the same
//! place, nobody knows which lines are whole. So all of them are put into a file beside it for an operator, and none is sent.

mod format;
#[cfg(test)]
mod tests;

use std::{
    fs, io,
    io::{BufRead, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_pipeline::{failure::Failure, state};
use millstream_record::FileId;
use millstream_sys::private;

pub(super) use format::Identity;
use format::{BEGIN, DONE, Found, HEAD_BYTES, Header, Loaded, PART, PIECE, load, record};

const NAME: &str = "unfinished";
const COPY_NAME: &str = "unfinished.copy";
/// How the names of files begin that hold lines which may be damaged.
const DOUBTFUL_NAME: &str = "unfinished.damaged";
/// The first line of such a file is no longer.
const TITLE_BYTES_MAX: u64 = 256;
/// No journal is larger: before that, writers are refused.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// What helps when the journal cannot be used.
const REMEDY: &str = "restore it from a backup, or remove `unfinished` and `unfinished.copy` and restart Millstream: lines \
                      that were unfinished at the last stop are then lost";
/// It is written anew when it is larger than this and mostly of what is done: one sync for so many bytes.
const BYTES_MAX: u64 = 4 << 20;

/// What an earlier run has left of one open file, in its new slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub slot: u32,
    pub generation: u64,
    /// Its path below the mount point.
    pub path: String,
    pub tail: Vec<u8>,
}

/// Generation, offset of the record, bytes of data.
type Piece = (u64, u64, u32);

/// What a piece takes in the file.
fn live_bytes(piece: &Piece) -> u64 {
    u64::from(piece.2) + HEAD_BYTES as u64
}

#[derive(Debug, Default)]
struct Slot {
    path: String,
    /// The generation of the next open file that gets the slot, or of this one's first live bytes.
    generation: u64,
    /// Pieces in the file.
    pieces: Vec<Piece>,
}

/// A journal as a start finds it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) journal: Journal,
    /// What an earlier run has left.
    pub(super) left: Vec<Left>,
    /// Damage that lost nothing, as text for the operator.
    pub(super) mended: Option<String>,
    /// Lines that may be damaged and are not sent, as text for the operator. Said at each start until their file is gone.
    pub(super) doubtful: Option<String>,
}

/// The journal. Writes are to the page cache; [`Journal::file`] is what to sync.
#[derive(Debug)]
pub(super) struct Journal {
    directory: PathBuf,
    file: Arc<fs::File>,
    /// None after a failed write, until the journal is written anew.
    copy: Option<fs::File>,
    /// With the generation of new slots.
    header: Header,
    end: u64,
    slots: Vec<Slot>,
    /// What of the file is live: a record that comes in many small writes has many pieces.
    live: u64,
    free: Vec<u32>,
}

impl Journal {
    /// Opens what is there or makes a new one. What an earlier run has left moves to the new one's slots: `kept` says of a
    /// slot which generation a durable channel expects next; None: nobody can tell, and what is not done is left. Each
    /// generation becomes a line: there are several where lines between them were given to a channel that did not keep them.
    pub(super) fn open(
        directory: &Path,
        kept: impl Fn(&FileId) -> Option<u64>,
    ) -> Result<Opened, Failure> {
        let failed = |error: io::Error| Failure::disk(format!("{}: {error}", directory.display()));
        private::create_dir_all(directory).map_err(failed)?;
        let (mut mended, mut lines) = (None, Vec::new());
        let mut header = Header::new(Identity::new().map_err(failed)?, 0, 0);
        if let Some(loaded) = read(directory)? {
            header = loaded.header;
            header.floor = loaded.floor;
            let identity = header.identity;
            mended = mended_text(directory, &loaded);
            lines = lines_of(&loaded.found, |slot| kept(&identity.file(slot)));
            if !loaded.holes.is_empty() {
                put_aside(directory, &loaded, &lines).map_err(failed)?;
                lines.clear();
            }
        }
        let (header, floor) = (header.anew(), header.floor);
        let (slots, records) = take_over(&header, &lines);
        let Written { file, copy, end } = write_new(directory, &records.bytes).map_err(failed)?;
        let left = (0..).zip(lines).map(|(slot, (path, tail))| Left {
            slot,
            generation: floor,
            path,
            tail,
        });
        let left = left.collect();
        let pieces = slots.iter().flat_map(|slot| &slot.pieces);
        let live = pieces.map(live_bytes).sum();
        let journal = Self {
            directory: directory.to_owned(),
            file: Arc::new(file),
            copy,
            header,
            end,
            slots,
            live,
            free: Vec::new(),
        };
        Ok(Opened {
            journal,
            left,
            mended,
            doubtful: doubtful(directory).map_err(failed)?,
        })
    }

    pub(super) fn identity(&self) -> Identity {
        self.header.identity
    }

    /// What to sync to make all that was written durable.
    pub(super) fn file(&self) -> Arc<fs::File> {
        self.file.clone()
    }

    /// A slot for an open file, and its first generation.
    pub(super) fn begin(&mut self, path: &str) -> io::Result<(u32, u64)> {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.slots.push(Slot {
                    generation: self.header.floor,
                    ..Slot::default()
                });
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        let slot = &mut self.slots[number as usize];
        path.clone_into(&mut slot.path);
        let generation = slot.generation;
        match self.write(BEGIN, number, generation, path.as_bytes()) {
            Ok(_) => Ok((number, generation)),
            Err(error) => {
                self.free.push(number);
                Err(error)
            }
        }
    }

    /// More unfinished bytes of a generation.
    pub(super) fn append(&mut self, number: u32, generation: u64, data: &[u8]) -> io::Result<()> {
        if self.end > BYTES_MAX && self.end / 2 > self.live {
            self.write_anew()?;
        }
        let at = self.write(PIECE, number, generation, data)?;
        let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let piece = (generation, at, bytes);
        self.live += live_bytes(&piece);
        self.slots[number as usize].pieces.push(piece);
        Ok(())
    }

    /// The last `bytes` of what is live are of a new generation: what was before them leaves without them.
    pub(super) fn part(&mut self, number: u32, generation: u64, bytes: usize) -> io::Result<()> {
        let data = (bytes as u64).to_le_bytes();
        self.write(PART, number, generation, &data)?;
        let pieces = &mut self.slots[number as usize].pieces;
        let mut left = u32::try_from(bytes).unwrap_or(u32::MAX);
        let mut after = Vec::new();
        while left > 0
            && let Some((before, at, bytes)) = pieces.pop()
        {
            let moved = bytes.min(left);
            let stays = bytes - moved;
            after.push((generation, at + u64::from(stays), moved));
            left -= moved;
            if stays > 0 {
                pieces.push((before, at, stays));
                self.live += HEAD_BYTES as u64;
            }
        }
        pieces.extend(after.into_iter().rev());
        Ok(())
    }

    /// Generations below `next` are kept elsewhere, which others can tell.
    pub(super) fn done(&mut self, number: u32, next: u64) {
        let slot = &mut self.slots[number as usize];
        slot.generation = slot.generation.max(next);
        slot.pieces.retain(|piece| {
            let is_live = piece.0 >= next;
            if !is_live {
                self.live = self.live.saturating_sub(live_bytes(piece));
            }
            is_live
        });
    }

    /// The same where nobody else can tell.
    pub(super) fn note_done(&mut self, number: u32, next: u64) -> io::Result<()> {
        if self.slots[number as usize]
            .pieces
            .iter()
            .any(|piece| piece.0 < next)
        {
            self.write(DONE, number, next, &[])?;
        }
        self.done(number, next);
        Ok(())
    }

    /// An open file needs its slot no more; all below `next` is done.
    pub(super) fn end(&mut self, number: u32, next: u64) {
        self.done(number, next);
        self.slots[number as usize].path.clear();
        self.free.push(number);
    }

    fn write(&mut self, kind: u8, slot: u32, generation: u64, data: &[u8]) -> io::Result<u64> {
        let at = self.end;
        let record = record(&self.header, at, (kind, slot, generation), data);
        if at + record.len() as u64 > FILE_BYTES_MAX {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if let Err(error) = self.file.write_all_at(&record, at) {
            // A part of it must not stay behind the next one.
            let _ = self.file.set_len(at);
            return Err(error);
        }
        // The journal has it: a copy that cannot be written must not fail the writer.
        let copy = self.copy.take();
        self.copy = copy.filter(|copy| copy.write_all_at(&record, at).is_ok());
        self.end += record.len() as u64;
        Ok(at)
    }

    /// Writes what is live to new files, which take the place of these.
    fn write_anew(&mut self) -> io::Result<()> {
        let header = self.header.anew();
        let (mut records, mut moved) = (Records::new(header), Vec::new());
        for (number, slot) in (0..).zip(&self.slots) {
            if slot.path.is_empty() {
                continue;
            }
            records.add((BEGIN, number, slot.generation), slot.path.as_bytes());
            for (generation, at, bytes) in &slot.pieces {
                let mut data = vec![0; *bytes as usize];
                self.file.read_exact_at(&mut data, at + HEAD_BYTES as u64)?;
                let to = records.add((PIECE, number, *generation), &data);
                moved.push((number, (*generation, to, *bytes)));
            }
        }
        let Written { file, copy, end } = write_new(&self.directory, &records.bytes)?;
        (self.file, self.copy, self.end) = (Arc::new(file), copy, end);
        self.header = header;
        for slot in &mut self.slots {
            slot.pieces.clear();
        }
        for (number, piece) in moved {
            self.slots[number as usize].pieces.push(piece);
        }
        Ok(())
    }
}

/// The bytes of a journal that is written anew.
struct Records {
    header: Header,
    bytes: Vec<u8>,
}

impl Records {
    fn new(header: Header) -> Self {
        let bytes = header.encode().to_vec();
        Self { header, bytes }
    }

    /// Adds a record; where it stands.
    fn add(&mut self, head: (u8, u32, u64), data: &[u8]) -> u64 {
        let at = self.bytes.len() as u64;
        self.bytes.extend(record(&self.header, at, head, data));
        at
    }
}

/// The slots of what is left, and a journal that holds it.
fn take_over(header: &Header, left: &[(String, Vec<u8>)]) -> (Vec<Slot>, Records) {
    let (mut slots, mut records) = (Vec::new(), Records::new(*header));
    let floor = header.floor;
    for (number, (path, tail)) in (0..).zip(left) {
        records.add((BEGIN, number, floor), path.as_bytes());
        let at = records.add((PIECE, number, floor), tail);
        let bytes = u32::try_from(tail.len()).unwrap_or(u32::MAX);
        slots.push(Slot {
            path: path.clone(),
            generation: floor,
            pieces: vec![(floor, at, bytes)],
        });
    }
    (slots, records)
}

/// A journal that was written anew.
struct Written {
    file: fs::File,
    copy: Option<fs::File>,
    end: u64,
}

/// Writes and syncs a new journal and its copy and puts them in the place of the old ones. The copy gets its name first: until
/// the journal has its own, nothing is written that only one of them has.
fn write_new(directory: &Path, bytes: &[u8]) -> io::Result<Written> {
    let file = write_file(directory, NAME, bytes)?;
    let copy = write_file(directory, COPY_NAME, bytes).and_then(|copy| {
        rename_new(directory, COPY_NAME)?;
        Ok(copy)
    });
    if copy.is_err() {
        // An old one must not be taken for the copy of the new journal; if it stays, its number tells.
        let _ = fs::remove_file(directory.join(COPY_NAME));
    }
    rename_new(directory, NAME)?;
    fs::File::open(directory)?.sync_all()?;
    Ok(Written {
        file,
        copy: copy.ok(),
        end: bytes.len() as u64,
    })
}

/// Where a file is written before it gets its name.
fn new_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.new"))
}

fn write_file(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<fs::File> {
    let mut options = private::options();
    let options = options.read(true).write(true).create(true).truncate(true);
    let mut file = options.open(new_path(directory, name))?;
    file.write_all(bytes)?;
    file.sync_data()?;
    Ok(file)
}

fn rename_new(directory: &Path, name: &str) -> io::Result<()> {
    fs::rename(new_path(directory, name), directory.join(name))
}

/// What an earlier run has left; `None` if nothing ever ran.
fn read(directory: &Path) -> Result<Option<Loaded>, Failure> {
    let paths = [NAME, COPY_NAME].map(|name| directory.join(name));
    let mut refused = None;
    let mut read = |path: &Path| match state::read(path, FILE_BYTES_MAX, REMEDY) {
        Ok(bytes) => bytes,
        Err(failure) => {
            refused.get_or_insert(failure);
            None
        }
    };
    let files = [read(&paths[0]), read(&paths[1])];
    match (refused, &files) {
        // The other one is as good.
        (_, [Some(_), _] | [_, Some(_)]) => {}
        (Some(failure), _) => return Err(failure),
        (None, _) => return Ok(None),
    }
    let loaded = load(files.each_ref().map(Option::as_deref));
    let path = paths[0].display();
    loaded
        .map(Some)
        .map_err(|why| Failure::state(format!("{path} {why}; {REMEDY}")))
}

/// The lines that are left: their paths and bytes.
fn lines_of(found: &[Found], kept: impl Fn(u32) -> Option<u64>) -> Vec<(String, Vec<u8>)> {
    let mut lines = Vec::new();
    for found in found {
        let live = found
            .start
            .max(found.done)
            .max(kept(found.slot).unwrap_or(0));
        let tails = found
            .tails
            .range(live..)
            .filter(|(_, tail)| !tail.is_empty());
        lines.extend(tails.map(|(_, tail)| (found.path.clone(), tail.clone())));
    }
    lines
}

/// Says which of the two files was damaged, if one was.
fn mended_text(directory: &Path, loaded: &Loaded) -> Option<String> {
    let (name, bytes, other) = match loaded.lacks {
        [0, 0] => return None,
        [0, bytes] => (COPY_NAME, bytes, NAME),
        [bytes, _] => (NAME, bytes, COPY_NAME),
    };
    Some(format!(
        "{}: {bytes} bytes were damaged or missing; `{other}` had them, and no line is lost",
        directory.join(name).display()
    ))
}

/// Writes lines that may be damaged into a file for an operator.
fn put_aside(directory: &Path, loaded: &Loaded, lines: &[(String, Vec<u8>)]) -> io::Result<()> {
    let bytes: usize = loaded.holes.iter().map(std::ops::Range::len).sum();
    let count = lines.len();
    let mut text =
        format!("{count} lines; {bytes} bytes of the journal were damaged in both of its files\n")
            .into_bytes();
    for (path, tail) in lines {
        text.extend(format!("--- {path}: {} bytes\n", tail.len()).into_bytes());
        text.extend_from_slice(tail);
        text.push(b'\n');
    }
    let name = (1..)
        .map(|number| format!("{DOUBTFUL_NAME}.{number}"))
        .find(|name| !directory.join(name).exists());
    let name = name.unwrap_or_else(|| DOUBTFUL_NAME.to_owned());
    write_file(directory, &name, &text)?;
    rename_new(directory, &name)
}

/// Says which lines wait for an operator, if any do.
fn doubtful(directory: &Path) -> io::Result<Option<String>> {
    let mut named = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with(DOUBTFUL_NAME) || name.ends_with(".new") {
            continue;
        }
        let mut title = String::new();
        io::BufReader::new(fs::File::open(&path)?.take(TITLE_BYTES_MAX)).read_line(&mut title)?;
        named.push(format!("{} ({})", path.display(), title.trim_end()));
    }
    named.sort();
    Ok((!named.is_empty()).then(|| {
        format!(
            "the journal of unfinished lines was damaged, and lines that may not be whole were not sent: {}. Send on by hand what is right in it; to acknowledge the rest as lost, remove the file and restart Millstream",
            named.join(", ")
        )
    }))
}
