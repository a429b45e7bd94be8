//! The source `stdin`: lines from the standard input, until it ends.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> decode -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! A separate thread reads, because reading a pipe or a terminal blocks. A short queue leads to the data thread. Lines that
//! were read but not kept are lost in a crash: the input cannot be read again.

mod input;

#[cfg(test)]
mod tests;

use std::{fs, io, os::fd::AsFd, sync::Arc};

use bytes::Bytes;
use millstream_config::{Node, Size};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
    reject,
    threads::own_thread,
};
use millstream_record::{Batch, Encoding, Tag, Time, Values};
use millstream_wire::lines;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::mpsc;

use crate::{
    flight::Flight,
    framing::{Charset, Cr, Framer, Framing, LINE_MAX, LINE_MAX_LARGEST, NOT_FRAMED, TooLong},
    tagging::{LOCAL_VALUES, Tagging},
};
use input::{Input, Piece};

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "stdin",
    summary: "Reads lines from the standard input until it ends.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

/// The length of the queue between the reading thread and the data thread, in pieces: 1 MiB in total.
const PIECES: usize = 4;

/// Options of the source `stdin`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Tag of the records: a text, or a template of `{host}`. Default: the name of the node.
    #[serde(default)]
    tag: Option<String>,
    /// Format that determines where a record ends.
    #[serde(default)]
    framing: Framing,
    /// Longest line in bytes, without its newline.
    #[serde(default = "line_max")]
    line_max: Size,
    /// Policy for lines longer than `line_max`.
    #[serde(default)]
    too_long: TooLong,
    /// Treatment of the carriage return (CR) at the end of lines.
    #[serde(default)]
    cr: Cr,
    /// Encoding of the text, which is converted to UTF-8: `shift_jis`, `euc-jp`, `latin1`, `utf-16le` ... In UTF-16, a byte order mark at
    /// the start of the text decides the byte order.
    #[serde(default = "encoding")]
    encoding: String,
}

fn encoding() -> String {
    "utf-8".to_owned()
}

fn line_max() -> Size {
    LINE_MAX
}

fn build(_name: &str, node: &Node) -> Checked<Box<dyn Source>> {
    let config: Config = node.read()?;
    if config.line_max.is_zero() || config.line_max > LINE_MAX_LARGEST {
        let message = "`line_max` must be between 1B and 1GiB";
        return Err(vec![node.problem_at("line_max", message)]);
    }
    let Some(charset) = Charset::named(&config.encoding) else {
        return Err(vec![
            node.problem_at("encoding", "there is no encoding with this name"),
        ]);
    };
    let line_max = config.line_max.as_usize();
    let framer = Framer::new(&config.framing, charset, line_max, config.too_long)
        .map_err(|why| vec![node.problem_at("framing", why)])?
        .with_cr(config.cr);
    let tag = Tagging::of(config.tag.as_deref(), LOCAL_VALUES, node).map_err(|why| vec![why])?;
    Ok(Box::new(Stdin::new(config, tag, framer, None)))
}

/// The source.
struct Stdin {
    config: Config,
    tag: Tagging,
    framer: Framer,
    /// The input. None before [`Source::bind`] has opened it, and after the reading thread has taken it.
    input: Option<fs::File>,
    /// The reading thread, once it runs. It survives a failure of `run`.
    reading: Option<Reading>,
}

/// The reading thread, as the data thread sees it.
struct Reading {
    pieces: mpsc::Receiver<Piece>,
    /// Dropping this stops the thread. The thread first sends the lines that it has read.
    stopper: Option<io::PipeWriter>,
}

impl Stdin {
    fn new(config: Config, tag: Tagging, framer: Framer, input: Option<fs::File>) -> Self {
        Self {
            config,
            tag,
            framer,
            input,
            reading: None,
        }
    }

    fn start(&mut self, context: &SourceContext) -> Result<Reading, Failure> {
        let failed = |error| Failure::us(format!("cannot start the reading thread: {error}"));
        let (stopped, stopper) = io::pipe().map_err(failed)?;
        let Some(file) = self.input.take() else {
            return Err(Failure::us("the standard input can be read only once").never_again());
        };
        let (sender, pieces) = mpsc::channel(PIECES);
        let line_max = self.config.line_max.as_usize();
        let framer = self.framer.clone();
        let too_long = self.config.too_long;
        let pool = context.pool.clone();
        let input = Input::new(file, stopped, pool, line_max, too_long, framer);
        let (reporter, name) = (context.reporter.clone(), context.name.clone());
        own_thread(&name, async move || {
            if let Err(error) = input.read_all(&sender).await {
                reporter.error(
                    "input",
                    format_args!("cannot read the standard input: {error}; it ends here"),
                );
            }
        })
        .map_err(failed)?;
        Ok(Reading {
            pieces,
            stopper: Some(stopper),
        })
    }
}

