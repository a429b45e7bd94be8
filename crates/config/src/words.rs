//! Suggestions for unknown words: the nearest known word, Millstream's word for a word of another program, or the hint that a later
//! version will have the word.

use crate::names::nearest;
use crate::place::Place;
use crate::problem::Problem;

/// The kind of word, for the message.
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

/// Each entry is a word of Millstream, and the words that other programs use for it: Vector, Fluentd, Fluent Bit, Flume, Logstash, rsyslog.
///
/// A word is suggested only if it is allowed where the unknown word stands. Of several such words, the first is suggested.
const TRANSLATED: &[(&str, &str)] = &[
    // sections
    (
        "processors",
        "transforms transform filters filter parsers processor pipelines",
    ),
    ("sources", "inputs input receivers"),
    ("sinks", "outputs output match exporters destinations"),
    ("channels", "buffers buffer queues"),
    // settings
    (
        "data_dir",
        "pos_file position_file storage.path root_dir state_dir",
    ),
    ("threads", "workers"),
    ("log", "log_level loglevel system service"),
    ("host", "hostname"),
    ("api", "http_server proxy"),
    // types
    ("object", "s3 aws_s3 gcs gcp_cloud_storage azure_blob"),
    ("stdout", "console"),
    ("discard", "null blackhole noop"),
    ("tail", "in_tail file taildir kubernetes_logs spoolDir"),
    (
        "forward",
        "in_forward out_forward fluent secure_forward vector",
    ),
    ("flume", "avro"),
    ("generate", "demo_logs dummy"),
    ("exec", "exec_filter"),
    ("sample", "sampler sampling sampling_filter"),
    ("syslog", "in_syslog syslogtcp rfc5424"),
    ("journald", "systemd journal"),
    ("http", "http_server"),
    ("hdfs", "hdfs2 webhdfs"),
    ("disk", "file_channel"),
    ("route", "rewrite_tag_filter"),
    (
        "fields",
        "record_transformer record_modifier modify mutate nest",
    ),
    ("filter", "grep"),
    ("throttle", "rate_limit"),
    ("window", "reduce aggregate"),
    (
        "parse",
        "parser json regex regexp grok logfmt csv ltsv nginx apache apache2",
    ),
    ("remap", "lua vrl"),
    ("dedupe", "dedup"),
    // options
    ("program", "source"),
    ("inputs", "source sources from"),
    ("pattern", "expression regexp regex"),
    ("field", "key_name parse_field"),
    ("as", "format"),
    ("given", "input inputs"),
    ("expect", "output outputs"),
    ("from", "insert_at"),
    ("paths", "include path"),
    ("path", "paths time_slice_format"),
    ("exclude", "exclude_path"),
    ("start", "read_from"),
    ("listen", "address bind port mode"),
    ("size_max", "max_size total_limit_size"),
    ("size", "max_size chunk_limit_size max_bytes"),
    ("rotate", "max_file_size rollSize rollInterval"),
    ("records", "max_events"),
    ("linger", "timeout_secs flush_interval"),
    ("behind", "when_full overflow_action"),
    ("sync", "fsync"),
    ("format", "encoding codec"),
    ("compression", "compress"),
    ("brokers", "bootstrap_servers"),
    ("key", "key_field"),
    ("servers", "server endpoints address host"),
    ("url", "uri endpoint"),
    ("framing", "multiline delimiter"),
    ("where", "condition"),
    ("group_by", "group_by_fields"),
    ("every", "rate"),
    ("directory", "working_directory"),
    ("timeout", "command_timeout"),
    ("retry", "retry_limit retry_max_times"),
    // values
    ("gzip", "gz"),
    ("zstd", "zst"),
    ("json", "ndjson jsonl"),
    ("raw", "text single_value"),
    ("msgpack", "message_pack"),
    ("warn", "warning"),
    ("error", "fatal"),
    ("trace", "verbose"),
    ("beginning", "head"),
    ("end", "tail"),
    ("lines", "newline_delimited"),
    ("octets", "octet_counting"),
    ("skip", "drop_oldest drop_oldest_chunk"),
];

