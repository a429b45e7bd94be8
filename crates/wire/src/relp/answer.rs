//! The answers of a server.

/// Millstream's name in its offers.
const SOFTWARE: &str = concat!("millstream,", env!("CARGO_PKG_VERSION"));

/// A client's offers when it opens a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// Whether the client names its protocol version.
    pub version: bool,
    /// Whether the client offers the command `syslog`, with which it sends messages.
    pub syslog: bool,
}

impl Offers {
    /// Parses `NAME=VALUE` lines; unknown names are skipped, as the specification requires.
    pub fn read(data: &[u8]) -> Self {
        let mut offers = Self::default();
        for line in data.split(|byte| *byte == b'\n') {
            if line.starts_with(b"relp_version=") {
                offers.version = true;
            } else if let Some(commands) = line.strip_prefix(b"commands=") {
                let mut commands = commands.split(|byte| *byte == b',');
                offers.syslog = commands.any(|command| command.trim_ascii() == b"syslog");
            }
        }
        offers
    }
}

/// Appends the `rsp` that accepts an `open`.
pub fn accept(number: u32, out: &mut Vec<u8>) {
    let text = format!("200 OK\nrelp_version=0\nrelp_software={SOFTWARE}\ncommands=syslog");
    response(number, &text, out);
}

/// Appends the `rsp 200` that acknowledges a message.
pub fn acknowledge(number: u32, out: &mut Vec<u8>) {
    // This runs for every message, so it avoids `format!`.
    let mut digits = [0; 10];
    let (mut at, mut rest) = (digits.len(), number);
    loop {
        at -= 1;
        if let Some(digit) = digits.get_mut(at) {
            *digit = b'0' + (rest % 10) as u8;
        }
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(at..).unwrap_or_default());
    out.extend_from_slice(b" rsp 6 200 OK\n");
}

/// Appends a `rsp 500`: the message is refused permanently. The client library librelp then drops the message.
pub fn refuse(number: u32, reason: &str, out: &mut Vec<u8>) {
    response(number, &format!("500 {reason}"), out);
}

/// Appends the `rsp` to a `close`, and the announcement that the session ends.
pub fn closed(number: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{number} rsp 0\n").as_bytes());
    serverclose(out);
}

/// Appends the announcement that the server ends the session.
pub fn serverclose(out: &mut Vec<u8>) {
    out.extend_from_slice(b"0 serverclose 0\n");
}

fn response(number: u32, text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{number} rsp {} {text}\n", text.len()).as_bytes());
}
