//! The physical references: programs that only move bytes, measured beside the program under test.
//!
//! `millbench reader` reads connections or a file and drops the bytes; `millbench relay` passes connections on; `millbench writer`
//! writes bytes from memory. Their speed is the machine's limit, and a server is judged by the share of this limit that it reaches.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, IoSlice, Read as _, Write as _},
    mem::MaybeUninit,
    net::{Shutdown, TcpListener, TcpStream},
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use clap::{ArgGroup, Args, ValueEnum};
use rustix::{
    event::epoll,
    io::{Errno, ReadWriteFlags},
    net::sockopt,
};
use rustls::{ServerConfig, ServerConnection};

use crate::{Failure, frames::Frames, run::process, tls, units};

/// Reads bytes and drops them, to measure the cost of receiving alone.
///
/// Examples:
///   millbench reader --listen 127.0.0.1:24224
///   millbench reader --listen 127.0.0.1:24224 --acks
///   millbench reader --file big.log --read 256KiB
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment, group(ArgGroup::new("from").required(true).args(["listen", "file"])))]
pub struct ReaderOptions {
    /// Accept connections on HOST:PORT and read them until killed
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Read a file to its end, and print how long that took
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Bytes per read
    #[arg(long, value_name = "SIZE", default_value = "256KiB", value_parser = units::size)]
    read: u64,
    /// Read complete frames of the forward protocol (up to 2 MiB) into a buffer per connection, and acknowledge those that ask
    /// for it
    #[arg(long, requires = "listen", conflicts_with = "tls_cert")]
    acks: bool,
    /// Decrypt the connections with this certificate in PEM
    #[arg(long, value_name = "PATH", requires_all = ["tls_key", "listen"])]
    tls_cert: Option<PathBuf>,
    /// The certificate's key in PEM
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Number of reading threads; connections are assigned to them in turn
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
}

