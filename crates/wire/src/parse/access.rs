//! Access logs of Apache and nginx, with the names of Fluentd's parsers `apache2` and `nginx`.
//!
//! ```text
//! HOST IDENT USER [TIME] "METHOD PATH PROTOCOL" CODE SIZE                        Apache: common
//! HOST IDENT USER [TIME] "METHOD PATH PROTOCOL" CODE SIZE "REFERER" "AGENT"      combined; nginx: REMOTE HOST USER
//! VHOST:PORT HOST IDENT USER [TIME] ...                                          Debian's vhost_combined
//! ... "AGENT" "HTTP_X_FORWARDED_FOR"                                             nginx's usual addition
//! HOST, HOST IDENT USER [TIME] ...                                               the addresses of X-Forwarded-For in front
//! ... CODE SIZE MORE "REFERER" "AGENT" MORE                                      further values of `log_format`
//! ```
//!
//! - `-` is a missing value: its field is left out. A user may contain spaces.
//! - A request that is not `METHOD PATH` (a TLS handshake on a plain port, `-`, nothing) becomes the field `request`, as the
//!   server wrote it.
//! - Values that these formats do not have become the field `more`, as the server wrote them.
//! - Escapes (`\"`, `\\`, `\xHH`) become the characters that they stand for. But if the result is not UTF-8 or has control
//!   characters, the value stays as the server wrote it, so that no request can forge a line or an escape sequence for a
//!   terminal.

use memchr::{
    memchr, memchr2,
    memmem::{Finder, find},
    memrchr,
};

use super::{
    Fault, Kind,
    fields::{Fields, Meaning, Slot},
    logfmt::hex,
    separated::MORE,
};

/// Reads lines of an access log.
#[derive(Debug)]
pub(super) struct Access {
    /// Finds the end of the time: `] "`.
    time_end: Finder<'static>,
    vhost: Option<Slot>,
    /// The first three words: client, ident, user.
    client: Slot,
    ident: Option<Slot>,
    user: Slot,
    time: Slot,
    method: Slot,
    path: Slot,
    request: Slot,
    code: Slot,
    size: Slot,
    referer: Slot,
    agent: Slot,
    forwarded: Option<Slot>,
    more: Slot,
}

/// A value between quotes.
#[derive(Clone, Copy)]
struct Quoted<'a> {
    text: &'a [u8],
    escaped: bool,
    /// The offset after the closing quote.
    end: usize,
}

impl Access {
    pub(super) fn apache(meaning: &Meaning) -> Self {
        Self {
            vhost: Some(Slot::new("vhost", None, meaning)),
            ..Self::new("host", meaning)
        }
    }

    pub(super) fn nginx(meaning: &Meaning) -> Self {
        Self {
            ident: Some(Slot::new("host", None, meaning)),
            forwarded: Some(Slot::new("http_x_forwarded_for", None, meaning)),
            ..Self::new("remote", meaning)
        }
    }

    fn new(client: &str, meaning: &Meaning) -> Self {
        let slot = |name| Slot::new(name, None, meaning);
        let integer = |name| Slot::new(name, Some(Kind::Integer), meaning);
        Self {
            time_end: Finder::new(b"] \"").into_owned(),
            vhost: None,
            client: slot(client),
            ident: None,
            user: slot("user"),
            time: slot("time"),
            method: slot("method"),
            path: slot("path"),
            request: slot("request"),
            code: integer("code"),
            size: integer("size"),
            referer: slot("referer"),
            agent: slot("agent"),
            forwarded: None,
            more: slot(MORE),
        }
    }

    /// Appends the fields of a line.
    pub(super) fn fields(&self, line: &[u8], fields: &mut Fields<'_>) -> Result<(), Fault> {
        // Servers escape quotes in the user, so the first `] "` is the end of the time.
        let close = self.time_end.find(line);
        let close = close.ok_or(Fault::at(0, "`HOST IDENT USER [TIME] \"REQUEST\"`"))?;
        let before = line.get(..close).unwrap_or_default();
        let open = memrchr(b'[', before).ok_or(Fault::at(0, "`[` before the time"))?;
        self.names(before.get(..open).unwrap_or_default(), fields)?;
        fields.text(&self.time, before.get(open + 1..).unwrap_or_default())?;
        let request = quoted(line, close + 3)?;
        self.request(&request, fields)?;
        let (code, at) = word(line, request.end)?;
        self.number(&self.code, code, at - code.len(), fields)?;
        let (size, at) = word(line, at)?;
        self.number(&self.size, size, at - size.len(), fields)?;
        self.behind_size(line, at, fields)
    }

