//! A stream of messages: each to its end, and the records that they become.
//!
//! A message that is longer than `bytes_max` comes in pieces: each becomes a record with the head of the first, or they
//! are left over, or only the first is a record. So memory is bounded by `bytes_max`, and no piece looks like a line of
//! its own that could not be parsed.

use std::ops::Range;

use jiff::tz::TimeZone;

use super::{
    frame::{After, Found, Frames, Framing, trimmed},
    parse::{Parsed, Parser, Received},
    record::str_or_bin,
};
use crate::room::Room;

/// What becomes of a message that is too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TooLong {
    /// Several records, each with the fields of the message and a piece of its text.
    #[default]
    Split,
    /// A record with its beginning.
    Truncate,
    /// It is left over: [`Run::left_over`].
    Reject,
}

/// How a stream is read.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How messages are told apart.
    pub framing: Framing,
    /// The longest message in bytes; at least 1.
    pub bytes_max: usize,
    /// What becomes of a longer one.
    pub too_long: TooLong,
    /// What has no syslog header is left over, in place of a record with only its text.
    pub strict: bool,
    /// The zone of times that name none.
    pub zone: TimeZone,
}

/// What [`Decoder::run`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Bytes of the text that are done with; the others are to be given again, with what follows them.
    pub consumed: usize,
    /// Records that were appended.
    pub records: u32,
    /// Of these: have no header, only a text.
    pub bare: u32,
    /// Messages that became several records, or only one of their beginning.
    pub long: u32,
    /// Bytes that no record has ([`TooLong::Truncate`]).
    pub dropped: u64,
    /// Counted messages that the end of the stream cut; what there was of them is a record.
    pub cut: u32,
    /// The output is full: there may be more to take from the same text.
    pub full: bool,
    /// Stands in the text, before `consumed`, and became no record: it is for the port of rejects. There may be more to
    /// take from the same text.
    pub left_over: Option<(Range<usize>, LeftOver)>,
}

/// Why something became no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOver {
    /// A message, or a piece of one, that is too long.
    TooLong,
    /// It has no header of syslog ([`Settings::strict`]).
    NoHeader,
}

/// Reads a stream, or single messages.
#[derive(Clone, Debug)]
pub struct Decoder {
    frames: Frames,
    parser: Parser,
    too_long: TooLong,
    strict: bool,
    /// Of a message that comes in pieces.
    pieces: Pieces,
}

/// A longer head is not repeated in the records of further pieces: it would be held for as long as its peer pleases.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// What is known of a message that comes in pieces.
#[derive(Clone, Debug, Default)]
struct Pieces {
    began: bool,
    left_over: Option<LeftOver>,
    /// Its record up to the text; none if that is too long.
    head: Option<Vec<u8>>,
}

impl Decoder {
    /// At the start of a stream.
    pub fn new(settings: Settings) -> Self {
        Self {
            frames: Frames::new(settings.framing, settings.bytes_max.max(1)),
            parser: Parser::new(settings.zone),
            too_long: settings.too_long,
            strict: settings.strict,
            pieces: Pieces::default(),
        }
    }

    /// Appends the records of all messages that stand whole in `text` to `out`, until it has `bytes_max` bytes.
    pub fn run(
        &mut self,
        text: &[u8],
        after: After,
        from: &Received<'_>,
        out: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Run {
        let (mut run, mut at) = (Run::default(), 0);
        let room = &mut Room::new(out);
        loop {
            if room.position() >= bytes_max {
                run.full = true;
                break;
            }
            match self.frames.next(text, at, after) {
                Found::Message { start, end, next } => {
                    at = next;
                    let message = text.get(start..end).unwrap_or_default();
                    self.message(message, start, from, room, &mut run);
                }
                Found::Piece {
                    start,
                    end,
                    next,
                    last,
                } => {
                    at = next;
                    let piece = text.get(start..end).unwrap_or_default();
                    self.piece(piece, start, last, from, room, &mut run);
                }
                Found::Nothing { skip } => {
                    at = skip;
                    break;
                }
            }
            if run.left_over.is_some() {
                break;
            }
        }
        run.consumed = at;
        run.cut = std::mem::take(&mut self.frames.cut);
        run
    }

    /// Appends the record of one message that stands whole in `text` (a datagram, a frame of RELP), with whatever ends it.
    pub fn one(&mut self, text: &[u8], from: &Received<'_>, out: &mut Vec<u8>) -> Run {
        let mut run = Run {
            consumed: text.len(),
            ..Run::default()
        };
        self.message(trimmed(text), 0, from, &mut Room::new(out), &mut run);
        run
    }

    /// Appends what a piece of a long message becomes (of a frame of RELP: streams find their pieces themselves).
    pub fn part(&mut self, text: &[u8], last: bool, from: &Received<'_>, out: &mut Vec<u8>) -> Run {
        let mut run = Run {
            consumed: text.len(),
            ..Run::default()
        };
        self.piece(text, 0, last, from, &mut Room::new(out), &mut run);
        run
    }

    #[inline(always)]
    fn message(
        &mut self,
        message: &[u8],
        start: usize,
        from: &Received<'_>,
        room: &mut Room<'_>,
        run: &mut Run,
    ) {
        if message.is_empty() {
            return;
        }
        let (parsed, written) = self.parser.write(message, from, room);
        run.records += 1;
        if parsed == Parsed::Nothing {
            if self.strict {
                room.back_to(written.start);
                run.records -= 1;
                let range = start..start + message.len();
                run.left_over = Some((range, LeftOver::NoHeader));
            } else {
                run.bare += 1;
            }
        }
    }

    #[cold]
    fn piece(
        &mut self,
        piece: &[u8],
        start: usize,
        last: bool,
        from: &Received<'_>,
        room: &mut Room<'_>,
        run: &mut Run,
    ) {
        let range = start..start + piece.len();
        if !self.pieces.began {
            self.pieces.began = true;
            run.long += 1;
            if self.too_long == TooLong::Reject {
                self.pieces.left_over = Some(LeftOver::TooLong);
            } else {
                self.first_piece(piece, from, room, run);
            }
        } else if self.pieces.left_over.is_none() && !piece.is_empty() {
            match self.too_long {
                TooLong::Truncate => run.dropped += piece.len() as u64,
                _ => {
                    match &self.pieces.head {
                        Some(head) => {
                            room.bytes(head);
                            str_or_bin(piece, room);
                        }
                        None => {
                            self.parser.bare(piece, from, room);
                        }
                    }
                    run.records += 1;
                }
            }
        }
        if let Some(why) = self.pieces.left_over
            && !piece.is_empty()
        {
            run.left_over = Some((range, why));
        }
        if last {
            self.pieces = Pieces::default();
        }
    }

    fn first_piece(
        &mut self,
        piece: &[u8],
        from: &Received<'_>,
        room: &mut Room<'_>,
        run: &mut Run,
    ) {
        let (parsed, written) = self.parser.write(piece, from, room);
        if parsed == Parsed::Nothing && self.strict {
            room.back_to(written.start);
            self.pieces.left_over = Some(LeftOver::NoHeader);
            return;
        }
        run.records += 1;
        run.bare += u32::from(parsed == Parsed::Nothing);
        let head = room.since(written.start);
        let head = head.get(..written.message - written.start);
        let head = head.filter(|head| head.len() <= HEAD_BYTES_MAX);
        self.pieces.head = head.map(<[u8]>::to_vec);
    }
}
