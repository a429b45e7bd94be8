//! Whether a parser of the crate `vrl` can take a text without stack, memory or time out of proportion to it.
//!
//! These parsers recurse into nested texts, or compare each part of a text with all others. Each check is one pass over the text, and
//! returns why the text is refused. The limits are far above those of usual texts.
//!
//! The values in a text can take 150 times its memory, such as `{"":1},` repeated. So before a long text is parsed, their memory is
//! estimated from its signs.

use std::collections::HashSet;

use crate::{
    DEPTH_MAX,
    weight::{self, ELEMENT},
};

/// Texts up to this length are parsed without an estimate, because their values take little memory: 150 times as much at most.
const SMALL: usize = 64 << 10;
/// The most bytes of values that a byte of a text can become: an element of an array, or a small part of the text with its allocation.
const PART: usize = ELEMENT + 48;
/// The bytes of an array with one element, which has room for four.
const ARRAY: usize = 4 * ELEMENT;
/// The maximum length of a duration. The parser copies the rest of the text for each of its parts.
const DURATION_MAX: usize = 4096;
/// The maximum number of repeated spaces or bars in CEF. The parser reads the rest of such a run again from each of its characters.
const RUN_MAX: usize = 256;
/// The maximum sum, over the lines of an InfluxDB text, of the squared number of commas. Each field gets a copy of all tags.
const TAG_COPIES_MAX: usize = 10_000_000;
/// The maximum number of bytes that a search for `=` may read. Each word without `=` searches up to the next one.
const SEARCH_MAX: usize = 1 << 32;
/// The maximum number of namespaces in XML, and of attributes of an element. The parser compares each of them with all others.
const NAMESPACES_MAX: usize = 512;
const ATTRIBUTES_MAX: usize = 4096;
/// The maximum number of aliases in YAML, each of which is a copy of its anchor, which may contain other aliases.
const ALIASES_MAX: usize = 8;

pub(crate) fn duration(text: &[u8]) -> Result<(), String> {
    within(text.len(), DURATION_MAX, "bytes in a duration")
}

/// Each byte may become a separate value.
pub(crate) fn bytes(text: &[u8]) -> Result<(), String> {
    memory(text.len().saturating_mul(PART))
}

pub(crate) fn cef(text: &[u8]) -> Result<(), String> {
    let runs = text.chunk_by(|one, next| one == next && matches!(one, b' ' | b'|'));
    let longest = runs.map(<[u8]>::len).max().unwrap_or(0);
    within(longest, RUN_MAX, "repeated characters")
}

pub(crate) fn influxdb(text: &[u8]) -> Result<(), String> {
    let lines = text.split(|byte| *byte == b'\n');
    let commas = lines.map(|line| memchr::memchr_iter(b',', line).count());
    let copies = commas.fold(0_usize, |sum, count| {
        sum.saturating_add(count.saturating_mul(count))
    });
    within(copies, TAG_COPIES_MAX, "copies of tags")
}

pub(crate) fn key_value(text: &[u8]) -> Result<(), String> {
    let searched = |part: &[u8]| {
        let is_end = |byte: &&u8| byte.is_ascii_whitespace() || **byte == b',';
        let words = 1 + part.iter().filter(is_end).count();
        words.saturating_mul(part.len())
    };
    let parts = text.split(|byte| *byte == b'=');
    let sum = parts.fold(0_usize, |sum, part| sum.saturating_add(searched(part)));
    within(sum, SEARCH_MAX, "bytes that a search for `=` reads")
}

/// The values must not take too much memory.
pub(crate) fn json(text: &[u8]) -> Result<(), String> {
    if text.len() <= SMALL {
        return Ok(());
    }
    let mut bytes = 0_usize;
    // For each open bracket, the number of fields if it is an object.
    let mut open: Vec<Option<usize>> = Vec::new();
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += 1;
        let depth = open.len();
        match (byte, open.last_mut()) {
            (b'"', _) => at = string_end(text, at),
            // The parser refuses the text here.
            (b'{' | b'[', _) if depth > DEPTH_MAX => break,
            (b'{', _) => open.push(Some(0)),
            (b'[', _) => {
                open.push(None);
                bytes += ARRAY;
            }
            (b',', Some(None)) => bytes += ELEMENT,
            (b':', Some(Some(fields))) => *fields += 1,
            (b'}' | b']', _) => bytes += weight::map(open.pop().flatten().unwrap_or(0)),
            _ => {}
        }
    }
    let rest = open.into_iter().flatten().map(weight::map);
    memory(rest.fold(bytes, usize::saturating_add))
}

