//! The child process `journalctl -o export`, and a thread that makes records from its output.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read] -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! The thread is separate because reading a pipe blocks. It sends the records to the data thread through a short queue. While the
//! queue is full, the child waits.

use std::{
    collections::VecDeque,
    io::{self, Read},
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc as blocking},
    time::Duration,
};

use millstream_config::Size;
use millstream_pipeline::threads::own_thread;
use millstream_record::{Pool, Time};
use millstream_sys::child;
use millstream_wire::journal::{self, Entry, FIELDS_MAX, Scanned};
use rustix::{buffer::spare_capacity, io::Errno};
use tokio::sync::mpsc;

use super::{Config, Start};

/// The size of one read in bytes: more than a pipe holds.
const READ_BYTES: usize = 256 << 10;
/// The length of the queue between the reading thread and the data thread, in pieces.
const PIECES: usize = 4;
/// The maximum number of bytes of the child's stderr that are reported when the child fails. They are the last bytes.
const REASON_BYTES: usize = 2000;
/// How long to wait for the end of the child's stderr after the end of its output. The wait is limited, because programs that the
/// child has started may keep stderr open.
const REASON_WAIT: Duration = Duration::from_secs(1);

/// The events of the reading thread.
#[derive(Debug)]
pub(super) enum Piece {
    /// Whole entries, packed.
    Entries {
        body: Vec<u8>,
        count: u32,
        /// The cursor of the last entry: a text by which journald identifies an entry.
        cursor: String,
    },
    /// The beginning of an entry that is rejected, because it is too large or has too many fields. The thread ends after this event.
    Rejected {
        bytes: Vec<u8>,
        cursor: String,
        reason: String,
    },
    /// The child has ended. `Err` has the reason: it failed, or its output is not in the export format.
    Ended(Result<(), String>),
}

/// A running child. Dropping this value kills the child.
pub(super) struct Journalctl {
    child: Arc<Mutex<Child>>,
    /// The events of the thread that reads the child's output.
    pub pieces: mpsc::Receiver<Piece>,
}

impl Drop for Journalctl {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // The child may have ended already.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn command(config: &Config) -> Command {
    let mut words = config.command.iter();
    let mut command = child::command(words.next().map_or("journalctl", String::as_str));
    command
        .args(words)
        .args(["--output=export", "--all", "--no-pager", "--quiet"])
        .stdin(Stdio::null());
    command
}

/// The cursor of the newest entry. `None` if the journal has no entries. Blocks.
pub(super) fn newest(config: &Config) -> Result<Option<String>, String> {
    let output = child::output(command(config).arg("--lines=1"))
        .map_err(|error| format!("cannot run {}: {error}", program(config)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!(
            "{} ended ({}): {said}",
            program(config),
            output.status
        ));
    }
    match journal::scan(&output.stdout) {
        Ok(Scanned::Entry(Entry { cursor, .. }) | Scanned::TooManyFields { cursor, .. }) => {
            Ok(Some(String::from_utf8_lossy(cursor).into_owned()))
        }
        _ => Ok(None),
    }
}

/// The program's name, for messages.
pub(super) fn program(config: &Config) -> &str {
    config
        .command
        .iter()
        .next()
        .map_or("journalctl", String::as_str)
}

/// Starts the child, which writes the entries after `cursor`. An empty cursor means the beginning of the journal. The child waits
/// for further entries unless `once` is set.
pub(super) fn start(
    config: &Config,
    cursor: &str,
    once: bool,
    pool: Pool,
) -> io::Result<Journalctl> {
    let mut command = command(config);
    if !once {
        command.args(["--follow", "--no-tail"]);
    }
    if !cursor.is_empty() {
        command.arg(format!("--after-cursor={cursor}"));
    }
    command.args(config.units.iter().map(|unit| format!("--unit={unit}")));
    command.args(config.matches.iter());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child::spawn(&mut command)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let child = Arc::new(Mutex::new(child));
    let (sender, pieces) = mpsc::channel(PIECES);
    let running = Journalctl {
        child: child.clone(),
        pieces,
    };
    let entry_max = config.entry_max;
    let reason = stderr.map(Reason::read).transpose()?;
    own_thread("journalctl", async move || {
        let (Some(stdout), Some(reason)) = (stdout, reason) else {
            return;
        };
        let end = read_all(stdout, pool, entry_max, &sender).await;
        let ended = match end {
            // The data thread has stopped, or an entry was rejected.
            Ok(false) => return,
            Ok(true) => Ok(()),
            Err(why) => Err(why),
        };
        if ended.is_err() {
            // A child whose output is not in the export format might never end.
            let _ = child.lock().unwrap_or_else(PoisonError::into_inner).kill();
        }
        let said = reason.text();
        let status = child.lock().unwrap_or_else(PoisonError::into_inner).wait();
        let ended = match (ended, status) {
            (Err(why), _) => Err(why),
            (Ok(()), Ok(status)) if status.success() => Ok(()),
            (Ok(()), Ok(status)) => Err(status.to_string()),
            (Ok(()), Err(error)) => Err(error.to_string()),
        };
        let ended = ended.map_err(|why| match said.is_empty() {
            true => why,
            false => format!("{why}: {said}"),
        });
        let _ = sender.send(Piece::Ended(ended)).await;
    })?;
    Ok(running)
}

