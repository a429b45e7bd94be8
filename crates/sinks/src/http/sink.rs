//! The checked options of the sink. The parts of a lane (one of the sink's parallel tasks) are made from these options.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

use bytes::Bytes;
use millstream_config::Node;
use millstream_net::{ClientTls, Tls};
use millstream_pipeline::{
    meters::Meter,
    node::{Checked, SinkContext},
    report::Reporter,
};
use millstream_wire::{
    format::Format,
    otlp::{self, Form},
};

use super::{
    client::Client,
    delivery::{Meters, Sender},
    encode::{Actions, Encoder, Scratch},
    gather::Gathering,
    options::{Config, DocumentId, Framing},
    patience::Patience,
    request::Packing,
    target::{Site, Targets},
};
use crate::{
    format::{Default as FormatDefault, Formatting},
    sending::Lateness,
};

/// The checked sink.
pub(super) struct Http {
    formatting: Formatting,
    pub(super) site: Site,
    tls: Option<Arc<ClientTls>>,
    pub(super) in_flight: usize,
    pub(super) idempotency_key: bool,
    pub(super) config: Config,
    pub(super) lateness: Lateness,
}

impl Http {
    /// Reads and checks the options.
    pub(super) fn new(options: &Node) -> Checked<Self> {
        // A record in an array, or alone in a request, needs no separator.
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
            let text =
                "arrays and `_bulk` hold JSON: set `format: json`, or a template that writes JSON";
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
        Ok(Self {
            formatting,
            site,
            tls: tls.map(Arc::new),
            in_flight: config.in_flight,
            idempotency_key: config.has_key(),
            config,
            lateness: Lateness::default(),
        })
    }

    /// The encoder of a lane.
    pub(super) fn encoder(&self) -> Encoder {
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

    pub(super) fn targets(&self) -> Targets {
        self.site.targets(&self.formatting.zone())
    }

    pub(super) fn gathering(&self) -> Gathering {
        Gathering::new(self.config.batch, self.config.framing == Framing::Single)
    }

    pub(super) fn client(&self, reporter: Reporter, opened: Meter) -> Client {
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
            key_query: self.config.key_query(),
            reporter,
            opened,
            idle: RefCell::default(),
        }
    }

    /// Creates the state that all requests of a lane share.
    pub(super) fn sender(&self, context: &SinkContext, durable: bool) -> Sender {
        let (config, meters) = (&self.config, &context.meters);
        let ours = |id: &DocumentId| *id != DocumentId::None;
        let opened = meters.counter("connections_opened");
        Sender {
            client: self.client(context.reporter.clone(), opened),
            url: self.site.to_string(),
            again: config.again.clone(),
            success: config.success.clone(),
            retry: config.retry,
            patience: Patience::new(config.refuse_after.as_duration()),
            accepted: Cell::new(0),
            bulk: config.bulk.as_ref().map(|bulk| ours(&bulk.id)),
            durable,
            context: context.clone(),
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
