//! The answers to requests.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Response, StatusCode,
    header::{
        ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
    },
};
use millstream_wire::otlp::{self, Form};

/// gRPC status codes, which OTLP answers contain.
const INVALID_ARGUMENT: u8 = 3;
const UNAVAILABLE: u8 = 14;

/// The reason for rejecting a request. The sender must keep the request, because this answer does not confirm that the request
/// was stored.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) text: String,
    header: Option<(HeaderName, HeaderValue)>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        let header = match status {
            StatusCode::UNAUTHORIZED => {
                Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))
            }
            StatusCode::METHOD_NOT_ALLOWED => Some((ALLOW, HeaderValue::from_static("POST"))),
            // The rest of the request may be unread, so the connection is closed.
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT => {
                Some((CONNECTION, HeaderValue::from_static("close")))
            }
            _ => None,
        };
        Self {
            status,
            text: text.into(),
            header,
        }
    }

    /// The request may be retried after `wait`. `status` is 429 (this process is short of memory) or 503 (the next channel is
    /// full, or the request was lost within this process).
    pub(super) fn later(status: StatusCode, text: &str, wait: Duration) -> Self {
        let seconds = wait.as_secs().max(1);
        Self {
            status,
            text: text.to_owned(),
            header: Some((RETRY_AFTER, HeaderValue::from(seconds))),
        }
    }

    /// The request or its records are larger than `option` allows.
    pub(super) fn too_large(bytes_max: usize, option: &str) -> Self {
        let text = format!("more than {bytes_max} bytes ({option})");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    }

    /// There is no memory for the request: answered with 429.
    pub(super) fn no_memory(wait: Duration) -> Self {
        let text = "the memory for incoming data is exhausted (memory_max)";
        Self::later(StatusCode::TOO_MANY_REQUESTS, text, wait)
    }

    /// Whether the sender should retry.
    pub(super) fn is_later(&self) -> bool {
        matches!(
            self.status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        )
    }

    /// Encodes the answer. `form` is the encoding of an OTLP request; None for other requests.
    pub(super) fn response(self, form: Option<Form>) -> Response<Full<Bytes>> {
        let code = match self.is_later() {
            true => UNAVAILABLE,
            false => INVALID_ARGUMENT,
        };
        let body = match form {
            Some(form) => otlp::refused(form, code, &self.text),
            None => {
                let error = serde_json::json!({ "error": self.text });
                format!("{error}\n").into_bytes()
            }
        };
        let mut response = response(self.status, form, body);
        if let Some((name, value)) = self.header {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

/// A request that is answered with 200.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) accepted: u64,
    pub(super) rejected: u64,
    /// The first faults of the rejected parts.
    pub(super) errors: Vec<String>,
}

impl Kept {
    pub(super) fn response(&self, form: Option<Form>) -> Response<Full<Bytes>> {
        let body = match form {
            Some(form) => {
                let reason = self.errors.join("; ");
                let partial = (self.rejected > 0).then_some((self.rejected, reason.as_str()));
                otlp::accepted(form, partial)
            }
            None if self.rejected == 0 => {
                format!("{{\"accepted\":{}}}\n", self.accepted).into_bytes()
            }
            None => {
                let answer = serde_json::json!({
                    "accepted": self.accepted,
                    "rejected": self.rejected,
                    "errors": self.errors,
                });
                format!("{answer}\n").into_bytes()
            }
        };
        response(StatusCode::OK, form, body)
    }
}

pub(super) fn response(
    status: StatusCode,
    form: Option<Form>,
    body: Vec<u8>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = form.map_or("application/json", Form::content_type);
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
