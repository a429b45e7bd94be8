//! Recognizes files that were renamed before a scan saw them.
//!
//! A file may be created under a name that matches and renamed before the next scan. Its new name (`app.log.1`) does not match,
//! so the name alone does not show that the file must be read. But the kernel has reported the rename together with the old name,
//! which matches. Such a file may also be compressed before a scan sees it (`app.log.1.gz`).

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use inotify::EventMask;

use super::scan::Patterns;

/// How long a rename is remembered. Within this time, a scan that began after the rename finds the file.
const AGE_MAX: Duration = Duration::from_secs(60);

/// Recent renames of files whose former names match.
#[derive(Debug, Default)]
pub(super) struct Renames {
    /// The cookie by which inotify connects the old and the new name of a rename. Set when the kernel reports an old name that
    /// matches or is in `to`. Cleared when the kernel reports a new name, or an old name for which neither is true.
    begun: Option<u32>,
    /// For each file, its current path, which does not match, and the time of the rename.
    to: HashMap<PathBuf, Instant>,
}

impl Renames {
    /// Notes that the kernel has reported a change of the name `path`. `rename` is inotify's cookie; the reports of the old and
    /// of the new name carry the same cookie.
    pub(super) fn note(
        &mut self,
        mask: EventMask,
        rename: u32,
        path: PathBuf,
        patterns: &Patterns,
    ) {
        if mask.contains(EventMask::ATTRIB) {
            return;
        }
        // The name was removed, or leads to another file now.
        let was_renamed = self.to.remove(&path).is_some();
        let matches = patterns.matches(&path);
        if mask.contains(EventMask::MOVED_FROM) {
            self.begun = (matches || was_renamed).then_some(rename);
        } else if mask.contains(EventMask::MOVED_TO)
            && self.begun.take() == Some(rename)
            && !matches
        {
            self.to.insert(path, Instant::now());
        } else if mask.contains(EventMask::CREATE)
            && path.extension().is_some_and(|end| end == "gz")
            && self.contains(&path.with_extension(""))
        {
            // The renamed file is being compressed, and may be removed before it is read.
            self.to.insert(path, Instant::now());
        }
    }

    /// Forgets renames that are too old.
    pub(super) fn tidy(&mut self) {
        self.to.retain(|_, renamed| renamed.elapsed() < AGE_MAX);
    }

    /// Whether the file at `path` had a name that matches, and was renamed.
    pub(super) fn contains(&self, path: &Path) -> bool {
        self.to.contains_key(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_followed_through_renames_until_another_one_takes_its_name() {
        let patterns = Patterns::new(["/*.log"], []).unwrap();
        let mut renames = Renames::default();
        let mut note = |mask, rename, path: &str| {
            renames.note(mask, rename, path.into(), &patterns);
            ["/a.log.1", "/a.log.2"].map(|path| renames.contains(path.as_ref()))
        };
        let (from, to) = (EventMask::MOVED_FROM, EventMask::MOVED_TO);
        note(from, 1, "/a.log");
        assert_eq!(note(to, 1, "/a.log.1"), [true, false]);
        assert_eq!(note(EventMask::ATTRIB, 0, "/a.log.1"), [true, false]);
        note(from, 2, "/a.log.1");
        assert_eq!(note(to, 2, "/a.log.2"), [false, true]);
        note(from, 3, "/other");
        assert_eq!(note(to, 3, "/a.log.1"), [false, true], "it never matched");
        assert_eq!(note(EventMask::DELETE, 0, "/a.log.2"), [false, false]);
        note(from, 4, "/a.log");
        assert_eq!(note(to, 5, "/a.log.1"), [false, false], "another rename");
        note(from, 6, "/a.log");
        note(to, 6, "/a.log.1");
        let gz = |renames: &mut Renames, mask, rename, path: &str| {
            renames.note(mask, rename, path.into(), &patterns);
            ["/a.log.1.gz", "/a.log.2.gz"].map(|path| renames.contains(path.as_ref()))
        };
        let create = EventMask::CREATE;
        assert_eq!(gz(&mut renames, create, 0, "/a.log.2.gz"), [false, false]);
        assert_eq!(gz(&mut renames, create, 0, "/a.log.1.gz"), [true, false]);
        gz(&mut renames, from, 7, "/a.log.1.gz");
        assert_eq!(gz(&mut renames, to, 7, "/a.log.2.gz"), [false, true]);
        let mut note = |mask, rename, path: &str| {
            renames.note(mask, rename, path.into(), &patterns);
            ["/a.log.1", "/a.log.2"].map(|path| renames.contains(path.as_ref()))
        };
        assert_eq!(note(EventMask::CREATE, 0, "/a.log.1"), [false, false]);
    }
}
