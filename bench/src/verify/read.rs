//! Reads the outputs: files and directories, plain or gzip, raw lines or JSON lines. Counts every record in the [`Account`] of its
//! flow.
//!
//! A record is found by its first bytes ([`MAGIC`]): at the start of a line, after a prefix (as `format: template` writes it), or
//! in a string of a JSON object. The JSON object must be complete. A line without a complete record is corrupt, and so is a last
//! line without a newline.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use flate2::read::MultiGzDecoder;
use memchr::{memchr, memmem::Finder, memrchr};
use serde::de::IgnoredAny;

use super::account::Account;
use crate::record::{self, FlowId, Kind, MAGIC};

/// The bytes of one read. The buffer grows for a longer line, up to [`LINE_MAX`].
const READ: usize = 1 << 20;
/// The maximum length of a line in bytes. A longer line is an error. Every line with a record is shorter, even if JSON escapes
/// each byte of the longest record as six bytes.
const LINE_MAX: usize = 8 * record::TEXT_MAX;
/// The maximum number of corrupt lines that are listed.
const NAMED_MAX: usize = 10;
/// The bytes of a corrupt line that are shown.
const SHOWN: usize = 100;

/// A line without a complete record.
#[derive(Clone, Debug, serde::Serialize)]
pub struct CorruptLine {
    /// The file.
    pub path: PathBuf,
    /// The number of the line, from 1.
    pub line: u64,
    /// Why it is corrupt.
    pub reason: &'static str,
    /// The beginning of the line.
    pub text: String,
}

/// The result of reading all files.
#[derive(Default)]
pub struct Outputs {
    /// The counts of each flow.
    pub flows: BTreeMap<FlowId, Account>,
    /// Files read.
    pub files: u64,
    /// Bytes read, after decompression.
    pub bytes: u64,
    /// Lines without a whole record.
    pub corrupt: u64,
    /// The first corrupt lines.
    pub named: Vec<CorruptLine>,
    /// Only records of this run count; others are skipped.
    pub only_run: Option<u32>,
    /// Records of other runs.
    pub other_runs: u64,
}

/// All files below these paths, in order of name. Hidden files are left out, because many programs use them for work in progress.
pub fn files(paths: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    // Directories are walked with a stack instead of recursion. The files below each path are sorted when all are found.
    for path in paths {
        let from = found.len();
        let mut open = vec![path.clone()];
        while let Some(path) = open.pop() {
            let name = |error: io::Error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            };
            if !fs::metadata(&path).map_err(name)?.is_dir() {
                found.push(path);
                continue;
            }
            for entry in fs::read_dir(&path).map_err(name)? {
                let entry = entry.map_err(name)?;
                // Links to directories are skipped, because one may lead to a parent directory.
                let link = entry.file_type().map_err(name)?.is_symlink();
                let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
                let loops = link && entry.path().is_dir();
                if !(hidden || loops) {
                    open.push(entry.path());
                }
            }
        }
        found[from..].sort();
    }
    Ok(found)
}

/// The state of reading one file.
struct Reading<'a> {
    outputs: &'a mut Outputs,
    path: &'a Path,
    line: u64,
    /// For each flow, one more than its highest number in this file.
    order: BTreeMap<FlowId, u64>,
    finder: Finder<'static>,
}

impl Outputs {
    /// Reads one file.
    pub fn read(&mut self, path: &Path) -> io::Result<()> {
        let name =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = File::open(path).map_err(name)?;
        self.files += 1;
        let mut reading = Reading {
            outputs: self,
            path,
            line: 0,
            order: BTreeMap::new(),
            finder: Finder::new(MAGIC),
        };
        if path.extension().is_some_and(|ending| ending == "gz") {
            reading.all(MultiGzDecoder::new(file)).map_err(name)
        } else {
            reading.all(file).map_err(name)
        }
    }
}

