//! The destination of a publishing sink: outputs that stay hidden until they are published, and small files that are created
//! only if they are absent.
//!
//! `encode -> [write] -> settle`
//!
//! A temporary failure (`Again::Later`) ends the run of the sink: the next one recovers and reads the records again that no
//! manifest names. A store should retry repeatable requests itself ([`super::Patience`]).

use millstream_pipeline::failure::Failure;

/// The longest path component that file systems and HDFS accept.
const PART_BYTES_MAX: usize = 255;
/// The longest directory: object stores accept 1,024 bytes including the file name.
const DIRECTORY_BYTES_MAX: usize = 700;

/// The paths of an output, in use and published, relative to the root of the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its directory after publication; may be empty.
    pub(crate) directory: String,
    /// Its name there.
    pub(crate) file: String,
    /// Its path in use, for a store that renames: below the chain's directory, whose name Hive and Spark ignore.
    pub(crate) in_use: String,
}

impl Place {
    /// The path of the published output.
    pub(crate) fn path(&self) -> String {
        match self.directory.as_str() {
            "" => self.file.clone(),
            directory => format!("{directory}/{}", self.file),
        }
    }
}

/// The result of creating a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// It was created.
    Made,
    /// A file exists already. After a lost response it may be our own.
    Exists,
}

/// The result of publishing an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// It has its final name, now or since an earlier attempt.
    Done,
    /// It is neither in use nor published.
    Gone,
}

/// A destination.
pub(crate) trait Store {
    /// An output in use.
    type Output;

    /// Creates an output.
    async fn create(&mut self, place: &Place) -> Result<Self::Output, Failure>;

    /// Appends to it.
    async fn append(&mut self, output: &mut Self::Output, bytes: &[u8]) -> Result<(), Failure>;

    /// Its bytes in memory that only [`Store::finish`] frees.
    fn held(&self, output: &Self::Output) -> usize;

    /// Completes it and makes it durable. Returns the ticket that [`Store::publish`] needs beside the path, also in another
    /// process.
    async fn finish(&mut self, output: Self::Output) -> Result<String, Failure>;

    /// Makes it visible under its final name. Repeatable, also by a successor.
    async fn publish(&mut self, place: &Place, ticket: &str) -> Result<Published, Failure>;

    /// Removes a published output, if it exists: another output of the same manifest is missing, and all of them are written
    /// again.
    async fn withdraw(&mut self, place: &Place) -> Result<(), Failure>;

    /// Deletes outputs in use that earlier runs of this chain left: no manifest will name them.
    async fn drop_in_use(&mut self, chain: &str) -> Result<(), Failure>;

    /// Called when all outputs of a manifest are published.
    async fn published(&mut self, _places: &[Place]) -> Result<(), Failure> {
        Ok(())
    }

    /// The reason why this directory cannot hold outputs, if so: its records are rejected.
    fn misfit(&self, directory: &str) -> Option<String> {
        too_long(directory)
    }

    /// The largest possible output.
    fn output_max(&self) -> u64 {
        u64::MAX
    }

    /// Creates a small file atomically and durably, unless it exists.
    async fn put_if_absent(&mut self, path: &str, bytes: &[u8]) -> Result<Put, Failure>;

    /// The names in a directory, in any order; none if the directory does not exist.
    async fn list(&mut self, directory: &str) -> Result<Vec<String>, Failure>;

    /// Reads a small file, if it exists.
    async fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Failure>;

    /// Removes a small file, if it exists.
    async fn delete(&mut self, path: &str) -> Result<(), Failure>;
}

/// The error if a published file has the name of an output that is not published yet. Replacing the file would lose its records,
/// and keeping it those of the output.
pub(crate) const OCCUPIED: &str = "another file has this name; move it away, and this one is published. A sink publishes a name \
    twice only if its manifests or its channel were removed or replaced by an old copy";

/// The reason why this directory is too long, if so.
pub(crate) fn too_long(directory: &str) -> Option<String> {
    let long = directory.split('/').any(|part| part.len() > PART_BYTES_MAX);
    (long || directory.len() > DIRECTORY_BYTES_MAX).then(|| {
        format!(
            "a directory of {} bytes is too long, in a part or as a whole",
            directory.len()
        )
    })
}
