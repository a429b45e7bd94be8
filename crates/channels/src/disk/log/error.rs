//! The errors of a disk channel.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_config::Size;
use millstream_record::Position;
use millstream_sys::no_room::Lack;

/// Why an operation on a channel failed.
#[derive(Clone, Debug)]
pub enum Error {
    /// Another process has the channel open.
    Locked(PathBuf),
    /// A newer program wrote this file.
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format version.
        found: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// The directory holds segments, but the file `channel` with the id of the channel is missing or damaged.
    NoIdentity(PathBuf),
    /// There is no channel in this directory.
    NoChannel(PathBuf),
    /// A disk call failed. If it failed at a start, nothing was changed and the start can be retried. If it failed later, the log has
    /// stopped.
    Disk {
        /// The operation that failed.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: Arc<io::Error>,
    },
    /// The disk is full or read-only. Staged frames (batches that are not written yet) stay staged: call `commit` again later.
    NoRoom {
        /// The file or directory that needs space.
        path: PathBuf,
        /// The missing resource.
        lack: Lack,
        /// How many bytes are needed and free, if known.
        shortage: Option<Shortage>,
        /// The error of the system.
        source: Arc<io::Error>,
    },
    /// `size_max` is reached, or a consumer is further behind than its option `behind` allows. Staged frames stay staged: call `commit`
    /// again when the consumer has settled more.
    Full {
        /// The directory of the channel.
        path: PathBuf,
        /// The consumer that is furthest behind, if there is one.
        consumer: Option<String>,
    },
    /// The directory of the channel, or the newest segment, was removed or replaced. Staged frames stay staged.
    Gone {
        /// The directory of the channel.
        path: PathBuf,
    },
    /// A group is larger than 1 GiB, or the head of one of its frames (tag, values and origins) is larger than 32 MiB.
    TooLarge {
        /// The size of the group, or of the head that is too large.
        bytes: u64,
    },
    /// This cannot be the name of a consumer, because it would not work as a file name.
    Name(String),
    /// The consumer is attached already, or unknown.
    Consumer(String),
    /// The channel has no such consumer.
    UnknownConsumer {
        /// The name.
        name: String,
        /// The consumers that the channel has.
        known: Vec<String>,
    },
    /// The consumer is not removed, because a sink was configured to read for it at the last start.
    Configured(String),
    /// Nothing is kept at this position yet.
    NotKept {
        /// The position.
        to: Position,
        /// The newest position that is kept.
        kept: Position,
    },
}

/// The text of [`Error::Gone`] after the directory.
const GONE: &str = "this directory or the newest segment in it was removed or replaced while the channel was using it; nothing more \
                    is accepted; put it back, or restart to continue with what is there";

/// The text of [`Error::Locked`] after the directory.
const LOCKED: &str = "another process has this channel open";

/// The text of [`Error::NoRoom`] in front of the remedy, and after it.
const NO_ROOM: [&str; 2] = [
    "; the sources wait and nothing is lost: ",
    ", or stop Millstream and move data_dir to another one",
];

/// How much space a full disk lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes that the next step needs.
    pub needed: u64,
    /// Bytes that are free.
    pub free: u64,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (needed, free) = (Size::bytes(self.needed), Size::bytes(self.free));
        let (needed, free) = (needed.rounded(), free.rounded());
        write!(f, "{needed} are needed and {free} are free")
    }
}

impl Error {
    /// Whether the error is temporary: nothing is lost, and the same call may succeed later.
    pub fn is_for_now(&self) -> bool {
        matches!(self, Self::NoRoom { .. } | Self::Full { .. })
    }

    /// Converts an error of a state file.
    pub(super) fn state(doing: &'static str, path: &Path, error: millstream_state::Error) -> Self {
        match error {
            millstream_state::Error::Newer { path, found, known } => {
                Self::Newer { path, found, known }
            }
            error => Self::disk(doing, path, error.into()),
        }
    }

    pub(super) fn disk(doing: &'static str, path: &Path, source: io::Error) -> Self {
        if let Some(lack) = Lack::of(&source, path) {
            return Self::NoRoom {
                path: path.to_owned(),
                lack,
                shortage: None,
                source: Arc::new(source),
            };
        }
        Self::Disk {
            doing,
            path: path.to_owned(),
            source: Arc::new(source),
        }
    }
}

/// Whether the error is ENOSPC, EDQUOT or EROFS: an operator can end all of these while the channel waits.
pub(super) fn is_no_room(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Writes the end of the text of [`Error::NoRoom`].
fn write_shortage(
    f: &mut fmt::Formatter<'_>,
    lack: Lack,
    shortage: Option<Shortage>,
) -> fmt::Result {
    if let Some(shortage) = shortage.filter(|_| lack == Lack::Bytes) {
        write!(f, ": {shortage}")?;
    }
    let [before, after] = NO_ROOM;
    write!(f, "{before}{}{after}", lack.remedy())
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked(path) => write!(f, "{}: {LOCKED}", path.display()),
            Self::Newer { path, found, known } => write!(
                f,
                "{}: the file has format version {found}, but this program knows versions up to {known}; run the newer Millstream \
                 that wrote it",
                path.display()
            ),
            Self::NoIdentity(path) => write!(
                f,
                "{}: the file is missing or damaged, and the directory holds segments; restore it from a backup, or move the directory \
                 of the channel away to begin a new channel",
                path.display()
            ),
            Self::NoChannel(directory) => {
                write!(f, "{}: there is no channel here", directory.display())
            }
            Self::Disk {
                doing,
                path,
                source,
            } => write!(f, "{}: {doing}: {source}", path.display()),
            Self::NoRoom {
                path,
                lack,
                shortage,
                source,
            } => {
                write!(f, "{}: {source}", path.display())?;
                write_shortage(f, *lack, *shortage)
            }
            Self::Full { path, consumer } => {
                write!(f, "{}: the channel is full", path.display())?;
                match consumer {
                    Some(consumer) => write!(f, "; waiting for its consumer {consumer}"),
                    None => write!(f, "; it has no consumer"),
                }
            }
            Self::Gone { path } => write!(f, "{}: {GONE}", path.display()),
            Self::TooLarge { bytes } => {
                write!(
                    f,
                    "a batch of {bytes} bytes is larger than a channel can hold"
                )
            }
            Self::Name(name) => write!(f, "{name:?} cannot be the name of a consumer"),
            Self::Consumer(name) => {
                write!(f, "the consumer {name} is attached already or unknown")
            }
            Self::NotKept { to, kept } => {
                write!(
                    f,
                    "nothing is kept at {to} yet: the newest position is {kept}"
                )
            }
            Self::UnknownConsumer { name, known } if known.is_empty() => {
                write!(f, "the channel has no consumer `{name}`; it has none")
            }
            Self::UnknownConsumer { name, known } => {
                let known = known.join(", ");
                write!(f, "the channel has no consumer `{name}`; it has {known}")
            }
            Self::Configured(name) => write!(
                f,
                "the sink `{name}` read this channel after its last start; if it starts again, it begins at the oldest batch"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Disk { source, .. } | Self::NoRoom { source, .. } => Some(&**source),
            _ => None,
        }
    }
}
