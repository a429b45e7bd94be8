//! The source `syslog`: receives from rsyslog, syslog-ng, `logger`, libraries and network devices.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read] -> [decode] -> [send] -> keep -> read back -> process -> encode -> write -> settle`
//!
//! Every message that was read becomes a record, whatever its format, unless an option rejects the message. Without RELP, an
//! incomplete message at the end of a connection becomes a record, too. A RELP message is answered only when it is kept (durable
//! channel) or settled (memory channel). While the next channel is full, nothing is read, and nothing is dropped here. Each
//! connection and each datagram socket has one task. There is no lock and no allocation per record. Formats are in
//! `wire::syslog` and `wire::relp`, listening and TLS are in `net`.

mod datagrams;
mod endpoint;
mod flow;
mod options;
mod relp;
mod stream;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use millstream_config::Node;
use millstream_net::{Connection, Listen, Scheme, Server, Takes};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};
use millstream_wire::syslog::TimeZone;

use crate::{
    framing::LINE_MAX_LARGEST,
    tagging::{PEER_VALUES, Tagging},
};
use endpoint::Endpoint;
use options::Config;

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "syslog",
    summary: "Receives syslog over UDP, TCP, TLS, unix sockets and RELP: RFC 3164, RFC 5424, and what devices make of them.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

/// The schemes of `listen`, with their registered ports. RELP has none.
const TAKES: Takes = &[
    (Scheme::Udp, Some(514)),
    (Scheme::Tcp, Some(514)),
    (Scheme::Unix, None),
    (Scheme::Unixgram, None),
    (Scheme::Relp, None),
];

fn build(_name: &str, options: &Node) -> Checked<Box<dyn Source>> {
    Ok(Box::new(Syslog::new(options)?))
}

/// The source. [`Source::bind`] opens its sockets.
struct Syslog {
    config: Config,
    zone: TimeZone,
    tag: Tagging,
    server: Server,
    drops: datagrams::Drops,
}

impl Syslog {
    fn new(options: &Node) -> Checked<Self> {
        let config: Config = options.read()?;
        let (listen, limits) = (&config.listen, &config.limits);
        let mut problems = Vec::new();
        let server = Server::check(options, listen, TAKES, limits, &config.tls, &config.socket);
        let server = server.map_err(|found| problems.extend(found)).ok();
        if config.line_max.is_zero() || config.line_max > LINE_MAX_LARGEST {
            let text = "`line_max` must be between 1B and 1GiB";
            problems.push(options.problem_at("line_max", text));
        }
        let tag = Tagging::of(config.tag.as_deref(), PEER_VALUES, options);
        let tag = tag.map_err(|problem| problems.push(problem));
        let zone = match &*config.timezone {
            "local" => Some(millstream_wire::zone::local()),
            name => millstream_wire::zone::find(name),
        };
        let zone = zone.ok_or_else(|| {
            let text = format!(
                "`{}` is not a time zone: use a name such as Europe/Berlin, UTC or local, or an offset such as +09:00",
                config.timezone
            );
            problems.push(options.problem_at("timezone", text));
        });
        match (server, zone, tag) {
            (Some(server), Ok(zone), Ok(tag)) if problems.is_empty() => Ok(Self {
                config,
                zone,
                tag,
                server,
                drops: datagrams::Drops::default(),
            }),
            _ => Err(problems),
        }
    }
}

impl Source for Syslog {
    fn bind(&mut self, context: &SourceContext) -> Result<(), Failure> {
        self.server.bind(context)?;
        for socket in self.server.datagrams()? {
            let bytes = self.config.receive_buffer.as_usize();
            datagrams::prepare(&socket, bytes, &context.reporter);
        }
        self.drops = datagrams::Drops::begin(self.server.datagrams()?, &context.reporter);
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let config = &self.config;
            let endpoint = Endpoint::new(config, &self.zone, &self.tag, context.clone());
            let endpoint = Arc::new(endpoint);
            let sockets = self.server.datagrams()?;
            let datagrams = datagrams::read_all(sockets, endpoint.clone(), &mut self.drops);
            let each = move |connection: Connection| {
                let endpoint = endpoint.clone();
                async move {
                    match connection.scheme {
                        Scheme::Relp => relp::serve(connection, endpoint).await,
                        _ => stream::serve(connection, endpoint).await,
                    }
                }
            };
            tokio::try_join!(self.server.serve(&context, each), datagrams)?;
            Ok(())
        })
    }

    fn values(&self) -> &'static [&'static str] {
        PEER_VALUES
    }

    fn promise(&self, durable: bool) -> Promise {
        let until = if durable { "kept" } else { "settled" };
        let relp = |listen: &Listen| listen.scheme() == Scheme::Relp;
        if self.config.listen.iter().all(relp) {
            let text = "for RELP: messages that were not answered when a session broke are sent again, and cannot be recognized";
            Promise::new(Guarantee::AtLeastOnce, text)
        } else if self.config.listen.iter().any(relp) {
            let text =
                format!("until it is {until}, as there are no answers; by RELP at least once");
            Promise::new(Guarantee::AtMostOnce, text)
        } else {
            let text = format!("until it is {until}: these protocols have no answers");
            Promise::new(Guarantee::AtMostOnce, text)
        }
    }
}
