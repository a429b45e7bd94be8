//! The destination of a publishing sink: outputs that stay hidden until they are published, and small files that are created
//! only if they are absent.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `encode -> [write] -> settle`
//!
//! A temporary failure (`Again::Later`) ends the run of the sink: the next run recovers and rereads the records that are in no
//! manifest (the file that names the outputs to publish). A store should retry repeatable requests itself ([`super::Patience`]).

use millstream_pipeline::failure::Failure;

/// Maximum bytes of a path component that file systems and HDFS accept.
const PART_BYTES_MAX: usize = 255;
/// Maximum bytes of a directory. The file name and the root need the rest of a path.
const DIRECTORY_BYTES_MAX: usize = 700;

/// The paths of an output, in use and published, relative to the root of the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The directory of the published output; may be empty.
    pub(crate) directory: String,
    /// The file name of the published output.
    pub(crate) file: String,
    /// The path of the output in use, for a store that publishes an output by renaming it. It is below the directory of the chain,
    /// which Hive and Spark ignore because its path begins with `_`.
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
    /// The file was created.
    Made,
    /// A file with this name exists already. After a lost response, it may be the caller's own file.
    Exists,
}

/// The result of publishing an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// The output has its final name, now or since an earlier attempt.
    Done,
    /// The output is neither in use nor published: it is lost.
    Gone,
}

/// A destination.
pub(crate) trait Store {
    /// An output in use.
    type Output;

    /// Creates an output.
    async fn create(&mut self, place: &Place) -> Result<Self::Output, Failure>;

    /// Appends to an output.
    async fn append(&mut self, output: &mut Self::Output, bytes: &[u8]) -> Result<(), Failure>;

    /// Returns how many bytes of memory an output holds until [`Store::finish`] frees them.
    fn held(&self, output: &Self::Output) -> usize;

    /// Completes an output and makes it durable. Returns a ticket: a text that [`Store::publish`] needs in addition to the paths,
    /// perhaps in another process.
    async fn finish(&mut self, output: Self::Output) -> Result<String, Failure>;

    /// Makes an output visible under its final name. May be repeated, also by a later run.
    async fn publish(&mut self, place: &Place, ticket: &str) -> Result<Published, Failure>;

    /// Removes a published output, if it exists. Called when another output of the same manifest is lost, because all outputs of
    /// that manifest are then written again.
    async fn withdraw(&mut self, place: &Place) -> Result<(), Failure>;

    /// Deletes outputs in use that earlier runs of this chain left: no manifest will name them.
    async fn drop_in_use(&mut self, chain: &str) -> Result<(), Failure>;

    /// Called when all outputs of a manifest are published.
    async fn published(&mut self, _places: &[Place]) -> Result<(), Failure> {
        Ok(())
    }

    /// Returns why this output can never be published, or None if it can. Records for such an output are rejected.
    async fn misfit(&mut self, place: &Place) -> Result<Option<String>, Failure> {
        Ok(too_long(&place.directory))
    }

    /// Maximum bytes of an output.
    fn output_max(&self) -> u64 {
        u64::MAX
    }

    /// Creates a small file atomically and durably, unless it exists.
    async fn put_if_absent(&mut self, path: &str, bytes: &[u8]) -> Result<Put, Failure>;

    /// Returns the names in a directory, in any order; an empty list if the directory does not exist.
    async fn list(&mut self, directory: &str) -> Result<Vec<String>, Failure>;

    /// Reads a small file, if it exists.
    async fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Failure>;

    /// Removes a small file, if it exists.
    async fn delete(&mut self, path: &str) -> Result<(), Failure>;
}

/// The error if a file has the final name of an output that is not published yet. Replacing the file would lose the records in the
/// file, and skipping the output would lose the records in the output.
pub(crate) const OCCUPIED: &str = "another file has this name; move it away, and this one is published. A sink publishes a name \
    twice only if its manifests or its channel were removed or replaced by an old copy";

/// Returns the reason why a directory cannot hold outputs: a file has the name of this directory, or of a directory above it.
pub(crate) fn blocked(directory: &str) -> String {
    format!("{directory} cannot be a directory: it is a file, or below a file")
}

/// Returns a message if this directory is too long.
pub(crate) fn too_long(directory: &str) -> Option<String> {
    let long = directory.split('/').any(|part| part.len() > PART_BYTES_MAX);
    (long || directory.len() > DIRECTORY_BYTES_MAX).then(|| {
        format!(
            "a directory of {} bytes is too long, in a part or as a whole",
            directory.len()
        )
    })
}
