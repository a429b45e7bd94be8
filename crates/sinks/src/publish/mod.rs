//! Publishing by manifest: what `object` and `hdfs` share.
//!
//! `read -> decode -> send -> keep -> take -> [encode] -> [write] -> [settle]`
//!
//! Where to look: `run` takes and settles, `route` says which directory a record goes to, `encode` is where formats plug in,
//! `generation` holds the outputs that are open, `store` is the destination, `manifest` and `chain` are what is committed,
//! `recover` is the start, `note` what this machine remembers.
//!
//! It promises (delivery.md): behind a durable channel every record is published exactly once. Everything since the last
//! manifest goes into outputs that nobody sees; they are made durable, a numbered manifest names them together with the
//! position, created only if absent, and then they get their last names. What is repeated after a crash is either in no
//! manifest, and dropped, or in one, and published. Memory: see `generation`.

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
pub(crate) use store::{Place, Published, Put, Store};

/// How a sink publishes.
pub(crate) struct Settings {
    /// The sink's name: part of the names of outputs and manifests.
    pub(crate) sink: String,
    /// The directories of outputs below the root; may be empty.
    pub(crate) directory: Template,
    /// Of strftime fields in it.
    pub(crate) zone: TimeZone,
    /// What names of outputs begin with.
    pub(crate) prefix: String,
    /// What they end with.
    pub(crate) extension: String,
    /// When outputs are finished and published.
    pub(crate) rotate: Rotate,
    /// So many outputs are open at a time; of more, the one used longest ago is finished.
    pub(crate) open_max: usize,
    /// Outputs hold so many bytes in memory together; of more, the one that holds most is finished.
    pub(crate) held_max: usize,
}
