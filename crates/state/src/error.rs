//! The errors of state files.

use std::{
    error, fmt, io,
    path::{Path, PathBuf},
};

/// Why a state file cannot be used. The text names the file and, where an operator has to act, the remedy.
#[derive(Debug)]
pub enum Error {
    /// The disk refused an operation. The operation may succeed later.
    Io {
        /// The operation: "read", "write" and so on.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The content of the file is not valid.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        why: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// The file is larger than any state file that Millstream writes. It was not read.
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// The bound.
        bytes_max: u64,
        /// The remedy.
        remedy: &'static str,
    },
    /// A newer Millstream wrote the file.
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version that this program reads.
        known: u32,
    },
    /// Another process holds the lock of the file.
    InUse {
        /// The file.
        path: PathBuf,
    },
}

impl Error {
    /// Adds the action and the path to an error of the system.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io {
            action,
            path: path.to_owned(),
            error,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io {
                action,
                path,
                error,
            } => write!(f, "cannot {action} {}: {error}", path.display()),
            Self::Damaged { path, why, remedy } => {
                write!(f, "{} is damaged: {why}; {remedy}", path.display())
            }
            Self::TooLarge {
                path,
                bytes,
                bytes_max,
                remedy,
            } => write!(
                f,
                "{} is damaged: it has {bytes} bytes, and Millstream writes at most {} there; {remedy}",
                path.display(),
                Size(*bytes_max)
            ),
            Self::Newer { path, found, known } => write!(
                f,
                "{} has format version {found}, and this Millstream reads up to {known}: run the newer one that wrote it",
                path.display()
            ),
            Self::InUse { path } => {
                write!(f, "{} is in use by another Millstream", path.display())
            }
        }
    }
}

impl error::Error for Error {}

impl From<Error> for io::Error {
    /// A system error keeps its number (errno). Every other error becomes `InvalidData` with its text.
    fn from(error: Error) -> Self {
        match error {
            Error::Io { error, .. } => error,
            other => Self::new(io::ErrorKind::InvalidData, other.to_string()),
        }
    }
}

/// Shows a bound in the largest unit that divides it.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes.is_multiple_of(1 << 20) => write!(f, "{}MiB", bytes >> 20),
            bytes if bytes.is_multiple_of(1 << 10) => write!(f, "{}KiB", bytes >> 10),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}
