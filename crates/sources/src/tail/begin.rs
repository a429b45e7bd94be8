//! Where the reading of a file that was found begins.

use std::{
    fs, io,
    sync::Arc,
    time::{Instant, SystemTime},
};

use millstream_sys::disk::read_at;

use super::{
    gzip::{self, Form},
    heads::{Likeness, key},
    identity::{
        HEAD_BYTES_MAX, Mark, Stat, begins_as, file_id, generation, read_file_id, read_start,
    },
    known::{Past, Verdict},
    options::{Compressed, Start},
    reader::Begin,
    run::Run,
    scan::Found,
    tracked::{Previous, Tracked},
};
use crate::compressed::is_compressed;

/// A file and where its reader begins.
pub(super) struct Beginning {
    pub tracked: Arc<Tracked>,
    pub begin: Begin,
    /// When the file was last written.
    pub written: SystemTime,
    /// It begins when this one was read to its end.
    pub after: Option<Arc<Tracked>>,
}

impl Beginning {
    fn new(tracked: Arc<Tracked>, begin: Begin, stat: &Stat) -> Self {
        Self {
            tracked,
            begin,
            written: stat.written,
            after: None,
        }
    }
}

impl Run {
    /// Where the reading of a file without a reader begins; None if it is not for us, or cannot be read now.
    pub(super) fn begin(&mut self, found: Found) -> Option<Beginning> {
        if self.was_never_seen(&found) {
            self.known.expect(found.stat.inode, &found.path);
        }
        let past = self.known.find(found.stat.inode);
        // A rotated name is read for the rest of a file that we know, or for all of one that was never seen.
        let is_gz = found
            .path
            .extension()
            .is_some_and(|extension| extension == "gz");
        if !found.matches && !is_gz && past.is_none_or(|past| past.offset == found.stat.len) {
            return None;
        }
        if past.is_none() && self.is_too_old(&found.stat)
            || self.inflated.get(&found.stat.inode) == Some(&found.stat.len)
        {
            return None;
        }
        let beginning = fs::File::open(&found.path).and_then(|file| self.judge(&file, &found));
        let beginning = beginning
            .inspect_err(|error| {
                let path = found.path.display();
                self.refused = Some(format!("cannot read {path}: {error}; retrying"));
            })
            .ok()
            .flatten();
        if let Some(beginning) = &beginning {
            self.remember_former(&beginning.tracked);
        }
        if found.matches && beginning.is_some() {
            // It may be renamed before the first of it is sent, and the next run must find it all the same.
            self.known.expect(found.stat.inode, &found.path);
        }
        beginning
    }

    /// Whether a file with a rotated name was made after the source last ran: then it was rotated before any walk could find
    /// it under the name that matches. Without a birth time nothing tells.
    fn was_never_seen(&self, found: &Found) -> bool {
        let birth = found.stat.inode.birth;
        self.first && !found.matches && birth != 0 && self.ran.is_some_and(|ran| birth > ran.0)
    }

    /// What was there at the first start is begun at its end, if `start` says so, however old it is: what comes is new.
    fn is_too_old(&self, stat: &Stat) -> bool {
        let options = &self.common.options;
        let to_end = self.first && !self.had_run && options.start == Start::End;
        !options.ignore_older.is_zero() && !to_end && stat.age() > options.ignore_older
    }

    /// The same for a compressed file.
    fn judge_gzip(
        &mut self,
        file: &fs::File,
        stat: &Stat,
        found: &Found,
        start: &[u8],
    ) -> io::Result<Option<Beginning>> {
        let begins = |begin| {
            let tracked = Tracked::new(stat.inode, found.path.clone(), None);
            if !found.matches {
                tracked.state().rotated = Some(Instant::now());
            }
            Ok(Some(Beginning::new(tracked, begin, stat)))
        };
        let past = self.known.find(stat.inode);
        let is_wanted = found.matches || past.is_some_and(Past::is_unsent);
        let sent = past.filter(|past| !past.is_unsent());
        if let Some(past) = sent.filter(|past| begins_as(&past.id, start)) {
            if !gzip::is_read(file, stat.len, past.offset)? {
                let place = gzip::Candidate {
                    offset: past.offset,
                    mark: past.mark,
                };
                return begins(Begin::Gzip(Some(past.id), vec![place], false));
            }
            self.inflated.insert(stat.inode, stat.len);
            return Ok(None);
        }
        let text = gzip::first_line(file, HEAD_BYTES_MAX)?;
        let head = key(&file_id(stat.inode, 0, &text));
        let is_source = |tracked: &Arc<Tracked>| tracked.is_source_of(head, &found.path);
        if !text.is_empty()
            && (self.files.values().any(is_source) || self.will_read(found, head)?)
        {
            // What it was made of is still being read, or will be.
            self.deferred = true;
            return Ok(None);
        }
        let mut places = self.common.heads.former(head);
        places.extend(self.known.alike(head));
        // Who begins alike and is known by nothing else may be another: rather twice than not at all.
        places.retain(|place| place.mark.is_some_and(|mark| mark.offset > 0));
        places.sort_by_key(|place| std::cmp::Reverse(place.offset));
        let to_end = self.first && !self.had_run && self.common.options.start == Start::End;
        let is_read = !places.is_empty() || is_wanted && !to_end;
        if !is_read || self.common.options.compressed == Compressed::Skip {
            self.inflated.insert(stat.inode, stat.len);
            return Ok(None);
        }
        begins(Begin::Gzip(None, places, !is_wanted))
    }