    /// Appends the fields of the rest of a line, which begins with a space.
    fn behind_size(&self, line: &[u8], at: usize, fields: &mut Fields<'_>) -> Result<(), Fault> {
        let rest = line.get(at..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
        // Usually 0: values without quotes that stand before the referer.
        let Some(unknown) = find(rest, b" \"") else {
            return self.more(&[], rest, fields);
        };
        let referer = quoted(line, at + unknown + 2)?;
        self.value(&self.referer, &referer, fields)?;
        let mut end = referer.end;
        for slot in std::iter::once(&self.agent).chain(&self.forwarded) {
            if line.get(end..).is_some_and(|rest| rest.starts_with(b" \"")) {
                let value = quoted(line, end + 2)?;
                self.value(slot, &value, fields)?;
                end = value.end;
            }
        }
        let behind = line.get(end..).unwrap_or_default();
        if unknown == 0 && behind.is_empty() {
            return Ok(());
        }
        if !matches!(behind, [] | [b' ', ..]) {
            return Err(Fault::at(end, "a space after the closing quote"));
        }
        self.more(rest.get(..unknown).unwrap_or_default(), behind, fields)
    }

    /// Appends the values that have no name. Each of the two texts is empty or begins with a space.
    #[cold]
    fn more(&self, one: &[u8], other: &[u8], fields: &mut Fields<'_>) -> Result<(), Fault> {
        let more = [one, other].concat();
        match more.trim_ascii() {
            [] => Ok(()),
            more => fields.text(&self.more, more),
        }
    }

    /// Appends the fields of `HOST IDENT USER `, which a virtual host may precede.
    fn names(&self, text: &[u8], fields: &mut Fields<'_>) -> Result<(), Fault> {
        let missing = || Fault::at(0, "`HOST IDENT USER` before the time");
        let text = text.strip_suffix(b" ").ok_or_else(missing)?;
        let (mut client, mut rest) = split(text).ok_or_else(missing)?;
        let mut start = 0;
        // A client with an IPv6 address may look like a host with a port, too.
        if let Some(slot) = &self.vhost
            && has_port(client)
            && !is_address(client)
            && !rest.starts_with(b"- ")
            && let Some((second, others)) = split(rest)
            && split(others).is_some()
        {
            fields.text(slot, client)?;
            start = client.len() + 1;
            (client, rest) = (second, others);
        }
        // The addresses of X-Forwarded-For are separated by a comma, or only by a space.
        while let Some((next, behind)) = split(rest)
            && (client.ends_with(b",") || is_address(next))
        {
            let end = text.len() - behind.len() - 1;
            (client, rest) = (text.get(start..end).unwrap_or_default(), behind);
        }
        let (ident, user) = split(rest).ok_or_else(missing)?;
        self.word(&self.client, client, fields)?;
        if let Some(slot) = &self.ident {
            self.word(slot, ident, fields)?;
        }
        self.word(&self.user, user, fields)
    }

    fn request(&self, request: &Quoted<'_>, fields: &mut Fields<'_>) -> Result<(), Fault> {
        let Some((method, path)) = split(request.text).filter(|(method, _)| is_method(method))
        else {
            return fields.text(&self.request, request.text);
        };
        let path = match memrchr(b' ', path).and_then(|at| path.split_at_checked(at)) {
            Some((path, protocol)) if protocol.starts_with(b" HTTP/") => path,
            _ => path,
        };
        if path.is_empty() {
            return fields.text(&self.request, request.text);
        }
        fields.text(&self.method, method)?;
        resolved(&self.path, path, request.escaped, fields)
    }

    fn number(
        &self,
        slot: &Slot,
        number: &[u8],
        at: usize,
        fields: &mut Fields<'_>,
    ) -> Result<(), Fault> {
        if number == b"-" {
            return Ok(());
        }
        if number.is_empty() || !number.iter().all(u8::is_ascii_digit) {
            return Err(Fault::at(at, "a number or `-`"));
        }
        fields.text(slot, number)
    }

    fn word(&self, slot: &Slot, word: &[u8], fields: &mut Fields<'_>) -> Result<(), Fault> {
        if word == b"-" {
            return Ok(());
        }
        resolved(slot, word, memchr(b'\\', word).is_some(), fields)
    }

    fn value(&self, slot: &Slot, value: &Quoted<'_>, fields: &mut Fields<'_>) -> Result<(), Fault> {
        if value.text == b"-" {
            return Ok(());
        }
        resolved(slot, value.text, value.escaped, fields)
    }
}

/// Returns the first word and the text after the space that follows it, or `None` if there is no space.
#[inline]
fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b' ')?;
    Some((text.get(..end)?, text.get(end + 1..)?))
}

