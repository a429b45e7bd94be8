//! HDFS as the destination of a publishing sink. The sink writes its records to outputs, which are files in a separate
//! directory, and later publishes them. A manifest is a small file that names the outputs to publish.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `encode -> [write] -> settle`
//!
//! ```text
//! in use      ROOT/_millstream/SINK/CHAIN/open/...      created, appended to; hsync and close when it is finished
//! published   ROOT/DIRECTORY/FILE                       a rename, which the name node does atomically and durably
//! manifest    ROOT/_millstream/SINK/CHAIN/N             written under another name, closed, renamed; a rename to an existing
//!                                                       name fails, so only one of two writers succeeds
//! ```
//! At a start, the sink publishes the outputs that an earlier run has closed and named in a manifest. It deletes all other
//! unpublished outputs of the earlier run. If the earlier run is still alive, its appends to deleted outputs fail even if a new
//! file has the same name, because the name node identifies files by number.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use hdfs_native::{WriteOptions, file::FileWriter};
use millstream_pipeline::failure::Failure;

use super::{
    Target,
    client::{Connection, Live, Trouble},
};
use crate::publish::{OCCUPIED, Patience, Place, Published, Put, Store, blocked, too_long};

/// Maximum bytes in flight to data nodes over all outputs. When an append exceeds this limit, the store syncs the output of that
/// append. A client holds unacknowledged bytes in memory, up to 13 MB for one output.
const ON_THE_WAY_BYTES_MAX: usize = 64 << 20;
/// Permissions of new directories, independent of the cluster's umask. Files get 0644.
const DIRECTORY_PERMISSION: u32 = 0o755;
/// Names that HDFS reserves. A name node does not create a directory with such a name, so a publication there would fail forever,
/// and all later records would wait.
const RESERVED: [&str; 2] = [".snapshot", ".reserved"];

pub(super) struct HdfsStore {
    connection: Connection,
    patience: Patience,
    root: String,
    marker: Option<String>,
    /// Bytes appended to all outputs since their last syncs.
    on_the_way: usize,
}

/// An output in use.
pub(super) struct Output {
    writer: FileWriter,
    path: String,
    on_the_way: usize,
    /// The client that the writer uses, even after the connection has replaced its client.
    _client: Arc<Live>,
}

impl HdfsStore {
    pub(super) fn new(target: &Arc<Target>, patience: Patience) -> Result<Self, Failure> {
        Ok(Self {
            connection: Connection::new(target)?,
            patience,
            root: target.root.clone(),
            marker: target.marker.clone(),
            on_the_way: 0,
        })
    }

    /// Returns the full path of a path below the root. HDFS does not accept colons in names, so each colon is replaced by `_`.
    fn path(&self, relative: &str) -> String {
        let relative = relative.replace(':', "_");
        format!("{}/{relative}", self.root)
    }

    async fn exists(&self, path: &str) -> Result<bool, Trouble> {
        let client = self.connection.client();
        let asked = client.get_file_info(path);
        match self
            .connection
            .answer(format_args!("look for {path}"), asked)
            .await
        {
            Ok(_) => Ok(true),
            Err(trouble) if trouble.is_missing() => Ok(false),
            Err(trouble) => Err(trouble),
        }
    }

    /// Whether a file has the name of this directory, or of a directory above it. A publication there would fail forever, and all
    /// later records would wait.
    async fn is_blocked(&self, directory: &str) -> Result<bool, Failure> {
        let client = self.connection.client();
        // A look-up of a path below a file has two possible results. If the name node checks the user's access, the look-up fails.
        // If the name node does not check it, the path is reported as missing.
        for path in Path::new(directory).ancestors() {
            let path = path.to_str().unwrap_or_default();
            let asked = client.get_file_info(path);
            match self
                .connection
                .answer(format_args!("look for {path}"), asked)
                .await
            {
                Ok(found) => return Ok(!found.isdir),
                Err(trouble) if trouble.is_missing() => {}
                Err(trouble) if trouble.is_below_file() => return Ok(true),
                Err(trouble) => return Err(trouble.failure),
            }
        }
        Ok(false)
    }

    async fn remove(&self, path: &str) -> Result<(), Failure> {
        let act = async || {
            let client = self.connection.client();
            let done = client.delete(path, true);
            let what = format_args!("delete {path}");
            match self.connection.answer(what, done).await {
                Err(trouble) if !trouble.is_missing() => Err(trouble.failure),
                _ => Ok(()),
            }
        };
        self.patience.keep_trying(act).await
    }

    async fn make_directory(&self, path: &str) -> Result<(), Trouble> {
        let client = self.connection.client();
        let made = client.mkdirs(path, DIRECTORY_PERMISSION, true);
        self.connection
            .answer(format_args!("make the directory {path}"), made)
            .await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), Trouble> {
        let client = self.connection.client();
        let renamed = client.rename(from, to, false);
        self.connection
            .answer(format_args!("rename {from} to {to}"), renamed)
            .await
    }

