//! Frames of Avro's Netty transport: a call is divided into buffers of any size; a frame holds all buffers of a call.
//!
//! ```text
//! 0   serial    i32, big endian: repeated in the answer
//! 4   n         i32: number of buffers
//! 8   length    i32  \  n times
//!     bytes          /
//! ```

/// Reads the frames of one connection.
#[derive(Debug)]
pub struct Frames {
    bytes_max: usize,
    serial: u32,
    /// The number of buffers whose length was not read yet; `None` between two frames.
    buffers: Option<u32>,
    /// Remaining bytes of the current buffer.
    left: usize,
    /// The size of the frame so far, including its length fields.
    taken: usize,
    /// Bytes of the connection that were consumed.
    offset: u64,
}

/// The item at the front of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// No item is complete: read more bytes.
    More,
    /// This many bytes of the call follow the consumed bytes. Take these bytes, then call [`Frames::next`] with the
    /// bytes after them.
    Bytes(usize),
    /// The call is complete.
    End {
        /// The serial number for the answer.
        serial: u32,
    },
}

/// Why the connection cannot be read further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A negative count or length: another protocol.
    #[error("no frame of Avro RPC at byte {offset} of the connection")]
    Malformed {
        /// The offset in the connection.
        offset: u64,
    },
    /// A frame above the limit.
    #[error(
        "a call above the limit of {bytes_max} bytes (limits.frame), or no Avro RPC, at byte {offset} of the connection"
    )]
    TooLarge {
        /// The offset in the connection.
        offset: u64,
        /// The limit.
        bytes_max: usize,
    },
}

impl Frames {
    /// The state of a new connection whose frames may have `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            serial: 0,
            buffers: None,
            left: 0,
            taken: 0,
            offset: 0,
        }
    }

    /// Whether a frame is incomplete, so that the end of the connection would truncate it. `left` is the number of
    /// bytes that were received but not consumed.
    pub fn is_amid(&self, left: usize) -> bool {
        left > 0 || self.buffers.is_some()
    }

    /// Returns the number of bytes consumed, and the item at the front of `input`. Drop the consumed bytes, then call
    /// again. After [`Step::More`], pass the remaining bytes again, followed by new ones.
    ///
    /// # Errors
    /// [`Refusal`]: close the connection.
    pub fn next(&mut self, input: &[u8]) -> Result<(usize, Step), Refusal> {
        let mut at = 0;
        loop {
            if self.left > 0 {
                let count = self.left.min(input.len() - at);
                self.left -= count;
                let step = if count == 0 {
                    Step::More
                } else {
                    Step::Bytes(count)
                };
                self.offset += (at + count) as u64;
                return Ok((at, step));
            }
            match self.buffers {
                Some(0) => {
                    self.buffers = None;
                    self.offset += at as u64;
                    let serial = self.serial;
                    return Ok((at, Step::End { serial }));
                }
                Some(buffers) => {
                    let Some(length) = number(input, at) else {
                        break;
                    };
                    self.begin_buffer(length, at)?;
                    self.buffers = Some(buffers - 1);
                    at += 4;
                }
                None => {
                    let (Some(serial), Some(count)) = (number(input, at), number(input, at + 4))
                    else {
                        break;
                    };
                    self.begin_frame(serial, count, at)?;
                    at += 8;
                }
            }
        }
        self.offset += at as u64;
        Ok((at, Step::More))
    }

    fn begin_frame(&mut self, serial: u32, count: u32, at: usize) -> Result<(), Refusal> {
        if i32::try_from(count).is_err() {
            return Err(self.malformed(at));
        }
        self.taken = 0;
        self.serial = serial;
        self.buffers = Some(count);
        // Each buffer takes at least the 4 bytes of its length.
        self.take(count as usize * 4, at)?;
        self.taken = 0;
        Ok(())
    }

    fn begin_buffer(&mut self, length: u32, at: usize) -> Result<(), Refusal> {
        if i32::try_from(length).is_err() {
            return Err(self.malformed(at));
        }
        self.left = length as usize;
        self.take(length as usize + 4, at)
    }

    fn take(&mut self, bytes: usize, at: usize) -> Result<(), Refusal> {
        self.taken += bytes;
        if self.taken > self.bytes_max {
            return Err(Refusal::TooLarge {
                offset: self.offset + at as u64,
                bytes_max: self.bytes_max,
            });
        }
        Ok(())
    }

    fn malformed(&self, at: usize) -> Refusal {
        Refusal::Malformed {
            offset: self.offset + at as u64,
        }
    }
}

fn number(input: &[u8], at: usize) -> Option<u32> {
    let bytes = input.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*bytes))
}

/// Appends a frame of one buffer.
pub(super) fn write_frame(out: &mut Vec<u8>, serial: u32, call: &[u8]) {
    let length = u32::try_from(call.len()).unwrap_or(u32::MAX);
    for number in [serial, 1, length] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    out.extend_from_slice(call);
}
