//! The result of framing a text.

/// The reason for rejecting a line that does not have the format of its framing.
pub(crate) const NOT_FRAMED: &str = "a line that is not in the format of container runtimes";

/// The result of framing a text.
#[derive(Debug, Default)]
pub(crate) struct Framed {
    /// The records, in the encoding [`super::Framer::encoding`].
    pub body: Vec<u8>,
    /// The number of records.
    pub count: u32,
    /// The number of records longer than `line_max`.
    pub too_long: u32,
    /// The number of lines with bytes that are invalid in the encoding of the text.
    pub garbled: u32,
    /// The pieces that leave by the port `NAME.rejected`.
    pub rejected: Vec<Rejected>,
}

/// A piece of a record that is rejected, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejected {
    /// Its text.
    pub bytes: Vec<u8>,
    /// Whether the record is longer than `line_max`. Otherwise the line does not have the format of the framing.
    pub too_long: bool,
}

impl Framed {
    /// Rejects a text in pieces of at most `line_max` bytes.
    pub(super) fn reject(&mut self, text: &[u8], line_max: usize, too_long: bool) {
        let pieces = text.chunks(line_max.max(1)).map(|piece| Rejected {
            bytes: piece.to_vec(),
            too_long,
        });
        self.rejected.extend(pieces);
    }
}