/// The offset after the quote that ends a string in JSON.
fn string_end(text: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(rest) = text.get(at..)
        && let Some(found) = memchr::memchr2(b'"', b'\\', rest)
    {
        at += found + 1;
        match rest.get(found) {
            Some(b'"') => return at,
            _ => at += 1,
        }
    }
    text.len()
}

/// The values must not take too much memory. Each item begins with its type and a number, which is the length of what follows.
pub(crate) fn cbor(data: &[u8]) -> Result<(), String> {
    if data.len() <= SMALL {
        return Ok(());
    }
    let mut bytes = 0_usize;
    let mut rest = data;
    while let Some((first, after)) = rest.split_first() {
        let size = match first & 0x1f {
            small @ 24..=27 => 1 << (small - 24),
            _ => 0,
        };
        let (number, after) = after.split_at_checked(size).unwrap_or_default();
        let long = number
            .iter()
            .fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte));
        let length = match first & 0x1f {
            short @ 0..=23 => usize::from(short),
            24..=27 => long,
            // The length is unknown: the parts follow.
            _ => 1,
        };
        let (skipped, taken) = match first >> 5 {
            // Bytes and texts, unless their parts follow.
            2 | 3 if first & 0x1f != 31 => (length, 0),
            4 => (0, ARRAY),
            // No map has more fields than there are bytes.
            5 => (0, weight::map(length.min(after.len()))),
            _ => (0, 0),
        };
        bytes = bytes.saturating_add(ELEMENT + taken);
        rest = after.get(skipped..).unwrap_or_default();
    }
    memory(bytes)
}

/// Fails if the values of a text would take too much memory. `costs` has the bytes for each time that a sign is in the text.
fn parts(text: &[u8], costs: &[(u8, usize)]) -> Result<(), String> {
    if text.len() <= SMALL {
        return Ok(());
    }
    let cost = |&(sign, bytes)| {
        memchr::memchr_iter(sign, text)
            .count()
            .saturating_mul(bytes)
    };
    memory(costs.iter().map(cost).fold(0, usize::saturating_add))
}

fn memory(bytes: usize) -> Result<(), String> {
    weight::within(bytes).map(drop)
}

/// Brackets must not nest deep. Those in quoted strings do not count. A quote after a backslash does not end a string.
pub(crate) fn ruby_hash(text: &[u8]) -> Result<(), String> {
    parts(
        text,
        &[(b'{', weight::map(1)), (b'[', ARRAY), (b',', weight::FIELD)],
    )?;
    let (mut depth, mut quote) = (0_usize, None);
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match (quote, byte) {
            (Some(_), b'\\') => drop(bytes.next()),
            (Some(open), byte) if open == byte => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'{' | b'[' | b'(') => depth += 1,
            (None, b'}' | b']' | b')') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
        nests(depth)?;
    }
    Ok(())
}

pub(crate) fn xml(text: &[u8]) -> Result<(), String> {
    // An element with elements in it is an object. It has two tags.
    parts(text, &[(b'<', weight::map(1) / 2), (b'=', weight::map(1))])?;
    let namespaces = memchr::memmem::find_iter(text, b"xmlns").count();
    within(namespaces, NAMESPACES_MAX, "namespaces")?;
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(next) = find(text, at, b"<") {
        let rest = text.get(next..).unwrap_or_default();
        let (close, end) = match rest {
            [b'<', b'!', b'-', b'-', ..] => (find(text, next + 4, b"-->"), b"-->".as_slice()),
            [b'<', b'!', b'[', ..] => (find(text, next + 1, b"]]>"), b"]]>".as_slice()),
            [b'<', b'?', ..] => (find(text, next + 1, b"?>"), b"?>".as_slice()),
            _ => (tag_end(text, next + 1), b">".as_slice()),
        };
        let Some(close) = close else {
            break;
        };
        match rest {
            [b'<', b'!' | b'?', ..] => {}
            [b'<', b'/', ..] => depth = depth.saturating_sub(1),
            _ => {
                let tag = text.get(next..close).unwrap_or_default();
                let attributes = memchr::memchr_iter(b'=', tag).count();
                within(attributes, ATTRIBUTES_MAX, "attributes of an element")?;
                depth += usize::from(!tag.ends_with(b"/"));
            }
        }
        nests(depth)?;
        at = close + end.len();
    }
    Ok(())
}

