//! Access to the HTTP interface: hosts, origins, tokens, certificates, roles.
//!
//! A request passes four checks:
//! - Its `Host` must be an IP address or a known name ([`Hosts`]).
//! - If a browser sends the request for a page, this page must be of the interface's origin. Only a navigation (such as a followed link)
//!   may come from another origin.
//! - The caller is identified by its token or its client certificate. A caller that presents neither a token nor a known certificate has
//!   the role in `api.local` if it is on this machine, and otherwise no role.
//! - The role must suffice: `read` for pages (except those in `api.open`), `admin` for changes.

use std::{fmt, net::SocketAddr, sync::Arc};

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts};
use base64::{Engine, engine::general_purpose::STANDARD};
use millstream_config::{Api, ApiEndpoint, LocalRole, Role};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::{connection::Peer, host::Hosts};

/// The header that Millstream's page sends with each change. A browser lets a page of another origin send this header only after a
/// preflight request succeeds. The interface does not accept preflight requests.
pub const CUSTOM: HeaderName = HeaderName::from_static("x-millstream");
/// The header in which a browser states whether the page that sends a request is of this origin.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The header in which a browser states why it sends a request: a navigation, or a script.
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// The rules that decide who may use the interface.
pub struct Access {
    tokens: Vec<Token>,
    certificates: Vec<(String, Role)>,
    local: Option<Role>,
    open: Vec<ApiEndpoint>,
    hosts: Hosts,
}

struct Token {
    name: Arc<str>,
    digest: [u8; 32],
    role: Role,
}

/// The caller of a request that was admitted.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Its address.
    pub peer: SocketAddr,
    /// How it was identified.
    pub who: Who,
    /// `None`: the caller sees only the pages in `api.open`.
    pub role: Option<Role>,
}

