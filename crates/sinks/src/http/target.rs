//! Where a request goes: URL, headers and method. Parts that depend on the record are rendered per record.
//!
//! ```text
//! https://host:9200 /{tag}/_bulk?x=1     the first part is fixed: connections are made to it
//! ```

use std::fmt;

use hyper::{
    Method, Uri,
    header::{
        AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, HOST, HeaderName, HeaderValue,
        TRANSFER_ENCODING,
    },
};
use jiff::tz::TimeZone;
use millstream_config::{Node, Problem};
use millstream_wire::{
    record::TimedRecord,
    template::{Depends, Missing, Renderer, Shared, Template},
};

use super::options::{Config, MethodOption};

/// Separates the parts of a rendered target: no header and no URL contains it.
const SEPARATOR: u8 = 0;

/// The server, and the parts that all requests have in common.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) secure: bool,
    /// The name or address, without brackets and port.
    pub(super) host: String,
    /// `host:port`, for connecting.
    pub(super) address: String,
    /// The value of `Host`.
    pub(super) authority: HeaderValue,
    pub(super) method: Method,
    pub(super) authorization: Option<HeaderValue>,
    path: Template,
    headers: Vec<(HeaderName, Template)>,
}

/// Shows scheme and host only: the path may hold a secret.
impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        let authority = self.authority.to_str().unwrap_or(&self.address);
        write!(f, "{scheme}://{authority}")
    }
}

/// Renders targets. Each lane (parallel task of the sink) has its own renderers.
#[derive(Debug)]
pub(super) struct Targets {
    path: Renderer,
    headers: Vec<Renderer>,
    depends: Depends,
}

/// A target: path and query, and the headers in the order of the options.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) path: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

impl Site {
    /// Reads and checks the options.
    pub(super) fn read(config: &Config, options: &Node) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut wrong =
            |option: &str, text: String| problems.push(options.problem_at(option, text));
        let url = split(config.url.as_str()).map_err(|text| wrong("url", text));
        let mut headers = Vec::new();
        for (name, template) in &config.headers {
            match header_name(name) {
                Ok(name) => headers.push((name, template.clone())),
                Err(text) => wrong(&format!("headers.{name}"), text),
            }
        }
        let authorization = match config.auth.as_ref().map(super::options::Auth::header) {
            None => None,
            Some(Ok(text)) => match HeaderValue::try_from(text) {
                Ok(mut value) => {
                    value.set_sensitive(true);
                    Some(value)
                }
                Err(_) => {
                    wrong("auth", "a name or token that no header can hold".to_owned());
                    None
                }
            },
            Some(Err((option, text))) => {
                wrong(option, text.to_owned());
                None
            }
        };
        let (Ok(url), true) = (url, problems.is_empty()) else {
            return Err(problems);
        };
        Ok(Self {
            secure: url.secure,
            address: format!("{}:{}", url.host, url.port),
            host: url.host.trim_matches(['[', ']']).to_owned(),
            authority: url.authority,
            method: match config.method {
                MethodOption::Post => Method::POST,
                MethodOption::Put => Method::PUT,
                MethodOption::Patch => Method::PATCH,
            },
            authorization,
            path: url.path,
            headers,
        })
    }

    /// The parts that do not depend on records: the constant beginning of the path, and the constant headers.
    pub(super) fn fixed(&self) -> (String, impl Iterator<Item = (HeaderName, HeaderValue)>) {
        let is_fixed = |text: &str| !text.contains(['{', '}', '%']);
        let path = self.path.as_str();
        let path = match is_fixed(path) {
            true => path,
            false => {
                let whole = path.split(['{', '}', '%']).next().unwrap_or_default();
                whole.get(..=whole.rfind('/').unwrap_or(0)).unwrap_or("/")
            }
        };
        let headers = self.headers.iter().filter_map(move |(name, value)| {
            let text = Some(value.as_str()).filter(|text| is_fixed(text))?;
            Some((name.clone(), HeaderValue::from_str(text).ok()?))
        });
        (escape(path.as_bytes()), headers)
    }

    pub(super) fn targets(&self, zone: &TimeZone) -> Targets {
        let depends = self.headers.iter().map(|(_, template)| template.depends());
        let text = |(_, template): &(_, Template)| Renderer::text(template, zone.clone());
        Targets {
            path: Renderer::url(&self.path, zone.clone()),
            headers: self.headers.iter().map(text).collect(),
            depends: depends.fold(self.path.depends(), Depends::max),
        }
    }

    /// Parses the target that was rendered as `key`.
    pub(super) fn target(&self, key: &[u8]) -> Target {
        let mut parts = key.split(|byte| *byte == SEPARATOR);
        let path = escape(parts.next().unwrap_or_default());
        let headers = self.headers.iter().zip(parts).map(|((name, _), value)| {
            // Characters that headers do not allow become spaces.
            let value: Vec<u8> = value
                .iter()
                .map(|byte| if byte.is_ascii_control() { b' ' } else { *byte })
                .collect();
            let value = HeaderValue::from_bytes(value.trim_ascii());
            (
                name.clone(),
                value.unwrap_or_else(|_| HeaderValue::from_static("")),
            )
        });
        Target {
            headers: headers.collect(),
            path,
        }
    }

    /// The path and query of a `Location`. `None`: it is on another server, or not valid.
    pub(super) fn redirected(&self, location: &str) -> Option<String> {
        let uri: Uri = location.parse().ok()?;
        let path = uri.path_and_query()?.as_str();
        match uri.authority() {
            None if path.starts_with('/') => Some(path.to_owned()),
            None => None,
            Some(authority) => {
                let scheme = if self.secure { "https" } else { "http" };
                let same = authority.as_str().as_bytes() == self.authority.as_bytes();
                (same && uri.scheme_str() == Some(scheme)).then(|| path.to_owned())
            }
        }
    }
}

