//! Tests of a single value. A value whose type differs from that of the test does not pass.

use std::cmp::Ordering;

use regex::bytes::Regex;

use super::{number::Number, start::Start};
use crate::record::Value;

/// A test of a value that exists.
#[derive(Clone, Debug)]
pub(super) enum Test {
    /// Any value, nil included.
    Exists,
    /// Equal to one of several constants.
    OneOf(OneOf),
    /// A number on one side of a bound.
    Number(Side, Number),
    /// A text on one side of a bound, in the order of the bytes.
    Text(Side, Box<[u8]>),
    /// A text in which the regular expression matches.
    Found(Regex),
}

/// Constants of any scalar type.
#[derive(Clone, Debug, Default)]
pub(super) struct OneOf {
    /// The texts, sorted for a binary search.
    texts: Box<[Box<[u8]>]>,
    /// The texts of at most 15 bytes, if there are few texts.
    short: Box<[Start]>,
    numbers: Box<[Number]>,
    bools: [bool; 2],
    nil: bool,
}

/// A constant of a condition.
#[derive(Clone, Debug)]
pub(super) enum Constant {
    Nil,
    Bool(bool),
    Number(Number),
    Text(String),
}

/// The side of a bound on which values match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Above,
    AboveOrEqual,
    Below,
    BelowOrEqual,
}

impl Side {
    #[inline]
    fn has(self, order: Ordering) -> bool {
        match self {
            Self::Above => order.is_gt(),
            Self::AboveOrEqual => order.is_ge(),
            Self::Below => order.is_lt(),
            Self::BelowOrEqual => order.is_le(),
        }
    }
}

/// Above this number of texts, a binary search is used.
const FEW: usize = 8;

impl OneOf {
    /// Returns a text between two slashes that has no further slash, so that it is not a path.
    pub(super) fn slashed(&self) -> Option<String> {
        let is_slashed = |text: &[u8]| match text {
            [b'/', inner @ .., b'/'] => !inner.is_empty() && !inner.contains(&b'/'),
            _ => false,
        };
        let text = self.texts.iter().find(|text| is_slashed(text))?;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    pub(super) fn new(constants: impl IntoIterator<Item = Constant>) -> Self {
        let (mut texts, mut numbers) = (Vec::new(), Vec::new());
        let mut one_of = Self::default();
        for constant in constants {
            match constant {
                Constant::Nil => one_of.nil = true,
                Constant::Bool(value) => one_of.bools[usize::from(value)] = true,
                Constant::Number(number) => numbers.push(number),
                Constant::Text(text) => texts.push(text.into_bytes().into_boxed_slice()),
            }
        }
        texts.sort();
        if texts.len() <= FEW {
            one_of.short = texts
                .iter()
                .filter_map(|text| Start::of_text(text))
                .collect();
        }
        (one_of.texts, one_of.numbers) = (texts.into(), numbers.into());
        one_of
    }

    #[inline]
    fn has_text(&self, text: &[u8]) -> bool {
        if self.texts.len() > FEW {
            return self.texts.binary_search_by(|one| (**one).cmp(text)).is_ok();
        }
        self.texts.iter().any(|one| **one == *text)
    }

    /// Whether a value that begins with the head of a text of at most 15 bytes equals one of the texts.
    #[inline]
    fn has_short(&self, value: &[u8]) -> bool {
        if self.texts.len() <= FEW
            && let Some(start) = value.first_chunk()
        {
            return self.short.iter().any(|text| text.is_start_of(start));
        }
        let text = Value::Packed(value).text();
        text.is_some_and(|text| self.has_text(text))
    }

    #[inline]
    fn has_number(&self, number: Number) -> bool {
        let equal = |one: &Number| one.compare(number) == Some(Ordering::Equal);
        self.numbers.iter().any(equal)
    }
}

impl Test {
    /// Whether a value passes.
    #[inline]
    pub(super) fn passes(&self, value: Value<'_>) -> bool {
        let bytes = match value {
            Value::Line(line) => return self.passes_text(line),
            Value::Packed(bytes) => bytes,
        };
        match (self, bytes.first()) {
            (Self::Exists, _) => true,
            (Self::OneOf(constants), Some(0xa0..=0xaf)) => constants.has_short(bytes),
            (Self::OneOf(constants), Some(0xc0)) => constants.nil,
            (Self::OneOf(constants), Some(0xc2)) => constants.bools[0],
            (Self::OneOf(constants), Some(0xc3)) => constants.bools[1],
            (Self::OneOf(constants), Some(0x00..=0x7f | 0xca..=0xd3 | 0xe0..=0xff)) => {
                Number::read(bytes).is_some_and(|number| constants.has_number(number))
            }
            (Self::Number(side, bound), _) => {
                let order = Number::read(bytes).and_then(|number| number.compare(*bound));
                order.is_some_and(|order| side.has(order))
            }
            _ => value.text().is_some_and(|text| self.passes_text(text)),
        }
    }

    /// Whether a text passes.
    #[inline]
    pub(super) fn passes_text(&self, text: &[u8]) -> bool {
        match self {
            Self::Exists => true,
            Self::OneOf(constants) => constants.has_text(text),
            Self::Number(..) => false,
            Self::Text(side, bound) => side.has(text.cmp(bound)),
            Self::Found(regex) => regex.is_match(text),
        }
    }

    /// Whether the test takes much longer than a comparison. Other tests are then tried first.
    pub(super) fn is_slow(&self) -> bool {
        matches!(self, Self::Found(_))
    }
}
