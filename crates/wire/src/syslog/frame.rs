//! Divides a stream into messages. Both framings of RFC 6587 are supported, and the framing is detected for each message.
//!
//! ```text
//! octet counting   MSG-LEN SP MSG        MSG-LEN: decimal, its first digit not 0
//! lines            MSG LF                or CR LF, or NUL before `<`, LF or the end (Python's SysLogHandler)
//! ```
//!
//! With [`Framing::Auto`], a message that begins with digits, a space and `<` is counted: it uses octet counting. If the previous message
//! was counted, digits and a space suffice, because a sender does not change its framing. Empty messages are skipped.

use memchr::{memchr, memchr2};

/// How messages are separated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// Detected from the beginning of each message.
    #[default]
    Auto,
    /// Octet counting. A message without a count is read as a line.
    Octets,
    /// At newlines. NUL is an ordinary byte except before a newline.
    Lines,
}

/// The state of the input after the available text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// More bytes will probably follow.
    More,
    /// No more bytes are available at present.
    Quiet,
    /// The end of the stream: an incomplete message ends here.
    End,
}

/// The maximum number of digits of a count. A number with more digits would exceed the length of any message.
const COUNT_DIGITS_MAX: usize = 9;

/// The item at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scanned {
    /// A message from `start` to `end`; the next message begins at `next` or later.
    Message {
        start: usize,
        end: usize,
        next: usize,
    },
    /// A piece of a message that is too long, from `start` to `end`; the next part begins at `next`.
    Piece {
        start: usize,
        end: usize,
        next: usize,
        last: bool,
    },
    /// No complete item. The text before `skip` can be dropped.
    Nothing { skip: usize },
}

/// The rest of a message that is read in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// The rest of a counted message, which has this many bytes.
    Octets(usize),
    /// The rest of a line, up to its end.
    Line,
}

/// Finds messages in a stream.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    framing: Framing,
    bytes_max: usize,
    /// Whether the previous message was counted.
    counted: bool,
    /// The number of bytes of the current message that were searched for its end.
    searched: usize,
    rest: Option<Rest>,
    /// The number of counted messages that are incomplete because the input ended.
    pub(super) cut: u32,
}

impl Frames {
    pub(super) fn new(framing: Framing, bytes_max: usize) -> Self {
        Self {
            framing,
            bytes_max,
            counted: false,
            searched: 0,
            rest: None,
            cut: 0,
        }
    }

    /// Returns the next item in `text`, beginning at the offset `at`. All offsets refer to `text`. After more text has arrived, the
    /// caller continues at the offset that was returned.
    #[inline(always)]
    pub(super) fn next(&mut self, text: &[u8], at: usize, after: After) -> Scanned {
        // The most frequent case: a line of ordinary length.
        if self.rest.is_none()
            && self.searched == 0
            && self.framing != Framing::Octets
            && text.get(at) == Some(&b'<')
        {
            self.counted = false;
            return self.line(text, at, after);
        }
        self.any(text, at, after)
    }

    #[inline(never)]
    fn any(&mut self, text: &[u8], at: usize, after: After) -> Scanned {
        match self.rest {
            Some(Rest::Octets(left)) => return self.octets_on(text, at, left, after),
            Some(Rest::Line) => return self.line(text, at, after),
            None => {}
        }
        let start = at + blanks(text.get(at..).unwrap_or_default(), self.counted);
        if start > at {
            self.searched = 0;
        }
        let rest = text.get(start..).unwrap_or_default();
        // A CR at the end of the text may belong to an empty line whose LF is still missing.
        if rest.is_empty() || (rest == b"\r" && after != After::End) {
            return Scanned::Nothing { skip: start };
        }
        let digits = match self.framing {
            Framing::Lines => 0,
            _ => digits(rest),
        };
        if digits == 0 || digits > COUNT_DIGITS_MAX {
            self.counted = false;
            return self.line(text, start, after);
        }
        let sure = self.counted || self.framing == Framing::Octets;
        match (rest.get(digits), rest.get(digits + 1)) {
            (Some(b' '), _) if sure => self.octets(text, start, digits, after),
            (Some(b' '), Some(b'<')) => self.octets(text, start, digits, after),
            (None, _) | (Some(b' '), None) if after != After::End => {
                Scanned::Nothing { skip: start }
            }
            _ => {
                self.counted = false;
                self.line(text, start, after)
            }
        }
    }

    /// Finds a counted message.
    fn octets(&mut self, text: &[u8], at: usize, digits: usize, after: After) -> Scanned {
        let count = text
            .iter()
            .skip(at)
            .take(digits)
            .fold(0, |count, digit| count * 10 + usize::from(digit - b'0'));
        self.counted = true;
        self.searched = 0;
        let start = at + digits + 1;
        let there = text.len() - start;
        if count > self.bytes_max {
            // Waits until the first piece is complete, because the piece and the count are consumed together.
            if there <= self.bytes_max && after != After::End {
                return Scanned::Nothing { skip: at };
            }
            return self.octets_on(text, start, count, after);
        }
        if there < count && after != After::End {
            return Scanned::Nothing { skip: at };
        }
        self.cut += u32::from(there < count);
        let next = text.len().min(start + count);
        let message = text.get(start..next).unwrap_or_default();
        Scanned::Message {
            start,
            end: start + trimmed(message).len(),
            next,
        }
    }

