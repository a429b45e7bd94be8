//! Guesses the address that the user meant, for the error about an invalid address.
//!
//! Users write addresses as other programs expect them: a port, `ADDRESS:PORT`, `:PORT`, `*:PORT`, a path, another scheme.

use std::net::Ipv6Addr;

use super::Scheme;

/// All addresses of this machine.
const EVERYWHERE: &str = "0.0.0.0";

/// The error for a text that is not an address.
pub(super) fn no_address(text: &str) -> String {
    let right = right_form(text.trim());
    let mut message = format!("`{text}` is not a valid address to listen on: write \"{right}\"");
    if right.contains(EVERYWHERE) {
        let local = right.replace(EVERYWHERE, "127.0.0.1");
        message.push_str(&format!(", or \"{local}\" for this machine only"));
    }
    message
}

/// The address that the user probably meant.
fn right_form(text: &str) -> String {
    let (scheme, rest) = scheme_of(text);
    let name = scheme.name();
    match (scheme.is_path(), rest) {
        (true, "") => format!("{name}:///run/NAME.sock"),
        (true, path) => format!("{name}://{path}"),
        (false, rest) => format!("{name}://{}", host_and_port(rest)),
    }
}

/// The scheme and the text after it. A path means a unix socket; an unknown scheme was probably meant as TCP.
fn scheme_of(text: &str) -> (Scheme, &str) {
    if text.starts_with(['/', '.']) {
        return (Scheme::Unix, text);
    }
    let Some((name, rest)) = text.split_once(':') else {
        return (Scheme::Tcp, text);
    };
    let known = |scheme: &Scheme| scheme.name().eq_ignore_ascii_case(name);
    match (Scheme::ALL.into_iter().find(known), rest.strip_prefix("//")) {
        (Some(scheme), behind) => (scheme, behind.unwrap_or(rest)),
        (None, Some(behind)) => (Scheme::Tcp, behind),
        (None, None) => (Scheme::Tcp, text),
    }
}

/// `HOST:PORT` from a port, a host, or both.
fn host_and_port(text: &str) -> String {
    let text = text.trim_start_matches('/');
    let text = text.split(['/', '?']).next().unwrap_or_default();
    if text.parse::<Ipv6Addr>().is_ok() {
        return format!("[{text}]");
    }
    let is_port = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (host, port) = match text.rsplit_once(':') {
        _ if is_port => ("", Some(text)),
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let host = match host {
        "" | "*" => EVERYWHERE.to_owned(),
        host if host.parse::<Ipv6Addr>().is_ok() => format!("[{host}]"),
        host => host.to_owned(),
    };
    match port.map(str::parse::<u16>) {
        Some(Ok(port)) => format!("{host}:{port}"),
        Some(Err(_)) => format!("{host}:PORT"),
        None => host,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Listen, Scheme, Takes};

    const TAKES: Takes = &[
        (Scheme::Tcp, Some(24224)),
        (Scheme::Udp, None),
        (Scheme::Unix, None),
        (Scheme::Unixgram, None),
    ];

    /// The addresses that the error for `text` suggests.
    fn hinted(text: &str) -> Vec<String> {
        let error = text.parse::<Listen>().unwrap_err();
        let quoted = error.split('"').skip(1).step_by(2);
        quoted.map(str::to_owned).collect()
    }

    #[test]
    fn the_suggested_address_is_valid() {
        for (text, first) in [
            ("24224", "tcp://0.0.0.0:24224"),
            (":24224", "tcp://0.0.0.0:24224"),
            ("*:24224", "tcp://0.0.0.0:24224"),
            ("0.0.0.0:24224", "tcp://0.0.0.0:24224"),
            ("127.0.0.1:24224", "tcp://127.0.0.1:24224"),
            ("localhost", "tcp://localhost"),
            ("logs.example:514", "tcp://logs.example:514"),
            ("", "tcp://0.0.0.0"),
            ("tcp://:24224", "tcp://0.0.0.0:24224"),
            ("tcp://*:24224", "tcp://0.0.0.0:24224"),
            ("tcp:24224", "tcp://0.0.0.0:24224"),
            ("udp:514", "udp://0.0.0.0:514"),
            ("TCP://0.0.0.0:1", "tcp://0.0.0.0:1"),
            ("tcp:/0.0.0.0:1", "tcp://0.0.0.0:1"),
            ("http://0.0.0.0:8080/logs", "tcp://0.0.0.0:8080"),
            ("tls://a.example:6514", "tcp://a.example:6514"),
            ("[::]:24224", "tcp://[::]:24224"),
            (":::24224", "tcp://[::]:24224"),
            ("::1", "tcp://[::1]"),
            ("/run/in.sock", "unix:///run/in.sock"),
            ("unix:/run/in.sock", "unix:///run/in.sock"),
            ("unixgram:/dev/log", "unixgram:///dev/log"),
            ("./in.sock", "unix://./in.sock"),
            ("unix:", "unix:///run/NAME.sock"),
        ] {
            let hinted = hinted(text);
            assert_eq!(hinted.first().map(String::as_str), Some(first), "{text}");
            for form in hinted {
                let listen: Listen = form.parse().unwrap();
                assert!(listen.taken(TAKES).is_ok(), "{text}: {form}");
            }
        }
    }
}
