//! The source `generate`: numbered records at a fixed rate or as fast as possible, and an end record with their number.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> decode -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! The records have the layout of millbench (`record.rs`), so `millbench verify` finds lost and duplicated ones. To a durable
//! channel, the source looks like a file: all records have the same length, and record `n` is at the offset `n` times that length.
//! As with `tail`, a restart continues at the offset up to which the channel has kept records, so none is lost or duplicated.

mod record;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use millstream_config::{Node, Size};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};
use millstream_record::{Batch, Encoding, FileId, FileOrigin, Origin, Tag, Time, Values};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{flight::Flight, tagging::LOCAL_VALUES};
use record::{HEAD_BYTES, Series};

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "generate",
    summary: "Generates numbered records, at a fixed rate or as fast as possible.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

/// The approximate size of a batch.
const BATCH_BYTES: u64 = 128 << 10;
/// The minimum time for which the source sleeps if `rate` is set and no record is due.
const TICK: Duration = Duration::from_millis(10);
/// The longest record that millbench verifies.
const SIZE_LARGEST: u64 = 1 << 20;
/// Pause before records that were dropped are generated again.
const RESEND_WAIT: Duration = Duration::from_millis(500);
/// No file system has this device number: it identifies the origins of this source.
const DEVICE: u64 = u64::MAX;

/// Options of the source `generate`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Number of records, followed by an end record with that number. 0: no end.
    #[serde(default)]
    records: u64,
    /// Records per second. 0: as fast as possible.
    #[serde(default)]
    rate: u64,
    /// Length of the text of a record, in bytes.
    #[serde(default = "size")]
    size: Size,
    /// Encoding of the records.
    #[serde(default)]
    encoding: Form,
    /// Tag of the records. Default: the name of the node.
    #[serde(default)]
    tag: Option<String>,
}

/// The length of a typical log line: 100 bytes with its newline.
fn size() -> Size {
    Size::bytes(99)
}

/// Encoding of the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Form {
    /// Lines of text.
    #[default]
    Lines,
    /// MessagePack, `[time, {"message": text}]`, as in the forward protocol.
    Packed,
}

impl Form {
    /// The bytes before the text of a record.
    fn prefix(self, size: usize, time: Time) -> Vec<u8> {
        match self {
            Self::Lines => Vec::new(),
            Self::Packed => record::packed_head(size, time),
        }
    }

    /// The bytes after the text of a record.
    fn suffix(self) -> &'static [u8] {
        match self {
            Self::Lines => b"\n",
            Self::Packed => b"",
        }
    }
}

fn build(_name: &str, node: &Node) -> Checked<Box<dyn Source>> {
    let config: Config = node.read()?;
    let bytes = config.size.as_bytes();
    if !(HEAD_BYTES as u64..=SIZE_LARGEST).contains(&bytes) {
        let message = format!("`size` must be between {HEAD_BYTES}B and 1MiB");
        return Err(vec![node.problem_at("size", message)]);
    }
    if config.records > record::NUMBER_MAX {
        let message = format!("`records` must be at most {}", record::NUMBER_MAX);
        return Err(vec![node.problem_at("records", message)]);
    }
    Ok(Box::new(Generate { config, run: None }))
}

/// The source.
struct Generate {
    config: Config,
    /// The number of the run and how many of its records are settled. Both survive a failure, so that a retry continues the run.
    run: Option<(u32, u64)>,
}

impl Source for Generate {
    fn bind(&mut self, _: &SourceContext) -> Result<(), Failure> {
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            context.outlet.until_kept(context.stop.clone()).await;
            let (run, settled) = match self.run.or_else(|| self.kept(&context)) {
                Some(begun) => begun,
                // A number that no recent run has used.
                None => (record::mix(Time::now().0 as u64) as u32, 0),
            };
            self.run = Some((run, settled));
            let mut generator = Generator::new(self, context, run, settled);
            generator.generate_all().await;
            self.run = Some((run, generator.flight.settled()));
            Ok(())
        })
    }

    fn values(&self) -> &'static [&'static str] {
        LOCAL_VALUES
    }

    fn promise(&self, durable: bool) -> Promise {
        match durable {
            true => Promise::new(Guarantee::ExactlyOnce, ""),
            false => Promise::new(
                Guarantee::AtLeastOnce,
                "a restart begins a new run from record 0",
            ),
        }
    }
}

impl Generate {
    /// The identity of the generator for a durable channel. A generator with another size, encoding or number of records is another
    /// file for the channel.
    ///
    /// ```text
    /// device 2^64-1; inode: a hash of the name of the node; birth: the number of records
    /// head: bits 63..32 the run, 31..24 the encoding, 23..0 the size
    /// ```
    fn id(&self, name: &str, run: u32) -> FileId {
        let form = u64::from(self.config.encoding == Form::Packed);
        FileId {
            device: DEVICE,
            inode: name
                .bytes()
                .fold(0, |hash, byte| record::mix(hash ^ u64::from(byte))),
            birth: self.config.records.cast_signed(),
            head: u64::from(run) << 32 | form << 24 | self.config.size.as_bytes(),
        }
    }

