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
    ("filter", "processors"),
    ("parsers", "processors"),
    ("processor", "processors"),
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
    ("loglevel", "log"),
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
    ("json", "parse"),
    ("regex", "parse"),
    ("regexp", "parse"),
    ("grok", "parse"),
    ("logfmt", "parse"),
    ("csv", "parse"),
    ("ltsv", "parse"),
    ("nginx", "parse"),
    ("apache", "parse"),
    ("apache2", "parse"),
    ("mutate", "fields"),
    ("nest", "fields"),
    ("lua", "remap"),
    ("vrl", "remap"),
    ("aggregate", "window"),
    ("dedup", "dedupe"),
    // options
    ("source", "inputs"),
    ("sources", "inputs"),
    ("from", "inputs"),
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
    ("max_size", "size"),
    ("max_file_size", "rotate"),
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

/// Words that a later version will know, by what they are and where they will be used.
const LATER: &[(Word, &str, &[&str])] = &[
    (Word::Top, "", &["graphite"]),
    (
        Word::Option,
        ", on processors and sinks",
        &["parallelism", "partition"],
    ),
];

/// The types of processors of a later version.
const PROCESSORS: &[&str] = &[
    "parse", "filter", "route", "fields", "remap", "window", "sample", "throttle", "dedupe", "exec",
];

/// The section of processors.
const SECTION_OF_PROCESSORS: &str = "processors";

/// What to do until there are processors.
const NO_PROCESSORS: &str = "processors come with a later version; until then records keep their content: choose them by tag with `tags`, add fields with `add`, and parse or filter before or after Millstream";

/// The error for processors, which this version does not have.
pub(crate) fn no_processors(place: &Place) -> Problem {
    Problem::new(place, "this version has no processors").help(NO_PROCESSORS)
}

/// Words of other programs that need no counterpart, and why.
const NEEDLESS: &[(&str, &str)] = &[
    (
        "pos_file",
        "nothing to set: positions are kept under the top-level `data_dir`",
    ),
    ("data_dir", "it stands at the top, for all nodes together"),
    (
        "db",
        "nothing to set: positions are kept under the top-level `data_dir`",
    ),
    (
        "mem_buf_limit",
        "the top-level `memory_max` holds for all nodes together",
    ),
    (
        "chunk_limit_size",
        "nothing to set: batches are as large as what is ready",
    ),
    (
        "acknowledgements",
        "nothing to set: a source acknowledges what is kept, always",
    ),
    (
        "require_ack_response",
        "nothing to set: acks are always asked for",
    ),
    (
        "flush_interval",
        "nothing to set: a batch leaves as soon as nothing more is ready",
    ),
    (
        "buffer",
        "a channel of type `disk` between source and sink keeps what is on its way",
    ),
    (
        "workers",
        "the top-level `threads` holds for all nodes together",
    ),
];

/// The error for a word that is not known: with the nearest that is, our word for what another program calls so, or
/// that it comes with a later version.
#[must_use]
pub fn unknown(what: Word, word: &str, place: &Place, candidates: &[&str]) -> Problem {
    let noun = what.noun();
    let candidates: Vec<_> = (candidates.iter().copied())
        .filter(|word| *word != SECTION_OF_PROCESSORS)
        .collect();
    let candidates = &candidates[..];
    if is_processor(what, word, candidates) {
        let message = format!("this version has no processors such as {}", quote(word));
        return Problem::new(place, message).help(NO_PROCESSORS);
    }
    if let Some(on) = later(what, word) {
        let message = format!("the {noun} {} comes with a later version{on}", quote(word));
        return Problem::new(place, message).help(listed(candidates));
    }
    let problem = Problem::new(place, format!("unknown {noun} {}", quote(word)));
    if let Some(ours) = translate(word, |ours| candidates.contains(&ours)) {
        return problem.help(format!("it is called `{ours}` here"));
    }
    if let Some(ours) = translate(word, |ours| later(what, ours).is_some()) {
        let help = format!("it is called `{ours}` here, and comes with a later version");
        return problem.help(help);
    }
    if let Some(near) = nearest(word, candidates.iter().copied()) {
        return problem.help(format!("did you mean `{near}`?"));
    }
    let needless = NEEDLESS.iter().find(|(theirs, _)| *theirs == word);
    match needless.filter(|_| what == Word::Option) {
        Some((_, why)) => problem.help(*why),
        None => problem.help(listed(candidates)),
    }
}

/// Whether a word stands for processors, here or in another program, and for nothing that is possible.
fn is_processor(what: Word, word: &str, possible: &[&str]) -> bool {
    let ours: &[&str] = match what {
        Word::Top => &[SECTION_OF_PROCESSORS],
        Word::Type => PROCESSORS,
        Word::Option | Word::Choice => return false,
    };
    let stands_for = |words: &[&str]| translate(word, |ours| words.contains(&ours)).is_some();
    let is_misspelt = what == Word::Top && nearest(word, ours.iter().copied()).is_some();
    ours.contains(&word) || is_misspelt || stands_for(ours) && !stands_for(possible)
}

/// The candidate that [`unknown`] names for a word.
pub(crate) fn meant<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    translate(word, |ours| candidates.contains(&ours))
        .or_else(|| nearest(word, candidates.iter().copied()))
}

/// Where the word will be found in a later version.
fn later(what: Word, word: &str) -> Option<&'static str> {
    LATER
        .iter()
        .find(|(kind, _, words)| *kind == what && words.contains(&word))
        .map(|(_, on, _)| *on)
}

fn translate(word: &str, is_possible: impl Fn(&str) -> bool) -> Option<&'static str> {
    TRANSLATED
        .iter()
        .find(|(theirs, ours)| *theirs == word && is_possible(ours))
        .map(|(_, ours)| *ours)
}

/// More candidates than this are not listed.
const LISTED_MAX: usize = 24;

fn listed(candidates: &[&str]) -> String {
    match candidates {
        [] => "nothing can be set here".to_owned(),
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