    /// Returns the next piece of a counted message of which `left` bytes remain.
    fn octets_on(&mut self, text: &[u8], start: usize, left: usize, after: After) -> Scanned {
        let there = text.get(start..).unwrap_or_default();
        let (bytes, last) = if left <= self.bytes_max.min(there.len()) {
            (left, true)
        } else if there.len() > self.bytes_max {
            (piece(there, self.bytes_max), false)
        } else if after == After::End {
            self.cut += 1;
            (there.len(), true)
        } else {
            return Scanned::Nothing { skip: start };
        };
        self.rest = (!last).then_some(Rest::Octets(left - bytes));
        Scanned::Piece {
            start,
            end: start + bytes,
            next: start + bytes,
            last,
        }
    }

    /// Finds the next line, or the next piece of a line that is too long.
    #[inline(always)]
    fn line(&mut self, text: &[u8], start: usize, after: After) -> Scanned {
        let there = text.get(start..).unwrap_or_default();
        // A line of `bytes_max` bytes may be followed by a CR or NUL, and then by an LF.
        let within = there
            .get(..self.bytes_max.saturating_add(2))
            .unwrap_or(there);
        match self.line_end(within, there, after) {
            Some((end, next)) if end <= self.bytes_max => {
                self.searched = 0;
                let (end, next) = (start + end, start + next);
                match self.rest.take() {
                    None => Scanned::Message { start, end, next },
                    Some(_) => Scanned::Piece {
                        start,
                        end,
                        next,
                        last: true,
                    },
                }
            }
            None if within.len() <= self.bytes_max + 1 => {
                self.searched = within.len();
                Scanned::Nothing { skip: start }
            }
            _ => {
                self.searched = 0;
                self.rest = Some(Rest::Line);
                let end = start + piece(there, self.bytes_max);
                Scanned::Piece {
                    start,
                    end,
                    next: end,
                    last: false,
                }
            }
        }
    }

    /// Returns the end of the line, without its CR or NUL, and the start of the next one. Returns `None` if the line is not
    /// complete.
    #[inline(always)]
    fn line_end(&self, within: &[u8], there: &[u8], after: After) -> Option<(usize, usize)> {
        // The last byte that was searched may be a NUL. Its meaning depends on the next byte, so it is searched again.
        let mut from = self.searched.saturating_sub(1);
        loop {
            let rest = within.get(from..).unwrap_or_default();
            let found = if self.framing == Framing::Lines {
                memchr(b'\n', rest)
            } else {
                memchr2(b'\n', 0, rest)
            };
            let Some(found) = found else {
                let ends = after == After::End && within.len() == there.len();
                return ends.then(|| (bare(within).len(), within.len()));
            };
            let at = from + found;
            if within.get(at) == Some(&b'\n') {
                let line = within.get(..at).unwrap_or_default();
                return Some((bare(line).len(), at + 1));
            }
            // A NUL ends a message only before `<` or at the end of the input. Before an LF, `bare` removes it.
            match there.get(at + 1) {
                Some(b'<') => return Some((at, at + 1)),
                None if after != After::More => return Some((at, at + 1)),
                None => return None,
                Some(_) => from = at + 1,
            }
        }
    }
}

/// Returns a line without the CR or NUL at its end.
#[inline(always)]
pub(super) fn bare(line: &[u8]) -> &[u8] {
    match line {
        [rest @ .., b'\r' | 0] => rest,
        _ => line,
    }
}

/// Returns a datagram or counted message without the LF, CR LF, CR or NUL at its end.
#[inline(always)]
pub(super) fn trimmed(message: &[u8]) -> &[u8] {
    let message = message.strip_suffix(&[0]).unwrap_or(message);
    match message {
        [rest @ .., b'\n'] => bare(rest),
        [rest @ .., b'\r'] => rest,
        _ => message,
    }
}

/// Returns the length of the empty lines at the start of `text`, and of line ends that some senders write after a counted message.
fn blanks(text: &[u8], counted: bool) -> usize {
    let mut rest = text;
    loop {
        rest = match rest {
            [b'\n', behind @ ..] | [b'\r', b'\n', behind @ ..] => behind,
            [0, behind @ ..] if counted => behind,
            _ => return text.len() - rest.len(),
        };
    }
}

/// Returns the number of digits at the start of `text`: 0 if the first one is 0, and [`COUNT_DIGITS_MAX`] + 1 if there are more
/// than allowed.
fn digits(text: &[u8]) -> usize {
    if text.first() == Some(&b'0') {
        return 0;
    }
    let digits = text.iter().take(COUNT_DIGITS_MAX + 1);
    digits.take_while(|byte| byte.is_ascii_digit()).count()
}

/// Returns the length of the next piece of `text`, which has at least `bytes_max` bytes. The length is `bytes_max`, or up to three bytes
/// less if a UTF-8 character would otherwise be divided.
fn piece(text: &[u8], bytes_max: usize) -> usize {
    let starts = |at: &usize| text.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80);
    let mut near = (bytes_max.saturating_sub(3).max(1)..=bytes_max).rev();
    near.find(starts).unwrap_or(bytes_max)
}
