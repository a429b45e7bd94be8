//! Decides which of the files that a scan found get a reader, and where each reader begins.
//!
//! Terms of `identity.rs`: a mark is an offset in a file and a checksum of the bytes before it. The head of a file is a checksum
//! of its first line. A rotated name (`app.log.1`) is a name that `paths` matches (`app.log`), plus a suffix that log rotation
//! added.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use millstream_pipeline::report::Reporter;
use millstream_record::{FileId, Time};
use millstream_sys::disk::read_at;

use super::{
    begin::{Begin, Beginning, GzipBegin},
    blank::written_end,
    done::WhenDone,
    ends::Ended,
    gzip::{self, Form},
    heads::Likeness,
    identity::{
        Candidate, HEAD_BYTES_MAX, Inode, Mark, Seen, Stat, begins_as, begins_otherwise, file_id,
        generation, head_key, is_text, read_file_id, read_start,
    },
    known::{Known, Past, Verdict},
    names::{is_numbered, is_rotated},
    options::{Compressed, Start},
    renames::Renames,
    scan::FoundFile,
    source_state::SourceState,
    tracked::{Previous, Tracked},
};
use crate::compressed::is_compressed;

/// The files that have a reader.
pub(super) type Files = HashMap<Inode, Arc<Tracked>>;

/// The number of overwritten files whose compressed copies are expected.
const UNREAD_MAX: usize = 64;

/// Decides which files get a reader.
pub(super) struct Admission {
    common: Arc<SourceState>,
    reporter: Reporter,
    /// The files without a reader.
    pub known: Known,
    /// Whether an earlier run left positions, in the positions file or in a durable channel. If so, a file without a position has
    /// appeared since that run, and is read from its beginning even with `start: end`.
    had_run: bool,
    /// True until the first scan of this run is finished.
    first: bool,
    /// When the last scan began. Until the first scan of this run is finished, this is the time of the last scan of an earlier run.
    /// None if there was no earlier scan.
    ran: Option<Time>,
    /// Files that need no reader until they change: compressed files that were read or are to be skipped, and renamed files of which
    /// only unwritten bytes are left.
    done: HashMap<Inode, Seen>,
    /// Renamed files that were overwritten. They are not read again.
    overwritten: HashSet<Inode>,
    /// Of the overwritten files, those of which nothing was sent: their first bytes and their paths. Their compressed copies are read.
    unread: VecDeque<(FileId, PathBuf)>,
    /// Whether a compressed file has to wait until its original, the file that was compressed, is read.
    deferred: bool,
    /// The error of the last file that the current scan could not open.
    refused: Option<String>,
}

impl Admission {
    pub(super) fn new(
        common: Arc<SourceState>,
        reporter: Reporter,
        known: Known,
        had_run: bool,
        ran: Option<Time>,
    ) -> Self {
        Self {
            common,
            reporter,
            known,
            had_run,
            first: true,
            ran,
            done: HashMap::new(),
            overwritten: HashSet::new(),
            unread: VecDeque::new(),
            deferred: false,
            refused: None,
        }
    }

    /// True until the first scan of this run is finished.
    pub(super) fn is_first(&self) -> bool {
        self.first
    }

    /// When the last scan began; None if no scan has finished yet.
    pub(super) fn ran(&self) -> Option<Time> {
        self.ran
    }

    /// Whether a compressed file has to wait until its original is read.
    pub(super) fn is_deferred(&self) -> bool {
        self.deferred
    }

    /// Returns a beginning for each file that gets a reader. `found` is the result of the scan that began at `ran`, and `files`
    /// are the files that already have a reader.
    pub(super) fn admit(
        &mut self,
        found: Vec<FoundFile>,
        files: &Files,
        renames: Option<&Renames>,
        ran: Time,
    ) -> Vec<Beginning> {
        let seen: HashSet<_> = found.iter().map(|found| found.stat.inode).collect();
        self.done.retain(|inode, _| seen.contains(inode));
        self.overwritten.retain(|inode| seen.contains(inode));
        self.deferred = false;
        self.refused = None;
        // The channel may also have positions of other sources. So its positions count only if one of them belongs to a file that was
        // found.
        let mut inodes = seen.iter();
        self.had_run |= self.first && inodes.any(|inode| self.known.find(*inode).is_some());
        let mut beginnings = Vec::new();
        for found in found {
            self.known.touch(found.stat.inode);
            if files.contains_key(&found.stat.inode) {
                continue;
            }
            let is_renamed = renames.is_some_and(|renames| renames.contains(&found.path));
            if self.was_never_seen(&found) || is_renamed && !self.is_too_old(&found.stat) {
                self.known.expect(&found.stat, &found.path);
            }
            beginnings.extend(self.begin(&found, files));
        }
        self.first = false;
        self.ran = Some(ran);
        beginnings
    }

