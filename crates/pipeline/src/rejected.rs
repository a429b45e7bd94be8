//! Where what is rejected is kept when no node takes it: `data_dir/rejected/NODE.msgpack`, bounded.
//!
//! The file is a MessagePack stream of the records that [`crate::reject::batch`] makes, synced before they are settled. What a
//! full disk or a kill has left of a record is cut off before the next one is written: the stream stays readable.
//! When all such files together have reached the bound, the path that rejects waits, loudly, until somebody makes room:
//! dropping what was accepted is not an option.

use std::{
    fs, io,
    io::{Read, Write},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use millstream_wire::msgpack::skip;

use crate::{
    channel::{BoxFuture, Channel, Group},
    report::Reporter,
};

/// All files of rejected records together hold at most this.
const KEPT_BYTES_MAX: u64 = 1 << 30;
/// How long to wait before looking again whether there is room.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// What is read at once of a file that an earlier run has left.
const READ_BYTES: u64 = 1 << 20;

/// Keeps what a node rejects.
pub struct RejectedStore(Arc<Store>);

struct Store {
    folder: PathBuf,
    file: PathBuf,
    /// Where the last whole record ends; 0: nobody has looked.
    end: Mutex<u64>,
    reporter: Reporter,
}

impl RejectedStore {
    /// The store of one node, in the folder that all stores share.
    pub fn open(folder: PathBuf, node: &str, reporter: Reporter) -> Arc<dyn Channel> {
        let file = folder.join(format!("{node}.msgpack"));
        Arc::new(Self(Arc::new(Store {
            folder,
            file,
            end: Mutex::new(0),
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
            .read(true)
            .append(true)
            .open(&self.file)?;
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if file.metadata()?.len() != *end {
            *end = whole_bytes(&mut file)?;
            file.set_len(*end)?;
        }
        for batch in &group.batches {
            file.write_all(&batch.body)?;
        }
        file.sync_data()?;
        *end += group.len() as u64;
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

/// Bytes of the whole records that a file begins with.
fn whole_bytes(file: &mut fs::File) -> io::Result<u64> {
    let (mut whole, mut held) = (0, Vec::new());
    loop {
        if file.take(READ_BYTES).read_to_end(&mut held)? == 0 {
            return Ok(whole);
        }
        let mut at = 0;
        loop {
            let mut owed = 1;
            match skip(&held, at, &mut owed) {
                Ok(next) if owed == 0 && next <= held.len() => at = next,
                Ok(_) => break,
                Err(_) => return Ok(whole + at as u64),
            }
        }
        whole += at as u64;
        held.drain(..at);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kill_has_left_of_a_record_is_told_from_the_whole_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.msgpack");
        // [1, "aaa..."], longer than what is read at once.
        let mut record = vec![0x92, 1, 0xdb, 0, 0x18, 0, 0];
        record.resize(record.len() + 0x18_0000, b'a');
        let two = [&record[..], &record[..]].concat();
        for (kept, whole) in [
            (two.len(), two.len()),
            (two.len() - 1, record.len()),
            (record.len() + 1, record.len()),
            (record.len(), record.len()),
            (record.len() - 1, 0),
            (0, 0),
        ] {
            fs::write(&path, &two[..kept]).unwrap();
            let mut file = fs::File::open(&path).unwrap();
            assert_eq!(whole_bytes(&mut file).unwrap(), whole as u64, "{kept}");
        }
    }
}
