//! Frames of the forward protocol, as `millbench reader --acks` handles them: each frame is read completely into its connection's
//! buffer, acknowledged and dropped.
//!
//! A server whose senders wait for acks must do at least this work. The reader interprets the outer array and the option map of a
//! frame, but not its records.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
};

use crate::msgpack::{self, Array, Map};

/// The size of the largest frame that is accepted, in bytes. A larger frame ends its connection. The generator's frames are 1 MB
/// long by default.
const FRAME_BYTES_MAX: usize = 2 << 20;
/// The size of a memory page in bytes.
const PAGE: usize = 4096;

/// The frames of one connection.
pub struct Frames {
    buffer: Vec<u8>,
    /// The offset in `buffer` at which the current frame begins. The address of this byte is the middle of a memory page. On some
    /// processors, the kernel copies slowly if the source begins at a page boundary and the destination begins only a few bytes
    /// away from one. The length of a tag shifts these addresses. Servers are compared with this reader, so its speed must not
    /// depend on the addresses.
    begin: usize,
    /// The offset after the last byte that has arrived.
    end: usize,
}

impl Frames {
    /// Creates the empty buffer of a new connection.
    pub fn new() -> Self {
        let buffer = vec![0; FRAME_BYTES_MAX + PAGE];
        let begin = (PAGE + PAGE / 2 - buffer.as_ptr().addr() % PAGE) % PAGE;
        Self {
            buffer,
            begin,
            end: begin,
        }
    }

    /// Reads once, up to `size` bytes, and acknowledges every frame that is now complete. Returns false if the peer has closed the
    /// connection.
    pub fn read(&mut self, stream: &mut TcpStream, size: usize) -> io::Result<bool> {
        let room = size.min(self.buffer.len() - self.end);
        if room == 0 {
            return Err(bad("a frame is too long"));
        }
        let read = stream.read(&mut self.buffer[self.end..self.end + room])?;
        self.end += read;
        let (mut at, mut acks) = (self.begin, Vec::new());
        while let Some(stop) = self.frame_end(at)? {
            acknowledge(&self.buffer[at..stop], &mut acks);
            at = stop;
        }
        if at > self.begin {
            self.buffer.copy_within(at..self.end, self.begin);
            self.end -= at - self.begin;
            stream.write_all(&acks)?;
        }
        Ok(read > 0)
    }

    /// The offset at which the frame at `at` ends; `None` if it has not arrived completely.
    fn frame_end(&self, at: usize) -> io::Result<Option<usize>> {
        let end = msgpack::skip(&self.buffer[..self.end], at);
        end.map_err(|_| bad("invalid MessagePack"))
    }
}

/// Appends the ack of a frame to `acks` if the frame asks for one.
fn acknowledge(frame: &[u8], acks: &mut Vec<u8>) {
    let option = Array::read(frame).and_then(|mut frame| frame.nth(2));
    let option = option.and_then(Map::read);
    if let Some(id) = option.and_then(|option| option.get(b"chunk")) {
        acks.extend_from_slice(b"\x81\xa3ack");
        acks.extend_from_slice(id);
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};

    #[test]
    fn every_frame_is_acknowledged_however_reads_split_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let frame = |id: u8| [&b"\x93\xa1t\xa5hello\x81\xa5chunk\xa1"[..], &[id]].concat();
        let sent: Vec<u8> = (b'a'..=b'z').flat_map(frame).collect();
        let sending = thread::spawn(move || {
            sender.write_all(&sent).unwrap();
            sender.shutdown(std::net::Shutdown::Write).unwrap();
            let mut acks = Vec::new();
            sender.read_to_end(&mut acks).unwrap();
            acks
        });
        let mut frames = Frames::new();
        assert_eq!(
            (frames.buffer.as_ptr().addr() + frames.begin) % PAGE,
            PAGE / 2
        );
        while frames.read(&mut stream, 7).unwrap() {}
        drop(stream);
        let expected: Vec<u8> = (b'a'..=b'z')
            .flat_map(|id| [&b"\x81\xa3ack\xa1"[..], &[id]].concat())
            .collect();
        assert_eq!(sending.join().unwrap(), expected);
    }
}
