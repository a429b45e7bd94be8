//! Where what is rejected is kept when no node takes it: `data_dir/rejected/NODE.msgpack`, bounded.
//!
//! The file is a MessagePack stream of the records that [`crate::reject::batch`] makes, synced before they are settled. It
//! stays readable: what a full disk lets through of a record is cut off before the next one is written, and a file that an
//! earlier run has left with half a record at its end (a kill) is put aside, as it is, under another name.
//! When all such files together have reached the bound, the path that rejects waits, and the node is blocked, until an
//! operator moves files away: dropping what was accepted is not an option.
//!
//! [`RejectedFile`] reads such a file, also while another process writes to it.

use std::{
    fs, io,
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use millstream_sys::private;
use millstream_wire::msgpack::skip;

use crate::{
    channel::{BoxFuture, Channel, Group},
    condition::{Condition, Trouble},
    meters::Meter,
    reject::Rejected,
    report::Reporter,
};

/// How the names of the files end.
const EXTENSION: &str = "msgpack";
/// All files of rejected records together hold at most this.
const KEPT_BYTES_MAX: u64 = 1 << 30;
/// How long to wait before looking again whether there is room.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// What is read of a file at once.
const READ_BYTES: u64 = 1 << 20;

/// The directory in a `data_dir` in which rejected records are kept.
pub fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join("rejected")
}

/// Keeps what a node rejects.
pub struct RejectedStore(Arc<Store>);

struct Store {
    folder: PathBuf,
    file: PathBuf,
    /// How long the file is with what this run has written to it; None: it has written nothing.
    end: Mutex<Option<u64>>,
    /// Holds while the last write has failed.
    condition: Condition,
    reporter: Reporter,
    /// Records that were kept.
    kept: Meter,
}

impl RejectedStore {
    /// The store of one node, in the directory that all stores share; `kept` counts its records.
    pub fn open(folder: PathBuf, node: &str, reporter: Reporter, kept: Meter) -> Arc<dyn Channel> {
        Arc::new(Self(Arc::new(Store::new(folder, node, reporter, kept))))
    }

    /// The file of one node.
    pub fn file(folder: &Path, node: &str) -> PathBuf {
        folder.join(format!("{node}.{EXTENSION}"))
    }
}

impl Store {
    fn new(folder: PathBuf, node: &str, reporter: Reporter, kept: Meter) -> Self {
        Self {
            file: RejectedStore::file(&folder, node),
            folder,
            end: Mutex::new(None),
            condition: reporter.condition("rejected"),
            reporter,
            kept,
        }
    }

    fn append(&self, records: &[&[u8]]) -> io::Result<bool> {
        private::create_dir_all(&self.folder)?;
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
        let mut file = private::options()
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
        let mut file = match RejectedFile::open(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        let (_, rest) = file.values(|_| Ok::<_, io::Error>(()))?;
        if rest == 0 {
            return Ok(());
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let aside = format!("torn-{}.{EXTENSION}", now.unwrap_or_default().as_secs());
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

    /// Updates the condition of the node after a write; returns whether the records are kept.
    fn judge(&self, kept: io::Result<bool>) -> bool {
        let place = self.folder.display();
        match kept {
            Ok(true) => {
                self.condition.clear();
                return true;
            }
            Ok(false) => self.condition.raise(
                Trouble::Blocked,
                format_args!(
                    "{place} holds 1GiB of rejected records, which is the limit: read them with `millstream rejected cat`, then move the files elsewhere"
                ),
            ),
            Err(error) => self.condition.raise(
                Trouble::Blocked,
                format_args!("cannot keep rejected records in {place}: {error}"),
            ),
        }
        false
    }
}

/// A file of rejected records.
#[derive(Debug)]
pub struct RejectedFile(fs::File);

impl RejectedFile {
    /// All such files of a directory, in order of name; none if there is no such directory.
    pub fn all(folder: &Path) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let paths: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.path())).collect();
        let mut paths = paths?;
        paths.retain(|path| path.extension().is_some_and(|name| name == EXTENSION));
        paths.sort();
        Ok(paths)
    }

    /// Opens a file to read it.
    pub fn open(path: &Path) -> io::Result<Self> {
        fs::File::open(path).map(Self)
    }

