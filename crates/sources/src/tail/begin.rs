//! Where the reading of a file that was found begins.

use std::{fs, io, sync::Arc, time::Instant};

use millstream_sys::disk::read_at;

use super::{
    Start,
    identity::{Mark, Stat, generation, read_file_id},
    known::Verdict,
    reader::Begin,
    run::{Run, open},
    scan::Found,
    tracked::{Previous, Tracked},
};

/// A file and where its reader begins.
pub(super) struct Beginning {
    pub tracked: Arc<Tracked>,
    pub begin: Begin,
}

impl Run {
    /// Where the reading of a file without a reader begins; None if it is not for us, or cannot be read now.
    pub(super) fn begin(&mut self, found: Found) -> Option<Beginning> {
        let past = self.known.find(found.stat.inode);
        // A rotated name is read for the rest of a file that we know, and for nothing else.
        if !found.matches && past.is_none_or(|past| past.offset == found.stat.len) {
            return None;
        }
        let file = open(&found, &self.context)?;
        let beginning = self.judge(&file, &found);
        beginning
            .inspect_err(|error| {
                let text = format_args!(
                    "cannot read {}: {error}; it is tried again",
                    found.path.display()
                );
                self.context.reporter.warn("unreadable", text);
            })
            .ok()
            .flatten()
    }

    fn judge(&mut self, file: &fs::File, found: &Found) -> io::Result<Option<Beginning>> {
        let stat = Stat::of(file)?;
        if stat.inode != found.stat.inode {
            // Another file has the name by now; the next scan tells.
            self.common.scan_wanted.notify_one();
            return Ok(None);
        }
        let begins = |begin, previous| {
            let tracked = Tracked::new(stat.inode, found.path.clone(), previous);
            Some(Beginning { tracked, begin })
        };
        let at_first_start = self.first && !self.had_run;
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
                let previous = Previous {
                    id: past.id,
                    settled: past.offset,
                    marks: past.mark.into_iter().collect(),
                    noticed: Instant::now(),
                };
                let generation = generation(&past.id).wrapping_add(1);
                let beginning = begins(
                    Begin::Fresh {
                        generation,
                        appeared: false,
                    },
                    Some(previous),
                );
                if let Some(beginning) = &beginning {
                    self.common.heads.put(&past.id, &beginning.tracked);
                }
                beginning
            }
        })
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
