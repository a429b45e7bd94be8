//! Where a message ends in a stream: RFC 6587, both ways, told apart for each message.
//!
//! ```text
//! octet counting   MSG-LEN SP MSG        MSG-LEN: decimal, its first digit not 0
//! lines            MSG LF                or CR LF, or NUL where `<`, LF or nothing follows (Python's SysLogHandler)
//! ```
//!
//! With [`Framing::Auto`] a message that begins with digits, a space and `<` is counted; behind a counted message digits
//! and a space are enough, as a sender does not change its mind. Empty messages are stepped over.

use memchr::{memchr, memchr2};

/// How messages are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// By what each begins with.
    #[default]
    Auto,
    /// Octet counting. What has no count is taken as a line.
    Octets,
    /// At newlines; NUL is a byte as any other, but in front of a newline.
    Lines,
}

/// What comes behind the text that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// More, for all we know.
    More,
    /// Nothing at present.
    Quiet,
    /// Nothing ever: what has no end yet ends here.
    End,
}

/// More digits are no count: a count of so many digits is beyond any message.
const COUNT_DIGITS_MAX: usize = 9;

/// What stands at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A message from `start` to `end`; the next one starts at `next` at the earliest.
    Message {
        start: usize,
        end: usize,
        next: usize,
    },
    /// A piece of a message that is longer than it may be, from `start` to `end`; what follows starts at `next`.
    Piece {
        start: usize,
        end: usize,
        next: usize,
        last: bool,
    },
    /// Nothing whole. What stands before `skip` is not needed any more.
    Nothing { skip: usize },
}

/// The rest of a message of which pieces have been given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// So many bytes.
    Octets(usize),
    /// Up to the end of the line.
    Line,
}

/// Finds messages.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    framing: Framing,
    bytes_max: usize,
    /// The last message was counted.
    counted: bool,
    /// So many bytes of the message at the front were searched for its end.
    searched: usize,
    rest: Option<Rest>,
    /// Counted messages that the end of the input cut.
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

    /// What stands in `text` from `at`; offsets are of `text`. A text that grew is given again from where it was left.
    #[inline(always)]
    pub(super) fn next(&mut self, text: &[u8], at: usize, after: After) -> Found {
        // The common case: a line of an ordinary length.
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
    fn any(&mut self, text: &[u8], at: usize, after: After) -> Found {
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
        // A CR may begin an empty line.
        if rest.is_empty() || (rest == b"\r" && after != After::End) {
            return Found::Nothing { skip: start };
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
            (None, _) | (Some(b' '), None) if after != After::End => Found::Nothing { skip: start },
            _ => {
                self.counted = false;
                self.line(text, start, after)
            }
        }
    }

    /// A counted message.
    fn octets(&mut self, text: &[u8], at: usize, digits: usize, after: After) -> Found {
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
            // Not before the first piece is there: the count must not be lost.
            if there <= self.bytes_max && after != After::End {
                return Found::Nothing { skip: at };
            }
            return self.octets_on(text, start, count, after);
        }
        if there < count && after != After::End {
            return Found::Nothing { skip: at };
        }
        self.cut += u32::from(there < count);
        let next = text.len().min(start + count);
        let message = text.get(start..next).unwrap_or_default();
        Found::Message {
            start,
            end: start + trimmed(message).len(),
            next,
        }
    }

    /// The next piece of a counted message of which `left` bytes are to come.
    fn octets_on(&mut self, text: &[u8], start: usize, left: usize, after: After) -> Found {
        let there = text.get(start..).unwrap_or_default();
        let (bytes, last) = if left <= self.bytes_max.min(there.len()) {
            (left, true)
        } else if there.len() > self.bytes_max {
            (piece(there, self.bytes_max), false)
        } else if after == After::End {
            self.cut += 1;
            (there.len(), true)
        } else {
            return Found::Nothing { skip: start };
        };
        self.rest = (!last).then_some(Rest::Octets(left - bytes));
        Found::Piece {
            start,
            end: start + bytes,
            next: start + bytes,
            last,
        }
    }

    /// A line, or the next piece of one that is too long.
    #[inline(always)]
    fn line(&mut self, text: &[u8], start: usize, after: After) -> Found {
        let there = text.get(start..).unwrap_or_default();
        // Also a CR or NUL may stand before the end of the longest line.
        let within = there
            .get(..self.bytes_max.saturating_add(2))
            .unwrap_or(there);
        match self.line_end(within, there, after) {
            Some((end, next)) if end <= self.bytes_max => {
                self.searched = 0;
                let (end, next) = (start + end, start + next);
                match self.rest.take() {
                    None => Found::Message { start, end, next },
                    Some(_) => Found::Piece {
                        start,
                        end,
                        next,
                        last: true,
                    },
                }
            }
            None if within.len() <= self.bytes_max + 1 => {
                self.searched = within.len();
                Found::Nothing { skip: start }
            }
            _ => {
                self.searched = 0;
                self.rest = Some(Rest::Line);
                let end = start + piece(there, self.bytes_max);
                Found::Piece {
                    start,
                    end,
                    next: end,
                    last: false,
                }
            }
        }
    }

    /// Where the line ends, without its CR or NUL, and where the next one starts.
    #[inline(always)]
    fn line_end(&self, within: &[u8], there: &[u8], after: After) -> Option<(usize, usize)> {
        // The byte before may be a NUL that waited for what follows.
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
            // The end of a line is found at its LF; `bare` takes the NUL away.
            match there.get(at + 1) {
                Some(b'<') => return Some((at, at + 1)),
                None if after != After::More => return Some((at, at + 1)),
                None => return None,
                Some(_) => from = at + 1,
            }
        }
    }
}

/// A line without the CR or NUL at its end.
#[inline(always)]
pub(super) fn bare(line: &[u8]) -> &[u8] {
    match line {
        [rest @ .., b'\r' | 0] => rest,
        _ => line,
    }
}

/// A message of a datagram or a counted one without the LF, CR LF or NUL at its end.
#[inline(always)]
pub(super) fn trimmed(message: &[u8]) -> &[u8] {
    let message = message.strip_suffix(&[0]).unwrap_or(message);
    match message {
        [rest @ .., b'\n'] => bare(rest),
        _ => message,
    }
}

/// Bytes of empty lines at the start of `text`, and of ends of lines that some senders put behind a counted message.
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

/// How many digits stand at the start of `text`, if a count can begin so; one more than a count has if there are more.
fn digits(text: &[u8]) -> usize {
    if text.first() == Some(&b'0') {
        return 0;
    }
    let digits = text.iter().take(COUNT_DIGITS_MAX + 1);
    digits.take_while(|byte| byte.is_ascii_digit()).count()
}

/// How much of `text`, which has `bytes_max` bytes at least, becomes a piece: up to three fewer, so that no character is
/// cut.
fn piece(text: &[u8], bytes_max: usize) -> usize {
    let starts = |at: &usize| text.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80);
    let mut near = (bytes_max.saturating_sub(3).max(1)..=bytes_max).rev();
    near.find(starts).unwrap_or(bytes_max)
}