    /// Writes a small file, replacing an existing one.
    async fn write(&self, path: &str, bytes: &[u8]) -> Result<(), Failure> {
        let (connection, client) = (&self.connection, self.connection.client());
        let options = WriteOptions::default().overwrite(true);
        let created = client.create(path, options);
        let mut writer = connection
            .answer(format_args!("create {path}"), created)
            .await?;
        if !bytes.is_empty() {
            let bytes = Bytes::copy_from_slice(bytes);
            let what = format_args!("write {path}");
            connection.answer(what, writer.write_bytes(bytes)).await?;
            let what = format_args!("sync {path}");
            connection.answer(what, writer.hsync()).await?;
        }
        let what = format_args!("close {path}");
        Ok(connection.answer(what, writer.close()).await?)
    }

    /// Creates an output. Never overwrites a file. If the response to an attempt was lost, the name node may execute that attempt
    /// late. With overwriting, it would then truncate the file that a later attempt has written.
    async fn try_create(&self, path: &str) -> Result<Output, Failure> {
        let (connection, client) = (&self.connection, self.connection.client());
        let create = async || {
            let created = client.create(path, WriteOptions::default());
            let what = format_args!("create {path}");
            connection.answer(what, created).await
        };
        let writer = match create().await {
            Err(trouble) if trouble.is_there() => {
                // An earlier attempt created the file and wrote nothing.
                self.remove(path).await?;
                create().await?
            }
            other => other?,
        };
        Ok(Output {
            writer,
            path: path.to_owned(),
            on_the_way: 0,
            _client: client,
        })
    }

    async fn try_publish(
        &self,
        from: &str,
        directory: &str,
        to: &str,
    ) -> Result<Published, Failure> {
        self.make_directory(directory).await?;
        let Err(trouble) = self.rename(from, to).await else {
            return Ok(Published::Done);
        };
        // The rename also fails if an earlier attempt has already renamed the file: before a crash, or with a response that was
        // lost. If the look-up finds neither file, the result is trusted only after a successful write. A name node that has lost
        // the active role without knowing it still answers reads with old data, but its writes fail.
        for proven in [false, true] {
            if proven {
                let draft = draft_beside(from);
                self.write(&draft, b"").await?;
                self.remove(&draft).await?;
            }
            match (self.exists(to).await?, self.exists(from).await?) {
                (true, false) => return Ok(Published::Done),
                (false, true) => return Err(trouble.failure),
                (true, true) => {
                    return Err(Failure::peer(format!("cannot publish {to}: {OCCUPIED}")));
                }
                (false, false) => {}
            }
        }
        Ok(Published::Gone)
    }

    async fn try_put(&self, path: &str, bytes: &[u8]) -> Result<Put, Failure> {
        if self.exists(path).await? {
            return Ok(Put::Exists);
        }
        // The content is written as a draft and renamed. The draft's name contains this process and the time, so no other writer
        // writes or renames it. If a rename of an earlier attempt is executed late, it moves the draft of that attempt, which is
        // complete. Drafts are in the directory of the outputs in use, so leftover drafts are deleted together with these outputs.
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let draft = draft_beside(&format!("{directory}/open/{name}"));
        self.write(&draft, bytes).await?;
        match self.rename(&draft, path).await {
            Ok(()) => Ok(Put::Made),
            Err(trouble) if trouble.is_there() => {
                self.remove(&draft).await?;
                Ok(Put::Exists)
            }
            Err(trouble) => Err(trouble.failure),
        }
    }

    async fn try_list(&self, directory: &str) -> Result<Vec<String>, Failure> {
        let client = self.connection.client();
        let listed = client.list_status(directory, false);
        let what = format_args!("list {directory}");
        match self.connection.answer(what, listed).await {
            Ok(entries) => Ok(entries
                .iter()
                .filter_map(|entry| entry.path.rsplit('/').next())
                .map(str::to_owned)
                .collect()),
            Err(trouble) if trouble.is_missing() => Ok(Vec::new()),
            Err(trouble) => Err(trouble.failure),
        }
    }

    async fn try_read(&self, path: &str) -> Result<Option<Vec<u8>>, Failure> {
        let (connection, client) = (&self.connection, self.connection.client());
        let what = format_args!("open {path}");
        let mut reader = match connection.answer(what, client.read(path)).await {
            Ok(reader) => reader,
            Err(trouble) if trouble.is_missing() => return Ok(None),
            Err(trouble) => return Err(trouble.failure),
        };
        let length = reader.remaining();
        let what = format_args!("read {path}");
        let bytes = connection.answer(what, reader.read_bytes(length)).await?;
        Ok(Some(bytes.to_vec()))
    }
}

impl Store for HdfsStore {
    type Output = Output;

    async fn create(&mut self, place: &Place) -> Result<Output, Failure> {
        let path = self.path(&place.in_use);
        let act = async || self.try_create(&path).await;
        self.patience.keep_trying(act).await
    }