    /// The error of the last file that the last scan could not open. None if the scan opened all files.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Remembers the position of a reader that has ended.
    pub(super) fn readmit(&mut self, ended: &Ended, tracked: Option<&Tracked>) {
        if let Some(seen) = ended.read {
            self.done.insert(ended.inode, seen);
        }
        if ended.overwritten {
            self.overwritten.insert(ended.inode);
            let state = tracked.map(Tracked::state);
            if let Some((state, start)) =
                state.and_then(|state| state.start.map(|start| (state, start)))
                && ended.left_at.is_none()
            {
                self.unread.truncate(UNREAD_MAX - 1);
                self.unread.push_front((start, state.path.clone()));
            }
        }
        if let (Some(tracked), Some((id, mark))) = (tracked, ended.left_at) {
            self.known.set(id, mark, ended.left, &tracked.state().path);
        }
    }

    /// Whether this is the first scan of the first run.
    fn is_first_start(&self) -> bool {
        self.first && !self.had_run
    }

    /// Decides where to begin reading a file that has no reader. Returns None if it must not be read, or cannot be read now.
    fn begin(&mut self, found: &FoundFile, files: &Files) -> Option<Beginning> {
        let past = self.known.find(found.stat.inode);
        // A file under a rotated name is read only if it is known and has unread bytes. Files that no earlier scan has seen are known,
        // too: `admit` has added them with offset 0. Compressed files are checked in `judge_gzip`.
        let is_gz = found
            .path
            .extension()
            .is_some_and(|extension| extension == "gz");
        if !found.matches && !is_gz && past.is_none_or(|past| past.offset == found.stat.len) {
            return None;
        }
        if past.is_none() && self.is_too_old(&found.stat)
            || self.done.get(&found.stat.inode) == Some(&found.stat.seen())
            || self.overwritten.contains(&found.stat.inode)
        {
            return None;
        }
        let file = fs::File::open(&found.path);
        let beginning = match file.and_then(|file| self.judge(&file, found, files)) {
            Ok(beginning) => beginning?,
            Err(error) => {
                let path = found.path.display();
                self.refused = Some(format!("cannot read {path}: {error}; retrying"));
                return None;
            }
        };
        self.remember_former(&beginning.tracked);
        if found.matches {
            // Remembers the inode now: if the file is renamed before its first batch is sent, the next run still recognizes it.
            self.known.expect(&found.stat, &found.path);
        }
        Some(beginning)
    }

    /// Whether a file under a rotated name was created after the last scan of an earlier run, so that no scan has seen it under
    /// its original name. False if the file system keeps no birth time.
    fn was_never_seen(&self, found: &FoundFile) -> bool {
        let birth = found.stat.inode.birth;
        self.first && !found.matches && birth != 0 && self.ran.is_some_and(|ran| birth > ran.0)
    }

    /// Whether `ignore_older` excludes a file. In the first scan of the first run, `ignore_older` excludes no file if `start` is
    /// `end`: old lines are then skipped anyway, and lines that are appended later must be read.
    fn is_too_old(&self, stat: &Stat) -> bool {
        let options = &self.common.options;
        let to_end = self.is_first_start() && options.start == Start::End;
        !options.ignore_older.is_zero() && !to_end && stat.age() > options.ignore_older
    }