impl Source for Stdin {
    fn bind(&mut self, _: &SourceContext) -> Result<(), Failure> {
        if self.input.is_none() {
            let input = io::stdin().as_fd().try_clone_to_owned();
            let input = input
                .map_err(|error| Failure::disk(format!("there is no standard input: {error}")))?;
            self.input = Some(input.into());
        }
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            if self.reading.is_none() {
                self.reading = Some(self.start(&context)?);
            }
            match &mut self.reading {
                Some(reading) => {
                    let encoding = self.framer.encoding();
                    send_all(&self.config, &self.tag, encoding, reading, context).await
                }
                None => Ok(()),
            }
        })
    }

    fn is_replaceable(&self) -> bool {
        // The reading thread may be in the middle of a read.
        false
    }

    fn reads(&self) -> Option<&'static str> {
        Some("the standard input")
    }

    fn values(&self) -> &'static [&'static str] {
        LOCAL_VALUES
    }

    fn promise(&self, durable: bool) -> Promise {
        let until = if durable { "kept" } else { "settled" };
        Promise::new(
            Guarantee::AtMostOnce,
            format!("until it is {until}: the input cannot be read again"),
        )
    }
}

/// Sends the pieces of the reading thread until the input ends. If the source stops first, sends everything that was read, and
/// returns.
async fn send_all(
    config: &Config,
    tag: &Tagging,
    encoding: Encoding,
    reading: &mut Reading,
    context: SourceContext,
) -> Result<(), Failure> {
    let mut values = Values::new();
    values.set("host", &*context.host);
    let records = Records {
        tag: tag.tag(&context.name, None, &values),
        values: Arc::new(values),
        encoding,
        too_long: format!("a line is longer than line_max ({})", config.line_max),
        context: &context,
    };
    let (mut stop, mut flight) = (context.stop.clone(), Flight::new(()));
    let mut lost = false;
    loop {
        let piece = tokio::select! {
            biased;
            () = stop.stopped(), if reading.stopper.is_some() => {
                // The pieces that the thread has read are still sent. Then the queue ends.
                reading.stopper = None;
                continue;
            }
            piece = reading.pieces.recv() => piece,
            () = flight.answered() => {
                lost |= flight.collect().is_err();
                continue;
            }
        };
        let Some(piece) = piece else { break };
        records.send(piece, &mut flight).await;
        while flight.is_full() {
            flight.answered().await;
            lost |= flight.collect().is_err();
        }
    }
    lost |= flight.land().await.is_err();
    if lost {
        let text = "lines were dropped before they were settled, and cannot be read again";
        context.reporter.error("lost", text);
    }
    Ok(())
}

/// Makes batches from pieces.
struct Records<'a> {
    tag: Tag,
    values: Arc<Values>,
    encoding: Encoding,
    /// The reason for rejecting a line that is too long.
    too_long: String,
    context: &'a SourceContext,
}

impl Records<'_> {
    async fn send(&self, piece: Piece, flight: &mut Flight<()>) {
        let awaited = flight.is_half_full();
        let batch = match piece {
            Piece::Lines(body) => {
                let count = lines::count(&body);
                self.batch(body, count)
            }
            Piece::TooLong(bytes) => return self.reject(&bytes, &self.too_long, flight).await,
            Piece::Framed(framed) => {
                for piece in framed.rejected {
                    let reason = match piece.too_long {
                        true => &self.too_long,
                        false => NOT_FRAMED,
                    };
                    self.reject(&piece.bytes, reason, flight).await;
                }
                if framed.count == 0 {
                    return;
                }
                self.batch(framed.body.into(), framed.count)
            }
        };
        flight.push(self.context.outlet.send(batch, awaited).await, ());
    }

    async fn reject(&self, bytes: &[u8], reason: &str, flight: &mut Flight<()>) {
        let from = self.batch(Bytes::new(), 0);
        let rejected = reject::batch(&self.context.name, &from, [bytes], reason);
        flight.push(self.context.rejects.send(rejected, false).await, ());
    }

    fn batch(&self, body: Bytes, count: u32) -> Batch {
        Batch {
            tag: self.tag.clone(),
            plain: false,
            encoding: self.encoding,
            count,
            body,
            received: Time::now(),
            values: self.values.clone(),
            origins: Vec::new(),
        }
    }
}