/// Words of other programs for which one word is not enough: Millstream's word, the other program's word, and the help.
const PHRASES: &[(&str, &str, &str)] = &[
    ("time", "time_key", "write `time: { field: NAME }`"),
    (
        "time",
        "time_format",
        "write `time: { format: '%Y-%m-%d %H:%M:%S' }`",
    ),
    (
        "time",
        "keep_time_key",
        "write `time: { keep: true }`, beside `field` and `format`",
    ),
    (
        "keep",
        "reserve_data",
        "nothing to set: the other fields stay; `keep: true` keeps the parsed field too",
    ),
    (
        "keep",
        "remove_key_name_field",
        "nothing to set: the parsed field is removed, unless `keep: true` is set",
    ),
    (
        "socket",
        "owner",
        "for the access to a unix socket, write `socket: { owner: NAME }`",
    ),
    (
        "socket",
        "group",
        "for the access to a unix socket, write `socket: { group: NAME }`",
    ),
    (
        "socket",
        "mode",
        "for the permissions of a unix socket, write `socket: { mode: 0660 }`; `listen` names the protocol: `unix:///PATH`",
    ),
    (
        "socket",
        "socket_file_mode",
        "write `socket: { mode: 0660 }`",
    ),
    (
        "regex",
        "grok",
        "use `as: regex`, and write the `pattern` with named groups: `%{WORD:level}` is `(?<level>\\w+)`",
    ),
    (
        "start",
        "read_from_head",
        "write `start: beginning`, or `start: end`",
    ),
    (
        "ignore_older",
        "ignore_older_secs",
        "it is called `ignore_older` here, and its value has a unit: `10m`",
    ),
    (
        "block",
        "drop_newest",
        "new records are never dropped here: with `block`, senders wait",
    ),
];

/// Types of other programs that no section needs, each with the replacement.
const NEEDLESS_TYPES: &[(&str, &str)] = &[(
    "copy",
    "nothing to set: several sinks with the same input get all of its records: `inputs: [NAME]` in each of them",
)];

/// Words that are reserved for a later version: their kind, a text that states where they will be used, and the words.
const LATER: &[(Word, &str, &[&str])] = &[(Word::Type, "", &["window", "throttle", "dedupe"])];

/// The types of processors, which new users look for among sources and sinks.
const PROCESSORS: &[&str] = &[
    "parse", "filter", "route", "sample", "fields", "remap", "exec",
];

/// Options that a node does not have, most of them from other programs, and the reason why it does not need them.
const NEEDLESS: &[(&str, &str)] = &[
    (
        "pos_file",
        "nothing to set: positions are kept under the top-level `data_dir`",
    ),
    (
        "data_dir",
        "it is a setting at the top level, for all nodes together",
    ),
    (
        "db",
        "nothing to set: positions are kept under the top-level `data_dir`",
    ),
    (
        "mem_buf_limit",
        "the top-level `memory_max` applies to all nodes together",
    ),
    (
        "chunk_limit_size",
        "nothing to set: a batch holds what is ready",
    ),
    (
        "acknowledgements",
        "nothing to set: a source always acknowledges what is kept",
    ),
    (
        "require_ack_response",
        "nothing to set: acks are always requested",
    ),
    (
        "flush_interval",
        "nothing to set: a batch leaves as soon as nothing more is ready",
    ),
    (
        "buffer",
        "a channel of type `disk` between source and sink buffers records",
    ),
    (
        "workers",
        "the top-level `threads` applies to all nodes together",
    ),
];

/// Returns the error for an unknown word, with help: the word that was probably meant, or all words that are allowed.
#[must_use]
pub fn unknown(what: Word, word: &str, place: &Place, candidates: &[&str]) -> Problem {
    let noun = what.noun();
    if let Some(on) = later(what, word) {
        let message = format!("the {noun} {} comes with a later version{on}", quote(word));
        return Problem::new(place, message).help(listed(candidates));
    }
    let needless = NEEDLESS_TYPES.iter().find(|(theirs, _)| *theirs == word);
    if let Some((_, why)) = needless.filter(|_| what == Word::Type) {
        return Problem::new(place, format!("unknown {noun} {}", quote(word))).help(*why);
    }
    if let Some(ours) = processor(what, word, candidates) {
        let message = format!("{} is a processor", quote(word));
        let help = format!(
            "put it under `processors` with `type: {ours}`, and let the sink take from it: `inputs: [NAME]`"
        );
        return Problem::new(place, message).help(help);
    }
    let problem = Problem::new(place, format!("unknown {noun} {}", quote(word)));
    if what == Word::Top && word == "tests" {
        let help = "cases stand beside the processor that they test, as its option `tests`";
        return problem.help(help);
    }
    let phrase = PHRASES
        .iter()
        .find(|(ours, theirs, _)| *theirs == word && candidates.contains(ours));
    if let Some((_, _, help)) = phrase {
        return problem.help(*help);
    }
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

/// Returns the processor that an unknown type stands for. `None` if the type is not a processor, if processors are allowed where it is
/// written (`possible`), or if it matches a type that is allowed there.
fn processor(what: Word, word: &str, possible: &[&str]) -> Option<&'static str> {
    let is_elsewhere = PROCESSORS.iter().all(|ours| !possible.contains(ours));
    if what != Word::Type
        || !is_elsewhere
        || translate(word, |ours| possible.contains(&ours)).is_some()
    {
        return None;
    }
    let ours = PROCESSORS.iter().copied().find(|ours| *ours == word);
    ours.or_else(|| translate(word, |ours| PROCESSORS.contains(&ours)))
}

