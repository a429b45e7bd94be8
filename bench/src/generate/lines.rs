//! Writes numbered lines to a file or to standard output. The lines belong to several flows (independently numbered sequences). The
//! flows take turns, and each writes a chunk of consecutive lines.
//!
//! Lines are appended to a file. If the path no longer refers to the open file, for example because logrotate renamed the file, the
//! next write opens the file at the path, or creates it. A daemon that reopens its log after a signal does the same. A line is never
//! split between two files.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use super::{
    chunk::Chunk,
    plan::{Next, Pace, Plan},
    sender::Sent,
};

/// The destination of lines.
pub enum Output {
    /// A file that is opened by name.
    Path {
        /// The name.
        path: PathBuf,
        /// The file that the name referred to at the last check.
        file: File,
    },
    /// Standard output.
    Stdout(File),
}

impl Output {
    /// Opens or creates the file.
    pub fn file(path: &Path) -> io::Result<Self> {
        Ok(Self::Path {
            path: path.to_owned(),
            file: append(path)?,
        })
    }

    /// Standard output, without the line buffer of the standard library.
    pub fn stdout() -> io::Result<Self> {
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        Ok(Self::Stdout(stdout.into()))
    }

    fn current(&mut self) -> io::Result<&mut File> {
        match self {
            Self::Stdout(file) => Ok(file),
            Self::Path { path, file } => {
                let identity = |found: std::fs::Metadata| (found.dev(), found.ino());
                let named = std::fs::metadata(&*path).map(identity).ok();
                if named != Some(identity(file.metadata()?)) {
                    *file = append(path)?;
                }
                Ok(file)
            }
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// One flow of lines.
pub struct Flow {
    /// Decides which records are next.
    pub plan: Plan,
    /// Builds the bytes of the records that `plan` chose.
    pub chunk: Chunk,
}

/// Writes all flows. With `single_writes`, each line is written with its own system call.
pub fn run(
    output: &mut Output,
    mut flows: Vec<Flow>,
    mut pace: Pace,
    single_writes: bool,
) -> io::Result<Sent> {
    let mut sent = Sent::default();
    while !flows.is_empty() {
        let mut at = 0;
        while let Some(flow) = flows.get_mut(at) {
            let span = match flow.plan.next() {
                Next::Data(span) => {
                    pace.wait(span.count);
                    sent.records += u64::from(span.count);
                    span
                }
                Next::End(span) => span,
                Next::Nothing => {
                    flows.swap_remove(at);
                    continue;
                }
            };
            let bytes = flow.chunk.fill(span);
            let each = match single_writes {
                true => bytes.len() / span.count as usize,
                false => bytes.len(),
            };
            for piece in bytes.chunks(each) {
                output.current()?.write_all(piece)?;
            }
            sent.bytes += bytes.len() as u64;
            at += 1;
        }
    }
    sent.drained = true;
    Ok(sent)
}