/// Returns the word after the space at `at`, and the offset of its end.
#[inline]
fn word(line: &[u8], at: usize) -> Result<(&[u8], usize), Fault> {
    let rest = match line.get(at..) {
        Some([b' ', rest @ ..]) => rest,
        _ => return Err(Fault::at(at, "a space")),
    };
    let end = rest.iter().position(|byte| *byte == b' ');
    let end = end.unwrap_or(rest.len());
    Ok((rest.get(..end).unwrap_or_default(), at + 1 + end))
}

/// Returns the value from `start` to the next quote that is not escaped.
#[inline]
fn quoted(line: &[u8], start: usize) -> Result<Quoted<'_>, Fault> {
    let (mut at, mut escaped) = (start, false);
    loop {
        let rest = line.get(at..).unwrap_or_default();
        let found = memchr2(b'"', b'\\', rest).ok_or(Fault::at(line.len(), "a closing quote"))?;
        at += found;
        if line.get(at) == Some(&b'"') {
            return Ok(Quoted {
                text: line.get(start..at).unwrap_or_default(),
                escaped,
                end: at + 1,
            });
        }
        escaped = true;
        at += 2;
    }
}

/// Whether a word is an IP address.
fn is_address(word: &[u8]) -> bool {
    // A name of fewer than three bytes is none, such as the usual `-`.
    word.len() > 2
        && str::from_utf8(word).is_ok_and(|word| word.parse::<std::net::IpAddr>().is_ok())
}

/// Whether a word is a name with a port number: `www.example.com:443`.
fn has_port(word: &[u8]) -> bool {
    let Some((name, port)) = memrchr(b':', word).and_then(|at| word.split_at_checked(at)) else {
        return false;
    };
    let digits = port.get(1..).unwrap_or_default();
    !name.is_empty() && !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// Whether a word consists of the characters of a method (RFC 9110, token).
fn is_method(word: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !word.is_empty() && word.iter().all(fits)
}

/// Appends a value with its escapes resolved.
#[inline]
fn resolved(slot: &Slot, text: &[u8], escaped: bool, fields: &mut Fields<'_>) -> Result<(), Fault> {
    if !escaped {
        return fields.text(slot, text);
    }
    let mut scratch = std::mem::take(fields.scratch);
    scratch.clear();
    let plain = unescape(text, &mut scratch);
    let appended = fields.text(slot, if plain { &scratch } else { text });
    *fields.scratch = scratch;
    appended
}

/// Appends a text with its escapes resolved. Returns whether the result is UTF-8 text without control characters.
fn unescape(mut text: &[u8], out: &mut Vec<u8>) -> bool {
    while let Some(at) = memchr(b'\\', text) {
        let (before, rest) = text.split_at_checked(at).unwrap_or((text, &[]));
        out.extend_from_slice(before);
        let (length, byte) = match rest {
            [_, b'x', digits @ ..] => match hex(digits, 2) {
                Some(byte) => (4, byte as u8),
                None => return false,
            },
            [_, byte @ (b'"' | b'\\'), ..] => (2, *byte),
            // Apache also writes control characters as `\n`, `\t` and so on. A value with one of them stays as it is.
            _ => return false,
        };
        out.push(byte);
        text = rest.get(length..).unwrap_or_default();
    }
    out.extend_from_slice(text);
    match std::str::from_utf8(out) {
        Ok(text) => !text.chars().any(char::is_control),
        Err(_) => false,
    }
}
