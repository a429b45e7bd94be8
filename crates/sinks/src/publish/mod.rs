//! Publishing by manifest: the common part of the sinks `object` and `hdfs`.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> [write] -> [settle]`
//!
//! Where to look: `run` reads batches and settles them, `route` chooses the directory of each record, `encode` has the formats,
//! `generation` holds the outputs since the last manifest, `store` is the interface to the destination, `manifest` and `chain`
//! commit, `recover` runs at the start, and `note` stores state on this machine.
//!
//! Promise (docs/delivery.md): behind a durable channel every record is published exactly once. Records since the last manifest are
//! written into outputs that are still hidden from readers. The sink first makes these outputs durable. Then it creates a manifest
//! that names the outputs and the position. Manifests are numbered, and a manifest is created only if none with its number exists.
//! Finally, the sink gives the outputs their final names. After a crash, an output that is in no manifest is deleted, and an output
//! that is in a manifest is published. `generation` bounds the memory.

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
pub(crate) use store::{OCCUPIED, Place, Published, Put, Store, blocked, too_long};

/// The settings of a publishing sink.
pub(crate) struct Settings {
    /// The sink's name, a part of the names of outputs and manifests.
    pub(crate) sink: String,
    /// The template of directories below the root; may be empty.
    pub(crate) directory: Template,
    /// The time zone of the strftime fields in `directory`.
    pub(crate) zone: TimeZone,
    /// The prefix of output names.
    pub(crate) prefix: String,
    /// The suffix of output names.
    pub(crate) extension: String,
    /// When outputs are finished and published.
    pub(crate) rotate: Rotate,
    /// Maximum number of open outputs; to open another one, the least recently used output is finished.
    pub(crate) open_max: usize,
    /// Maximum bytes of memory of all outputs together; above it, the largest output is finished.
    pub(crate) held_max: usize,
}
