//! Where something stands in a configuration file: line, column and length, with the file's own text at hand.
//!
//! Every node, key and problem carries a [`Place`]. The text of the file travels with it (shared), so that a
//! problem can show its line without asking anybody. Columns and lengths count characters, not bytes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One configuration file as it was read: its path as the user wrote it, its text, and when it was read.
pub struct Source {
    path: PathBuf,
    text: String,
    /// Where each line begins, in bytes.
    lines: Vec<usize>,
    order: usize,
}

impl Source {
    /// A file with this path and text; `order` is its rank among the files that were loaded.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, text: impl Into<String>, order: usize) -> Arc<Self> {
        let text = text.into();
        let ends = text.match_indices('\n').map(|(at, _)| at + 1);
        Arc::new(Self {
            path: path.into(),
            lines: std::iter::once(0).chain(ends).collect(),
            text,
            order,
        })
    }

    /// The path as the user gave it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole text, without a byte order mark.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text of a line (from 1), without its end.
    #[must_use]
    pub fn line(&self, number: u32) -> Option<&str> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        let start = *self.lines.get(index)?;
        self.text.get(start..)?.lines().next()
    }
}

// The text may hold passwords, so it stays out of debug output.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

/// A stretch of one line of a configuration file.
#[derive(Clone)]
pub struct Place {
    /// The file.
    pub file: Arc<Source>,
    /// The line, from 1; 0 means the file as a whole.
    pub line: u32,
    /// The column of the first character, from 1.
    pub column: u32,
    /// How many characters it covers on this line; 0 for a value that is not written down.
    pub length: u32,
}

impl Place {
    /// The file as a whole, for what concerns no line of it (it cannot be read, it is empty).
    #[must_use]
    pub fn whole(file: Arc<Source>) -> Self {
        Self {
            file,
            line: 0,
            column: 0,
            length: 0,
        }
    }

    /// A path that could not be read at all.
    #[must_use]
    pub fn path(path: impl Into<PathBuf>, order: usize) -> Self {
        Self::whole(Source::new(path, "", order))
    }

    /// The text that stands at this place, if it is written down.
    #[must_use]
    pub fn slice(&self) -> Option<&str> {
        let line = self.file.line(self.line)?;
        let mut starts = line
            .char_indices()
            .map(|(at, _)| at)
            .chain(std::iter::once(line.len()))
            .skip(usize::try_from(self.column.checked_sub(1)?).ok()?);
        let start = starts.next()?;
        let end = match self.length {
            0 => start,
            length => starts.nth(usize::try_from(length - 1).ok()?)?,
        };
        line.get(start..end)
    }

    /// The part of this place where `text` is written, or the whole place if it is not found there.
    #[must_use]
    pub fn within(&self, text: &str) -> Self {
        let mut part = self.clone();
        let found = self.slice().and_then(|slice| {
            let at = slice.find(text)?;
            let before = u32::try_from(slice.get(..at)?.chars().count()).ok()?;
            Some((before, u32::try_from(text.chars().count()).ok()?))
        });
        if let Some((before, length)) = found {
            part.column += before;
            part.length = length;
        }
        part
    }

    /// A path that is written at this place: a relative one starts at the file it stands in.
    #[must_use]
    pub fn resolve(&self, path: impl AsRef<Path>) -> PathBuf {
        let directory = self.file.path.parent().unwrap_or(Path::new(""));
        directory.join(path)
    }

    /// The order in which problems are shown: by file, line, column.
    pub(crate) fn rank(&self) -> (usize, &Path, u32, u32) {
        (self.file.order, &self.file.path, self.line, self.column)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.path.display())?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}+{}", self.length)
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        (self.rank(), self.length) == (other.rank(), other.length)
    }
}

impl Eq for Place {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_knows_what_is_written_there() {
        let file = Source::new("etc/a.yaml", "a: 1\r\npört: grün\n\nz", 0);
        let at = |line, column, length| Place {
            file: Arc::clone(&file),
            line,
            column,
            length,
        };
        assert_eq!(at(2, 7, 4).slice(), Some("grün"));
        assert_eq!(at(2, 7, 9).slice(), None);
        assert_eq!(at(2, 1, 4).within("ör").column, 2);
        assert_eq!(at(0, 0, 0).slice(), None);
        assert_eq!(at(9, 1, 1).slice(), None);
        assert_eq!(
            [1, 3, 4].map(|n| file.line(n)),
            [Some("a: 1"), Some(""), Some("z")]
        );
        assert_eq!(at(1, 1, 1).resolve("b.pem"), Path::new("etc/b.pem"));
        assert_eq!(at(1, 1, 1).resolve("/b.pem"), Path::new("/b.pem"));
    }
}
