//! Handles one request: authentication, content type and encoding, and the answer.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read] -> [decode] -> send -> keep`

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE},
};
use millstream_record::Time;
use millstream_wire::otlp::Form;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::{
    answer::{Kept, Refusal, response},
    body::{self, Encoding},
    decode,
    endpoint::{Client, Endpoint},
    keep::{self, Arrived},
    memory::RequestMemory,
    paths::Accepts,
};

/// The health check of load balancers, which needs no token.
const HEALTH: &str = "/health";
/// The content types of JSON lines. The last one is the default of curl.
const JSON_TYPES: [&str; 9] = [
    "application/json",
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "application/x-jsonlines",
    "application/json-lines",
    "application/octet-stream",
    "text/plain",
    "application/x-www-form-urlencoded",
];

/// Answers one request.
pub(super) async fn answer(client: &Client, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let is_probe = matches!(*request.method(), Method::GET | Method::HEAD);
    if is_probe && request.uri().path() == HEALTH {
        return response(StatusCode::OK, None, b"{\"status\":\"ok\"}\n".to_vec());
    }
    let form = match client.endpoint.paths.accepts(request.uri().path()) {
        Accepts::Logs => Some(form_of(request.headers()).unwrap_or(Form::Json)),
        Accepts::Lines | Accepts::Nothing => None,
    };
    match receive(client, request).await {
        Ok(kept) => {
            client.endpoint.meters.requests_kept.add(1);
            kept.response(form)
        }
        Err(refusal) => {
            report(client, &refusal);
            refusal.response(form)
        }
    }
}

fn report(client: &Client, refusal: &Refusal) {
    let (meters, reporter) = (&client.endpoint.meters, &client.endpoint.context.reporter);
    let text = format_args!(
        "{}: {} for a request: {}",
        client.peer,
        refusal.status.as_u16(),
        refusal.text
    );
    if refusal.is_later() {
        meters.requests_put_off.add(1);
        reporter.warn("later", text);
    } else {
        meters.requests_refused.add(1);
        reporter.warn("refused", text);
    }
}

/// Reads, decodes and sends a request. Returns when its records are kept or settled.
async fn receive(client: &Client, request: Request<Incoming>) -> Result<Kept, Refusal> {
    let endpoint = &*client.endpoint;
    check_token(endpoint, request.headers())?;
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let form = route(endpoint, &head.method, path, &head.headers)?;
    let codec = codec_of(&head.headers)?;
    let tag = endpoint
        .tag
        .tag(&endpoint.context.name, Some(path), &client.values);
    let headers = head.headers.clone();
    let key = headers.get("idempotency-key");
    let request = Request::from_parts(head, body);
    let received = body::read(request, codec, endpoint).await?;
    let bytes = received.body.bytes();
    let memory = RequestMemory {
        endpoint,
        claim: &received.claim,
    };
    let time = Time::now();
    let arrived = Arrived {
        tag,
        received: time,
        bytes,
        key: key.map(|key| key.as_bytes()),
    };
    let inflated = match codec {
        None => {
            body::check_plain(bytes)?;
            None
        }
        Some(codec) => Some(body::inflate(codec, bytes, memory).await?),
    };
    let text = inflated.as_ref().map_or(bytes, |buffer| buffer);
    let decoded = match form {
        None => decode::json(text, time, memory).await?,
        Some(form) => decode::otlp(text, form, time, memory).await?,
    };
    keep::keep(client, &arrived, decoded, memory).await
}

fn check_token(endpoint: &Endpoint, headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(wanted) = &endpoint.bearer else {
        return Ok(());
    };
    let given = headers
        .get(AUTHORIZATION)
        .map_or(&b""[..], |v| v.as_bytes());
    let (scheme, token) = given.split_at_checked(7).unwrap_or_default();
    let given: [u8; 32] = Sha256::digest(token.trim_ascii()).into();
    let same: bool = given.ct_eq(wanted).into();
    if same && scheme.eq_ignore_ascii_case(b"bearer ") {
        return Ok(());
    }
    let text = "the request needs `Authorization: Bearer TOKEN` with the token of this source";
    Err(Refusal::new(StatusCode::UNAUTHORIZED, text))
}

/// The encoding of an OTLP request; None for JSON lines.
fn route(
    endpoint: &Endpoint,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Result<Option<Form>, Refusal> {
    let accepts = endpoint.paths.accepts(path);
    if accepts == Accepts::Nothing {
        let text = endpoint.paths.unknown(path);
        return Err(Refusal::new(StatusCode::NOT_FOUND, text));
    }
    if method != Method::POST {
        let text = format!("{method} is not allowed here: send a POST");
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, text));
    }
    if accepts == Accepts::Logs {
        return form_of(headers).map(Some).ok_or_else(|| {
            let text = "OTLP requires the content type application/x-protobuf or application/json";
            Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text)
        });
    }
    match kind_of(headers) {
        None => Ok(None),
        Some(kind) if JSON_TYPES.contains(&&*kind) => Ok(None),
        Some(kind) => {
            let text = format!("{kind} is not accepted here: send JSON, one object per line");
            Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
        }
    }
}

/// The content type without its parameters.
fn kind_of(headers: &HeaderMap) -> Option<String> {
    let kind = headers.get(CONTENT_TYPE)?.as_bytes();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    let kind = String::from_utf8_lossy(kind.trim_ascii());
    Some(kind.to_ascii_lowercase()).filter(|kind| !kind.is_empty())
}

fn form_of(headers: &HeaderMap) -> Option<Form> {
    match kind_of(headers).as_deref() {
        Some("application/x-protobuf" | "application/protobuf") => Some(Form::Protobuf),
        Some("application/json") => Some(Form::Json),
        _ => None,
    }
}

fn codec_of(headers: &HeaderMap) -> Result<Option<Encoding>, Refusal> {
    let Some(encoding) = headers.get(CONTENT_ENCODING) else {
        return Ok(None);
    };
    let name = String::from_utf8_lossy(encoding.as_bytes().trim_ascii()).to_ascii_lowercase();
    match &*name {
        "" | "identity" => Ok(None),
        "gzip" | "x-gzip" => Ok(Some(Encoding::Gzip)),
        "zstd" => Ok(Some(Encoding::Zstd)),
        "deflate" | "zlib" => Ok(Some(Encoding::Deflate)),
        "snappy" | "x-snappy-framed" => Ok(Some(Encoding::Snappy)),
        "lz4" => Ok(Some(Encoding::Lz4)),
        _ => {
            let text = format!(
                "`Content-Encoding: {name}` is not supported: use gzip, zstd, deflate, snappy, lz4 or identity"
            );
            Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
        }
    }
}
