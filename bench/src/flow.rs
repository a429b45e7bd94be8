//! `millbench flow`: counts records once a second and prints them as fluent-plugin-flowcounter-simple does.
//!
//! The command runs as a forward server (all four modes, with acks), or reads lines from a file or from standard input. Without
//! `--save` it drops all records. A measurement of a sender alone can therefore use this command as the receiver.

use std::{
    fs::File,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use flate2::read::MultiGzDecoder;

use crate::{
    Failure,
    msgpack::{self, Array, Map},
    units,
};

/// The initial size of a read buffer in bytes. The buffer of a connection grows if a message is larger.
const READ: usize = 256 << 10;
/// The largest message in bytes.
const MESSAGE_MAX: usize = 256 << 20;
/// The largest decompressed payload in bytes.
const UNPACKED_MAX: u64 = 256 << 20;

/// Counts records per second, as flowcounter_simple prints them.
///
/// Examples:
///   millbench flow --listen 127.0.0.1:24224
///   tail -f app.log | millbench flow
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
pub struct Options {
    /// Listen on HOST:PORT as a forward server: count records, and acknowledge chunks that ask for it
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "file")]
    listen: Option<String>,
    /// Count the lines of this file [default without --listen: the lines of standard input]
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// With --listen: write every record's `message` to this file, one per line, before the record's chunk is acknowledged
    #[arg(long, value_name = "PATH", requires = "listen")]
    save: Option<PathBuf>,
    /// How often to print
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    interval: Duration,
    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    time: Option<Duration>,
}

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let (options, interval) = (
        options.clone(),
        options.interval.max(Duration::from_millis(1)),
    );
    let listener = match &options.listen {
        Some(address) => Some(
            TcpListener::bind(address)
                .map_err(|error| Failure::Other(format!("cannot listen on {address}: {error}")))?,
        ),
        None => None,
    };
    let time = options.time;
    let work = thread::spawn(move || match listener {
        Some(listener) => serve(&listener, options.save),
        None => lines(options.file),
    });
    let started = Instant::now();
    let mut next = started + interval;
    let mut before = 0;
    while !work.is_finished() && time.is_none_or(|time| started.elapsed() < time) {
        thread::sleep(Duration::from_millis(5).min(interval));
        if Instant::now() < next {
            continue;
        }
        next += interval;
        before = print(before, interval);
    }
    print(before, interval);
    if work.is_finished() {
        match work.join() {
            Ok(result) => result?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(before: u64, interval: Duration) -> u64 {
    let count = COUNT.load(Ordering::Relaxed);
    let unit = match interval.as_millis() {
        1000 => "second".to_owned(),
        millis => format!("{millis}ms"),
    };
    println!("count:{} indicator:num unit:{unit}", count - before);
    count
}

fn lines(path: Option<PathBuf>) -> io::Result<()> {
    let mut input: Box<dyn Read> = match path {
        Some(path) => Box::new(File::open(path)?),
        None => Box::new(io::stdin().lock()),
    };
    let mut buffer = vec![0; READ];
    loop {
        let read = match input.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let lines = memchr::memchr_iter(b'\n', &buffer[..read]).count();
        COUNT.fetch_add(lines as u64, Ordering::Relaxed);
    }
}

fn serve(listener: &TcpListener, save: Option<PathBuf>) -> io::Result<()> {
    let save = save.map(File::create).transpose()?.map(Mutex::new);
    thread::scope(|scope| {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            let save = save.as_ref();
            scope.spawn(move || {
                if let Err(error) = connection(stream, save) {
                    eprintln!("millbench: connection: {error}");
                }
            });
        }
    });
    Ok(())
}

fn connection(mut stream: TcpStream, save: Option<&Mutex<File>>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; READ];
    let (mut start, mut end) = (0, 0);
    loop {
        if end == buffer.len() {
            if start > 0 {
                buffer.copy_within(start..end, 0);
                (start, end) = (0, end - start);
            } else if buffer.len() < MESSAGE_MAX {
                buffer.resize(buffer.len() * 2, 0);
            } else {
                return Err(bad("a message is too long"));
            }
        }
        match stream.read(&mut buffer[end..]) {
            Ok(0) => return Ok(()),
            Ok(read) => end += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        let skip = |at| msgpack::skip(&buffer[..end], at).map_err(|_| bad("invalid MessagePack"));
        let mut lines = Vec::new();
        let mut acks = Vec::new();
        while let Some(stop) = skip(start)?.filter(|stop| *stop > start) {
            let keep = save.is_some().then_some(&mut lines);
            let count = message(&buffer[start..stop], keep, &mut acks)?;
            COUNT.fetch_add(count, Ordering::Relaxed);
            start = stop;
        }
        if let Some(save) = save {
            let mut file = save.lock().unwrap_or_else(|broken| broken.into_inner());
            file.write_all(&lines)?;
        }
        stream.write_all(&acks)?;
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Counts the records of a message. Appends their texts to `keep`, one per line. If the message asks for an ack, appends the ack
/// to `acks`.
fn message(bytes: &[u8], mut keep: Option<&mut Vec<u8>>, acks: &mut Vec<u8>) -> io::Result<u64> {
    // nil is a heartbeat.
    if bytes == [0xc0] {
        return Ok(0);
    }
    let mut parts = Array::read(bytes).ok_or_else(|| bad("a message is not an array"))?;
    let second = parts
        .nth(1)
        .ok_or_else(|| bad("a message has no second element"))?;
    let packed = msgpack::text(second);
    let forward = Array::read(second).filter(|_| packed.is_none());
    let (record, option) = match packed.is_some() || forward.is_some() {
        true => (None, parts.next()),
        false => (parts.next(), parts.next()),
    };
    let option = option.and_then(Map::read);
    let mut count = 0;
    let mut take = |record: Option<&[u8]>| {
        count += 1;
        let text = record
            .and_then(Map::read)
            .and_then(|map| map.get(b"message"));
        if let (Some(lines), Some(text)) = (keep.as_mut(), text.and_then(msgpack::text)) {
            lines.extend_from_slice(text);
            lines.push(b'\n');
        }
    };
    let fields = |entry| Array::read(entry).and_then(|mut entry| entry.nth(1));
    if let Some(payload) = packed {
        let compressed = option.as_ref().and_then(|option| option.get(b"compressed"));
        let unpacked;
        let payload = if compressed.and_then(msgpack::text) == Some(b"gzip") {
            let mut room = Vec::new();
            MultiGzDecoder::new(payload)
                .take(UNPACKED_MAX)
                .read_to_end(&mut room)?;
            unpacked = room;
            &unpacked[..]
        } else {
            payload
        };
        let mut at = 0;
        while at < payload.len() {
            let end = msgpack::skip(payload, at).ok().flatten();
            let end = end.ok_or_else(|| bad("a payload is cut short"))?;
            take(fields(&payload[at..end]));
            at = end;
        }
    } else if let Some(entries) = forward {
        entries.for_each(|entry| take(fields(entry)));
    } else {
        take(record);
    }
    if let Some(id) = option.and_then(|option| option.get(b"chunk")) {
        acks.extend_from_slice(b"\x81\xa3ack");
        acks.extend_from_slice(id);
    }
    Ok(count)
}