/// The offset of the `>` that ends a tag. A `>` in the quoted value of an attribute does not end the tag.
fn tag_end(text: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += memchr::memchr3(b'>', b'"', b'\'', text.get(at..)?)?;
        let quote = *text.get(at)?;
        if quote == b'>' {
            return Some(at);
        }
        at += 1;
        at += memchr::memchr(quote, text.get(at..)?)? + 1;
    }
}

fn find(text: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    let found = memchr::memmem::find(text.get(from..)?, what)?;
    Some(from + found)
}

/// Brackets must not nest deep. Those in quoted strings count, too.
pub(crate) fn yaml(text: &[u8]) -> Result<(), String> {
    let map = weight::map(1);
    let maps = [(b'{', map), (b':', map), (b'?', map)];
    parts(text, &maps)?;
    parts(text, &[(b'[', ARRAY), (b'-', ARRAY), (b',', weight::FIELD)])?;
    let mut depth = 0_usize;
    for byte in text {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        nests(depth)?;
    }
    let anchors: HashSet<&[u8]> = names(text, b'&').collect();
    let aliases = names(text, b'*').filter(|name| anchors.contains(name));
    within(aliases.count(), ALIASES_MAX, "aliases")
}

/// Returns the names after each `sign`.
fn names(text: &[u8], sign: u8) -> impl Iterator<Item = &[u8]> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    memchr::memchr_iter(sign, text).filter_map(move |at| {
        let rest = text.get(at + 1..)?;
        let end = rest.iter().position(|byte| !is_part(byte));
        let name = rest.get(..end.unwrap_or(rest.len()))?;
        (!name.is_empty()).then_some(name)
    })
}

fn nests(depth: usize) -> Result<(), String> {
    match depth > DEPTH_MAX {
        true => Err(format!("the text nests deeper than {DEPTH_MAX} levels")),
        false => Ok(()),
    }
}

fn within(count: usize, most: usize, what: &str) -> Result<(), String> {
    match count > most {
        true => Err(format!("more than {most} {what}")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_texts_are_accepted_and_hostile_ones_are_refused() {
        let attributes: String = (0..5000).map(|n| format!(" a{n}='1'")).collect();
        let spaces: String = " ".repeat(300);
        for (check, usual, hostile) in [
            (
                duration as fn(&[u8]) -> Result<(), String>,
                "1h2m3s".to_owned(),
                "1s".repeat(3000),
            ),
            (
                cef,
                "CEF:0|a|b||c k=x  y".to_owned(),
                format!("k=x{spaces}"),
            ),
            (
                influxdb,
                "cpu,host=a,b=c u=1,v=2\n".repeat(1000),
                ",".repeat(4000),
            ),
            (
                key_value,
                "a=1 b=\"x y\" c ".repeat(10_000),
                "a ".repeat(100_000),
            ),
            (ruby_hash, "{:a=>[1, '{{{']}".to_owned(), "[".repeat(129)),
            (
                xml,
                "<a b='>'><!-- <x> --><c d='1'/><c/></a>".repeat(1000),
                format!("<a{attributes}/>"),
            ),
            (xml, String::new(), "<a xmlns:b='c'/>".repeat(600)),
            (xml, String::new(), "<a>".repeat(129)),
            (
                yaml,
                "a: &x [1]\nb: *x\nc: 'a & b * c'".to_owned(),
                "&a [*a, ".repeat(9),
            ),
            (yaml, String::new(), "{a: ".repeat(129)),
        ] {
            assert_eq!(check(usual.as_bytes()), Ok(()), "{usual:.40}");
            check(hostile.as_bytes()).unwrap_err();
        }
    }
}
