//! Measures the speed at which the kernel copies out of a socket and out of the page cache:
//! `cargo bench -p millstream-sys --bench copies`. The speed depends on the distance of the destination from the source, modulo
//! a page. Prints GB/s for the distances 0 to 64, and for the distance at which a buffer of the program's allocator begins. The
//! fastest lap counts, because other load only makes laps slower.

use std::{
    fs::File,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use millstream_sys::allocator::MidPage;
use rustix::io::{ioctl_fionread, pread};

#[global_allocator]
static ALLOCATOR: MidPage = MidPage;

/// The size of one copy in bytes. A socket's buffer holds this many bytes, and a file of this size fits into the cache.
const BYTES: usize = 64 << 10;
const PAGE: usize = 4096;
const LAPS: u32 = 300;

/// The speed of the fastest of many laps, in GB/s.
fn fastest(mut lap: impl FnMut() -> Duration) -> f64 {
    let fastest = (0..LAPS).map(|_| lap()).min().unwrap_or_default();
    BYTES as f64 / fastest.as_secs_f64() / 1e9
}

/// Sends whole pages, and times only how they are received.
fn receive(sender: &mut TcpStream, receiver: &mut TcpStream, out: &mut [u8]) -> Duration {
    sender
        .write_all(&[b'x'; BYTES])
        .expect("the socket has room");
    while ioctl_fionread(&*receiver).expect("it is a socket") < BYTES as u64 {
        std::thread::yield_now();
    }
    let start = Instant::now();
    receiver.read_exact(out).expect("all of it is there");
    start.elapsed()
}

#[allow(clippy::print_stdout)]
fn main() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let mut sender = TcpStream::connect(address).expect("it listens");
    let (mut receiver, _) = listener.accept().expect("the sender connects");
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let path = directory.path().join("file");
    std::fs::write(&path, vec![b'x'; BYTES]).expect("the disk has room");
    let file = File::open(&path).expect("it is there");

    let mut buffer = vec![0; BYTES + 2 * PAGE];
    let begin = buffer.as_ptr().addr() % PAGE;
    println!("a large buffer begins {begin} bytes after the start of a page");
    println!("distance  socket GB/s  file GB/s");
    for distance in (0..=64).chain([begin]) {
        let at = (PAGE + distance - begin) % PAGE;
        let out = &mut buffer[at..at + BYTES];
        let socket = fastest(|| receive(&mut sender, &mut receiver, out));
        let file = fastest(|| {
            let start = Instant::now();
            let read = pread(&file, &mut *out, 0).expect("it can be read");
            assert_eq!(read, BYTES);
            start.elapsed()
        });
        println!("{distance:>8}{socket:>13.1}{file:>11.1}");
    }
}