    /// Decides where to begin reading a compressed file. Returns None if it needs no reader, or has to wait for its original.
    fn judge_gzip(
        &mut self,
        file: &fs::File,
        stat: &Stat,
        found: &FoundFile,
        start: &[u8],
        files: &Files,
    ) -> io::Result<Option<Beginning>> {
        let begins = |begin| {
            let tracked = Tracked::new(stat.inode, found.path.clone(), None);
            if !found.matches {
                tracked.state().rotated = Some(Instant::now());
            }
            Ok(Some(Beginning::new(tracked, Begin::Gzip(begin), stat)))
        };
        let past = self.known.find(stat.inode);
        let is_expected = found.matches || past.is_some_and(Past::is_unsent);
        let sent = past.filter(|past| !past.is_unsent());
        if let Some(past) = sent.filter(|past| begins_as(&past.id, start)) {
            // Even a file that was read needs a reader if it has to be removed or renamed.
            let has_to_be_done = found.matches && self.common.options.when_done != WhenDone::Keep;
            if has_to_be_done || !gzip::is_read(file, stat.len, past.offset)? {
                let place = Candidate {
                    path: found.path.clone(),
                    offset: past.offset,
                    mark: past.mark,
                };
                return begins(GzipBegin {
                    id: Some(past.id),
                    candidates: vec![place],
                    only_candidates: false,
                });
            }
            self.done.insert(stat.inode, stat.seen());
            return Ok(None);
        }
        let text = gzip::first_line(file, HEAD_BYTES_MAX)?;
        let was_unread = |(start, path): &(FileId, PathBuf)| {
            begins_as(start, &text) && self.may_come_from(found, path)
        };
        let is_wanted = is_expected || self.unread.iter().any(was_unread);
        let head = head_key(&file_id(stat.inode, 0, &text));
        let is_source = |tracked: &Arc<Tracked>| tracked.is_source_of(head, &found.path);
        if !text.is_empty()
            && (files.values().any(is_source) || self.will_read(found, head, files)?)
        {
            // The original is still being read, or will get a reader.
            self.deferred = true;
            return Ok(None);
        }
        let mut places = self.common.heads.former(head);
        places.extend(self.known.alike(head));
        // A candidate (an offset at which reading may continue) is used only with a mark, and if the name of the file can come from
        // that of the candidate. Otherwise the candidate may belong to an unrelated file. If no candidate is left, a file that `paths` matches is
        // read from its beginning. Reading lines twice is better than losing them.
        places.retain(|place| {
            let has_mark = place.mark.is_some_and(|mark| mark.offset > 0);
            has_mark && self.may_come_from(found, &place.path)
        });
        places.sort_by_key(|place| std::cmp::Reverse(place.offset));
        let to_end = self.is_first_start() && self.common.options.start == Start::End;
        let is_read = !places.is_empty() || is_wanted && !to_end;
        if !is_read || self.common.options.compressed == Compressed::Skip {
            self.done.insert(stat.inode, stat.seen());
            return Ok(None);
        }
        begins(GzipBegin {
            id: None,
            candidates: places,
            only_candidates: !is_wanted,
        })
    }

    /// Whether a compressed file can be, by its name, the compressed form of the file that was read at `original`.
    fn may_come_from(&self, found: &FoundFile, original: &Path) -> bool {
        let is_gz = found.path.extension().is_some_and(|end| end == "gz");
        let plain = match is_gz {
            true => found.path.with_extension(""),
            false => found.path.clone(),
        };
        // A rotated file may be rotated once more before it is compressed: `app.log.1` becomes `app.log.2.gz`. If the compressed
        // file is read in any case, the name must have a number like this one, or the current log must exist, because `app-1` and
        // `app-2.gz` may be unrelated.
        let mut firsts = self.common.options.patterns.originals(original);
        plain == original
            || is_rotated(&found.path, original)
            || is_rotated(&plain, original)
            || firsts.any(|first| {
                let is_chain = !found.matches || is_numbered(original, &first) || first.exists();
                is_chain && is_rotated(&plain, &first)
            })
    }

    /// Whether the original of a compressed file still exists under the same name without `.gz`, and will get a reader. A
    /// compressor removes the original last. While the original exists, a later scan finds it, even if this scan did not.
    fn will_read(&self, found: &FoundFile, head: u64, files: &Files) -> io::Result<bool> {
        let plain = found.path.with_extension("");
        let Some(stat) = Stat::at(&plain).ok().filter(|stat| stat.is_file) else {
            return Ok(false);
        };
        let is_wanted = match self.known.find(stat.inode) {
            Some(past) => past.offset < stat.len,
            None => self.common.options.patterns.matches(&plain) && !self.is_too_old(&stat),
        };
        if plain == found.path || !is_wanted || files.contains_key(&stat.inode) {
            return Ok(false);
        }
        let Ok(file) = fs::File::open(&plain) else {
            return Ok(false);
        };
        Ok(head_key(&file_id(stat.inode, 0, &read_start(&file)?)) == head)
    }