impl Reading<'_> {
    fn all(&mut self, mut input: impl Read) -> io::Result<()> {
        let mut buffer = vec![0; READ];
        let mut filled = 0;
        loop {
            let read = match input.read(&mut buffer[filled..]) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    self.line += 1;
                    self.corrupt("the compressed file is cut short", &[]);
                    0
                }
                Err(error) => return Err(error),
            };
            self.outputs.bytes += read as u64;
            if read == 0 {
                break;
            }
            let fresh = filled..filled + read;
            filled = fresh.end;
            let Some(end) = memrchr(b'\n', &buffer[fresh.clone()]) else {
                if filled == buffer.len() {
                    self.widen(&mut buffer)?;
                }
                continue;
            };
            let end = fresh.start + end + 1;
            self.lines(&buffer[..end]);
            buffer.copy_within(end..filled, 0);
            filled -= end;
        }
        if filled > 0 {
            self.line += 1;
            self.corrupt("the last line has no newline", &buffer[..filled]);
        }
        Ok(())
    }

    fn widen(&self, buffer: &mut Vec<u8>) -> io::Result<()> {
        if buffer.len() >= LINE_MAX {
            let what = format!("line {} is longer than any record could be", self.line + 1);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        buffer.resize(buffer.len() * 2, 0);
        Ok(())
    }

    /// Reads complete lines.
    fn lines(&mut self, mut rest: &[u8]) {
        let mut last: Option<FlowId> = None;
        let mut order = 0;
        while let Some(end) = memchr(b'\n', rest) {
            let line = &rest[..end];
            rest = &rest[end + 1..];
            self.line += 1;
            let record = match self.record(line) {
                Ok(record) => record,
                Err(reason) => {
                    self.corrupt(reason, line);
                    continue;
                }
            };
            if self
                .outputs
                .only_run
                .is_some_and(|run| run != record.flow.run)
            {
                self.outputs.other_runs += 1;
                continue;
            }
            if last != Some(record.flow) {
                if let Some(last) = last {
                    self.order.insert(last, order);
                }
                order = self.order.get(&record.flow).copied().unwrap_or(0);
                last = Some(record.flow);
            }
            let account = self.outputs.flows.entry(record.flow).or_default();
            match record.kind {
                Kind::Data => account.data(record.number, &mut order),
                Kind::End => account.finish(record.number),
            }
        }
        if let Some(last) = last {
            self.order.insert(last, order);
        }
    }

    /// The record in a line, or the defect of the line.
    fn record(&self, line: &[u8]) -> Result<record::Record, &'static str> {
        let broken = "the record's bytes do not fit its number";
        if line.starts_with(MAGIC) {
            return record::check(line).ok_or(broken);
        }
        let json = line.starts_with(b"{");
        if json && serde_json::from_slice::<IgnoredAny>(line).is_err() {
            return Err("not a whole JSON object");
        }
        let at = self.finder.find(line).ok_or("no record in it")?;
        if !json {
            return record::check(&line[at..]).ok_or(broken);
        }
        let text = &line[at..];
        // The object is complete and a record contains no quotes, so the next quote ends the string. A writer may escape any
        // character, so escapes are undone before the check.
        let end = memchr(b'"', text).ok_or(broken)?;
        let text = unescape(&text[..end]).ok_or(broken)?;
        record::check(&text).ok_or(broken)
    }

    fn corrupt(&mut self, reason: &'static str, line: &[u8]) {
        self.outputs.corrupt += 1;
        if self.outputs.named.len() < NAMED_MAX {
            let shown = &line[..line.len().min(SHOWN)];
            self.outputs.named.push(CorruptLine {
                path: self.path.to_owned(),
                line: self.line,
                reason,
                text: String::from_utf8_lossy(shown).into_owned(),
            });
        }
    }
}

/// The content of a JSON string, with its escapes undone; `None` if an escape is invalid.
fn unescape(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    if memchr(b'\\', text).is_none() {
        return Some(Cow::Borrowed(text));
    }
    let quoted = [b"\"", text, b"\""].concat();
    let plain: String = serde_json::from_slice(&quoted).ok()?;
    Some(Cow::Owned(plain.into_bytes()))
}