/// How a caller was identified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// By this token.
    Token(Arc<str>),
    /// By a certificate with this name.
    Certificate(String),
    /// By its address, which is on this machine.
    Local,
    /// It was not identified.
    Unknown,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(name) => write!(f, "token {name}"),
            Self::Certificate(name) => write!(f, "certificate {name}"),
            Self::Local => f.write_str("local"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// The refusal of a request: the reason, and the remedy.
#[derive(Debug, PartialEq, Eq)]
pub struct Denied {
    /// The status of the answer.
    pub code: StatusCode,
    /// The text of the answer.
    pub why: String,
    /// Whether the answer makes a browser ask its user for a token.
    pub asks: bool,
}

impl Denied {
    fn new(code: StatusCode, why: impl Into<String>) -> Self {
        Self {
            code,
            why: why.into(),
            asks: false,
        }
    }
}

impl Access {
    /// Takes the rules from the setting `api`. `machine` is the configured name of this machine.
    pub fn new(api: &Api, machine: &str) -> Self {
        let token = |token: &millstream_config::ApiToken| Token {
            name: token.name.as_str().into(),
            digest: digest(token.token.expose().as_bytes()),
            role: token.role,
        };
        let certificates = api.certificates.iter();
        Self {
            tokens: api.tokens.iter().map(token).collect(),
            certificates: certificates.map(|it| (it.name.clone(), it.role)).collect(),
            local: match api.local {
                LocalRole::None => None,
                LocalRole::Read => Some(Role::Read),
                LocalRole::Admin => Some(Role::Admin),
            },
            open: api.open.clone(),
            hosts: Hosts::new(machine, &api.hosts),
        }
    }

    /// Returns the caller of a request, or why the caller may not make this request.
    pub fn admit(&self, peer: &Peer, request: &Parts) -> Result<Caller, Denied> {
        let headers = &request.headers;
        if let Err(host) = self.hosts.admit(headers) {
            let why = format!(
                "the interface does not answer to the host {host:?}; `api: {{ hosts: [{host:?}] }}` adds a name"
            );
            return Err(Denied::new(StatusCode::MISDIRECTED_REQUEST, why));
        }
        let changes = !matches!(request.method, Method::GET | Method::HEAD);
        if let Err(why) = check_origin(headers, changes, peer.is_secured()) {
            return Err(Denied::new(StatusCode::FORBIDDEN, why));
        }
        let caller = self.caller(peer, headers)?;
        let needed = match changes {
            true => Role::Admin,
            false => Role::Read,
        };
        if caller.role >= Some(needed) || !changes && self.is_open(request.uri.path()) {
            return Ok(caller);
        }
        Err(self.denied(&caller, peer, headers))
    }

    fn caller(&self, peer: &Peer, headers: &HeaderMap) -> Result<Caller, Denied> {
        let caller = |who, role| Caller {
            peer: peer.address,
            who,
            role,
        };
        if let Some(value) = headers.get(header::AUTHORIZATION) {
            let Some(token) = presented(value).and_then(|token| self.token(&token)) else {
                let why = "the token is wrong: `Authorization: Bearer TOKEN` needs one of `api.tokens`; a browser sends it as password";
                return Err(Denied {
                    asks: wants_page(headers),
                    ..Denied::new(StatusCode::UNAUTHORIZED, why)
                });
            };
            return Ok(caller(Who::Token(token.name.clone()), Some(token.role)));
        }
        let known = self.certificates.iter().filter(|(name, _)| {
            let mut names = peer.names().iter();
            names.any(|presented| presented.eq_ignore_ascii_case(name))
        });
        Ok(match known.max_by_key(|(_, role)| *role) {
            Some((name, role)) => caller(Who::Certificate(name.clone()), Some(*role)),
            None if is_here(peer.address) => caller(Who::Local, self.local),
            None => caller(Who::Unknown, None),
        })
    }

    /// Returns the configured token with this text. Compares it with every configured token in constant time, so that response times
    /// reveal nothing about the tokens.
    fn token(&self, text: &[u8]) -> Option<&Token> {
        let given = digest(text);
        let mut found = u32::MAX;
        for (at, token) in (0..).zip(&self.tokens) {
            let is_same: Choice = token.digest.ct_eq(&given);
            found.conditional_assign(&at, is_same);
        }
        self.tokens.get(found as usize)
    }

    fn is_open(&self, path: &str) -> bool {
        let part = match path {
            "/health" | "/ready" | "/live" => ApiEndpoint::Health,
            "/metrics" => ApiEndpoint::Metrics,
            _ => return false,
        };
        self.open.contains(&part)
    }

    /// The refusal of a caller whose role does not suffice.
    fn denied(&self, caller: &Caller, peer: &Peer, headers: &HeaderMap) -> Denied {
        if caller.role.is_some() {
            let help = match &caller.who {
                Who::Local => "set `api: { local: admin }`, or present a token with `role: admin`",
                _ => "give it `role: admin` in `api.tokens` or `api.certificates`",
            };
            let why = format!("{} may read but not change anything; {help}", caller.who);
            return Denied::new(StatusCode::FORBIDDEN, why);
        }
        if self.tokens.is_empty() && self.certificates.is_empty() {
            let why = "only for this machine: add `api: { tokens: [{ name: ops, token: \"${file:api.token}\", role: admin }] }` for \
                       others; `api: { open: [health, metrics] }` opens those two to everybody";
            return Denied::new(StatusCode::FORBIDDEN, why);
        }
        if let Some(name) = peer.names().first() {
            let why = format!(
                "the certificate of {name:?} has no role; `api: {{ certificates: [{{ name: {name:?}, role: read }}] }}` gives it one"
            );
            return Denied::new(StatusCode::FORBIDDEN, why);
        }
        let why = "this needs a token: `curl -H \"Authorization: Bearer TOKEN\"`, or `millstream status --token-file FILE`; tokens stand in `api.tokens`";
        Denied {
            asks: wants_page(headers),
            ..Denied::new(StatusCode::UNAUTHORIZED, why)
        }
    }
}

/// Refuses requests that a browser sends for a page of another origin. Programs other than browsers send neither `Origin` nor
/// `Sec-Fetch-Site`.
fn check_origin(headers: &HeaderMap, changes: bool, is_secured: bool) -> Result<(), &'static str> {
    let foreign = Err("not for a page of another origin");
    let (origin, site) = (headers.get(header::ORIGIN), headers.get(SITE));
    if origin.is_some_and(|origin| !is_own(origin, headers, is_secured)) {
        return foreign;
    }
    let is_elsewhere = site.is_some_and(|site| site != "same-origin" && site != "none");
    // A visit is allowed, because a user may follow a link from another page to the dashboard.
    let is_visit = !changes && headers.get(MODE).is_some_and(|mode| mode == "navigate");
    if is_elsewhere && !is_visit {
        return foreign;
    }
    let is_json = headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
        let kind = kind.as_bytes().split(|byte| *byte == b';').next();
        kind.is_some_and(|kind| kind.trim_ascii().eq_ignore_ascii_case(b"application/json"))
    });
    let is_browser = origin.is_some() || site.is_some();
    if changes && is_browser && !is_json && !headers.contains_key(CUSTOM) {
        return Err("a browser must send `X-Millstream: 1` with a change");
    }
    Ok(())
}

/// Whether an origin belongs to the host of the request. The scheme `https` is also accepted on connections without TLS, because a proxy in
/// front of the interface may terminate TLS.
fn is_own(origin: &HeaderValue, headers: &HeaderMap, is_secured: bool) -> bool {
    let origin = origin.as_bytes();
    let scheme = match is_secured {
        true => &b"https://"[..],
        false => b"http://",
    };
    let proxied = b"https://";
    let own = origin
        .strip_prefix(scheme)
        .or_else(|| origin.strip_prefix(proxied));
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().map(HeaderValue::as_bytes);
    match (own, host) {
        (Some(own), Some(host)) => hosts.next().is_none() && own.eq_ignore_ascii_case(host),
        _ => false,
    }
}

/// The token in `Authorization`: a Bearer token, or the password of Basic authentication. A browser asks its user for this password.
fn presented(value: &HeaderValue) -> Option<Vec<u8>> {
    let (scheme, rest) = value.as_bytes().split_at_checked(6)?;
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(rest.strip_prefix(b" ")?.trim_ascii().to_vec());
    }
    let coded = value.as_bytes().split_at_checked(5)?;
    if !coded.0.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let pair = STANDARD
        .decode(coded.1.strip_prefix(b" ")?.trim_ascii())
        .ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(pair[colon + 1..].to_vec())
}

fn digest(text: &[u8]) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// Whether a browser requests a page to show, so that it can ask its user for a token.
fn wants_page(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).map(HeaderValue::as_bytes);
    accept.is_some_and(|accept| accept.windows(9).any(|part| part == b"text/html"))
}

/// Whether a peer is on this machine.
fn is_here(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