    fn judge(
        &mut self,
        file: &fs::File,
        found: &FoundFile,
        files: &Files,
    ) -> io::Result<Option<Beginning>> {
        let stat = Stat::of(file)?;
        if stat.inode != found.stat.inode {
            // Since the scan, another file has taken the name. The next scan decides about both.
            self.common.scan_wanted.notify_one();
            return Ok(None);
        }
        let start = read_start(file)?;
        match gzip::form(&start, stat.len, &found.path) {
            Form::Plain if is_compressed(&start) => {
                self.skip_compressed(&stat, found);
                return Ok(None);
            }
            Form::Plain => {}
            Form::Gzip => return self.judge_gzip(file, &stat, found, &start, files),
            Form::Unfinished => return Ok(None),
        }
        let begins = |begin, previous| {
            let tracked = Tracked::new(stat.inode, found.path.clone(), previous);
            if matches!(begin, Begin::Fresh { .. }) {
                tracked.state().start = Some(file_id(stat.inode, 0, &start));
            }
            Some(Beginning::new(tracked, begin, &stat))
        };
        let at_first_start = self.is_first_start();
        let is_unsent = self.known.find(stat.inode).is_some_and(Past::is_unsent);
        if is_unsent && !found.matches {
            return self.begin_unseen(file, &stat, found, &start);
        }
        Ok(match self.known.judge(file, &stat)? {
            Verdict::Continues(id, mark) => {
                let beginning = begins(Begin::At(id, mark), None);
                if let Some(beginning) = beginning.as_ref().filter(|_| !found.matches) {
                    beginning.tracked.state().rotated = Some(Instant::now());
                }
                beginning
            }
            Verdict::Replaced(past) if past.is_overwritten(&stat, &found.path) => {
                self.overwritten.insert(stat.inode);
                let path = found.path.to_string_lossy();
                self.common
                    .report_overwritten(&self.reporter, &path, past.offset, stat.len);
                None
            }
            _ if !found.matches => None,
            Verdict::New if at_first_start && self.common.options.start == Start::End => {
                begins(self.begin_at_end(file, &stat)?, None)
            }
            Verdict::New if self.was_compressed(&stat, found, &start)? => None,
            Verdict::New => {
                let appeared = !at_first_start;
                begins(
                    Begin::Fresh {
                        generation: 0,
                        appeared,
                    },
                    None,
                )
            }
            Verdict::Replaced(past) => {
                let begin = Begin::Fresh {
                    generation: generation(&past.id).wrapping_add(1),
                    // A script may have copied its log to an existing file.
                    appeared: true,
                };
                begins(begin, Some(Previous::from(&past)))
            }
        })
    }

    /// Skips a file that was compressed by a program other than gzip.
    fn skip_compressed(&mut self, stat: &Stat, found: &FoundFile) {
        let is_unsent = self.known.find(stat.inode).is_some_and(Past::is_unsent);
        let path = found.path.display();
        if self.first || is_unsent && !found.matches {
            let text = format_args!(
                "{path} was never read and cannot be read: it is compressed, but not by gzip; to get its lines, decompress it \
                 to a name that `paths` matches"
            );
            self.reporter.warn("compressed", text);
        } else {
            // Usually the original was read before it was rotated and compressed.
            let text =
                format_args!("{path} is not read, because it is compressed, and not by gzip");
            self.reporter.info("compressed", text);
        }
        self.done.insert(stat.inode, stat.seen());
    }

    /// Adds the former contents of the inode, which earlier runs read before the file was truncated. Copies of these contents
    /// are then recognized.
    fn remember_former(&mut self, tracked: &Arc<Tracked>) {
        let mut state = tracked.state();
        let former = self.known.remove_former(tracked.inode);
        for past in former.iter().rev() {
            state.previous.push_front(Previous::from(past));
        }
        let ids: Vec<_> = state.previous.iter().map(|previous| previous.id).collect();
        drop(state);
        for id in ids {
            self.common.heads.put(&id, tracked);
        }
    }

