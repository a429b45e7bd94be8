//! Publishing by manifest: what `object` and `hdfs` share.
//!
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> [write] -> [settle]`
//!
//! Where to look: `run` reads batches and settles them, `route` chooses the directory of each record, `encode` has the formats,
//! `generation` holds the open outputs, `store` is the destination, `manifest` and `chain` are the commit, `recover` is the
//! start, and `note` is the state on this machine.
//!
//! Promise (docs/delivery.md): behind a durable channel every record is published exactly once. Records since the last manifest go
//! into hidden outputs. The sink makes them durable, creates a numbered manifest that names them together with the position (only
//! if that number is free), and then gives them their final names. After a crash, an output is either in no manifest and deleted, or
//! in one and published. `generation` bounds the memory.

mod avro;
mod chain;
mod encode;
mod generation;
mod manifest;
mod note;
mod options;
mod parquet;
mod patience;
mod recover;
mod route;
mod run;
mod store;
#[cfg(test)]
pub(crate) mod tests;

use jiff::tz::TimeZone;
use millstream_wire::template::Template;

pub(crate) use avro::avro;
pub(crate) use encode::{Encode, text};
pub(crate) use options::{Compression, Rotate, RotateConfig, no_give_up, split_root};
pub(crate) use parquet::parquet;
pub(crate) use patience::Patience;
pub(crate) use run::run;
#[cfg(feature = "hdfs")]
pub(crate) use store::too_long;
pub(crate) use store::{OCCUPIED, Place, Published, Put, Store};

/// The settings of a publishing sink.
pub(crate) struct Settings {
    /// The sink's name, a part of the names of outputs and manifests.
    pub(crate) sink: String,
    /// The template of directories below the root; may be empty.
    pub(crate) directory: Template,
    /// The time zone of its strftime fields.
    pub(crate) zone: TimeZone,
    /// The prefix of output names.
    pub(crate) prefix: String,
    /// The suffix of output names.
    pub(crate) extension: String,
    /// When outputs are finished and published.
    pub(crate) rotate: Rotate,
    /// The most open outputs; beyond that the least recently used one is finished.
    pub(crate) open_max: usize,
    /// The most bytes that outputs hold in memory together; beyond that the largest one is finished.
    pub(crate) held_max: usize,
}