/// Runs `millbench reader`.
pub fn read(options: &ReaderOptions) -> Result<ExitCode, Failure> {
    let size = usize::try_from(options.read.clamp(1, 1 << 30)).unwrap_or(1 << 20);
    if let Some(path) = &options.file {
        let name = |error| Failure::Other(format!("{}: {error}", path.display()));
        let mut file = File::open(path).map_err(name)?;
        measure(|| {
            let mut buffer = vec![0; size];
            let mut bytes = 0;
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok(bytes),
                    read => bytes += read as u64,
                }
            }
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let address = options.listen.as_deref().unwrap_or_default();
    let how = match (&options.tls_cert, &options.tls_key) {
        (Some(cert), Some(key)) => Take::Decrypt(tls::server(cert, key)?),
        _ if options.acks => Take::Acknowledge,
        _ => Take::Drop,
    };
    let listener = TcpListener::bind(address)
        .map_err(|error| Failure::Other(format!("cannot listen on {address}: {error}")))?;
    let pollers = (0..options.threads.max(1))
        .map(|_| {
            let (sender, receiver) = std::sync::mpsc::sync_channel::<TcpStream>(1024);
            let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let other = poll.try_clone()?;
            let how = how.clone();
            thread::spawn(move || drop_bytes(&other, &receiver, size, &how));
            Ok((poll, sender))
        })
        .collect::<io::Result<Vec<_>>>()?;
    for (stream, (poll, sender)) in listener.incoming().zip(pollers.iter().cycle()) {
        let Ok(stream) = stream else { continue };
        stream.set_nonblocking(true)?;
        let data = epoll::EventData::new_u64(stream.as_raw_fd() as u64);
        epoll::add(poll, &stream, data, epoll::EventFlags::IN).map_err(io::Error::from)?;
        if sender.send(stream).is_err() {
            return Err(Failure::Other("a reading thread has ended".into()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// How the reader treats received bytes.
#[derive(Clone)]
enum Take {
    /// Reads and drops.
    Drop,
    /// Reads whole frames and acknowledges them.
    Acknowledge,
    /// Decrypts and drops.
    Decrypt(Arc<ServerConfig>),
}

/// The state of one connection.
enum State {
    Nothing,
    Frames(Frames),
    Session(Box<ServerConnection>),
}

impl State {
    fn new(how: &Take) -> io::Result<Self> {
        Ok(match how {
            Take::Drop => Self::Nothing,
            Take::Acknowledge => Self::Frames(Frames::new()),
            Take::Decrypt(config) => {
                let session = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
                Self::Session(Box::new(session))
            }
        })
    }

    /// Reads the available bytes. Returns false if the peer has closed the connection.
    fn take(&mut self, stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<bool> {
        match self {
            Self::Nothing => Ok(stream.read(buffer)? > 0),
            Self::Frames(frames) => frames.read(stream, buffer.len()),
            Self::Session(session) => tls::drop_bytes(stream, session, buffer),
        }
    }
}

/// Serves the connections of one thread. Each time a connection is ready, reads once; with TLS, reads until no data is available.
fn drop_bytes(
    poll: &std::os::fd::OwnedFd,
    fresh: &std::sync::mpsc::Receiver<TcpStream>,
    size: usize,
    how: &Take,
) -> io::Result<()> {
    let mut streams: HashMap<u64, (TcpStream, State)> = HashMap::new();
    let mut events = [MaybeUninit::uninit(); 64];
    let mut buffer = vec![0; size];
    loop {
        let (ready, _) = match epoll::wait(poll, &mut events, None) {
            Ok(ready) => ready,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for event in ready {
            let key = event.data.u64();
            while !streams.contains_key(&key) {
                let stream = fresh.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
                streams.insert(stream.as_raw_fd() as u64, (stream, State::new(how)?));
            }
            let Some((stream, state)) = streams.get_mut(&key) else {
                continue;
            };
            match state.take(stream, &mut buffer) {
                Ok(true) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Closing a connection also removes it from the poll.
                Ok(false) | Err(_) => drop(streams.remove(&key)),
            }
        }
    }
}

/// Passes the bytes of connections on in both directions, to measure the cost of receiving and sending alone.
///
/// Examples:
///   millbench relay --listen 127.0.0.1:24224 --to 127.0.0.1:24225
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
pub struct RelayOptions {
    /// Accept connections on HOST:PORT until killed
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// Open a connection to HOST:PORT for each accepted one
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    /// Bytes per read
    #[arg(long, value_name = "SIZE", default_value = "256KiB", value_parser = units::size)]
    read: u64,
    /// SO_SNDBUF towards `--to`
    #[arg(long, value_name = "SIZE", default_value = "128KiB", value_parser = units::size)]
    send_buffer: u64,
}

/// Runs `millbench relay`: two threads for each connection.
pub fn relay(options: &RelayOptions) -> Result<ExitCode, Failure> {
    let size = |bytes: u64| usize::try_from(bytes.clamp(1, 1 << 30)).unwrap_or(1 << 20);
    let (read, send_buffer) = (size(options.read), size(options.send_buffer));
    let address = &options.listen;
    let listener = TcpListener::bind(address)
        .map_err(|error| Failure::Other(format!("cannot listen on {address}: {error}")))?;
    for from in listener.incoming() {
        let from = from?;
        let to = TcpStream::connect(&options.to)
            .map_err(|error| Failure::Other(format!("{}: {error}", options.to)))?;
        sockopt::set_socket_send_buffer_size(&to, send_buffer).map_err(io::Error::from)?;
        let (answers, asker) = (to.try_clone()?, from.try_clone()?);
        thread::spawn(move || pass(from, to, read));
        thread::spawn(move || pass(answers, asker, 4096));
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies the bytes of one direction through user memory, as a real relay does. `io::copy` is not used, because it would move the
/// bytes inside the kernel.
fn pass(mut from: TcpStream, mut to: TcpStream, size: usize) -> io::Result<()> {
    let mut buffer = vec![0; size];
    loop {
        match from.read(&mut buffer)? {
            0 => return to.shutdown(Shutdown::Write),
            read => to.write_all(&buffer[..read])?,
        }
    }
}

/// How `millbench writer` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum How {
    /// Over segments that were written before, so that no blocks or pages are allocated
    Overwrite,
    /// Into a new file, through the page cache
    Append,
    /// Into a new file, without leaving pages in the page cache (RWF_DONTCACHE, Linux 6.14)
    Uncached,
}

/// Writes bytes from memory, to measure the cost of writing alone.
///
/// Examples:
///   millbench writer --directory /var/tmp/w --how overwrite --sync --bytes 4GiB
///   millbench writer --directory /var/tmp/w --how uncached --bytes 4GiB
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
pub struct WriterOptions {
    /// The directory to write to; the files are removed at the end
    #[arg(long, value_name = "PATH")]
    directory: PathBuf,
    /// How to write
    #[arg(long, value_enum, default_value_t = How::Append)]
    how: How,
    /// fdatasync after every block
    #[arg(long)]
    sync: bool,
    /// Total number of bytes to write
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = units::size)]
    bytes: u64,
    /// Bytes per write
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = units::size)]
    block: u64,
    /// Segments to overwrite in turn, of 64 MiB each
    #[arg(long, value_name = "N", default_value_t = 16)]
    segments: usize,
}

/// The size of a segment, as in Millstream's disk channel.
const SEGMENT: u64 = 64 << 20;
/// RWF_DONTCACHE of `pwritev2(2)`, which rustix does not define yet.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// Runs `millbench writer`.
pub fn write(options: &WriterOptions) -> Result<ExitCode, Failure> {
    if options.block == 0 || options.block > SEGMENT || options.segments == 0 {
        return Err(Failure::Usage(
            "--block must lie between 1B and 64MiB, --segments be at least 1".into(),
        ));
    }
    fs::create_dir_all(&options.directory)?;
    let segments = match options.how {
        How::Overwrite => options.segments,
        How::Append | How::Uncached => 1,
    };
    let files: Vec<PathBuf> = (0..segments)
        .map(|at| options.directory.join(format!("segment-{at}")))
        .collect();
    let result = write_files(options, &files);
    for file in &files {
        fs::remove_file(file)?;
    }
    result.map(|()| ExitCode::SUCCESS).map_err(Failure::from)
}

fn write_files(options: &WriterOptions, paths: &[PathBuf]) -> io::Result<()> {
    // The block is not all zeros, because a disk could store zeros as holes.
    let block: Vec<u8> = (0..options.block).map(|at| (at % 251) as u8 + 1).collect();
    let open = |path: &PathBuf| {
        let mut how = OpenOptions::new();
        how.create(true).truncate(true).write(true).open(path)
    };
    let files = paths.iter().map(open).collect::<io::Result<Vec<_>>>()?;
    let per_segment = SEGMENT / options.block;
    if options.how == How::Overwrite {
        for file in &files {
            for at in 0..per_segment {
                file.write_all_at(&block, at * options.block)?;
            }
            file.sync_all()?;
        }
    }
    measure(|| {
        for at in 0..options.bytes / options.block {
            let (file, within) = match options.how {
                How::Overwrite => {
                    let segment = at / per_segment % files.len() as u64;
                    (&files[segment as usize], at % per_segment)
                }
                How::Append | How::Uncached => (&files[0], at),
            };
            let offset = within * options.block;
            match options.how {
                How::Uncached => write_uncached(file, &block, offset)?,
                How::Overwrite | How::Append => file.write_all_at(&block, offset)?,
            }
            if options.sync {
                file.sync_data()?;
            }
        }
        Ok(options.bytes / options.block * options.block)
    })
}

fn write_uncached(file: &File, block: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < block.len() {
        let rest = [IoSlice::new(&block[done..])];
        match rustix::io::pwritev2(file, &rest, offset + done as u64, DONTCACHE) {
            Ok(written) => done += written,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The output of a reference as one line of JSON: bytes, wall time and CPU time of the work.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct Measured {
    /// Bytes moved.
    pub bytes: u64,
    /// Wall time.
    pub seconds: f64,
    /// User and system time of this process.
    pub cpu_seconds: f64,
}

fn measure(work: impl FnOnce() -> io::Result<u64>) -> io::Result<()> {
    let me = Path::new("/proc/self");
    let (cpu, start) = (process::cpu(me)?, Instant::now());
    let bytes = work()?;
    let measured = Measured {
        bytes,
        seconds: start.elapsed().max(Duration::from_nanos(1)).as_secs_f64(),
        cpu_seconds: process::cpu(me)? - cpu,
    };
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}
