//! Reads the frames of a client.

use std::{fmt, ops::Range};

use super::after;

/// The longest head: two numbers of 9 digits, a command of 32 letters, three spaces.
const HEAD_BYTES_MAX: usize = 9 + 1 + 32 + 1 + 9 + 1;
/// The maximum number of digits of a number.
const DIGITS_MAX: usize = 9;
/// The maximum number of letters of a command.
const LETTERS_MAX: usize = 32;
/// The maximum number of bytes of data for commands other than `syslog`: offers are a few lines.
const OTHER_BYTES_MAX: usize = 16 << 10;

/// The command of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Begins the session; the data are the client's offers.
    Open,
    /// The data are one message.
    Syslog,
    /// Ends the session.
    Close,
    /// Another command, which the server has not offered.
    Other,
}

/// The item at the front of the input. Ranges refer to the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// No item is complete: pass the remaining bytes again, followed by new ones.
    More,
    /// A frame.
    Frame {
        /// The number of the frame.
        number: u32,
        /// The command of the frame.
        command: Command,
        /// The data of the frame.
        data: Range<usize>,
    },
    /// A part of a message. Only messages of more than `bytes_max` bytes are returned in parts.
    Part {
        /// The frame's number.
        number: u32,
        /// The data of this part.
        data: Range<usize>,
        /// Whether it is the last part.
        last: bool,
    },
}

/// Why a session must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The bytes are not a frame.
    NoFrame,
    /// The frame does not have the next number in the sequence.
    Number {
        /// The received number.
        got: u32,
        /// The expected number.
        expected: u32,
    },
    /// The command is not `syslog`, and its data are too long.
    TooLong,
    /// The first frame is not `open`, or a later frame is `open`.
    Open,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFrame => f.write_str("the peer does not speak RELP"),
            Self::Number { got, expected } => {
                write!(f, "frame {got} arrived instead of frame {expected}")
            }
            Self::TooLong => f.write_str("a frame other than `syslog` is too long"),
            Self::Open => f.write_str("only the first frame of a session may be `open`"),
        }
    }
}

/// Reads the frames of one session.
#[derive(Clone, Debug)]
pub struct Decoder {
    bytes_max: usize,
    /// The number of the last frame.
    last: u32,
    /// The number of remaining bytes of a message that is read in parts.
    left: usize,
    /// Whether all parts of a message have been read, and only the newline after the message is missing.
    ending: bool,
}

/// The head of a frame.
struct Head {
    number: u32,
    command: Command,
    length: usize,
    /// The number of bytes before the data.
    bytes: usize,
}

impl Decoder {
    /// The state at the start of a session; a message of more than `bytes_max` bytes (at least 1) is read in parts.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max: bytes_max.max(1),
            last: 0,
            left: 0,
            ending: false,
        }
    }

    /// Whether a frame is incomplete, so that the end of the connection would truncate it. `waiting` is the number of
    /// bytes that were received but not consumed.
    pub fn is_amid(&self, waiting: usize) -> bool {
        waiting > 0 || self.left > 0 || self.ending
    }

    /// Returns the item at the front of `input`, and the number of bytes consumed.
    pub fn next(&mut self, input: &[u8]) -> Result<(usize, Step), Refusal> {
        if self.left > 0 {
            return Ok(self.part(input, 0));
        }
        if self.ending {
            return match input.first() {
                None => Ok((0, Step::More)),
                Some(b'\n') => {
                    self.ending = false;
                    let (consumed, step) = self.next(input.get(1..).unwrap_or_default())?;
                    Ok((consumed + 1, moved(step, 1)))
                }
                Some(_) => Err(Refusal::NoFrame),
            };
        }
        let Some(head) = head(input)? else {
            return Ok((0, Step::More));
        };
        let expected = after(self.last);
        if head.number != expected {
            let got = head.number;
            return Err(Refusal::Number { got, expected });
        }
        if (head.command == Command::Open) != (self.last == 0) {
            return Err(Refusal::Open);
        }
        if head.command != Command::Syslog && head.length > OTHER_BYTES_MAX {
            return Err(Refusal::TooLong);
        }
        if head.command == Command::Syslog && head.length > self.bytes_max {
            if input.len() - head.bytes < self.bytes_max {
                return Ok((0, Step::More));
            }
            self.last = head.number;
            self.left = head.length;
            return Ok(self.part(input, head.bytes));
        }
        let data = head.bytes..head.bytes + head.length;
        match input.get(data.end) {
            None => Ok((0, Step::More)),
            Some(b'\n') => {
                self.last = head.number;
                let (number, command) = (head.number, head.command);
                let frame = Step::Frame {
                    number,
                    command,
                    data: data.clone(),
                };
                Ok((data.end + 1, frame))
            }
            Some(_) => Err(Refusal::NoFrame),
        }
    }

    /// Reads the next part of a message. The data begin at offset `start` of `input`.
    fn part(&mut self, input: &[u8], start: usize) -> (usize, Step) {
        let length = (input.len() - start).min(self.left).min(self.bytes_max);
        if length < self.left.min(self.bytes_max) {
            return (0, Step::More);
        }
        self.left -= length;
        self.ending = self.left == 0;
        let part = Step::Part {
            number: self.last,
            data: start..start + length,
            last: self.ending,
        };
        (start + length, part)
    }
}

