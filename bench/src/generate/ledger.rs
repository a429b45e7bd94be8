//! The ledger: a durable list of the records that were acknowledged.
//!
//! It is an append-only text file. After the ack of a chunk, a flow (the numbered records of one connection) writes a line and
//! syncs it (fdatasync) before it sends the next chunk. A restarted generator reads the ledger, and sends all chunks that the
//! ledger does not list, with the same ids as before. The verifier reads the ledger to find out which records must have arrived.
//!
//! ```text
//! millbench-ledger 1 run=5f3a9c01 flows=2 size=100 chunk=8192 base=1700000000 mode=packed tag=bench
//! 0 acked 0 8192          flow, number of the first acknowledged record, how many
//! 0 ends 100000           flow 0 will have this many records; this line is written before the end record is sent
//! 0 ended 100000          the end record of flow 0 (its last record, which carries this number) was acknowledged
//! ```
//!
//! A last line without a newline is ignored: the generator or the machine stopped while the line was written.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::Mutex,
};

const FIRST_WORDS: &str = "millbench-ledger 1 ";

/// The state of one flow in a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Every number below this one is acknowledged.
    pub floor: u64,
    /// Acknowledged spans above the floor: first -> count.
    pub above: BTreeMap<u64, u32>,
    /// The total number of the flow's records; `None` until it is decided.
    pub ends: Option<u64>,
    /// Whether the end record is acknowledged.
    pub ended: bool,
}

impl Page {
    fn acked(&mut self, first: u64, count: u32) {
        self.above.insert(first, count);
        while let Some(count) = self.above.remove(&self.floor) {
            self.floor += u64::from(count);
        }
    }
}

/// The contents of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The settings of the run, as written on the first line.
    pub settings: String,
    /// The flows by number.
    pub flows: BTreeMap<u16, Page>,
}

impl Account {
    /// The value of one setting.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings
            .split(' ')
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// Reads a ledger; `None` if the file has no complete first line.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let mut text = String::new();
        File::open(path)?.read_to_string(&mut text)?;
        Self::parse(&text).map_err(|line| {
            let what = format!(
                "{} line {line}: no line of a ledger; was it edited?",
                path.display()
            );
            io::Error::new(io::ErrorKind::InvalidData, what)
        })
    }

    /// Parses the text of a ledger. The error is the number of the invalid line.
    fn parse(text: &str) -> Result<Option<Self>, usize> {
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let mut lines = whole.lines().zip(1..);
        let Some((first, _)) = lines.next() else {
            return Ok(None);
        };
        let settings = first.strip_prefix(FIRST_WORDS).ok_or(1usize)?.to_owned();
        let mut flows: BTreeMap<u16, Page> = BTreeMap::new();
        for (line, at) in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
            let flow = number(0).and_then(|flow| u16::try_from(flow).ok());
            let page = flows.entry(flow.ok_or(at)?).or_default();
            match (words.get(1).copied(), number(2)) {
                (Some("acked"), Some(first)) => {
                    let count = number(3).and_then(|count| u32::try_from(count).ok());
                    page.acked(first, count.ok_or(at)?);
                }
                (Some("ends"), Some(count)) => page.ends = Some(count),
                (Some("ended"), Some(_)) => page.ended = true,
                _ => return Err(at),
            }
        }
        Ok(Some(Self { settings, flows }))
    }
}

/// An open ledger, shared by the connections.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: Mutex<File>,
}

impl Ledger {
    /// Opens a ledger and returns its contents. Creates it, with `settings` on the first line, if it is missing or has no complete
    /// first line.
    pub fn open(path: &Path, settings: &str) -> io::Result<(Self, Account)> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)?;
        let account = match Account::read(path)? {
            Some(account) => {
                // A torn last line must be removed, or the next line would be appended to it.
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                let whole = bytes.iter().rposition(|&byte| byte == b'\n');
                let whole = whole.map_or(0, |end| end + 1) as u64;
                file.set_len(whole)?;
                file.seek(SeekFrom::Start(whole))?;
                account
            }
            None => {
                file.set_len(0)?;
                writeln!(file, "{FIRST_WORDS}{settings}")?;
                Account {
                    settings: settings.to_owned(),
                    flows: BTreeMap::new(),
                }
            }
        };
        file.sync_all()?;
        sync_directory(path)?;
        let ledger = Self {
            path: path.to_owned(),
            file: Mutex::new(file),
        };
        Ok((ledger, account))
    }

    /// Notes that records were acknowledged.
    pub fn acked(&self, flow: u16, first: u64, count: u32) -> io::Result<()> {
        self.append(&format!("{flow} acked {first} {count}\n"))
    }

    /// Notes the total number of a flow's records. Call this before the end record is sent.
    pub fn ends(&self, flow: u16, count: u64) -> io::Result<()> {
        self.append(&format!("{flow} ends {count}\n"))
    }

    /// Notes that the end record is acknowledged.
    pub fn ended(&self, flow: u16, count: u64) -> io::Result<()> {
        self.append(&format!("{flow} ended {count}\n"))
    }

    fn append(&self, line: &str) -> io::Result<()> {
        let mut file = self
            .file
            .lock()
            .unwrap_or_else(|broken| broken.into_inner());
        file.write_all(line.as_bytes())
            .and_then(|()| file.sync_data())
            .map_err(|error| {
                let what = format!("ledger {}: {error}", self.path.display());
                io::Error::new(error.kind(), what)
            })
    }
}

/// Makes the name of a new file durable by syncing its directory.
fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => File::open(directory)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reopened_ledger_knows_what_was_acked_and_forgets_a_torn_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let (ledger, fresh) = Ledger::open(&path, "run=00000007 flows=2").unwrap();
        assert!(fresh.flows.is_empty());
        ledger.acked(1, 0, 100).unwrap();
        ledger.acked(1, 200, 100).unwrap();
        ledger.ends(1, 300).unwrap();
        drop(ledger);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"1 acked 100 10").unwrap();

        let (ledger, account) = Ledger::open(&path, "ignored").unwrap();
        assert_eq!(account.setting("run"), Some("00000007"));
        let page = &account.flows[&1];
        assert_eq!((page.floor, page.ends, page.ended), (100, Some(300), false));
        assert_eq!(page.above, BTreeMap::from([(200, 100)]));
        ledger.acked(1, 100, 100).unwrap();
        ledger.ended(1, 300).unwrap();
        let account = Account::read(&path).unwrap().unwrap();
        assert_eq!(
            (account.flows[&1].floor, account.flows[&1].ended),
            (300, true)
        );
    }

    #[test]
    fn an_invalid_line_is_reported_by_its_number() {
        assert_eq!(Account::parse("millbench-ledger 1 run=1\nx\n"), Err(2));
        assert_eq!(Account::parse("hello\n"), Err(1));
        assert_eq!(Account::parse("millbench-le"), Ok(None));
    }
}
