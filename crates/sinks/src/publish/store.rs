//! The destination, as publishing sees it: outputs that nobody sees until they are published, and small files that are
//! created only if they are absent.
//!
//! `encode -> [write] -> settle`
//!
//! A failure that may pass (`Again::Later`) ends the run of the sink: the next one recovers and reads again what no manifest
//! names. What is repeatable a store had better try again itself ([`super::Patience`]).

use millstream_pipeline::failure::Failure;

/// Longest part of a path that file systems and HDFS take.
const PART_BYTES_MAX: usize = 255;
/// Longest directory: object stores take 1,024 bytes as a whole, and the file's name comes behind it.
const DIRECTORY_BYTES_MAX: usize = 700;

/// Where an output stands, in use and published. Paths are relative to the root of the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its directory once it is published; may be empty.
    pub(crate) directory: String,
    /// Its name there.
    pub(crate) file: String,
    /// Where a store that renames keeps it meanwhile: below the chain's directory, whose name Hive and Spark pass over.
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

/// What became of a wish to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// It was made.
    Made,
    /// Something was there. After a lost answer it may be our own.
    Exists,
}

/// What became of a wish to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// It is there under its last name, now or since an earlier try.
    Done,
    /// It is neither in use nor published.
    Gone,
}

/// A destination.
pub(crate) trait Store {
    /// An output that is in use.
    type Output;

    /// Begins an output.
    async fn create(&mut self, place: &Place) -> Result<Self::Output, Failure>;

    /// Appends to it.
    async fn append(&mut self, output: &mut Self::Output, bytes: &[u8]) -> Result<(), Failure>;

    /// Bytes of it that stand in memory and that only [`Store::finish`] lets go.
    fn held(&self, output: &Self::Output) -> usize;

    /// Makes all of it durable; nothing more comes. Gives the ticket: what [`Store::publish`] needs beside the place, also
    /// in another process.
    async fn finish(&mut self, output: Self::Output) -> Result<String, Failure>;

    /// Makes it visible under its last name. Can be done again, also by a successor.
    async fn publish(&mut self, place: &Place, ticket: &str) -> Result<Published, Failure>;

    /// Takes back what was published, if it is there: another output of the same manifest is gone, and all of them are
    /// written again.
    async fn withdraw(&mut self, place: &Place) -> Result<(), Failure>;

    /// Drops what earlier runs have left in use of this chain, a directory: nobody will ever name it.
    async fn drop_in_use(&mut self, chain: &str) -> Result<(), Failure>;

    /// All outputs of a manifest are published.
    async fn published(&mut self, _places: &[Place]) -> Result<(), Failure> {
        Ok(())
    }

    /// Why no output can stand in this directory, if so: records are refused for it.
    fn misfit(&self, directory: &str) -> Option<String> {
        too_long(directory)
    }

    /// No output can be larger.
    fn output_max(&self) -> u64 {
        u64::MAX
    }

    /// Creates a small file, whole and durable, unless there is one.
    async fn put_if_absent(&mut self, path: &str, bytes: &[u8]) -> Result<Put, Failure>;

    /// The names in a directory, in any order; none if there is no such directory.
    async fn list(&mut self, directory: &str) -> Result<Vec<String>, Failure>;

    /// A small file, if it is there.
    async fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Failure>;

    /// Removes a small file, if it is there.
    async fn delete(&mut self, path: &str) -> Result<(), Failure>;
}

/// Why no output can stand in this directory because of its length, if so.
pub(crate) fn too_long(directory: &str) -> Option<String> {
    let long = directory.split('/').any(|part| part.len() > PART_BYTES_MAX);
    (long || directory.len() > DIRECTORY_BYTES_MAX).then(|| {
        format!(
            "a directory of {} bytes is too long, in a part or as a whole",
            directory.len()
        )
    })
}