    /// The run that the durable channel knows and how many of its records are kept; `None` if the channel knows none.
    fn kept(&self, context: &SourceContext) -> Option<(u32, u64)> {
        let bytes = self.series(0).bytes() as u64;
        let origins = context.outlet.file_origins()?.into_iter();
        let runs = origins.map(|(id, next)| (id, (id.head >> 32) as u32, next));
        runs.filter(|(id, run, _)| *id == self.id(&context.name, *run))
            .map(|(_, run, next)| (run, next / bytes))
            .next_back()
    }

    /// The records of a run.
    fn series(&self, run: u32) -> Series {
        let Config {
            size,
            records,
            encoding,
            ..
        } = &self.config;
        let size = size.as_usize();
        let prefix = encoding.prefix(size, Time(0));
        Series::new(run, size, *records, &prefix, encoding.suffix())
    }
}

/// Generates the records of one run.
struct Generator {
    context: SourceContext,
    series: Series,
    form: Form,
    id: FileId,
    tag: Tag,
    values: Arc<Values>,
    /// The number of records, including the end record; `u64::MAX`: no end.
    total: u64,
    rate: u64,
    next: u64,
    flight: Flight<u64>,
}

impl Generator {
    fn new(source: &Generate, context: SourceContext, run: u32, settled: u64) -> Self {
        let config = &source.config;
        let mut values = Values::new();
        values.set("host", &*context.host);
        Self {
            series: source.series(run),
            form: config.encoding,
            id: source.id(&context.name, run),
            tag: Tag::from(config.tag.as_deref().unwrap_or(&context.name)),
            values: Arc::new(values),
            total: if config.records == 0 {
                u64::MAX
            } else {
                config.records + 1
            },
            rate: config.rate,
            next: settled,
            flight: Flight::new(settled),
            context,
        }
    }

    /// Generates all records, and generates dropped ones again, until all are settled or the source is stopped.
    async fn generate_all(&mut self) {
        loop {
            self.generate().await;
            let landed = self.flight.land().await;
            if landed.is_ok() || self.context.stop.is_stopped() {
                return;
            }
            self.next = self.flight.settled();
            let mut stop = self.context.stop.clone();
            tokio::select! {
                () = sleep(RESEND_WAIT) => {}
                () = stop.stopped() => return,
            }
        }
    }

    /// Generates records until the end, a failure or a stop.
    async fn generate(&mut self) {
        let mut stop = self.context.stop.clone();
        let (started, first) = (Instant::now(), self.next);
        let record_bytes = self.series.bytes() as u64;
        let full = (BATCH_BYTES / record_bytes).max(1);
        // Several channels may have kept different numbers of records. A batch must end at each of these numbers, because a channel
        // cannot divide a batch of packed records.
        let mut marks = self.context.outlet.file_marks(self.id);
        marks.iter_mut().for_each(|mark| *mark /= record_bytes);
        while self.next < self.total && !stop.is_stopped() {
            let due = match self.rate {
                0 => u64::MAX,
                rate => {
                    let due = started.elapsed().as_nanos() * u128::from(rate) / 1_000_000_000;
                    first.saturating_add(u64::try_from(due).unwrap_or(u64::MAX))
                }
            };
            let mark = marks.iter().copied().filter(|mark| *mark > self.next);
            let count = full
                .min(mark.min().unwrap_or(self.total) - self.next)
                .min(self.total - self.next)
                .min(due.saturating_sub(self.next));
            if count == 0 {
                // The time at which the next record is due, in nanoseconds after the start.
                let wanted = u128::from(self.next + 1 - first) * 1_000_000_000;
                let at = wanted.div_ceil(u128::from(self.rate.max(1)));
                let at = started + Duration::from_nanos(u64::try_from(at).unwrap_or(u64::MAX));
                tokio::select! {
                    () = sleep_until(at.max(Instant::now() + TICK)) => {}
                    () = stop.stopped() => return,
                }
                continue;
            }
            self.send(count).await;
            if self.flight.is_full() {
                self.flight.answered().await;
            }
            if self.flight.collect().is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Generates and sends a batch of `count` records.
    async fn send(&mut self, count: u64) {
        let record_bytes = self.series.bytes() as u64;
        let bytes = count * record_bytes;
        let mut buffer = self.context.pool.reserve(bytes as usize).await;
        let received = Time::now();
        let prefix = self.form.prefix(self.series.size(), received);
        let numbers = self.next..self.next + count;
        self.series.write(numbers, &prefix, &mut buffer);
        let origin = FileOrigin {
            file: self.id,
            begin: self.next * record_bytes,
            next: (self.next + count) * record_bytes,
        };
        let range = 0..buffer.len();
        let batch = Batch {
            tag: self.tag.clone(),
            plain: true,
            encoding: match self.form {
                Form::Lines => Encoding::Lines,
                Form::Packed => Encoding::Packed,
            },
            body: crate::flight::share(buffer, range),
            count: u32::try_from(count).unwrap_or(u32::MAX),
            received,
            values: self.values.clone(),
            origins: vec![Origin::File(origin)],
        };
        let last = self.next + count == self.total;
        let awaited = last || self.flight.is_half_full();
        let receipt = self.context.outlet.send(batch, awaited).await;
        self.next += count;
        self.flight.push(receipt, self.next);
    }
}
