//! Records that are being put together, and what becomes of those that are too long.

use millstream_record::Time;
use millstream_wire::{cri, lines};

use super::{
    TooLong,
    framer::{Framed, Framer, Rejected, Rest, Rule},
    piece,
};

/// A record that is being put together.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) stream: Vec<u8>,
    time: Time,
    text: Vec<u8>,
    lines: usize,
    /// It is longer than `line_max`.
    too_long: bool,
}

impl Framer {
    pub(super) fn begin(&mut self, time: Time, stream: &[u8]) -> usize {
        self.open.push(Open {
            stream: stream.to_vec(),
            time,
            text: Vec::new(),
            lines: 0,
            too_long: false,
        });
        self.open.len() - 1
    }

    /// Adds a line to a record, or as much of it as `line_max` and `too_long` say.
    pub(super) fn add(&mut self, at: usize, line: &[u8], out: &mut Framed) {
        let is_joined = matches!(self.rule, Rule::Multiline(_));
        let Some(open) = self.open.get_mut(at) else {
            return;
        };
        let begins_anew = self.too_long == TooLong::Split && open.too_long && open.text.is_empty();
        if is_joined && open.lines > 0 && !begins_anew {
            open.text.push(b'\n');
        }
        open.lines += 1;
        open.text.extend_from_slice(line);
        if open.text.len() <= self.line_max && !(open.too_long && self.too_long != TooLong::Split) {
            return;
        }
        let was_too_long = std::mem::replace(&mut open.too_long, true);
        match self.too_long {
            TooLong::Truncate if was_too_long => {
                let kept = open.text.len() - line.len() - usize::from(is_joined);
                open.text.truncate(kept);
            }
            TooLong::Truncate => {
                let kept = piece(&open.text, self.line_max);
                open.text.truncate(kept);
            }
            TooLong::Reject => {
                reject(out, &open.text, self.line_max, true);
                open.text.clear();
            }
            TooLong::Split => {
                let (mut text, stream, time) = (
                    std::mem::take(&mut open.text),
                    open.stream.clone(),
                    open.time,
                );
                let mut begin = 0;
                // The lines before this one are a record of their own.
                if is_joined && line.len() <= self.line_max && text.len() > line.len() {
                    let before = text.len() - line.len() - 1;
                    self.emit(time, &stream, &text[..before], out);
                    begin = before + 1;
                }
                while text.len() - begin > self.line_max {
                    let end = begin + piece(&text[begin..], self.line_max);
                    self.emit(time, &stream, &text[begin..end], out);
                    begin = end;
                }
                text.drain(..begin);
                if let Some(open) = self.open.get_mut(at) {
                    open.text = text;
                }
            }
        }
    }

    /// The record is whole.
    pub(super) fn finish(&mut self, at: usize, out: &mut Framed) {
        let open = self.open.remove(at);
        out.too_long += u32::from(open.too_long);
        let gone = open.too_long && (self.too_long == TooLong::Reject || open.text.is_empty());
        if !gone {
            self.emit(open.time, &open.stream, &open.text, out);
        }
    }

    pub(super) fn finish_all(&mut self, out: &mut Framed) {
        while !self.open.is_empty() {
            self.finish(0, out);
        }
    }

    /// No more of the records can be shown: each goes as far as it was shown.
    pub(super) fn cut_all(&mut self, out: &mut Framed) {
        while let Some(open) = self.open.first() {
            if open.too_long {
                self.rest = Some(Rest {
                    stream: open.stream.clone(),
                    policy: self.too_long,
                });
            }
            self.finish(0, out);
        }
    }

    fn emit(&self, time: Time, stream: &[u8], text: &[u8], out: &mut Framed) {
        out.count = out.count.saturating_add(1);
        match &self.rule {
            Rule::Lines => {
                out.body.extend_from_slice(text);
                out.body.push(b'\n');
            }
            Rule::Cri => cri::write_entry(&mut out.body, time, stream, text),
            Rule::Multiline(_) => lines::write_entry(&mut out.body, time, text),
        }
    }
}

/// Rejects a text, in pieces.
pub(super) fn reject(out: &mut Framed, text: &[u8], line_max: usize, too_long: bool) {
    let pieces = text.chunks(line_max.max(1)).map(|piece| Rejected {
        bytes: piece.to_vec(),
        too_long,
    });
    out.rejected.extend(pieces);
}
