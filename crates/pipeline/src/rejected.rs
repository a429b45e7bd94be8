//! Where what is rejected is kept when no node takes it: `data_dir/rejected/NODE.msgpack`, bounded.
//!
//! The file is a MessagePack stream of the records that [`crate::reject::batch`] makes, synced before they are settled.
//! When all such files together have reached the bound, the path that rejects waits, loudly, until somebody makes room:
//! dropping what was accepted is not an option.

use std::{fs, io, io::Write, path::PathBuf, sync::Arc, time::Duration};

use crate::{
    channel::{BoxFuture, Channel, Group},
    report::Reporter,
};

/// All files of rejected records together hold at most this.
const KEPT_BYTES_MAX: u64 = 1 << 30;
/// How long to wait before looking again whether there is room.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Keeps what a node rejects.
pub struct RejectedStore(Arc<Store>);

struct Store {
    folder: PathBuf,
    file: PathBuf,
    reporter: Reporter,
}

impl RejectedStore {
    /// The store of one node, in the folder that all stores share.
    pub fn open(folder: PathBuf, node: &str, reporter: Reporter) -> Arc<dyn Channel> {
        let file = folder.join(format!("{node}.msgpack"));
        Arc::new(Self(Arc::new(Store {
            folder,
            file,
            reporter,
        })))
    }
}

impl Store {
    fn append(&self, group: &Group) -> io::Result<bool> {
        fs::create_dir_all(&self.folder)?;
        let mut kept = group.len() as u64;
        for entry in fs::read_dir(&self.folder)? {
            kept += entry?.metadata()?.len();
        }
        if kept > KEPT_BYTES_MAX {
            return Ok(false);
        }
        let is_new = !self.file.exists();
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.file)?;
        for batch in &group.batches {
            file.write_all(&batch.body)?;
        }
        file.sync_data()?;
        if is_new {
            fs::File::open(&self.folder)?.sync_all()?;
        }
        Ok(true)
    }

    fn say(&self, kept: &io::Result<bool>) {
        let place = self.folder.display();
        match kept {
            Ok(true) => {}
            Ok(false) => self.reporter.error(
                "rejected-full",
                format_args!("{place} holds {KEPT_BYTES_MAX} bytes of rejected records; this path waits: read them, then move them away"),
            ),
            Err(error) => self.reporter.error("rejected-disk", format_args!("cannot keep rejected records in {place}: {error}")),
        }
    }
}

impl Channel for RejectedStore {
    fn put(&self, group: Group) -> BoxFuture<'_, ()> {
        let store = self.0.clone();
        Box::pin(async move {
            let mut group = group;
            loop {
                let shared = store.clone();
                let append = tokio::task::spawn_blocking(move || (shared.append(&group), group));
                // The blocking task ends before its time only if it panics; the group is dropped then, which fails it.
                let Ok((kept, back)) = append.await else {
                    return;
                };
                store.say(&kept);
                if matches!(kept, Ok(true)) {
                    store.reporter.warn(
                        "rejected",
                        format_args!(
                            "records were rejected; they are kept in {}",
                            store.file.display()
                        ),
                    );
                    return back.token.settle();
                }
                group = back;
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        })
    }

    fn close(&self) {}
}