    /// Gives all whole records to `each`, until that fails; then returns the number of bytes behind the last one: the part of
    /// a record that a kill has left there, or that is being written just now. `None` is given for a value that is no
    /// rejected record.
    pub fn read<E: From<io::Error>>(
        &mut self,
        mut each: impl FnMut(Option<Rejected<'_>>) -> Result<(), E>,
    ) -> Result<u64, E> {
        self.values(|value| each(Rejected::read(value)))
            .map(|(_, rest)| rest)
    }

    /// Gives all whole values to `each`; returns how many bytes they take and how many stand behind them.
    fn values<E: From<io::Error>>(
        &mut self,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(u64, u64), E> {
        let (mut whole, mut held) = (0, Vec::new());
        loop {
            if (&mut self.0).take(READ_BYTES).read_to_end(&mut held)? == 0 {
                return Ok((whole, held.len() as u64));
            }
            let mut at = 0;
            loop {
                let mut owed = 1;
                match skip(&held, at, &mut owed) {
                    Ok(next) if owed == 0 && next <= held.len() => {
                        each(held.get(at..next).unwrap_or_default())?;
                        at = next;
                    }
                    Ok(_) => break,
                    Err(_) => {
                        let end = self.0.metadata()?.len();
                        whole += at as u64;
                        return Ok((whole, end.saturating_sub(whole)));
                    }
                }
            }
            whole += at as u64;
            held.drain(..at);
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
                let append = tokio::task::spawn_blocking(move || {
                    let bodies: Vec<&[u8]> = group.batches.iter().map(|b| &*b.body).collect();
                    (shared.append(&bodies), group)
                });
                // The blocking task ends before its time only if it panics; the group is dropped then, which fails it.
                let Ok((kept, back)) = append.await else {
                    return;
                };
                if store.judge(kept) {
                    let records = back.batches.iter().map(|batch| u64::from(batch.count));
                    store.kept.add(records.sum());
                    return back.token.settle();
                }
                group = back;
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        })
    }

    fn close(&self) {}

    fn is_full(&self) -> bool {
        self.0.condition.holds()
    }
}

#[cfg(test)]
mod tests {
    use millstream_record::{Batch, Encoding, Time};

    use super::*;
    use crate::{delivery, reject};

    fn store(folder: &Path) -> Store {
        Store::new(
            folder.to_owned(),
            "in",
            Reporter::new("in"),
            Meter::default(),
        )
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
    fn a_full_store_blocks_its_node_until_there_is_room() {
        let folder = tempfile::tempdir().unwrap();
        let old = folder.path().join("old.msgpack");
        fs::File::create(&old)
            .unwrap()
            .set_len(KEPT_BYTES_MAX)
            .unwrap();
        let (reporter, kept) = (Reporter::new("in"), Meter::default());
        let store = RejectedStore::open(
            folder.path().to_owned(),
            "in",
            reporter.clone(),
            kept.clone(),
        );
        let from = Batch {
            tag: "web".into(),
            plain: false,
            encoding: Encoding::Lines,
            body: bytes::Bytes::new(),
            count: 0,
            received: Time(0),
            values: Arc::default(),
            origins: Vec::new(),
        };
        let batches = vec![reject::batch("in", &from, [&b"a"[..], b"b"], "why")];
        let (token, receipt) = delivery::receipt(true, 2, Meter::default());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let make_room = async {
                while reporter.conditions().is_empty() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                let held = reporter.conditions();
                assert_eq!(held[0].trouble, Trouble::Blocked);
                assert!(held[0].why.contains("which is the limit"), "{held:?}");
                assert!(store.is_full() && kept.get() == 0);
                fs::remove_file(&old).unwrap();
            };
            tokio::join!(store.put(Group { batches, token }), make_room);
            receipt.await.unwrap();
        });
        assert!(reporter.conditions().is_empty() && !store.is_full());
        assert_eq!(kept.get(), 2);
        let mut read = Vec::new();
        let mut file = RejectedFile::open(&RejectedStore::file(folder.path(), "in")).unwrap();
        let rest = file.read(|rejected| {
            read.push(rejected.unwrap().message.to_vec());
            Ok::<_, io::Error>(())
        });
        assert_eq!(
            (rest.unwrap(), read),
            (0, vec![b"a".to_vec(), b"b".to_vec()])
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
            let mut values = 0;
            let mut file = RejectedFile::open(&path).unwrap();
            let found = file.values(|value| {
                values += value.len();
                assert_eq!(value, record);
                Ok::<_, io::Error>(())
            });
            let rest = kept - whole;
            assert_eq!(found.unwrap(), (whole as u64, rest as u64), "{kept}");
            assert_eq!(values, whole);
        }
    }
}
