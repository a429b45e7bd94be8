//! The options of the channel `disk`.

use std::time::Duration;

use millstream_config::{Period, Size};
use schemars::JsonSchema;
use serde::Deserialize;

use super::log::{Dedupe, Options, SEGMENT_BYTES, Sync};

/// A channel has at least so many segments, so that room comes back while it is used.
const SEGMENTS_MIN: u64 = 8;
/// A segment is at least this large: below it, its header and the two syncs of a roll would be most of the work.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// What waits in memory to be written.
const QUEUE_BYTES: u64 = 4 << 20;

/// Options of the channel `disk`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Config {
    /// How much disk the channel may take. Full: sources stop reading until a consumer has gone on.
    size_max: Size,
    /// When what is written is synced, and so what kept means: `batch` (survives a power cut), a time such as `1s`
    /// (survives SIGKILL; a power cut takes up to that time) or `never`. Default: `batch`.
    sync: SyncOption,
    /// How long repeated chunks are recognised.
    dedupe: DedupeOption,
    /// How many bytes of batches wait to be written; a producer that finds no room waits.
    queue: Size,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            size_max: Size::bytes(10 << 30),
            sync: SyncOption(Sync::Batch),
            dedupe: DedupeOption::default(),
            queue: Size::bytes(QUEUE_BYTES),
        }
    }
}

/// The option `dedupe`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct DedupeOption {
    /// How many chunk ids are remembered (about 60 bytes of memory each).
    ids: u32,
    /// For how long.
    age: Period,
    /// Chunks whose id is a hash of their content (Fluent Bit): `prove` takes such a chunk for a repeat only where the
    /// connection of the first try broke; `store` stores every one, repeats too.
    content_ids: ContentIds,
}

impl Default for DedupeOption {
    fn default() -> Self {
        let Dedupe { ids, age, .. } = Dedupe::default();
        Self {
            ids: u32::try_from(ids).unwrap_or(u32::MAX),
            age: Period::secs(u32::try_from(age.as_secs()).unwrap_or(u32::MAX)),
            content_ids: ContentIds::Prove,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ContentIds {
    Prove,
    Store,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct SyncOption(Sync);

impl TryFrom<String> for SyncOption {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Ok(Self(match text.as_str() {
            "batch" => Sync::Batch,
            "never" => Sync::Never,
            time => match time.parse::<Period>() {
                Ok(time) if !time.is_zero() => Sync::Every(time.as_duration()),
                _ => {
                    return Err(format!(
                        "`{text}` is no way to sync: write batch, a time such as 1s, or never"
                    ));
                }
            },
        }))
    }
}

impl JsonSchema for SyncOption {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Sync".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "`batch`, `never`, or a time such as `1s`",
        })
    }
}

impl Config {
    /// An option that cannot be, and why.
    pub(super) fn problem(&self) -> Option<(&'static str, String)> {
        if self.size_max.as_bytes() < SEGMENTS_MIN * SEGMENT_BYTES_MIN {
            let least = (SEGMENTS_MIN * SEGMENT_BYTES_MIN) >> 20;
            return Some((
                "size_max",
                format!("a disk channel takes at least {least}MiB"),
            ));
        }
        (self.dedupe.ids == 0 || self.dedupe.age.is_zero()).then(|| {
            let message = "a window of nothing would store every repeat; leave the option out for the default";
            ("dedupe", message.to_owned())
        })
    }

    pub(super) fn sync(&self) -> Sync {
        self.sync.0
    }

    pub(super) fn queue_bytes(&self) -> usize {
        self.queue.as_usize()
    }

    pub(super) fn options(&self) -> Options {
        let size_max = self.size_max.as_bytes();
        Options {
            sync: self.sync.0,
            size_max,
            segment_bytes: (size_max / SEGMENTS_MIN).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES),
            dedupe: Dedupe {
                ids: self.dedupe.ids as usize,
                age: Duration::from(self.dedupe.age),
                store_content_ids: self.dedupe.content_ids == ContentIds::Store,
            },
            ..Options::default()
        }
    }
}