/// The candidate that [`unknown`] suggests for a word.
pub(crate) fn meant<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    translate(word, |ours| candidates.contains(&ours))
        .or_else(|| nearest(word, candidates.iter().copied()))
}

/// Returns the text that states where a later version will use the word; `None` if the word is not reserved.
fn later(what: Word, word: &str) -> Option<&'static str> {
    LATER
        .iter()
        .find(|(kind, _, words)| *kind == what && words.contains(&word))
        .map(|(_, on, _)| *on)
}

fn translate(word: &str, is_possible: impl Fn(&str) -> bool) -> Option<&'static str> {
    TRANSLATED
        .iter()
        .find(|(ours, theirs)| is_possible(ours) && theirs.split(' ').any(|one| one == word))
        .map(|(ours, _)| *ours)
}

/// The maximum number of candidates that are listed in a message.
const LISTED_MAX: usize = 24;

fn listed(candidates: &[&str]) -> String {
    match candidates {
        [] => "nothing can be set here".to_owned(),
        [one] => format!("possible here: `{one}`"),
        many if many.len() <= LISTED_MAX => format!("possible here: {}", join(many)),
        many => format!("there are {} possible, see the reference", many.len()),
    }
}

/// The words in back quotes, separated by commas.
pub(crate) fn join(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    quoted.join(", ")
}

/// The maximum number of characters of the user's text that a message repeats.
const QUOTED_MAX: usize = 60;

/// The user's text as a message shows it: in back quotes, truncated, without control characters.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn help(what: Word, word: &str, candidates: &[&str]) -> String {
        let source = crate::Source::new("t.yaml", "a: b", 0);
        let place = Place::of_bytes(&source, 0..1);
        let problem = unknown(what, word, &place, candidates);
        problem.help.unwrap_or_default()
    }

    #[test]
    fn words_of_other_programs_lead_to_the_options_of_processors() {
        let parse = ["inputs", "field", "as", "pattern", "time", "keep"];
        for (word, expected) in [
            ("expression", "`pattern`"),
            ("key_name", "`field`"),
            ("format", "`as`"),
            ("time_key", "time: { field: NAME }"),
            ("time_format", "time: { format:"),
            ("keep_time_key", "time: { keep: true }"),
            ("reserve_data", "the other fields stay"),
        ] {
            let help = help(Word::Option, word, &parse);
            assert!(help.contains(expected), "{word}: {help}");
        }
        let remap = ["inputs", "tags", "program", "file"];
        let found = help(Word::Option, "source", &remap);
        assert_eq!(found, "it is called `program` here");
        let sink = ["inputs", "path"];
        let found = help(Word::Option, "source", &sink);
        assert_eq!(found, "it is called `inputs` here");
        let found = help(Word::Choice, "grok", &["json", "regex"]);
        assert!(
            found.contains("as: regex") && found.contains("pattern"),
            "{found}"
        );
    }

    #[test]
    fn a_word_with_another_meaning_here_is_answered_with_what_does_the_same() {
        let (types, tail) = (["file", "discard"], ["start", "ignore_older"]);
        let processors = ["route", "filter"];
        for (what, word, candidates, expected) in [
            (
                Word::Type,
                "copy",
                &types[..],
                "several sinks with the same input",
            ),
            (
                Word::Type,
                "copy",
                &processors,
                "several sinks with the same input",
            ),
            (
                Word::Option,
                "ignore_older_secs",
                &tail,
                "called `ignore_older` here",
            ),
            (Word::Option, "read_from_head", &tail, "start: beginning"),
            (
                Word::Choice,
                "drop_newest",
                &["block", "skip"],
                "never dropped",
            ),
            (
                Word::Option,
                "address",
                &["servers", "peer"],
                "called `servers` here",
            ),
        ] {
            let help = help(what, word, candidates);
            assert!(help.contains(expected), "{word}: {help}");
        }
    }
}
