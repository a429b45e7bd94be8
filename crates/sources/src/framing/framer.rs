//! Makes records for which every line must be examined: joined lines, and text in encodings other than UTF-8.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> decode -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! The caller passes text that begins at the start of a record. The framer returns how many bytes became complete records. When
//! more text has arrived, the caller passes the text after these bytes again. So the caller never needs an offset within a record.
//! Between calls the framer remembers only how to treat the rest of a record that does not fit into one call.

use std::time::Duration;

use millstream_record::{Encoding, Time};
use millstream_wire::cri;
use regex::bytes::Regex;

use super::{
    assembler::{Assembler, Form},
    charset::Charset,
    framed::Framed,
    options::{Cr, Framing, TooLong},
};

/// The part of [`Framer::window`] that is reserved for the prefixes of a record's lines and for the start of the next record.
const WINDOW_SPARE: usize = 64 << 10;
/// A partial record of a container is taken as complete if nothing was written for this long.
const CRI_WAIT: Duration = Duration::from_secs(5);

/// The state of the input after the text that is passed to the framer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// More text may follow.
    Open,
    /// Nothing was written for the time [`Framer::wait`], so the last record is taken as complete.
    Quiet,
    /// More text follows, but the passed text already fills [`Framer::window`].
    Full,
    /// The end of the input: the text after the last newline is a line, too.
    End,
}

/// How to treat the rest of a record that was cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remainder {
    stream: Vec<u8>,
    policy: TooLong,
}

/// The state after the last complete record, to which the framer rolls back before it returns.
struct Whole {
    at: usize,
    body: usize,
    count: u32,
    too_long: u32,
    garbled: u32,
    rejected: usize,
    remainder: Option<Remainder>,
}

/// Makes records from text.
#[derive(Debug)]
pub(crate) struct Framer {
    /// The encoding of the option.
    configured: Charset,
    /// The encoding of the text.
    charset: Charset,
    /// Whether the start of the text was seen, which may have a byte order mark.
    saw_start: bool,
    cr: Cr,
    /// Matches the first line of a record that may have several lines.
    first_line: Option<Regex>,
    wait: Option<Duration>,
    assembler: Assembler,
    remainder: Option<Remainder>,
    /// For the line that is decoded.
    buffer: Vec<u8>,
}

impl Clone for Framer {
    /// A framer with the same settings for another text.
    fn clone(&self) -> Self {
        Self {
            configured: self.configured,
            charset: self.configured,
            saw_start: false,
            cr: self.cr,
            first_line: self.first_line.clone(),
            wait: self.wait,
            assembler: self.assembler.clone(),
            remainder: None,
            buffer: Vec::new(),
        }
    }
}

impl Framer {
    /// Builds a framer from the options. The error describes a wrong regular expression.
    pub(crate) fn new(
        framing: &Framing,
        charset: Charset,
        line_max: usize,
        too_long: TooLong,
    ) -> Result<Self, String> {
        let (form, first_line, wait) = match framing {
            Framing::Lines => (Form::Line, None, None),
            Framing::Cri => (Form::Cri, None, Some(CRI_WAIT)),
            Framing::Multiline(multiline) => {
                let wait = multiline.wait.as_duration();
                (Form::Joined, Some(multiline.start()?), Some(wait))
            }
        };
        Ok(Self {
            configured: charset,
            charset,
            saw_start: false,
            cr: Cr::default(),
            first_line,
            wait,
            assembler: Assembler::new(form, line_max, too_long),
            remainder: None,
            buffer: Vec::new(),
        })
    }

    /// Sets the treatment of the CR at the end of lines.
    pub(crate) fn with_cr(mut self, cr: Cr) -> Self {
        self.cr = cr;
        self
    }

    /// The same records in text that a container runtime has written.
    pub(crate) fn behind_runtime(mut self) -> Self {
        let form = self.assembler.form().behind_runtime();
        self.assembler.set_form(form);
        self.wait = self.wait.or(Some(CRI_WAIT));
        self
    }

    /// The treatment of the CR at the end of lines.
    pub(crate) fn cr(&self) -> Cr {
        self.cr
    }

    /// Whether [`super::scan`] would find the same records.
    pub(crate) fn is_plain(&self) -> bool {
        self.assembler.form() == Form::Line && self.charset.is_utf8()
    }

    /// Whether a record may have several lines.
    pub(crate) fn joins(&self) -> bool {
        self.assembler.form() != Form::Line
    }

    /// How to treat the rest of a record that was cut.
    pub(crate) fn remainder(&self) -> Option<Remainder> {
        self.remainder.clone()
    }

    /// Continues a record that a framer of another text has cut.
    pub(crate) fn resume(&mut self, remainder: Option<Remainder>) {
        self.remainder = remainder;
    }

    /// How the records of a body are encoded.
    pub(crate) fn encoding(&self) -> Encoding {
        self.assembler.form().encoding()
    }

