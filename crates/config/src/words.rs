//! The words of other programs and of later versions: what to say when a word is not known here.

use crate::names::nearest;
use crate::place::Place;
use crate::problem::Problem;

/// What a word stands for, for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// A name at the top of the file: a section or a setting.
    Top,
    /// The type of a node.
    Type,
    /// An option of a node or of a block.
    Option,
    /// One of several values of an option.
    Choice,
}

impl Word {
    fn noun(self) -> &'static str {
        match self {
            Self::Top => "setting",
            Self::Type => "type",
            Self::Option => "option",
            Self::Choice => "value",
        }
    }
}

/// A word that another program uses and ours for it: Vector, Fluentd, Fluent Bit, Flume, Logstash, rsyslog.
/// It is offered only where our word is one of those that are possible.
const TRANSLATED: &[(&str, &str)] = &[
    // sections
    ("transforms", "processors"),
    ("transform", "processors"),
    ("filters", "processors"),
    ("pipelines", "processors"),
    ("inputs", "sources"),
    ("input", "sources"),
    ("receivers", "sources"),
    ("outputs", "sinks"),
    ("output", "sinks"),
    ("match", "sinks"),
    ("exporters", "sinks"),
    ("destinations", "sinks"),
    ("buffers", "channels"),
    ("buffer", "channels"),
    ("queues", "channels"),
    // settings
    ("pos_file", "data_dir"),
    ("position_file", "data_dir"),
    ("storage.path", "data_dir"),
    ("root_dir", "data_dir"),
    ("state_dir", "data_dir"),
    ("workers", "threads"),
    ("log_level", "log"),
    ("system", "log"),
    ("service", "log"),
    ("hostname", "host"),
    ("http_server", "api"),
    ("proxy", "api"),
    // types
    ("s3", "object"),
    ("aws_s3", "object"),
    ("gcs", "object"),
    ("gcp_cloud_storage", "object"),
    ("azure_blob", "object"),
    ("console", "stdout"),
    ("null", "discard"),
    ("blackhole", "discard"),
    ("noop", "discard"),
    ("in_tail", "tail"),
    ("file", "tail"),
    ("taildir", "tail"),
    ("kubernetes_logs", "tail"),
    ("in_forward", "forward"),
    ("out_forward", "forward"),
    ("fluent", "forward"),
    ("secure_forward", "forward"),
    ("vector", "forward"),
    ("avro", "flume"),
    ("demo_logs", "generate"),
    ("dummy", "generate"),
    ("sample", "generate"),
    ("spoolDir", "tail"),
    ("exec_source", "exec"),
    ("in_syslog", "syslog"),
    ("syslogtcp", "syslog"),
    ("rfc5424", "syslog"),
    ("systemd", "journald"),
    ("journal", "journald"),
    ("http_server", "http"),
    ("hdfs2", "hdfs"),
    ("webhdfs", "hdfs"),
    ("file_channel", "disk"),
    ("copy", "route"),
    ("rewrite_tag_filter", "route"),
    ("record_transformer", "fields"),
    ("record_modifier", "fields"),
    ("modify", "fields"),
    ("grep", "filter"),
    ("rate_limit", "throttle"),
    ("reduce", "window"),
    ("parser", "parse"),
    // options
    ("pos_file", "data_dir"),
    ("include", "paths"),
    ("path", "paths"),
    ("paths", "path"),
    ("exclude_path", "exclude"),
    ("read_from_head", "start"),
    ("read_from", "start"),
    ("ignore_older_secs", "start"),
    ("address", "listen"),
    ("bind", "listen"),
    ("port", "listen"),
    ("mode", "listen"),
    ("max_size", "size_max"),
    ("total_limit_size", "size_max"),
    ("chunk_limit_size", "size"),
    ("max_bytes", "size"),
    ("max_events", "records"),
    ("timeout_secs", "linger"),
    ("flush_interval", "linger"),
    ("when_full", "behind"),
    ("overflow_action", "behind"),
    ("fsync", "sync"),
    ("encoding", "format"),
    ("codec", "format"),
    ("compress", "compression"),
    ("bootstrap_servers", "brokers"),
    ("key_field", "key"),
    ("server", "servers"),
    ("endpoints", "servers"),
    ("uri", "url"),
    ("endpoint", "url"),
    ("multiline", "framing"),
    ("delimiter", "framing"),
    ("time_slice_format", "path"),
    ("condition", "where"),
    ("group_by_fields", "group_by"),
    ("retry_limit", "retry"),
    ("retry_max_times", "retry"),
    ("request", "retry"),
    ("acknowledgements", "sync"),
    ("require_ack_response", "peer"),
    ("rollSize", "rotate"),
    ("rollInterval", "rotate"),
    // values
    ("gz", "gzip"),
    ("zst", "zstd"),
    ("ndjson", "json"),
    ("jsonl", "json"),
    ("text", "raw"),
    ("single_value", "raw"),
    ("message_pack", "msgpack"),
    ("warning", "warn"),
    ("fatal", "error"),
    ("verbose", "trace"),
    ("head", "beginning"),
    ("tail", "end"),
    ("newline_delimited", "lines"),
    ("octet_counting", "octets"),
    ("drop_newest", "block"),
    ("drop_oldest", "skip"),
    ("drop_oldest_chunk", "skip"),
];

