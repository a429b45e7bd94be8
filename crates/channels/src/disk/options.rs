//! The options of the channel `disk`.

use std::time::Duration;

use millstream_config::{Period, Size};
use schemars::JsonSchema;
use serde::Deserialize;

use super::log::{Dedupe, Options, SEGMENT_BYTES, Sync};

/// The minimum number of segments in a full channel. A segment is released as a whole, so with fewer segments space would be freed too
/// late.
const SEGMENTS_MIN: u64 = 8;
/// The minimum size of a segment. Below it, writing headers and the two syncs for each new segment would be most of the work.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// The default of `queue`.
const QUEUE_BYTES: u64 = 4 << 20;

/// Options of the channel `disk`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Config {
    /// Disk space that the channel may use. When the channel is full, sources stop reading until a consumer has settled more.
    size_max: Size,
    /// When to sync, which decides what an acknowledgement means. `batch`: the records survive a power cut. A time such as `1s`: the
    /// records survive SIGKILL, and a power cut loses at most the records of the last second. `never`: the records survive SIGKILL, and a
    /// power cut loses all records that the system has not written yet. Default: `batch`.
    sync: SyncOption,
    /// The window in which repeated chunks are recognized.
    dedupe: DedupeOption,
    /// Records that were kept longer ago than this are skipped for every consumer that has not settled them, and counted. 0: never.
    max_age: Period,
    /// Bytes of batches that may wait in memory to be written. When the queue is full, producers wait.
    queue: Size,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            size_max: Size::bytes(10 << 30),
            sync: SyncOption(Sync::Batch),
            dedupe: DedupeOption::default(),
            max_age: Period::secs(0),
            queue: Size::bytes(QUEUE_BYTES),
        }
    }
}

/// The option `dedupe`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct DedupeOption {
    /// The most chunk ids to remember (about 60 bytes of memory each).
    ids: u32,
    /// How long to remember a chunk id.
    age: Period,
    /// Handling of chunks whose id is a hash of their content (Fluent Bit): `prove` treats such a chunk as a repeat only
    /// if the connection of the first copy broke; `store` stores every such chunk, including repeats.
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
                        "`{text}` is not a valid value: write batch, a time such as 1s, or never"
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
    /// Returns an invalid option and what is wrong with it; `None` if all options are valid.
    pub(super) fn problem(&self) -> Option<(&'static str, String)> {
        if self.size_max.as_bytes() < SEGMENTS_MIN * SEGMENT_BYTES_MIN {
            let least = (SEGMENTS_MIN * SEGMENT_BYTES_MIN) >> 20;
            return Some((
                "size_max",
                format!("a disk channel needs at least {least}MiB"),
            ));
        }
        (self.dedupe.ids == 0 || self.dedupe.age.is_zero()).then(|| {
            let message =
                "an empty window would store every repeat; leave the option out for the default";
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
            max_age: self.max_age.as_duration(),
            ..Options::default()
        }
    }
}
