//! A place in a configuration file: line, column and length, with access to the text of the file.
//!
//! Every node, key and problem carries a [`Place`]. A place shares the text of its file, so a problem can print the
//! line. Columns and lengths count characters, not bytes.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// A configuration file: its path as the user wrote it, its text, and its rank among the files.
pub struct Source {
    path: PathBuf,
    text: String,
    /// The offset of each line in bytes.
    lines: Vec<usize>,
    order: usize,
    /// The byte ranges of secrets, which the parser found.
    secrets: OnceLock<Vec<Range<usize>>>,
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
            secrets: OnceLock::new(),
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

    /// The text of a line (numbered from 1), without its line end.
    #[must_use]
    pub fn line(&self, number: u32) -> Option<&str> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        let start = *self.lines.get(index)?;
        self.text.get(start..)?.lines().next()
    }

    /// Notes the byte ranges of secrets. Only the first call has an effect.
    pub(crate) fn note_secrets(&self, mut secrets: Vec<Range<usize>>) {
        // Every alias of a secret notes the range of the secret again.
        secrets.sort_unstable_by_key(|secret| (secret.start, secret.end));
        secrets.dedup();
        let _ = self.secrets.set(secrets);
    }

    /// The byte ranges of secrets; empty if the file was not parsed.
    pub(crate) fn secrets(&self) -> &[Range<usize>] {
        self.secrets.get().map_or(&[], Vec::as_slice)
    }

    /// The offset in bytes of a line and column (both numbered from 1).
    pub(crate) fn offset(&self, line: u32, column: u32) -> Option<usize> {
        let start = *self
            .lines
            .get(usize::try_from(line).ok()?.checked_sub(1)?)?;
        let before = usize::try_from(column.checked_sub(1)?).ok()?;
        let characters = self.text.get(start..)?.chars().take(before);
        Some(start + characters.map(char::len_utf8).sum::<usize>())
    }

    /// The line and column (both numbered from 1) of an offset in bytes.
    pub(crate) fn line_and_column(&self, offset: usize) -> (u32, u32) {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let start = self.lines.get(line - 1).copied().unwrap_or(0);
        let before = self.text.get(start..offset).unwrap_or_default();
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        (number(line), number(before.chars().count() + 1))
    }
}

// The text may hold passwords, so it stays out of debug output.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

/// A range of one line of a configuration file.
#[derive(Clone)]
pub struct Place {
    /// The file.
    pub file: Arc<Source>,
    /// The line, from 1; 0 means the file as a whole.
    pub line: u32,
    /// The column of the first character, from 1.
    pub column: u32,
    /// The number of characters on this line; 0 if the value has no text in the file.
    pub length: u32,
}

impl Place {
    /// The file as a whole. Used for problems that concern no single line: the file cannot be read, or it is empty.
    #[must_use]
    pub fn whole(file: Arc<Source>) -> Self {
        Self {
            file,
            line: 0,
            column: 0,
            length: 0,
        }
    }

    /// The place of a path that could not be read.
    #[must_use]
    pub fn path(path: impl Into<PathBuf>, order: usize) -> Self {
        Self::whole(Source::new(path, "", order))
    }

    /// The text at this place, if there is any.
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

    /// Whether the text at this place is a secret or contains one.
    pub(crate) fn is_secret(&self) -> bool {
        let Some(start) = self.file.offset(self.line, self.column) else {
            return false;
        };
        let end = start + self.slice().map_or(0, str::len);
        let mut secrets = self.file.secrets().iter();
        secrets.any(|secret| secret.start < end && start < secret.end)
    }

    /// Returns the part of this place that holds `text`, or the whole place if `text` does not occur in it.
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

    /// Resolves a path that is written at this place. A relative path is relative to the directory of the configuration
    /// file.
    #[must_use]
    pub fn resolve(&self, path: impl AsRef<Path>) -> PathBuf {
        let directory = self.file.path.parent().unwrap_or(Path::new(""));
        directory.join(path)
    }

    /// The order in which problems are printed: by file, line, column.
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
    fn a_place_gives_its_text_and_resolves_paths() {
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
