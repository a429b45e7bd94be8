//! Records that take a look at every line: joined ones, and text of other encodings than UTF-8.
//!
//! `[read] -> decode -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! The framer is given the text from a place between two records on, and says how far it has come: up to where no record
//! is open. What follows is given again, with more behind it. So it needs to remember nothing, and whoever reads needs
//! no other position than that; but of a record that is longer than all that can be shown at once, what is to become of its rest.

use millstream_record::{Encoding, Time};
use millstream_wire::cri;
use regex::bytes::Regex;

use super::{
    Charset, Framing, TooLong,
    open::{Open, reject},
};

/// Beside a record there must be room for what is not part of it: the heads of lines, the first bytes of the next.
const WINDOW_SPARE: usize = 64 << 10;
/// A container that has begun a record and says nothing for so long has ended it.
const CRI_WAIT: std::time::Duration = std::time::Duration::from_secs(5);

/// What is known of the text behind what is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// There may be more.
    Open,
    /// Nothing came for as long as one waits for the rest of a record.
    Quiet,
    /// There is more, but no more can be shown at once.
    Full,
    /// There is no more: what stands behind the last newline is a line too.
    End,
}

/// What a text became.
#[derive(Debug, Default)]
pub(crate) struct Framed {
    /// The records, encoded as [`Framer::encoding`] says.
    pub body: Vec<u8>,
    /// How many.
    pub count: u32,
    /// How many were longer than `line_max`.
    pub too_long: u32,
    /// Lines in which something was not of the text's encoding.
    pub garbled: u32,
    /// What leaves by the port `NAME.rejected`.
    pub rejected: Vec<Rejected>,
}

/// A part of a record that is rejected, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejected {
    /// Its text.
    pub bytes: Vec<u8>,
    /// It is longer than `line_max`; else it has not the form of the framing.
    pub too_long: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Rule {
    Lines,
    Cri,
    Multiline(Regex),
}

/// What becomes of the rest of a record that was cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rest {
    pub(super) stream: Vec<u8>,
    pub(super) policy: TooLong,
}

/// How far it has come: nothing behind it counts.
struct Whole {
    at: usize,
    body: usize,
    count: u32,
    too_long: u32,
    garbled: u32,
    rejected: usize,
    rest: Option<Rest>,
}

/// Makes records of text.
#[derive(Debug)]
pub(crate) struct Framer {
    pub(super) rule: Rule,
    charset: Charset,
    pub(super) line_max: usize,
    pub(super) too_long: TooLong,
    wait: Option<std::time::Duration>,
    pub(super) open: Vec<Open>,
    pub(super) rest: Option<Rest>,
}

impl Clone for Framer {
    /// A framer for another text.
    fn clone(&self) -> Self {
        Self {
            rule: self.rule.clone(),
            open: Vec::new(),
            rest: None,
            ..*self
        }
    }
}

impl Framer {
    /// From the options; the error says what is wrong with the regular expression.
    pub(crate) fn new(
        framing: &Framing,
        charset: Charset,
        line_max: usize,
        too_long: TooLong,
    ) -> Result<Self, String> {
        let (rule, wait) = match framing {
            Framing::Lines => (Rule::Lines, None),
            Framing::Cri => (Rule::Cri, Some(CRI_WAIT)),
            Framing::Multiline(multiline) => (
                Rule::Multiline(multiline.start()?),
                Some(multiline.wait.as_duration()),
            ),
        };
        Ok(Self {
            rule,
            charset,
            line_max,
            too_long,
            wait,
            open: Vec::new(),
            rest: None,
        })
    }

