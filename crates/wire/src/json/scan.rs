//! Finds where a JSON value ends, in a stream of values that arrive in pieces.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! Whenever bytes have arrived, the reader of a JSON connection passes everything since the start of the value to a [`Scan`]. The
//! scan continues where it stopped, so it examines every byte only once, however small the pieces are. It does not validate the
//! value: [`super::to_msgpack`] does so once the value is complete.

/// Finds the end of one value in a growing input.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The number of bytes examined so far.
    at: usize,
    /// The number of open objects and arrays.
    depth: usize,
    within: Within,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Within {
    /// White space before the value.
    #[default]
    Before,
    /// An object or array, outside of strings.
    Structure,
    /// A string.
    Text,
    /// A string, after a backslash.
    Escape,
    /// A number or a word at the top level.
    Word,
}

impl Scan {
    /// The state at the start of a value.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of bytes of `input` up to the end of the value; `None` while the value is incomplete. `input` must
    /// begin at the same byte as in the previous call and must not be shorter. After a call that returned an end, the next
    /// call starts at offset 0, so the caller must first remove the value from `input`. The end of a number or word at the top
    /// level is known only when another byte follows.
    pub fn end(&mut self, input: &[u8]) -> Option<usize> {
        while let Some(&byte) = input.get(self.at) {
            let at = self.at;
            self.at += 1;
            let done = match self.within {
                Within::Before => self.begin(byte),
                Within::Structure => self.structure(byte),
                Within::Text => {
                    let rest = input.get(at..).unwrap_or_default();
                    self.text(rest, at)
                }
                Within::Escape => {
                    self.within = Within::Text;
                    false
                }
                Within::Word
                    if matches!(
                        byte,
                        b' ' | b'\t' | b'\r' | b'\n' | b',' | b'[' | b'{' | b'"'
                    ) =>
                {
                    self.at = at;
                    true
                }
                Within::Word => false,
            };
            if done {
                let end = self.at;
                *self = Self::new();
                return Some(end);
            }
        }
        None
    }

    fn begin(&mut self, byte: u8) -> bool {
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b'"' => self.within = Within::Text,
            b'[' | b'{' => {
                self.depth = 1;
                self.within = Within::Structure;
            }
            _ => self.within = Within::Word,
        }
        false
    }

    fn structure(&mut self, byte: u8) -> bool {
        match byte {
            b'"' => self.within = Within::Text,
            b'[' | b'{' => self.depth += 1,
            b']' | b'}' => self.depth -= 1,
            _ => {}
        }
        self.depth == 0
    }

    /// Advances to the end of a string or to its next escape; `rest` begins at offset `at`. Returns whether the value ends
    /// with the string.
    fn text(&mut self, rest: &[u8], at: usize) -> bool {
        let Some(found) = memchr::memchr2(b'"', b'\\', rest) else {
            self.at = at + rest.len();
            return false;
        };
        self.at = at + found + 1;
        if rest.get(found) == Some(&b'\\') {
            self.within = Within::Escape;
            return false;
        }
        self.within = Within::Structure;
        self.depth == 0
    }
}
