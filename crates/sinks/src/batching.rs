//! The option `batch`, the same for every sink that sends.

use millstream_config::{Period, Size};
use schemars::JsonSchema;
use serde::Deserialize;

/// When small batches leave together.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Batching {
    /// Bytes that are gathered at most; 0: every batch leaves alone.
    pub(crate) size: Size,
    /// Records that are gathered at most; 0: no limit.
    pub(crate) records: u32,
    /// How long the first of them waits for more when nothing is ready.
    pub(crate) linger: Period,
}

impl Default for Batching {
    fn default() -> Self {
        Self {
            size: Size::mib(1),
            records: 0,
            linger: Period::secs(0),
        }
    }
}