/// The end of the text that the child writes to stderr. A thread reads everything that the child writes there, because the child
/// blocks while the pipe is full.
struct Reason {
    said: Arc<Mutex<VecDeque<u8>>>,
    /// Closed at the end of stderr.
    reading: blocking::Receiver<()>,
}

impl Reason {
    fn read(mut stderr: ChildStderr) -> io::Result<Self> {
        let said = Arc::<Mutex<VecDeque<u8>>>::default();
        let (at_end, reading) = blocking::sync_channel::<()>(0);
        let all = said.clone();
        own_thread("journalctl err", async move || {
            let mut piece = [0; 4096];
            while let Ok(read @ 1..) = stderr.read(&mut piece) {
                let mut said = all.lock().unwrap_or_else(PoisonError::into_inner);
                said.extend(&piece[..read]);
                let extra = said.len().saturating_sub(REASON_BYTES);
                said.drain(..extra);
            }
            drop(at_end);
        })?;
        Ok(Self { said, reading })
    }

    /// Returns the text. Waits for the end of stderr, at most for [`REASON_WAIT`]. Called after the end of the output.
    fn text(&self) -> String {
        let _ = self.reading.recv_timeout(REASON_WAIT);
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(said.make_contiguous())
            .trim()
            .to_owned()
    }
}

/// Reads to the end of the output. Returns false if reading ended earlier: the data thread has stopped, or an entry was rejected.
async fn read_all(
    stdout: ChildStdout,
    pool: Pool,
    entry_max: Size,
    to: &mpsc::Sender<Piece>,
) -> Result<bool, String> {
    let mut carried: Vec<u8> = Vec::new();
    loop {
        let room = READ_BYTES.max(carried.len() + READ_BYTES / 2);
        let mut buffer = pool.reserve(room).await;
        buffer.append(&mut carried);
        let read = loop {
            match rustix::io::read(&stdout, spare_capacity(&mut *buffer)) {
                Ok(read) => break read,
                Err(Errno::INTR) => {}
                Err(error) => return Err(format!("cannot read its output: {error}")),
            }
        };
        if read == 0 && !buffer.is_empty() {
            return Err("it ended in the middle of an entry".to_owned());
        }
        if read == 0 {
            return Ok(true);
        }
        let (mut at, mut body, mut count, mut cursor) = (0, Vec::new(), 0, None);
        let mut rejected = None;
        loop {
            match journal::scan(&buffer[at..]).map_err(|error| error.to_string())? {
                Scanned::Partial => break,
                Scanned::Blank(bytes) => at += bytes,
                Scanned::Entry(entry) => {
                    entry.write(Time::now(), &mut body);
                    cursor = Some(entry.cursor);
                    count += 1;
                    at += entry.length;
                }
                Scanned::TooManyFields { fields, cursor } => {
                    rejected = Some((fields, cursor));
                    break;
                }
            }
        }
        if let Some(cursor) = cursor {
            let cursor = cursor_text(cursor)?;
            let piece = Piece::Entries {
                body,
                count,
                cursor,
            };
            if to.send(piece).await.is_err() {
                return Ok(false);
            }
        }
        let rest = &buffer[at..];
        let piece = if let Some((fields, cursor)) = rejected {
            let reason = format!("an entry has more than {FIELDS_MAX} fields");
            rejected_piece(fields, cursor, entry_max, reason)?
        } else if rest.len() > entry_max.as_usize() {
            let cursor = journal::cursor(rest).ok_or("an entry without a cursor")?;
            let reason = format!("an entry is larger than entry_max ({entry_max})");
            rejected_piece(rest, cursor, entry_max, reason)?
        } else {
            carried = rest.to_vec();
            continue;
        };
        let _ = to.send(piece).await;
        return Ok(false);
    }
}

/// Makes the event for a rejected entry that begins with `text`.
fn rejected_piece(
    text: &[u8],
    cursor: &[u8],
    entry_max: Size,
    reason: String,
) -> Result<Piece, String> {
    let bytes = text.len().min(entry_max.as_usize());
    Ok(Piece::Rejected {
        bytes: text[..bytes].to_vec(),
        cursor: cursor_text(cursor)?,
        reason,
    })
}

/// Checks a cursor before it is passed as an argument to a program.
fn cursor_text(cursor: &[u8]) -> Result<String, String> {
    let is_plain = |byte: &u8| byte.is_ascii_graphic();
    match !cursor.is_empty() && cursor.iter().all(is_plain) {
        true => Ok(String::from_utf8_lossy(cursor).into_owned()),
        false => Err("it wrote an entry without a cursor".to_owned()),
    }
}

impl Config {
    /// Whether the first start skips the entries that exist.
    pub(super) fn begins_at_end(&self) -> bool {
        self.start == Start::End
    }
}
