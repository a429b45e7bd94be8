//! Connections to the server: made when needed, kept for the next request, dropped when they fail.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! The client uses HTTP/1.1 by `hyper`, with one request at a time on each connection. It promises that it reads at most
//! [`ANSWER_BYTES_MAX`] of an answer. If a request fails because the server had closed or reset the idle connection, the request is
//! resent immediately on another connection. A connection is used for a minute at most ([`AGE_MAX`]).

use std::{
    cell::{Cell, RefCell},
    error::Error,
    fmt::Display,
    io,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    HeaderMap, Method, Request as HttpRequest, Response, StatusCode,
    body::Incoming,
    client::conn::http1::{SendRequest, handshake},
    header::{
        AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT,
    },
};
use hyper_util::rt::TokioIo;
use millstream_net::{ClientTls, Motion, Moving, Socket, Stream, connect, while_moving};
use millstream_pipeline::{meters::Meter, report::Reporter};
use tokio::time::Instant;

use super::{
    answer::Answer,
    request::{Packing, Request},
    target::Site,
};

/// Maximum bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// A connection that is older is not used again, so that the name of the server is looked up again.
const AGE_MAX: Duration = Duration::from_secs(60);
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("millstream/", env!("CARGO_PKG_VERSION")));

/// The connections of a lane.
pub(super) struct Client {
    pub(super) site: Site,
    pub(super) packing: Packing,
    pub(super) tls: Option<Arc<ClientTls>>,
    pub(super) timeout: Duration,
    /// The parameter of the URL that holds the key of a request; `None`: the key is in a header.
    pub(super) key_query: Option<String>,
    pub(super) reporter: Reporter,
    pub(super) opened: Meter,
    pub(super) idle: RefCell<Vec<Kept>>,
}

/// A connection, when it was made, and whether its bytes move.
pub(super) struct Kept {
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
    motion: Motion,
}

/// The connection that a request uses at present.
type Current = RefCell<Option<Motion>>;

/// The items of a request that are sent together: all of them, or some.
pub(super) struct Part<'a> {
    pub(super) request: &'a Request,
    pub(super) path: &'a str,
    pub(super) key: Option<String>,
    pub(super) body: Bytes,
}

impl Client {
    /// Sends a part of a request and reads the answer. Fails if no byte moves for `retry.timeout`. Calls `late` once if no byte moves for
    /// a third of this time, with the time since when.
    ///
    /// # Errors
    /// Returns why there is no answer.
    pub(super) async fn exchange(
        &self,
        part: &Part<'_>,
        late: impl FnOnce(std::time::Instant),
    ) -> Result<Answer, String> {
        let current = Current::default();
        let still = Cell::new((None, std::time::Instant::now()));
        let late = Cell::new(Some(late));
        let seen = || {
            let now = current.borrow().as_ref().map(Motion::now);
            let (last, since) = still.get();
            if last != now {
                still.set((now, std::time::Instant::now()));
            } else if since.elapsed() >= self.timeout / 3
                && let Some(late) = late.take()
            {
                late(since);
            }
            now
        };
        let exchange = self.exchange_now(part, &current);
        match while_moving(self.timeout, seen, exchange).await {
            Some(answer) => answer,
            None => Err(format!(
                "no answer, and no byte moved for {:?}",
                self.timeout
            )),
        }
    }

    async fn exchange_now(&self, part: &Part<'_>, current: &Current) -> Result<Answer, String> {
        // The server may have closed an idle connection. This is not a failure: the next connection is used.
        while let Some(mut kept) = self.reuse() {
            current.replace(Some(kept.motion.clone()));
            if kept.sender.ready().await.is_err() {
                continue;
            }
            match kept.sender.send_request(self.request(part)?).await {
                Ok(response) => return self.read(response, kept).await,
                Err(error) if was_closed(&error) => {}
                Err(error) => return Err(chain(&error)),
            }
        }
        let mut made = self.connect().await?;
        current.replace(Some(made.motion.clone()));
        let response = made.sender.send_request(self.request(part)?).await;
        let response = response.map_err(|error| chain(&error))?;
        self.read(response, made).await
    }