    /// Whether it does no more than [`super::find`].
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.rule, Rule::Lines) && self.charset.is_utf8()
    }

    /// How the records stand in a body.
    pub(crate) fn encoding(&self) -> Encoding {
        match self.rule {
            Rule::Lines => Encoding::Lines,
            Rule::Cri | Rule::Multiline(_) => Encoding::Packed,
        }
    }

    /// How long the rest of a record is waited for.
    pub(crate) fn wait(&self) -> Option<std::time::Duration> {
        self.wait
    }

    /// So much text must be shown at once, if there is so much.
    pub(crate) fn window(&self) -> usize {
        self.line_max.saturating_mul(2).saturating_add(WINDOW_SPARE)
    }

    /// Whether a whole line stands at the start of `text`.
    pub(crate) fn has_line(&self, text: &[u8]) -> bool {
        self.charset.newline(text).is_some()
    }

    /// The next text does not follow the last.
    pub(crate) fn reset(&mut self) {
        self.rest = None;
    }

    /// Takes the whole records at the start of `text`; gives how many bytes that were. Always some when it is `Full`, and
    /// all when it is at its `End`. `start`: it is the start of all text.
    pub(crate) fn frame(
        &mut self,
        text: &[u8],
        start: bool,
        ending: Ending,
        received: Time,
        out: &mut Framed,
    ) -> usize {
        self.open.clear();
        let mut whole = self.whole(0, out);
        let mut at = 0;
        while let Some((length, next)) = self.charset.newline(&text[at..]) {
            self.line(
                &text[at..at + length],
                start && at == 0,
                received,
                out,
                |framer, out| {
                    whole = framer.whole(at, out);
                },
            );
            at += next;
            if self.open.is_empty() {
                whole = self.whole(at, out);
            }
        }
        match ending {
            Ending::Open => {}
            Ending::Quiet if at > whole.at => {
                self.finish_all(out);
                whole = self.whole(at, out);
            }
            Ending::Quiet => {}
            Ending::Full if whole.at == 0 => {
                if at == 0 {
                    at = self.charset.cut(text, text.len()).max(1).min(text.len());
                    self.cut_line(&text[..at], start, received, out);
                }
                self.cut_all(out);
                whole = self.whole(at, out);
            }
            Ending::Full => {}
            Ending::End => {
                if at < text.len() {
                    self.line(&text[at..], start && at == 0, received, out, |_, _| {});
                }
                self.finish_all(out);
                whole = self.whole(text.len(), out);
            }
        }
        self.rest = whole.rest;
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
            rest: self.rest.clone(),
        }
    }

    /// Takes a line; `begins` is told when the records before it are whole.
    fn line(
        &mut self,
        raw: &[u8],
        start: bool,
        received: Time,
        out: &mut Framed,
        begins: impl FnOnce(&Self, &Framed),
    ) {
        let (line, garbled) = self.charset.decode(raw, start);
        match &self.rule {
            Rule::Lines => self.plain(&line, received, out),
            Rule::Cri => self.cri(&line, out),
            Rule::Multiline(first) => {
                if first.is_match(&line) {
                    self.finish_all(out);
                    self.rest = None;
                    begins(self, out);
                }
                self.joined(&line, received, out);
            }
        }
        out.garbled += u32::from(garbled);
    }

    fn plain(&mut self, line: &[u8], received: Time, out: &mut Framed) {
        match self.rest.take().map(|rest| rest.policy) {
            // The line ended where it was cut.
            Some(TooLong::Split) if line.is_empty() => {}
            Some(TooLong::Truncate) => {}
            Some(TooLong::Reject) => reject(out, line, self.line_max, true),
            Some(TooLong::Split) | None => {
                self.begin(received, b"");
                self.add(0, line, out);
                self.finish(0, out);
            }
        }
    }

    fn joined(&mut self, line: &[u8], received: Time, out: &mut Framed) {
        match self.rest.as_ref().map(|rest| rest.policy) {
            Some(TooLong::Truncate) => {}
            Some(TooLong::Reject) => reject(out, line, self.line_max, true),
            Some(TooLong::Split) | None => {
                self.rest = None;
                if self.open.is_empty() {
                    self.begin(received, b"");
                }
                self.add(0, line, out);
            }
        }
    }

    fn cri(&mut self, line: &[u8], out: &mut Framed) {
        let Some(part) = cri::parse(line) else {
            return reject(out, line, self.line_max, false);
        };
        if let Some(rest) = self.rest.as_ref().filter(|rest| rest.stream == part.stream) {
            let policy = rest.policy;
            if !part.partial {
                self.rest = None;
            }
            match policy {
                TooLong::Split => {}
                TooLong::Truncate => return,
                TooLong::Reject => return reject(out, part.text, self.line_max, true),
            }
        }
        let known = |open: &Open| open.stream == part.stream;
        let at = match self.open.iter().position(known) {
            Some(at) => at,
            None => self.begin(part.time, part.stream),
        };
        self.add(at, part.text, out);
        if !part.partial {
            self.finish(at, out);
        }
    }

    /// Takes the first part of a line of which no more can be shown.
    fn cut_line(&mut self, raw: &[u8], start: bool, received: Time, out: &mut Framed) {
        let is_rest = self.rest.clone();
        self.line(raw, start, received, out, |_, _| {});
        if matches!(self.rule, Rule::Lines) {
            self.rest = is_rest.or(Some(Rest {
                stream: Vec::new(),
                policy: self.too_long,
            }));
        }
    }
}
