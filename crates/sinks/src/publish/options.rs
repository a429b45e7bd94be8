//! The options that `object` and `hdfs` share.

use std::time::Duration;

use millstream_config::{Node, Period, Problem, Size};
use millstream_wire::{compression::Codec, template::Template};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sending::Retry;

/// When outputs are finished and published; 0 disables a rule.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RotateConfig {
    /// The size, as written (compressed), at which an output is finished; the output may be up to a mebibyte larger. 0 means no
    /// limit.
    pub(crate) size: Size,
    /// Maximum number of records in an output. 0 means no limit.
    pub(crate) records: u64,
    /// The time after the first unpublished record at which all outputs are published. 0 means no limit.
    pub(crate) interval: Period,
    /// The time without a record after which all outputs are published. 0 means no limit.
    pub(crate) idle: Period,
}

impl Default for RotateConfig {
    fn default() -> Self {
        Self {
            size: Size::default(),
            records: 0,
            interval: Period::secs(300),
            idle: Period::secs(60),
        }
    }
}

impl RotateConfig {
    pub(crate) fn rules(&self) -> Rotate {
        let some = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        let time = |period: Period| match period.as_duration() {
            Duration::ZERO => None,
            time => Some(time),
        };
        Rotate {
            size: some(self.size.as_usize() as u64),
            records: some(self.records),
            interval: time(self.interval),
            idle: time(self.idle),
        }
    }
}

/// When outputs are finished and published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rotate {
    /// The size at which an output is finished, in bytes.
    pub(crate) size: u64,
    /// Maximum number of records in an output.
    pub(crate) records: u64,
    /// The time after the first unpublished record at which all outputs are published.
    pub(crate) interval: Option<Duration>,
    /// The time after the last record at which all outputs are published.
    pub(crate) idle: Option<Duration>,
}

impl Rotate {
    /// Maximum time until a record is published; None without a limit.
    pub(crate) fn longest(&self) -> Option<Duration> {
        self.interval
    }
}

/// How the text of an output is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Compression {
    /// No compression.
    #[default]
    None,
    /// gzip (RFC 1952), as `zcat` reads it.
    Gzip,
    /// zstd (RFC 8878), as `zstdcat` reads it: several times faster than gzip, with smaller output.
    Zstd,
}

impl Compression {
    /// Returns the codec, or None without compression.
    pub(crate) fn codec(self) -> Option<Codec> {
        match self {
            Self::None => None,
            Self::Gzip => Some(Codec::Gzip),
            Self::Zstd => Some(Codec::Zstd),
        }
    }

    /// The suffix of compressed names.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gzip => ".gz",
            Self::Zstd => ".zst",
        }
    }
}

/// The problem with `retry.give_up`, if it is set.
pub(crate) fn no_give_up(node: &Node, retry: &Retry) -> Option<Problem> {
    retry.give_up.0.map(|_| {
        let text = "a record that is written into an output cannot be given up";
        let help = "remove it; `behind: { then: skip }` drops records that are too old";
        node.problem_at("retry.give_up", text).help(help)
    })
}

/// Splits a path into the constant directory below which everything is written (the root), and the template of the directories
/// below the root.
pub(crate) fn split_root(path: &Template) -> (String, Template) {
    let text = path.as_str();
    let first = text.find(['{', '%']).unwrap_or(text.len());
    let root = match text.get(..first).and_then(|text| text.rfind('/')) {
        _ if first == text.len() => text.len(),
        Some(slash) => slash + 1,
        None => 0,
    };
    let (root, rest) = text.split_at(root);
    // The root ends at a slash, so a part such as `app-{host}` belongs to the template as a whole.
    let rest = Template::parse(rest.trim_end_matches('/')).unwrap_or_else(|_| path.clone());
    (root.trim_end_matches('/').to_owned(), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_the_path_before_the_first_part_with_a_template() {
        let split = |text: &str| {
            let (root, rest) = split_root(&Template::parse(text).unwrap());
            (root, rest.as_str().to_owned())
        };
        let own = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            split("bucket/app/{host}/%F"),
            own("bucket/app", "{host}/%F")
        );
        assert_eq!(split("bucket/app-{host}/"), own("bucket", "app-{host}"));
        assert_eq!(split("bucket/app/"), own("bucket/app", ""));
        assert_eq!(split("{tag}"), own("", "{tag}"));
        assert_eq!(split("/srv/a/dt=%F"), own("/srv/a", "dt=%F"));
    }
}