    /// How long to wait for the rest of a record; `None`: without a limit.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.wait
    }

    /// Maximum number of bytes of text to pass in one call.
    pub(crate) fn window(&self) -> usize {
        let line_max = self.assembler.line_max();
        line_max.saturating_mul(2).saturating_add(WINDOW_SPARE)
    }

    /// Whether `text` begins with a whole line.
    pub(crate) fn has_line(&self, text: &[u8]) -> bool {
        self.charset.newline(text).is_some()
    }

    /// The size of a code unit in bytes. Every offset between two characters is a multiple of this size.
    pub(crate) fn unit(&self) -> usize {
        self.charset.unit()
    }

    /// The offset at which the last line of `text` begins, even if that line is empty. None if `text` has no newline. `text` begins
    /// between two characters.
    pub(crate) fn last_line(&self, text: &[u8]) -> Option<usize> {
        self.charset.last_line(text)
    }

    /// Whether the text can be decoded only once the start of its input is known.
    pub(crate) fn wants_start(&self) -> bool {
        self.configured.is_utf16() && !self.saw_start
    }

    /// Notes the first bytes of the input.
    pub(crate) fn begins_with(&mut self, start: &[u8]) {
        self.charset = self.configured.of_text(start);
        self.saw_start = start.len() >= self.unit();
    }

    /// Forgets the record that was cut, because the next text does not continue the previous text.
    pub(crate) fn reset(&mut self) {
        self.remainder = None;
    }

    /// Makes records from the start of `text`. Returns the number of bytes that became records: more than 0 with `Full`, and all
    /// bytes of `text` with `End`. `start`: the text is at the start of the input.
    pub(crate) fn frame(
        &mut self,
        text: &[u8],
        start: bool,
        ending: Ending,
        received: Time,
        out: &mut Framed,
    ) -> usize {
        self.assembler.clear();
        if start {
            self.begins_with(text);
        }
        let mut whole = self.whole(0, out);
        let mut at = 0;
        while let Some((length, next)) = self.charset.newline(&text[at..]) {
            let line = &text[at..at + length];
            self.line(
                line,
                (start && at == 0, true),
                received,
                out,
                |framer, out| {
                    whole = framer.whole(at, out);
                },
            );
            at += next;
            if self.assembler.is_empty() {
                whole = self.whole(at, out);
            }
        }
        match ending {
            Ending::Open => {}
            Ending::Quiet if at > whole.at => {
                self.assembler.finish_all(out);
                whole = self.whole(at, out);
            }
            Ending::Quiet => {}
            Ending::Full if whole.at == 0 => {
                if at == 0 {
                    at = self.charset.cut(text, text.len()).max(1).min(text.len());
                    if at > 1 && self.unit() == 1 {
                        // A newline may follow the CR.
                        at = self.cr.trim(&text[..at]).len();
                    }
                    self.cut_line(&text[..at], start, received, out);
                }
                if let Some(stream) = self.assembler.cut_all(out) {
                    self.remainder = Some(self.remainder_of(stream));
                }
                whole = self.whole(at, out);
            }
            Ending::Full => {}
            Ending::End => {
                if at < text.len() {
                    self.line(
                        &text[at..],
                        (start && at == 0, true),
                        received,
                        out,
                        |_, _| {},
                    );
                }
                self.assembler.finish_all(out);
                whole = self.whole(text.len(), out);
            }
        }
        self.remainder = whole.remainder;
        out.body.truncate(whole.body);
        out.rejected.truncate(whole.rejected);
        (out.count, out.too_long, out.garbled) = (whole.count, whole.too_long, whole.garbled);
        whole.at
    }

    fn whole(&self, at: usize, out: &Framed) -> Whole {
        Whole {
            at,
            body: out.body.len(),
            count: out.count,
            too_long: out.too_long,
            garbled: out.garbled,
            rejected: out.rejected.len(),
            remainder: self.remainder.clone(),
        }
    }

    fn remainder_of(&self, stream: Vec<u8>) -> Remainder {
        Remainder {
            stream,
            policy: self.assembler.too_long(),
        }
    }

    /// Adds a line, which is at the `start` of the input, and is `whole` unless it was cut. Calls `begins` if the line begins a record
    /// and thereby completes the previous ones.
    fn line(
        &mut self,
        raw: &[u8],
        (start, whole): (bool, bool),
        received: Time,
        out: &mut Framed,
        begins: impl FnOnce(&Self, &Framed),
    ) {
        let (line, garbled) = self.charset.decode(raw, start);
        let cr = if whole { self.cr } else { Cr::Keep };
        match self.assembler.form() {
            Form::Line => self.plain(cr.trim(&line), received, out),
            Form::Cri | Form::CriJoined => self.container(&line, out, begins),
            Form::Joined => {
                let line = cr.trim(&line);
                let first_line = self.first_line.as_ref();
                if first_line.is_some_and(|first_line| first_line.is_match(line)) {
                    self.assembler.finish_all(out);
                    self.remainder = None;
                    begins(self, out);
                }
                self.joined(line, received, out);
            }
        }
        out.garbled += u32::from(garbled);
    }

    fn plain(&mut self, line: &[u8], received: Time, out: &mut Framed) {
        match self.remainder.take().map(|remainder| remainder.policy) {
            // The line ended exactly where it was cut.
            Some(TooLong::Split) if line.is_empty() => {}
            Some(TooLong::Truncate) => {}
            Some(TooLong::Reject) => out.reject(line, self.assembler.line_max(), true),
            Some(TooLong::Split) | None => {
                let at = self.assembler.begin(received, b"");
                self.assembler.add(at, line, out);
                self.assembler.finish(at, out);
            }
        }
    }

    fn joined(&mut self, line: &[u8], received: Time, out: &mut Framed) {
        match self.remainder.as_ref().map(|remainder| remainder.policy) {
            Some(TooLong::Truncate) => {}
            Some(TooLong::Reject) => out.reject(line, self.assembler.line_max(), true),
            Some(TooLong::Split) | None => {
                self.remainder = None;
                if self.assembler.is_empty() {
                    self.assembler.begin(received, b"");
                }
                self.assembler.add(0, line, out);
            }
        }
    }

    /// Adds a line of a container runtime.
    fn container(&mut self, line: &[u8], out: &mut Framed, begins: impl FnOnce(&Self, &Framed)) {
        let line_max = self.assembler.line_max();
        let mut buffer = std::mem::take(&mut self.buffer);
        match cri::parse_any(line, &mut buffer) {
            None => out.reject(line, line_max, false),
            Some(part) if self.assembler.form() == Form::Cri => self.part(part, out),
            Some(part) => self.joined_part(part, out, begins),
        }
        self.buffer = buffer;
    }

    /// Adds a part of a record. Returns false if the rest of a record that was cut includes it.
    fn is_kept(&mut self, part: &cri::Line<'_>, ends: bool, out: &mut Framed) -> bool {
        let remainder = self.remainder.as_ref();
        let Some(remainder) = remainder.filter(|remainder| remainder.stream == part.stream) else {
            return true;
        };
        let policy = remainder.policy;
        if ends || policy == TooLong::Split {
            self.remainder = None;
        }
        if policy == TooLong::Reject {
            out.reject(part.text, self.assembler.line_max(), true);
        }
        policy == TooLong::Split
    }

    fn part(&mut self, part: cri::Line<'_>, out: &mut Framed) {
        if !self.is_kept(&part, !part.partial, out) {
            return;
        }
        let at = match self.assembler.of_stream(part.stream) {
            Some(at) => at,
            None => self.assembler.begin(part.time, part.stream),
        };
        self.add_part(at, &part, out);
        if !part.partial {
            self.assembler.finish(at, out);
        }
    }

    /// Like [`Framer::part`], but joins the lines of each stream. A line that the runtime divided is tested by its first part, so that
    /// no line has to be held.
    fn joined_part(
        &mut self,
        part: cri::Line<'_>,
        out: &mut Framed,
        begins: impl FnOnce(&Self, &Framed),
    ) {
        let wait = self.wait.unwrap_or_default().as_nanos();
        let wait = i64::try_from(wait).unwrap_or(i64::MAX);
        // Without this, lines of two streams that alternate would never be complete at the same time.
        let until = Time(part.time.0.saturating_sub(wait));
        self.assembler.finish_others(part.stream, until, out);
        let open = self.assembler.of_stream(part.stream);
        let is_within = open.is_some_and(|at| self.assembler.is_within_line(at));
        let line = match part.partial {
            true => part.text,
            false => self.cr.trim(part.text),
        };
        let first_line = self.first_line.as_ref();
        let is_first = !is_within && first_line.is_some_and(|first| first.is_match(line));
        if is_first {
            if let Some(at) = open {
                self.assembler.finish(at, out);
            }
            let remainder = self.remainder.as_ref();
            if remainder.is_some_and(|remainder| remainder.stream == part.stream) {
                self.remainder = None;
            }
        }
        if self.assembler.is_empty() {
            begins(self, out);
        }
        if !self.is_kept(&part, false, out) {
            return;
        }
        let at = match self.assembler.of_stream(part.stream) {
            Some(at) => at,
            None => self.assembler.begin(part.time, part.stream),
        };
        self.add_part(at, &part, out);
    }

    /// Adds the text of a part. The part that ends a line may be empty, so that the CR is in the part before it.
    fn add_part(&mut self, at: usize, part: &cri::Line<'_>, out: &mut Framed) {
        match part.partial {
            true => self.assembler.add(at, part.text, out),
            false => {
                if part.text.is_empty() && self.assembler.is_within_line(at) {
                    self.assembler.trim(at, self.cr);
                }
                self.assembler.add(at, self.cr.trim(part.text), out);
            }
        }
        self.assembler.note_line(at, part.time, part.partial);
    }

    /// Adds the first part of a line that does not fit into one call.
    fn cut_line(&mut self, raw: &[u8], start: bool, received: Time, out: &mut Framed) {
        let before = self.remainder.clone();
        self.line(raw, (start, false), received, out, |_, _| {});
        if self.assembler.form() == Form::Line {
            self.remainder = before.or_else(|| Some(self.remainder_of(Vec::new())));
        }
    }
}