/// The same step, for an input with `by` more bytes in front.
fn moved(step: Step, by: usize) -> Step {
    let moved = |data: Range<usize>| data.start + by..data.end + by;
    match step {
        Step::More => Step::More,
        Step::Frame {
            number,
            command,
            data,
        } => Step::Frame {
            number,
            command,
            data: moved(data),
        },
        Step::Part { number, data, last } => Step::Part {
            number,
            data: moved(data),
            last,
        },
    }
}

/// Reads the head of a frame; `None` if the head is incomplete.
fn head(input: &[u8]) -> Result<Option<Head>, Refusal> {
    let near = input.get(..HEAD_BYTES_MAX + 1).unwrap_or(input);
    let Some((number, rest)) = number(near)? else {
        return Ok(None);
    };
    let Some(rest) = space(rest)? else {
        return Ok(None);
    };
    let letters = rest.iter().take_while(|byte| byte.is_ascii_alphabetic());
    let letters = letters.count();
    if letters > LETTERS_MAX || (letters == 0 && !rest.is_empty()) {
        return Err(Refusal::NoFrame);
    }
    let (name, rest) = rest.split_at_checked(letters).ok_or(Refusal::NoFrame)?;
    let Some(rest) = space(rest)? else {
        return Ok(None);
    };
    let Some((length, rest)) = self::number(rest)? else {
        return Ok(None);
    };
    let rest = if length == 0 {
        // Some clients write the space after the length even without data.
        rest.strip_prefix(b" ").unwrap_or(rest)
    } else {
        match space(rest)? {
            Some(rest) => rest,
            None => return Ok(None),
        }
    };
    let command = match name {
        b"open" => Command::Open,
        b"syslog" => Command::Syslog,
        b"close" => Command::Close,
        _ => Command::Other,
    };
    Ok(Some(Head {
        number,
        command,
        length: length as usize,
        bytes: near.len() - rest.len(),
    }))
}

/// Reads a number. Returns `None` if the input ends with the number, because more digits may arrive.
fn number(text: &[u8]) -> Result<Option<(u32, &[u8])>, Refusal> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    let (mut value, mut count) = (0_u32, 0);
    for digit in digits.take(DIGITS_MAX + 1) {
        count += 1;
        value = value
            .saturating_mul(10)
            .saturating_add(u32::from(digit - b'0'));
    }
    let rest = text.get(count..).unwrap_or_default();
    if count > DIGITS_MAX || (count == 0 && !rest.is_empty()) {
        return Err(Refusal::NoFrame);
    }
    Ok((!rest.is_empty()).then_some((value, rest)))
}

/// Skips a space; `None` if the input ends before it.
fn space(text: &[u8]) -> Result<Option<&[u8]>, Refusal> {
    match text {
        [] => Ok(None),
        [b' ', rest @ ..] => Ok(Some(rest)),
        _ => Err(Refusal::NoFrame),
    }
}
