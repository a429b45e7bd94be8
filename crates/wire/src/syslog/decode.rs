//! Divides a stream into messages and converts them to records.
//!
//! A message of more than `bytes_max` bytes is read in pieces. Depending on [`TooLong`], each piece becomes a record with the
//! header of the first piece, or only the first piece becomes a record, or all pieces are rejected. So memory is bounded by
//! `bytes_max`, and no piece looks like a separate line without a header.

use std::ops::Range;

use jiff::tz::TimeZone;

use super::{
    frame::{After, Frames, Framing, Scanned, trimmed},
    header::Received,
    parse::{Parsed, Parser},
    text::str_or_bin,
};
use crate::room::Room;

/// How to handle a message that is too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TooLong {
    /// It becomes several records, each with the message's fields and a piece of its text.
    #[default]
    Split,
    /// It becomes one record with the beginning of its text. The rest is dropped.
    Truncate,
    /// It is rejected, piece by piece ([`Run::left_over`]).
    Reject,
}

/// How to read a stream.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How messages are separated.
    pub framing: Framing,
    /// The maximum length of a message in bytes; at least 1.
    pub bytes_max: usize,
    /// How to handle a longer message.
    pub too_long: TooLong,
    /// Whether messages without a syslog header are rejected. If false, they become records that have only a text.
    pub strict: bool,
    /// The time zone of times without a zone.
    pub zone: TimeZone,
}

/// The result of [`Decoder::run`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The number of bytes consumed. The caller must pass the remaining bytes again, followed by those that arrive later.
    pub consumed: usize,
    /// The number of records appended.
    pub records: u32,
    /// The number of these records that have no syslog header.
    pub bare: u32,
    /// The number of messages that were too long.
    pub long: u32,
    /// The number of bytes that were cut off ([`TooLong::Truncate`]).
    pub dropped: u64,
    /// With octet counting, the length of a message precedes the message. This is the number of such messages that are incomplete because
    /// the stream ended. The part that arrived becomes a record.
    pub cut: u32,
    /// Whether the output is full. If so, the rest of the text may hold more messages.
    pub full: bool,
    /// A rejected range of the text, before `consumed`, and the reason. If it is set, the rest of the text may hold more messages.
    pub left_over: Option<(Range<usize>, LeftOver)>,
}

/// Why a range was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOver {
    /// A message that is too long, or a piece of one.
    TooLong,
    /// A message without a syslog header ([`Settings::strict`]).
    NoHeader,
}

/// Reads a stream, or single messages.
#[derive(Clone, Debug)]
pub struct Decoder {
    frames: Frames,
    parser: Parser,
    too_long: TooLong,
    strict: bool,
    /// The state of a message that is read in pieces.
    pieces: Pieces,
}

/// The maximum length of a header that is repeated in the records of further pieces. A longer header is not stored, because it would occupy
/// memory until the peer ends the message.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The state of a message that is read in pieces.
#[derive(Clone, Debug, Default)]
struct Pieces {
    began: bool,
    left_over: Option<LeftOver>,
    /// The bytes of the first piece's record before its text, or `None` if they are too long.
    head: Option<Vec<u8>>,
}

impl Decoder {
    /// Creates a decoder for the start of a stream.
    pub fn new(settings: Settings) -> Self {
        Self {
            frames: Frames::new(settings.framing, settings.bytes_max.max(1)),
            parser: Parser::new(settings.zone),
            too_long: settings.too_long,
            strict: settings.strict,
            pieces: Pieces::default(),
        }
    }

    /// Appends the records of all complete messages in `text` to `out`, until `out` has `bytes_max` bytes or a message is rejected.
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
                Scanned::Message { start, end, next } => {
                    at = next;
                    let message = text.get(start..end).unwrap_or_default();
                    self.message(message, start, from, room, &mut run);
                }
                Scanned::Piece {
                    start,
                    end,
                    next,
                    last,
                } => {
                    at = next;
                    let piece = text.get(start..end).unwrap_or_default();
                    self.piece(piece, start, last, from, room, &mut run);
                }
                Scanned::Nothing { skip } => {
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

    /// Appends the record of one complete message (a datagram, a RELP frame). A line end after the message is removed.
    pub fn one(&mut self, text: &[u8], from: &Received<'_>, out: &mut Vec<u8>) -> Run {
        let mut run = Run {
            consumed: text.len(),
            ..Run::default()
        };
        self.message(trimmed(text), 0, from, &mut Room::new(out), &mut run);
        run
    }

    /// Appends the record for a piece of a long RELP message. (For streams, [`Decoder::run`] finds the pieces.)
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