    async fn append(&mut self, output: &mut Output, bytes: &[u8]) -> Result<(), Failure> {
        let Output { writer, path, .. } = output;
        let appended = writer.write_bytes(Bytes::copy_from_slice(bytes));
        let what = format_args!("append to {path}");
        self.connection.answer(what, appended).await?;
        output.on_the_way += bytes.len();
        self.on_the_way += bytes.len();
        if self.on_the_way > ON_THE_WAY_BYTES_MAX {
            self.sync(output).await?;
        }
        Ok(())
    }

    fn held(&self, _: &Output) -> usize {
        // [`HdfsStore`] itself bounds the bytes in flight over all outputs.
        0
    }

    async fn finish(&mut self, mut output: Output) -> Result<String, Failure> {
        self.sync(&mut output).await?;
        let Output { writer, path, .. } = &mut output;
        let what = format_args!("close {path}");
        self.connection.answer(what, writer.close()).await?;
        Ok(String::new())
    }

    async fn publish(&mut self, place: &Place, _: &str) -> Result<Published, Failure> {
        let (from, to) = (self.path(&place.in_use), self.path(&place.path()));
        let directory = self.path(&place.directory);
        let act = async || {
            self.try_publish(&from, directory.trim_end_matches('/'), &to)
                .await
        };
        self.patience.keep_trying(act).await
    }

    async fn withdraw(&mut self, place: &Place) -> Result<(), Failure> {
        self.remove(&self.path(&place.path())).await
    }

    async fn drop_in_use(&mut self, chain: &str) -> Result<(), Failure> {
        let directory = format!("{chain}/open");
        // Files are deleted one by one, because files that a later run creates after this listing must stay.
        for name in self.list(&directory).await? {
            self.remove(&self.path(&format!("{directory}/{name}")))
                .await?;
        }
        Ok(())
    }

    async fn published(&mut self, places: &[Place]) -> Result<(), Failure> {
        let Some(marker) = &self.marker else {
            return Ok(());
        };
        let mut directories: Vec<&str> = places.iter().map(|place| &*place.directory).collect();
        directories.sort_unstable();
        directories.dedup();
        for directory in directories {
            let path = match directory {
                "" => self.path(marker),
                directory => self.path(&format!("{directory}/{marker}")),
            };
            let act = async || self.write(&path, b"").await;
            self.patience.keep_trying(act).await?;
        }
        Ok(())
    }

    async fn misfit(&mut self, place: &Place) -> Result<Option<String>, Failure> {
        let directory = place.directory.as_str();
        let misfit = too_long(directory).or_else(|| reserved(directory));
        // The root holds the manifests, so it is a directory.
        if misfit.is_some() || directory.is_empty() {
            return Ok(misfit);
        }
        let path = self.path(directory);
        let act = async || self.is_blocked(&path).await;
        let is_blocked = self.patience.keep_trying(act).await?;
        Ok(is_blocked.then(|| blocked(&path)))
    }

    async fn put_if_absent(&mut self, path: &str, bytes: &[u8]) -> Result<Put, Failure> {
        let path = self.path(path);
        let act = async || self.try_put(&path, bytes).await;
        self.patience.keep_trying(act).await
    }

    async fn list(&mut self, directory: &str) -> Result<Vec<String>, Failure> {
        let directory = self.path(directory);
        let act = async || self.try_list(&directory).await;
        self.patience.keep_trying(act).await
    }

    async fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Failure> {
        let path = self.path(path);
        let act = async || self.try_read(&path).await;
        self.patience.keep_trying(act).await
    }

    async fn delete(&mut self, path: &str) -> Result<(), Failure> {
        self.remove(&self.path(path)).await
    }
}

impl HdfsStore {
    /// Waits until the data nodes have the bytes of this output on their disks.
    async fn sync(&mut self, output: &mut Output) -> Result<(), Failure> {
        let Output { writer, path, .. } = output;
        if output.on_the_way > 0 {
            let what = format_args!("sync {path}");
            match self.connection.answer(what, writer.hsync()).await {
                // In an erasure-coded directory, a sync is not supported: only closing the file makes its data durable.
                Err(trouble) if !trouble.is_unknown() => return Err(trouble.failure),
                _ => {}
            }
        }
        self.on_the_way -= output.on_the_way.min(self.on_the_way);
        output.on_the_way = 0;
        Ok(())
    }
}

/// Returns `PATH.PID-NANOSECONDS.draft`.
fn draft_beside(path: &str) -> String {
    let now = millstream_record::Time::now();
    format!("{path}.{}-{}.draft", std::process::id(), now.0)
}

/// Returns a message if HDFS does not accept a directory with this name.
fn reserved(directory: &str) -> Option<String> {
    let part = directory.split('/').find(|part| RESERVED.contains(part))?;
    Some(format!("HDFS reserves the name {part}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_hdfs_reserves_are_not_directories() {
        assert!(reserved("2026/.snapshot/web-1").is_some());
        assert!(reserved(".reserved").is_some());
        assert_eq!(reserved("2026/snapshot/.snapshots"), None);
        assert_eq!(reserved(""), None);
    }
}
