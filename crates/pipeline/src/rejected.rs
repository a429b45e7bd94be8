//! Where what is rejected is kept when no node takes it: `data_dir/rejected/NODE.msgpack`, bounded.
//!
//! The file is a MessagePack stream of the records that [`crate::reject::batch`] makes, synced before they are settled. It
//! stays readable: what a full disk lets through of a record is cut off before the next one is written, and a file that an
//! earlier run has left with half a record at its end (a kill) is put aside, as it is, under another name.
//! When all such files together have reached the bound, the path that rejects waits, loudly, until somebody makes room:
//! dropping what was accepted is not an option.

use std::{
    fs, io,
    io::{Read, Write},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use millstream_wire::msgpack::skip;

use crate::{
    channel::{BoxFuture, Channel, Group},
    condition::{Condition, Trouble},
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
    /// How long the file is with what this run has written to it; None: it has written nothing.
    end: Mutex<Option<u64>>,
    /// Something waits for room.
    blocked: Condition,
    reporter: Reporter,
}

impl RejectedStore {
    /// The store of one node, in the folder that all stores share.
    pub fn open(folder: PathBuf, node: &str, reporter: Reporter) -> Arc<dyn Channel> {
        let file = folder.join(format!("{node}.msgpack"));
        Arc::new(Self(Arc::new(Store {
            folder,
            file,
            end: Mutex::new(None),
            blocked: reporter.condition("rejected-room"),
            reporter,
        })))
    }
}

impl Store {
    fn append(&self, records: &[&[u8]]) -> io::Result<bool> {
        fs::create_dir_all(&self.folder)?;
        let bytes: usize = records.iter().map(|records| records.len()).sum();
        let mut kept = bytes as u64;
        for entry in fs::read_dir(&self.folder)? {
            kept += entry?.metadata()?.len();
        }
        if kept > KEPT_BYTES_MAX {
            return Ok(false);
        }
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if end.is_none() {
            self.put_torn_aside()?;
        }
        let is_new = !self.file.exists();
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.file)?;
        let length = file.metadata()?.len();
        // Shorter: somebody has moved it away. Longer: a part of what did not fit is there.
        let start = end.map_or(length, |end| end.min(length));
        if length > start {
            file.set_len(start)?;
        }
        *end = Some(start);
        for records in records {
            file.write_all(records)?;
        }
        file.sync_data()?;
        *end = Some(start + bytes as u64);
        if is_new {
            fs::File::open(&self.folder)?.sync_all()?;
        }
        Ok(true)
    }

    /// Puts a file aside that does not end with a whole record: nothing behind its last one could be read.
    fn put_torn_aside(&self) -> io::Result<()> {
        let mut file = match fs::File::open(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        if whole_bytes(&mut file)? == file.metadata()?.len() {
            return Ok(());
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let aside = format!("torn-{}.msgpack", now.unwrap_or_default().as_secs());
        let aside = self.file.with_extension(aside);
        fs::rename(&self.file, &aside)?;
        let text = format_args!(
            "{} ends with a part of a record; it is kept as {}",
            self.file.display(),
            aside.display()
        );
        self.reporter.warn("rejected-torn", text);
        Ok(())
    }

    fn say(&self, kept: &io::Result<bool>) {
        let place = self.folder.display();
        match kept {
            Ok(true) => drop(self.blocked.clear()),
            Ok(false) => self.blocked.raise(
                Trouble::Blocked,
                format_args!("{place} holds {KEPT_BYTES_MAX} bytes of rejected records, which is the limit; this path waits: read them, then move them away"),
            ),
            Err(error) => self.blocked.raise(
                Trouble::Blocked,
                format_args!("cannot keep rejected records in {place}: {error}; this path waits"),
            ),
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
                let append = tokio::task::spawn_blocking(move || {
                    let bodies: Vec<&[u8]> = group.batches.iter().map(|b| &*b.body).collect();
                    (shared.append(&bodies), group)
                });
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

    fn is_full(&self) -> bool {
        self.0.blocked.holds()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(folder: &std::path::Path) -> Store {
        Store {
            folder: folder.to_owned(),
            file: folder.join("in.msgpack"),
            end: Mutex::new(None),
            blocked: Reporter::new("in").condition("rejected-room"),
            reporter: Reporter::new("in"),
        }
    }

    #[test]
    fn a_stream_goes_on_behind_whole_records_and_nothing_of_a_torn_one_is_thrown_away() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("in.msgpack");
        let record: &[u8] = &[0x92, 1, 0xa1, b'a'];
        let first = store(folder.path());
        first.append(&[record, record]).unwrap();
        // A disk that was full took a part of the next.
        let mut torn = fs::OpenOptions::new().append(true).open(&file).unwrap();
        torn.write_all(&record[..3]).unwrap();
        first.append(&[record]).unwrap();
        assert_eq!(fs::read(&file).unwrap(), record.repeat(3));
        // Somebody has moved it away.
        fs::rename(&file, folder.path().join("read")).unwrap();
        first.append(&[record]).unwrap();
        assert_eq!(fs::read(&file).unwrap(), record);
        // Another run goes on, also behind a kill in the middle of a write.
        store(folder.path()).append(&[record]).unwrap();
        assert_eq!(fs::read(&file).unwrap(), record.repeat(2));
        fs::write(&file, [record, &record[..3]].concat()).unwrap();
        store(folder.path()).append(&[record]).unwrap();
        assert_eq!(fs::read(&file).unwrap(), record);
        let names = fs::read_dir(folder.path()).unwrap();
        let aside = names
            .map(|entry| entry.unwrap().path())
            .find(|path| path.to_string_lossy().contains("in.torn-"));
        assert_eq!(
            fs::read(aside.unwrap()).unwrap(),
            [record, &record[..3]].concat()
        );
    }

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