    /// Whether what a compressed file is made of still has its name and will get a reader by it: who compresses removes it
    /// last, so as long as it is there a later walk may find it, whatever this one has seen.
    fn will_read(&self, found: &Found, head: u64) -> io::Result<bool> {
        let plain = found.path.with_extension("");
        let Some(stat) = Stat::at(&plain).ok().filter(|stat| stat.is_file) else {
            return Ok(false);
        };
        let is_wanted = match self.known.find(stat.inode) {
            Some(past) => past.offset < stat.len,
            None => self.common.options.patterns.takes(&plain) && !self.is_too_old(&stat),
        };
        if plain == found.path || !is_wanted || self.files.contains_key(&stat.inode) {
            return Ok(false);
        }
        let Ok(file) = fs::File::open(&plain) else {
            return Ok(false);
        };
        Ok(key(&file_id(stat.inode, 0, &read_start(&file)?)) == head)
    }

    fn judge(&mut self, file: &fs::File, found: &Found) -> io::Result<Option<Beginning>> {
        let stat = Stat::of(file)?;
        if stat.inode != found.stat.inode {
            // Another file has the name by now; the next scan tells.
            self.common.scan_wanted.notify_one();
            return Ok(None);
        }
        let start = read_start(file)?;
        match gzip::form(&start, stat.len, &found.path) {
            Form::Plain => {}
            Form::Gzip => return self.judge_gzip(file, &stat, found, &start),
            Form::Unfinished => return Ok(None),
        }
        let begins = |begin, previous| {
            let tracked = Tracked::new(stat.inode, found.path.clone(), previous);
            Some(Beginning::new(tracked, begin, &stat))
        };
        let at_first_start = self.first && !self.had_run;
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
            _ if !found.matches => None,
            Verdict::New if at_first_start && self.common.options.start == Start::End => {
                begins(self.begin_at_end(file, &stat)?, None)
            }
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
                    appeared: false,
                };
                begins(begin, Some(Previous::from(&past)))
            }
        })
    }

    /// Lets copies be recognised of what a file held before it was truncated, where only earlier runs have read it.
    fn remember_former(&mut self, tracked: &Arc<Tracked>) {
        let mut state = tracked.state();
        let former = self.known.take_former(tracked.inode);
        for past in former.iter().rev() {
            state.previous.push_front(Previous::from(past));
        }
        let ids: Vec<_> = state.previous.iter().map(|previous| previous.id).collect();
        drop(state);
        for id in ids {
            self.common.heads.put(&id, tracked);
        }
    }

    /// A file with a rotated name of which nothing was sent: all of it is read, unless it is a copy.
    fn begin_unseen(
        &mut self,
        file: &fs::File,
        stat: &Stat,
        found: &Found,
        start: &[u8],
    ) -> io::Result<Option<Beginning>> {
        if is_compressed(start) {
            let text = format_args!(
                "{} was never read, and cannot be: it is compressed, and not by gzip; to have its lines, decompress it to a \
                 name that `paths` matches",
                found.path.display()
            );
            self.context.reporter.warn("compressed", text);
            self.inflated.insert(stat.inode, stat.len);
            return Ok(None);
        }
        if self.is_copy_of_original(file, stat, found)? {
            let end = Mark::read(file, stat.len)?.unwrap_or_default();
            let id = read_file_id(file, stat.inode, 0)?;
            self.known.set(id, end, &found.path);
            return Ok(None);
        }
        let tracked = Tracked::new(stat.inode, found.path.clone(), None);
        tracked.state().rotated = Some(Instant::now());
        let mut begin = Begin::Fresh {
            generation: 0,
            appeared: false,
        };
        if let Likeness::CopyUpTo(offset) = self.common.heads.likeness(&tracked, file, stat.len)?
            && let Some(mark) = Mark::read(file, offset)?.filter(|mark| mark.offset > 0)
        {
            self.common.announcing();
            begin = Begin::Announce(read_file_id(file, stat.inode, 0)?, mark);
        }
        Ok(Some(Beginning::new(tracked, begin, stat)))
    }

    /// Whether a file whose name this one extends is older and begins with all of it: then it is a copy, and the lines are read
    /// there. What was rotated is older than the file that has its name now.
    fn is_copy_of_original(&self, file: &fs::File, stat: &Stat, found: &Found) -> io::Result<bool> {
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
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// At the start of the line that is being written at the end of the file.
    fn begin_at_end(&self, file: &fs::File, stat: &Stat) -> io::Result<Begin> {
        let window = stat.len.min(self.common.options.line_max as u64 + 1);
        let mut last = Vec::new();
        read_at(file, &mut last, window as usize, stat.len - window)?;
        let offset = match memchr::memrchr(b'\n', &last) {
            Some(newline) => stat.len - window + newline as u64 + 1,
            None if window == stat.len => 0,
            None => stat.len,
        };
        Ok(match Mark::read(file, offset)? {
            Some(mark) if offset > 0 => {
                self.common.announcing();
                Begin::Announce(read_file_id(file, stat.inode, 0)?, mark)
            }
            _ => Begin::Fresh {
                generation: 0,
                appeared: false,
            },
        })
    }
}
