//! The source `http`: JSON lines by `POST`, and OpenTelemetry logs by OTLP/HTTP.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read] -> [decode] -> [send] -> keep -> read back -> process -> encode -> write -> settle`
//!
//! Status 200 means that every record of the request was kept (durable channel) or settled (memory channel), except for records
//! that left by the port `rejected`. The answer counts the rejected records. After any other status, the sender must keep the
//! request. If a request is repeated with the same `Idempotency-Key`, a disk channel stores it only once. HTTP is done by `hyper`,
//! listening and TLS by `net`, OTLP by `wire::otlp`.

mod answer;
mod body;
mod connection;
mod decode;
mod endpoint;
mod grpc;
mod keep;
mod lines;
mod memory;
mod options;
mod paths;
mod request;
mod unpack;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use millstream_config::Node;
use millstream_net::{Scheme, Server, Takes};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};

use crate::tagging::{PEER_VALUES, Tagging};
use endpoint::Endpoint;
use options::Config;
use paths::Paths;

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "http",
    summary: "Receives JSON lines by POST, and OpenTelemetry logs by OTLP/HTTP.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

const TAKES: Takes = &[(Scheme::Tcp, None), (Scheme::Unix, None)];

fn build(_name: &str, options: &Node) -> Checked<Box<dyn Source>> {
    let config: Config = options.read()?;
    let (listen, limits) = (&config.listen, &config.limits);
    let mut problems = Vec::new();
    if let Some(bearer) = &config.auth.bearer
        && bearer.expose().is_empty()
    {
        problems.push(options.problem_at("auth.bearer", "`auth.bearer` is empty"));
    }
    let server = Server::check(options, listen, TAKES, limits, &config.tls, &config.socket);
    let server = server.map_err(|found| problems.extend(found));
    let tag = Tagging::of(config.tag.as_deref(), PEER_VALUES, options);
    let tag = tag.map_err(|problem| problems.push(problem));
    let paths = Paths::of(config.path.as_ref(), options);
    let paths = paths.map_err(|problem| problems.push(problem));
    match (server, tag, paths) {
        (Ok(server), Ok(tag), Ok(paths)) if problems.is_empty() => Ok(Box::new(Http {
            config,
            paths,
            tag,
            server,
        })),
        _ => Err(problems),
    }
}

/// The source. [`Source::bind`] opens its sockets.
struct Http {
    config: Config,
    paths: Paths,
    tag: Tagging,
    server: Server,
}

impl Source for Http {
    fn bind(&mut self, context: &SourceContext) -> Result<(), Failure> {
        self.server.bind(context)
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let endpoint = Endpoint::new(&self.config, &self.paths, &self.tag, context.clone());
            let endpoint = Arc::new(endpoint);
            let each = move |connection| connection::serve(connection, endpoint.clone());
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
                "for requests with an Idempotency-Key that are repeated to this receiver within the window; at least once for others",
            )
        } else {
            Promise::new(
                Guarantee::AtLeastOnce,
                "without a disk channel behind it, requests that are repeated are not recognized",
            )
        }
    }

    fn message_bytes_max(&self) -> Option<usize> {
        Some(self.config.limits.frame.as_usize())
    }
}