/// Words that the design has and this version has not.
const LATER: &[(Word, &[&str])] = &[
    (Word::Top, &["graphite", "tls"]),
    (
        Word::Type,
        &[
            "fuse", "syslog", "journald", "kafka", "flume", "http", "parse", "filter", "route",
            "fields", "remap", "window", "sample", "throttle", "dedupe", "exec", "hdfs", "object",
        ],
    ),
    (
        Word::Option,
        &[
            "tls",
            "auth",
            "parallelism",
            "partition",
            "where",
            "kubernetes",
            "compression",
            "behind",
            "retry",
            "limits",
            "framing",
            "timezone",
            "add",
        ],
    ),
    (
        Word::Choice,
        &[
            "ltsv",
            "csv",
            "avro_event",
            "parquet",
            "connect",
            "gzip",
            "zstd",
            "snappy",
            "lz4",
            "deflate",
            "cri",
            "octets",
            "write",
            "file",
            "auto",
            "multiline",
        ],
    ),
];

/// The error for a word that is not known: with the nearest that is, our word for what another program calls so, or the
/// word that it comes with a later version.
#[must_use]
pub fn unknown(what: Word, word: &str, place: &Place, candidates: &[&str]) -> Problem {
    let noun = what.noun();
    if is_later(what, word) {
        let message = format!("the {noun} {} comes with a later version", quote(word));
        return Problem::new(place, message).help(listed(candidates));
    }
    let problem = Problem::new(place, format!("unknown {noun} {}", quote(word)));
    if let Some(ours) = translate(word, candidates) {
        return problem.help(format!("it is called `{ours}` here"));
    }
    match nearest(word, candidates.iter().copied()) {
        Some(near) => problem.help(format!("did you mean `{near}`?")),
        None => problem.help(listed(candidates)),
    }
}

fn is_later(what: Word, word: &str) -> bool {
    LATER
        .iter()
        .any(|(kind, words)| *kind == what && words.contains(&word))
}

fn translate(word: &str, candidates: &[&str]) -> Option<&'static str> {
    TRANSLATED
        .iter()
        .find(|(theirs, ours)| *theirs == word && candidates.contains(ours))
        .map(|(_, ours)| *ours)
}

/// More candidates than this are not listed.
const LISTED_MAX: usize = 24;

fn listed(candidates: &[&str]) -> String {
    match candidates {
        [] => "nothing is possible here".to_owned(),
        [one] => format!("possible here: `{one}`"),
        many if many.len() <= LISTED_MAX => format!("possible here: {}", join(many)),
        many => format!("there are {} possible, see the reference", many.len()),
    }
}

/// The words in back quotes with commas between.
pub(crate) fn join(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    quoted.join(", ")
}

/// Characters of a user's text that a message repeats at most.
const QUOTED_MAX: usize = 60;

/// A user's text for a message: in back quotes, cut if it is long, without control characters.
pub(crate) fn quote(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(QUOTED_MAX)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    if text.chars().nth(QUOTED_MAX).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}