impl Targets {
    /// Whether the target depends on the batch or on the record. This decides how often it is rendered.
    pub(super) fn depends(&self) -> Depends {
        self.depends
    }

    /// Appends the target of a record to `out`, as the key that [`Site::target`] parses.
    pub(super) fn render(
        &mut self,
        shared: Shared<'_>,
        timed: TimedRecord<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Missing> {
        self.path.render(shared, timed, out)?;
        for header in &mut self.headers {
            let start = out.len();
            out.push(SEPARATOR);
            header.render(shared, timed, out)?;
            for byte in out.iter_mut().skip(start + 1) {
                if *byte == SEPARATOR {
                    *byte = b' ';
                }
            }
        }
        Ok(())
    }
}

/// The parts of a URL.
struct Url {
    secure: bool,
    host: String,
    port: u16,
    authority: HeaderValue,
    path: Template,
}

fn split(text: &str) -> Result<Url, String> {
    let (secure, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        _ => return Err(format!("`{text}` must begin with http:// or https://")),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at_checked(end).unwrap_or((rest, ""));
    if authority.contains(['{', '}', '%']) {
        return Err("the host of `url` is fixed: only the path may have templates".to_owned());
    }
    if authority.contains('@') {
        return Err("set name and password in `auth`, not in `url`".to_owned());
    }
    if path.contains('#') {
        return Err("a `#` and the text after it are never sent to a server".to_owned());
    }
    let parsed: hyper::http::uri::Authority = authority
        .parse()
        .map_err(|_| format!("`{authority}` is not a host"))?;
    if parsed.host().is_empty() {
        return Err(format!("`{text}` names no host"));
    }
    let path = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("/{path}"),
    };
    Ok(Url {
        secure,
        host: parsed.host().to_owned(),
        port: parsed.port_u16().unwrap_or(if secure { 443 } else { 80 }),
        authority: HeaderValue::try_from(authority).map_err(|error| error.to_string())?,
        path: Template::parse(&path).map_err(|error| error.to_string())?,
    })
}

fn header_name(name: &str) -> Result<HeaderName, String> {
    let parsed: HeaderName = name
        .parse()
        .map_err(|_| format!("`{name}` is not a header name"))?;
    let ours = [
        CONTENT_LENGTH,
        CONTENT_ENCODING,
        TRANSFER_ENCODING,
        CONNECTION,
        HOST,
    ];
    if ours.contains(&parsed) {
        return Err(format!("`{name}` is set by the sink"));
    }
    if parsed == AUTHORIZATION {
        return Err(
            "set `Authorization` with the option `auth`, so that its value is never shown"
                .to_owned(),
        );
    }
    Ok(parsed)
}

/// Percent-encodes bytes that a request line does not allow: a template may produce spaces.
fn escape(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path {
        match byte {
            b'!' | b'#'..=b';' | b'=' | b'?'..=b'[' | b']' | b'_' | b'a'..=b'z' | b'~' => {
                text.push(char::from(*byte));
            }
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_into_their_parts() {
        let url = split("https://logs.example/a/{tag}?x=%%20").unwrap();
        assert!(url.secure);
        assert_eq!((&*url.host, url.port), ("logs.example", 443));
        assert_eq!(url.path.as_str(), "/a/{tag}?x=%%20");
        let url = split("http://[::1]:9200?x").unwrap();
        assert_eq!((&*url.host, url.port), ("[::1]", 9200));
        assert_eq!(url.path.as_str(), "/?x");
        for bad in [
            "ftp://a",
            "http://",
            "http://{tag}/",
            "http://u:p@a/",
            "http://a/#b",
            "a:80",
        ] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn characters_that_a_request_line_does_not_allow_are_escaped() {
        assert_eq!(
            escape("/a b?q=INSERT INTO x \"é\"&y=%41".as_bytes()),
            "/a%20b?q=INSERT%20INTO%20x%20%22%C3%A9%22&y=%41"
        );
    }
}
