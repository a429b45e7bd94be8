//! The source `http`: JSON lines by `POST`, and OpenTelemetry's logs by OTLP/HTTP.
//!
//! `[read] -> [decode] -> [send] -> keep -> take -> process -> encode -> write -> settle`
//!
//! It promises: 200 means that every record of the request has been kept (durable channel) or settled (memory), or is set
//! aside by the port `rejected` and named in the answer; any other status means that the request stays with its sender. A
//! request that comes again with its `Idempotency-Key` is not stored twice by a disk channel. It leaves to others: HTTP
//! (`hyper`), listening and TLS (`net`), OTLP (`wire::otlp`), telling repeats apart (the disk channel).

mod answer;
mod body;
mod connection;
mod decode;
mod lines;
mod request;
mod take;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use millstream_config::{Node, OneOrMany, Period, Secret};
use millstream_net::{Limits, Listen, Scheme, Server, Takes, Tls};
use millstream_pipeline::{
    failure::Failure,
    meters::{Meter, NodeMeters},
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};
use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::{
    connection::Patience,
    tagging::{PEER_VALUES, Tagging},
};

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "http",
    summary: "Takes JSON lines by POST, and OpenTelemetry's logs by OTLP/HTTP.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

/// Options of the source `http`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Where it listens: `tcp://ADDRESS:PORT` or `unix:///PATH`; one or a list.
    listen: OneOrMany<Listen>,
    /// Bounds on what peers may ask for: `frame` is the body of a request as it comes, `decompressed` the same without
    /// its compression, and its records; a request that has not come whole within `idle` is given up.
    #[serde(default)]
    limits: Limits,
    /// TLS on every stream socket: a name of the top-level `tls`, or a block.
    #[serde(default)]
    tls: Tls,
    /// What requests must show.
    #[serde(default)]
    auth: Auth,
    /// The only path that JSON lines are taken at. Default: any. OTLP is always taken at `/v1/logs`.
    #[serde(default)]
    path: Option<String>,
    /// The tag: a text in which `*` is the path of the request with dots for slashes, or a template of `{host}` and
    /// `{peer}` (both the client's address). Default: the node's name.
    #[serde(default)]
    tag: Option<String>,
    /// How long a request waits for memory and for room behind; then it is answered 429 or 503 with `Retry-After`.
    #[serde(default = "default_wait")]
    wait: Period,
}

/// What requests must show.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Auth {
    /// The token of `Authorization: Bearer TOKEN`. Default: none is asked for.
    #[serde(default)]
    bearer: Option<Secret>,
}

/// Exporters of OpenTelemetry wait 10 s for an answer.
fn default_wait() -> Period {
    Period::secs(5)
}

const TAKES: Takes = &[(Scheme::Tcp, None), (Scheme::Unix, None)];

fn build(_name: &str, options: &Node) -> Checked<Box<dyn Source>> {
    let config: Config = options.read()?;
    let (listen, limits) = (&config.listen, &config.limits);
    let mut problems = Vec::new();
    if config
        .path
        .as_ref()
        .is_some_and(|path| !path.starts_with('/'))
    {
        problems.push(options.problem_at("path", "`path` must begin with `/`"));
    }
    if let Some(bearer) = &config.auth.bearer
        && bearer.expose().is_empty()
    {
        problems.push(options.problem_at("auth.bearer", "`auth.bearer` is empty"));
    }
    let server = Server::check(options, listen, TAKES, limits, &config.tls);
    let server = server.map_err(|found| problems.extend(found));
    let tag = Tagging::of(config.tag.as_deref(), PEER_VALUES, options);
    let tag = tag.map_err(|problem| problems.push(problem));
    match (server, tag) {
        (Ok(server), Ok(tag)) if problems.is_empty() => Ok(Box::new(Http {
            config,
            tag,
            server,
        })),
        _ => Err(problems),
    }
}

/// The source, checked; with its sockets once it is bound.
struct Http {
    config: Config,
    tag: Tagging,
    server: Server,
}

impl Source for Http {
    fn bind(&mut self, context: &SourceContext) -> Result<(), Failure> {
        self.server.bind(&context.reporter)
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let shared = Arc::new(Shared::new(&self.config, &self.tag, context.clone()));
            let each = move |connection| connection::serve(connection, shared.clone());
            self.server.serve(&context, each).await
        })
    }

    fn values(&self) -> &'static [&'static str] {
        PEER_VALUES
    }

    fn promise(&self, durable: bool) -> Promise {
        if durable {
            Promise::new(
                Guarantee::ExactlyOnce,
                "for requests with an Idempotency-Key that come again to this receiver within the window; at least once for others",
            )
        } else {
            Promise::new(Guarantee::AtLeastOnce, "")
        }
    }

    fn message_bytes_max(&self) -> Option<usize> {
        Some(self.config.limits.frame.as_usize())
    }
}

/// What all connections of the source share.
struct Shared {
    context: SourceContext,
    /// Whether origins are asked for: only a durable channel can tell repeats.
    durable: bool,
    frame_bytes_max: usize,
    decompressed_bytes_max: usize,
    patience: Patience,
    wait: Duration,
    /// SHA-256 of the token: of equal length whatever is compared with it.
    bearer: Option<[u8; 32]>,
    path: Option<String>,
    tag: Tagging,
    meters: HttpMeters,
}

impl Shared {
    fn new(config: &Config, tag: &Tagging, context: SourceContext) -> Self {
        let hash = |secret: &Secret| Sha256::digest(secret.expose()).into();
        Self {
            durable: context.outlet.is_durable(),
            frame_bytes_max: config.limits.frame.as_usize(),
            decompressed_bytes_max: config.limits.decompressed.as_usize(),
            patience: Patience::of(&config.limits),
            wait: config.wait.as_duration(),
            bearer: config.auth.bearer.as_ref().map(hash),
            path: config.path.clone(),
            tag: tag.clone(),
            meters: HttpMeters::new(&context.meters),
            context,
        }
    }
}

/// What the source counts beside what its outlets count.
struct HttpMeters {
    bytes_received: Meter,
    requests_kept: Meter,
    requests_refused: Meter,
    requests_put_off: Meter,
}

impl HttpMeters {
    fn new(meters: &NodeMeters) -> Self {
        Self {
            bytes_received: meters.counter("bytes_received"),
            requests_kept: meters.counter("requests_kept"),
            requests_refused: meters.counter("requests_refused"),
            requests_put_off: meters.counter("requests_put_off"),
        }
    }
}
