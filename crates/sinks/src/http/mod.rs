//! The sink `http`: records in requests, as JSON, text, OTLP or `_bulk`.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! ```text
//! inlet -> relay -> encode -> gather -> request -> delivery -> client -> server
//!            ^-- ledger <------------- finished ------'
//! ```
//! - `relay`: takes batches, keeps requests under way, settles cuts in order (`crate::ledger`). One task a lane.
//! - `encode`, `gather`, `request`: batches to items to requests, each for one `target`.
//! - `delivery`, `answer`, `bulk`: a request until it is through; what answers say.
//! - `client`: connections.
//!
//! It promises that a batch is settled only when the server has taken (2xx) every record of it, or it is kept among the
//! rejected; that what the server refuses takes no good neighbour with it; and that a request that is sent again has the same
//! body and the same `Idempotency-Key`, behind a disk channel also after `kill -9`.

use std::{cell::RefCell, sync::Arc, time::Duration};

use bytes::Bytes;
use millstream_config::Node;
use millstream_net::{ClientTls, Tls};
use millstream_pipeline::{
    failure::Failure,
    inlet::Inlet,
    meters::Meter,
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
    report::Reporter,
};
use millstream_wire::{
    format::Format,
    otlp::{self, Form},
};

mod answer;
mod bulk;
mod client;
mod delivery;
mod encode;
mod gather;
mod options;
mod relay;
mod request;
mod target;

#[cfg(test)]
mod tests;

use crate::{
    format::{Default as FormatDefault, Formatting, schema_with},
    probe,
};
use client::Client;
use delivery::{Meters, Sender};
use encode::{Actions, Encoder, Scratch};
use gather::Gathering;
use options::{Config, DocumentId, Framing};
use relay::Relay;
use request::Packing;
use target::{Site, Targets};

/// The entry in the list of sinks.
pub const COMPONENT: Component = Component {
    name: "http",
    summary: "Requests of JSON, text, OTLP or `_bulk`, over HTTP and HTTPS.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: schema_with::<Config>,
    build: Build::Sink(build),
};

/// The checked sink.
struct Http {
    formatting: Formatting,
    site: Site,
    tls: Option<Arc<ClientTls>>,
    in_flight: usize,
    idempotency_key: bool,
    config: Config,
}

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Sink>> {
    // Within an array or a request of its own a record has nothing behind it.
    let framing = options.get("framing").and_then(Node::as_text);
    let default = match framing {
        Some("array" | "single" | "bulk") => FormatDefault::Bare(Format::Json),
        _ => FormatDefault::Lines,
    };
    let (formatting, config) = Formatting::with_default::<Config>(options, default)?;
    let mut problems = config.check(options);
    let json = matches!(config.framing, Framing::Array | Framing::Bulk);
    let fits = matches!(formatting.format(), Format::Json | Format::Template);
    if json && !fits {
        let text = "arrays and `_bulk` hold JSON: `format: json`, or a template that writes it";
        problems.push(options.problem_at("format", text));
    }
    let site = Site::read(&config, options).map_err(|more| problems.extend(more));
    let tls = match (&site, &config.tls) {
        (Ok(site), Tls::Off) if site.secure => ClientTls::check(&Tls::System, options),
        (Ok(site), tls) if !site.secure && !matches!(tls, Tls::Off) => {
            let text = "`tls` with a `url` that begins with http://: write https://";
            problems.push(options.problem_at("tls", text));
            Ok(None)
        }
        (_, tls) => ClientTls::check(tls, options),
    };
    let tls = tls.map_err(|more| problems.extend(more));
    let (Ok(site), Ok(tls), true) = (site, tls, problems.is_empty()) else {
        return Err(problems);
    };
    Ok(Arc::new(Http {
        formatting,
        site,
        tls: tls.map(Arc::new),
        in_flight: config.in_flight,
        idempotency_key: config
            .idempotency_key
            .unwrap_or(config.framing != Framing::Bulk),
        config,
    }))
}

impl Http {
    /// The encoder of a task.
    fn encoder(&self) -> Encoder {
        let form = match self.config.framing {
            Framing::Otlp => Form::Protobuf,
            Framing::OtlpJson => Form::Json,
            _ => return self.plain_encoder(),
        };
        let resource = &self.config.resource;
        let resource = resource.iter().map(|(name, value)| (&**name, value));
        Encoder::Otlp(otlp::Encoder::new(form, resource))
    }

    fn plain_encoder(&self) -> Encoder {
        let (encoder, scratch) = (self.formatting.encoder(), Scratch::default());
        match &self.config.bulk {
            None => Encoder::Plain(encoder, scratch),
            Some(bulk) => {
                let actions = Actions::new(bulk, &self.formatting.zone());
                Encoder::Bulk(encoder, Box::new(actions), scratch)
            }
        }
    }

    fn targets(&self) -> Targets {
        self.site.targets(&self.formatting.zone())
    }

    fn gathering(&self) -> Gathering {
        Gathering::new(self.config.batch, self.config.framing == Framing::Single)
    }

    fn client(&self, reporter: Reporter, opened: Meter) -> Client {
        let header = self.formatting.encoder().header().to_vec();
        Client {
            site: self.site.clone(),
            packing: Packing {
                framing: self.config.framing,
                compression: self.config.compression,
                header: Bytes::from(header),
            },
            tls: self.tls.clone(),
            timeout: self.config.retry.timeout.as_duration(),
            reporter,
            opened,
            idle: RefCell::default(),
        }
    }

    /// What the requests of a lane share.
    fn sender(&self, context: &SinkContext, durable: bool) -> Sender {
        let (config, meters) = (&self.config, &context.meters);
        let ours = |id: &DocumentId| *id != DocumentId::None;
        Sender {
            client: self.client(
                context.reporter.clone(),
                meters.counter("connections_opened"),
            ),
            url: self.site.to_string(),
            again: config.again.clone(),
            retry: config.retry,
            bulk: config.bulk.as_ref().map(|bulk| ours(&bulk.id)),
            durable,
            stop: context.stop.clone(),
            reporter: context.reporter.clone(),
            refused: context.reporter.condition("refused"),
            meters: Meters {
                sent: meters.counter("requests_sent"),
                resent: meters.counter("requests_resent"),
                there: meters.counter("records_there_already"),
                dropped: meters.counter("records_dropped_by_server"),
            },
        }
    }
}

impl Sink for Http {
    fn placement(&self) -> Placement {
        Placement::DataThreads
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move { Relay::new(self, inlet, context)?.run().await })
    }

    fn promise(&self, durable: bool) -> Promise {
        let positions = self
            .config
            .bulk
            .as_ref()
            .is_some_and(|bulk| bulk.id != DocumentId::None);
        let text = match (durable, self.idempotency_key, positions) {
            (true, true, _) => {
                "exactly once by a server that honours `Idempotency-Key`, as Millstream with a disk channel does"
            }
            (true, _, true) => {
                "a record that is sent again makes no second document: its id is the same"
            }
            _ => "",
        };
        Promise::new(Guarantee::AtLeastOnce, text)
    }

    fn settles_within(&self) -> Option<Duration> {
        // When the server answers.
        None
    }

    fn probe(&self) -> Option<Result<String, Failure>> {
        let client = self.client(Reporter::new("check"), Meter::default());
        let probe = async |_: &str| client.probe().await;
        Some(probe::servers(&[self.site.to_string()], probe))
    }
}
