//! Frames that a client sends.

use std::{fmt, ops::Range};

use super::after;

/// Bytes of the longest head: two numbers of 9 digits, a command of 32 letters, three spaces.
const HEAD_BYTES_MAX: usize = 9 + 1 + 32 + 1 + 9 + 1;
/// Digits of a number.
const DIGITS_MAX: usize = 9;
/// Letters of a command.
const LETTERS_MAX: usize = 32;
/// Bytes of data of any command but `syslog`: offers are a few lines.
const OTHER_BYTES_MAX: usize = 16 << 10;

/// What a frame asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Begins the session; its data are the client's offers.
    Open,
    /// Its data are one message.
    Syslog,
    /// Ends the session.
    Close,
    /// Nothing that was offered.
    Other,
}

/// What stands at the front of the input. Ranges are of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing whole: give the same bytes again, with more behind them.
    More,
    /// A frame.
    Frame {
        /// Its number.
        number: u32,
        /// What it asks for.
        command: Command,
        /// Its data.
        data: Range<usize>,
    },
    /// A part of a message that is longer than `bytes_max`.
    Part {
        /// The frame's number.
        number: u32,
        /// The data of this part.
        data: Range<usize>,
        /// With it the frame has come to its end.
        last: bool,
    },
}

/// Why a session cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The bytes are no frame.
    NoFrame,
    /// The number is not the one after the last.
    Number {
        /// What came.
        got: u32,
        /// What should have come.
        expected: u32,
    },
    /// A frame that is no message is larger than any such frame.
    TooLong,
    /// The first frame does not open, or a later one does.
    Open,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFrame => f.write_str("it does not speak RELP"),
            Self::Number { got, expected } => {
                write!(f, "frame {got} came where {expected} was due")
            }
            Self::TooLong => f.write_str("a frame that is no message is too long"),
            Self::Open => f.write_str("a session opens with its first frame and no other"),
        }
    }
}

/// Reads the frames of one session.
#[derive(Clone, Debug)]
pub struct Decoder {
    bytes_max: usize,
    /// The number of the last frame.
    last: u32,
    /// Of a message of which parts were given out: bytes to come.
    left: usize,
    /// In front of the next frame stands the end of one that came in parts.
    ending: bool,
}

/// The head of a frame.
struct Head {
    number: u32,
    command: Command,
    length: usize,
    /// Bytes up to the data.
    bytes: usize,
}

impl Decoder {
    /// At the start of a session; a message of more than `bytes_max` bytes (at least 1) comes in parts.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max: bytes_max.max(1),
            last: 0,
            left: 0,
            ending: false,
        }
    }

    /// Whether the input ends within a frame, if it ends behind `waiting` bytes that were not consumed.
    pub fn is_amid(&self, waiting: usize) -> bool {
        waiting > 0 || self.left > 0 || self.ending
    }

    /// What stands at the front of `input`, and how many bytes of it are done with.
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

    /// The next part, which begins at `start`.
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

/// The same step of an input that has `by` bytes more in front.
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

/// The head of a frame, if it is there whole.
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
        // Some put the second space here too.
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

/// A number that something follows.
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

/// What is behind a space.
fn space(text: &[u8]) -> Result<Option<&[u8]>, Refusal> {
    match text {
        [] => Ok(None),
        [b' ', rest @ ..] => Ok(Some(rest)),
        _ => Err(Refusal::NoFrame),
    }
}