    /// Sends an OPTIONS request with the headers that do not depend on records. This tests TLS, the server and `auth` without
    /// sending a record.
    pub(super) async fn probe(&self) -> Result<&'static str, String> {
        let (path, headers) = self.site.fixed();
        let mut request = HttpRequest::new(Full::new(Bytes::new()));
        *request.method_mut() = Method::OPTIONS;
        *request.uri_mut() = path
            .parse()
            .map_err(|error| format!("`{path}` is not a path: {error}"))?;
        let own = request.headers_mut();
        self.identify(own);
        own.extend(headers.map(|(name, value)| (Some(name), value)));
        let mut made = self.connect().await?;
        let response = made.sender.send_request(request).await;
        let answer = self
            .read(response.map_err(|error| chain(&error))?, made)
            .await?;
        match answer.status {
            StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                Err(format!("it denies access: {}", answer.summary()))
            }
            // Many servers do not implement OPTIONS.
            StatusCode::NOT_IMPLEMENTED => Ok("it answers"),
            status if status.is_server_error() => Err(answer.summary()),
            _ => Ok("it answers"),
        }
    }

    /// Sets the headers that name the host and the sender.
    fn identify(&self, headers: &mut HeaderMap) {
        headers.insert(HOST, self.site.authority.clone());
        headers.insert(USER_AGENT, AGENT);
        if let Some(value) = &self.site.authorization {
            headers.insert(AUTHORIZATION, value.clone());
        }
    }

    /// Takes an idle connection that is not too old, if there is one.
    fn reuse(&self) -> Option<Kept> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|kept| !kept.sender.is_closed() && kept.since.elapsed() < AGE_MAX);
        idle.pop()
    }

    async fn connect(&self) -> Result<Kept, String> {
        let address = &self.site.address;
        let stream = connect(address, self.timeout, 0).await;
        let stream = stream.map_err(|error| format!("cannot be reached ({error})"))?;
        let socket = Socket::Tcp(stream);
        let stream = match &self.tls {
            None => Stream::Plain(socket),
            Some(tls) => {
                let secure = tls.connect(socket, &self.site.host, &self.reporter).await;
                secure.map_err(|error| format!("TLS: {error}"))?
            }
        };
        let (stream, motion) = Moving::new(stream);
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| chain(&error))?;
        self.opened.add(1);
        // The task ends when the sender is dropped or the peer closes the connection. Its errors also reach the sender.
        tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(Kept {
            sender,
            since: Instant::now(),
            motion,
        })
    }

    fn request(&self, part: &Part<'_>) -> Result<HttpRequest<Full<Bytes>>, String> {
        let mut request = HttpRequest::new(Full::new(part.body.clone()));
        *request.method_mut() = self.site.method.clone();
        let path = match (&self.key_query, &part.key) {
            // A key has only digits, letters and dots.
            (Some(name), Some(key)) => {
                let joint = if part.path.contains('?') { '&' } else { '?' };
                format!("{}{joint}{name}={key}", part.path).parse()
            }
            _ => part.path.parse(),
        };
        *request.uri_mut() =
            path.map_err(|error| format!("`{}` is not a path: {error}", part.path))?;
        let headers = request.headers_mut();
        self.identify(headers);
        let kind = self.packing.content_type();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if let Some(encoding) = self.packing.encoding() {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
        }
        if let Some(key) = part
            .key
            .as_ref()
            .filter(|_| self.key_query.is_none())
            .and_then(|key| HeaderValue::from_str(key).ok())
        {
            headers.insert(IDEMPOTENCY_KEY, key);
        }
        for (name, value) in &part.request.target.headers {
            headers.insert(name.clone(), value.clone());
        }
        Ok(request)
    }

    /// Reads the answer and keeps the connection if it can be reused.
    async fn read(&self, response: Response<Incoming>, kept: Kept) -> Result<Answer, String> {
        let (head, mut incoming) = response.into_parts();
        let mut body = Vec::new();
        let mut whole = true;
        while let Some(frame) = incoming.frame().await {
            let frame = frame.map_err(|error| chain(&error))?;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            if body.len() + data.len() > ANSWER_BYTES_MAX {
                whole = false;
                break;
            }
            body.extend_from_slice(data);
        }
        if whole && !kept.sender.is_closed() {
            self.idle.borrow_mut().push(kept);
        }
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: body.into(),
            whole,
        })
    }
}

/// Whether the server had closed or reset the connection before the answer began.
fn was_closed(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    let is_reset = cause.is_some_and(|cause: &io::Error| {
        matches!(
            cause.kind(),
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof
        )
    });
    error.is_canceled() || error.is_closed() || error.is_incomplete_message() || is_reset
}

/// The text of an error and of all its causes. The text of hyper's error alone leaves out the causes.
fn chain(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut cause: Option<&dyn Error> = error.source();
    while let Some(error) = cause {
        add(&mut text, error);
        cause = error.source();
    }
    text
}

fn add(text: &mut String, cause: impl Display) {
    let cause = cause.to_string();
    if !text.contains(&cause) {
        *text = format!("{text}: {cause}");
    }
}