    /// Decides where to begin reading a file that has a rotated name, and of which no byte was sent yet. If the file is a copy,
    /// reading begins after the part of the original that was read. Otherwise it begins at the first byte. Returns None if the file
    /// must not be read.
    fn begin_unseen(
        &mut self,
        file: &fs::File,
        stat: &Stat,
        found: &FoundFile,
        start: &[u8],
    ) -> io::Result<Option<Beginning>> {
        if self.was_compressed(stat, found, start)? {
            return Ok(None);
        }
        if let Some(original) = self.original_of_copy(file, stat, found)? {
            let path = found.path.to_string_lossy();
            self.common
                .report_copy(&self.reporter, stat.len, &path, &original);
            let end = Mark::read(file, stat.len)?.unwrap_or_default();
            let id = read_file_id(file, stat.inode, 0)?;
            self.known.set(id, end, None, &found.path);
            return Ok(None);
        }
        let tracked = Tracked::new(stat.inode, found.path.clone(), None);
        tracked.state().rotated = Some(Instant::now());
        tracked.state().start = Some(file_id(stat.inode, 0, start));
        let mut begin = Begin::Fresh {
            generation: 0,
            appeared: false,
        };
        if let Likeness::CopyUpTo(offset, original) =
            self.common.heads.likeness(&tracked, file, stat.len)?
            && let Some(mark) = Mark::read(file, offset)?.filter(|mark| mark.offset > 0)
        {
            let path = found.path.to_string_lossy();
            self.common
                .report_copy(&self.reporter, offset, &path, &original);
            self.common.signal.announcing();
            begin = Begin::Announce(read_file_id(file, stat.inode, 0)?, mark);
        }
        Ok(Some(Beginning::new(tracked, begin, stat)))
    }

    /// Whether the rotated file was compressed and is being overwritten: it begins with no text, and the compressed copy beside it begins
    /// otherwise and is newer. The copy is then read instead.
    fn was_compressed(&mut self, stat: &Stat, found: &FoundFile, start: &[u8]) -> io::Result<bool> {
        let mut path = found.path.clone().into_os_string();
        path.push(".gz");
        let path = PathBuf::from(path);
        let options = &self.common.options;
        let is_rotated = options.patterns.originals(&found.path).next().is_some();
        if !is_rotated
            || is_text(start)
            || options.compressed == Compressed::Skip
            || !options.patterns.finds(&path)
        {
            return Ok(false);
        }
        let Ok(file) = fs::File::open(&path) else {
            return Ok(false);
        };
        let text = gzip::first_line(&file, HEAD_BYTES_MAX)?;
        let id = file_id(stat.inode, 0, &text);
        let copy = Stat::of(&file)?;
        let is_newer = copy.inode.birth > stat.inode.birth;
        let is_other = is_newer && !text.is_empty() && begins_otherwise(&id, start);
        if is_other {
            self.known.expect(&copy, &path);
        }
        Ok(is_other)
    }

    /// The path of the original, if the file is a copy of an original whose lines are read anyway. This is so if an older file (the
    /// original) begins with the same bytes, and the name of the file is that of the original with a suffix. A file that was only renamed is older than the
    /// file that has its original name now, so it is not taken for a copy.
    fn original_of_copy(
        &self,
        file: &fs::File,
        stat: &Stat,
        found: &FoundFile,
    ) -> io::Result<Option<PathBuf>> {
        let id = read_file_id(file, stat.inode, 0)?;
        for path in self.common.options.patterns.originals(&found.path) {
            let Ok(original) = fs::File::open(&path) else {
                continue;
            };
            let there = Stat::of(&original)?;
            if there.inode.birth != 0
                && there.inode.birth < stat.inode.birth
                && begins_as(&id, &read_start(&original)?)
                && Mark::read(&original, stat.len)? == Mark::read(file, stat.len)?
            {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Begins at the end. If the last line has no newline yet, begins at the start of that line, so that a line that is being written
    /// is read whole.
    fn begin_at_end(&self, file: &fs::File, stat: &Stat) -> io::Result<Begin> {
        let mut framer = self.common.options.framer.clone();
        framer.begins_with(&read_start(file)?);
        let unit = framer.unit() as u64;
        let end = written_end(file, stat.len, unit)?;
        let end = end - end % unit;
        let longest = self.common.options.line_max as u64 + 1;
        let window = longest.next_multiple_of(unit).min(end);
        let mut last = Vec::new();
        read_at(file, &mut last, window as usize, end - window)?;
        let offset = match framer.last_line(&last) {
            Some(start) => end - window + start as u64,
            None if window == end => 0,
            None => end,
        };
        Ok(match Mark::read(file, offset)? {
            Some(mark) if offset > 0 => {
                self.common.signal.announcing();
                Begin::Announce(read_file_id(file, stat.inode, 0)?, mark)
            }
            _ => Begin::Fresh {
                generation: 0,
                appeared: false,
            },
        })
    }
}
