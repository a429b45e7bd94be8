//! The options that decide about the format of what a sink writes, the same for every sink that has them.

use jiff::tz::TimeZone;
use millstream_config::{Node, Problem, Value};
use millstream_pipeline::node::Checked;
use millstream_wire::{
    format::{Add, Encoder, Format, Headers, Options},
    json::InvalidUtf8,
    record::FieldPath,
    template::Template,
};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, de::DeserializeOwned};

/// How records are written.
#[derive(Debug, std::default::Default, Deserialize, JsonSchema)]
#[serde(default)]
struct FormatOptions {
    /// How records are written: `json` (one object a line), `ltsv` (`label:value`, tabs between them), `csv` (the fields of
    /// `columns`, quoted as RFC 4180 says), `raw` (the field `message` and a newline; a line as it is), `msgpack` (entries
    /// `[time, record]`), `template`, or `avro_event` (Avro files of Flume's events: the sinks `hdfs` and `object`).
    format: Format,
    /// New fields and their templates; a field that a record has is never overwritten. The formats json, ltsv and csv also
    /// add `time: "{time}"`, and avro_event adds `timestamp: "{time:unix_ms}"`, unless a template here shows the event time.
    /// `time: null` leaves it out; `{}` adds nothing.
    add: Option<Add>,
    /// The fields that `format: csv` writes, in this order, such as `[time, host, .user.id, message]`; of the record or of `add`.
    columns: Option<Vec<FieldPath>>,
    /// Whether what `format: csv` writes starts with the names of the columns: each file, or the output. Default: `false`.
    header: Option<bool>,
    /// The field that `format: raw` writes, and the body of `avro_event`. Default: `message`.
    field: Option<FieldPath>,
    /// What the headers of `format: avro_event` are called: `own` (as the fields) or `flume` (as Flume's syslog sources call
    /// facility and severity, with their numbers, and `priority`). Default: `own`.
    headers: Option<Headers>,
    /// What `format: template` writes for each record.
    template: Option<Template>,
    /// What stands behind each record. Default: a newline; nothing for template.
    delimiter: Option<String>,
    /// What text that is not UTF-8 becomes where text is written: `base64` (of the whole text), `replace` (U+FFFD stands for
    /// what is invalid) or `escape` (`\xff` stands for each invalid byte). Default: `base64` for json, without a mark; the
    /// bytes as they are for ltsv, csv, raw and template.
    invalid_utf8: Option<InvalidUtf8>,
    /// Of strftime fields in templates: a name such as `Europe/Berlin`. Default: what the top of the file says (`UTC`).
    timezone: Option<String>,
}

/// What is meant where the options say nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Default {
    /// JSON, each record with its delimiter.
    Lines,
    /// The format's text alone, no delimiter behind it; what format, if none is named.
    Bare(Format),
}

impl Default {
    fn fill_in(self, read: &mut FormatOptions, written: &Node) {
        let Self::Bare(format) = self else {
            return;
        };
        if written.get("format").is_none() {
            read.format = format;
        }
        if read.format != Format::Msgpack && read.delimiter.is_none() {
            read.delimiter = Some(String::new());
        }
    }
}

/// A checked format. Makes an encoder for each task.
#[derive(Clone, Debug)]
pub(crate) struct Formatting {
    options: Options,
    zone: TimeZone,
}

impl Formatting {
    /// Takes the options of the format out of a sink's options and checks that they go together.
    fn take(node: &mut Node, default: Default) -> Checked<Self> {
        let place = node.clone();
        let mut read: FormatOptions = node.take_part()?;
        default.fill_in(&mut read, &place);
        let at = |option: &str, message: String| place.problem_at(option, message);
        let zone = match &read.timezone {
            None => TimeZone::UTC,
            Some(name) => TimeZone::get(name).map_err(|_| {
                let problem = at("timezone", format!("no time zone is called `{name}`"));
                vec![problem.help("a name of the IANA database, such as `Europe/Berlin` or `UTC`")]
            })?,
        };
        let formatting = Self {
            options: Options {
                format: read.format,
                add: read.add,
                columns: read.columns,
                header: read.header,
                field: read.field,
                headers: read.headers,
                template: read.template,
                delimiter: read.delimiter,
                invalid_utf8: read.invalid_utf8,
            },
            zone,
        };
        let told = |error: millstream_wire::format::OptionError| -> Vec<Problem> {
            vec![at(error.option, error.message).help(error.help)]
        };
        formatting.options.encoder(&formatting.zone).map_err(told)?;
        Ok(formatting)
    }

    /// As [`Formatting::with_avro`], for sinks that write no Avro files.
    pub(crate) fn with<T: DeserializeOwned>(node: &Node) -> Checked<(Self, T)> {
        let (format, config) = Self::read(node, Default::Lines, false)?;
        Self::without_avro(node, format, config)
    }

    /// The same where other options than `format: json` and a newline behind each record are meant by default, and where
    /// `headers`, if there is such an option, is the sink's own and not that of Avro files.
    pub(crate) fn with_default<T: DeserializeOwned>(
        node: &Node,
        default: Default,
    ) -> Checked<(Self, T)> {
        let (format, config) = Self::read(node, default, true)?;
        Self::without_avro(node, format, config)
    }

    fn without_avro<T>(node: &Node, format: Self, config: T) -> Checked<(Self, T)> {
        if format.format() == Format::AvroEvent {
            let problem = node.problem_at("format", "this sink writes no Avro files");
            return Err(vec![problem.help("the sinks `hdfs` and `object` do")]);
        }
        Ok((format, config))
    }

    /// Reads all of a sink's options: those of the format, and its own as `T`. What is wrong with either is told together.
    pub(crate) fn with_avro<T: DeserializeOwned>(node: &Node) -> Checked<(Self, T)> {
        Self::read(node, Default::Lines, false)
    }

    fn read<T: DeserializeOwned>(
        node: &Node,
        default: Default,
        own_headers: bool,
    ) -> Checked<(Self, T)> {
        let mut own = node.clone();
        let headers = own_headers.then(|| own.take("headers")).flatten();
        let format = Self::take(&mut own, default);
        if let (Some(headers), Value::Map(map)) = (headers, &mut own.value) {
            map.entries.push(headers);
        }
        match (format, own.read()) {
            (Ok(format), Ok(config)) => Ok((format, config)),
            (format, config) => {
                let told = format.err().into_iter().chain(config.err());
                Err(told.flatten().collect())
            }
        }
    }

    /// How records are written.
    pub(crate) fn format(&self) -> Format {
        self.options.format
    }

    /// Whether every record ends with a newline.
    pub(crate) fn ends_lines(&self) -> bool {
        match (&self.options.delimiter, self.options.format) {
            (_, Format::Msgpack | Format::AvroEvent) => false,
            (Some(delimiter), _) => delimiter.ends_with('\n'),
            (None, Format::Template) => {
                let template = self.options.template.as_ref();
                template.is_some_and(|template| template.as_str().ends_with('\n'))
            }
            (None, _) => true,
        }
    }

    /// The time zone of templates.
    pub(crate) fn zone(&self) -> TimeZone {
        self.zone.clone()
    }

    /// The same, but the format adds no event time by default.
    pub(crate) fn without_time(mut self) -> Self {
        let add = self.options.add.get_or_insert_with(Add::default);
        add.without.push("time".to_owned());
        self
    }

    /// The encoder of a task.
    pub(crate) fn encoder(&self) -> Encoder {
        let encoder = self.options.encoder(&self.zone);
        encoder.expect("the same options made one when they were checked")
    }
}

/// The schema of a sink's own options `T` and those of the format together.
pub(crate) fn schema_with<T: JsonSchema>() -> Schema {
    let mut schema = schemars::schema_for!(T);
    let shared = schemars::schema_for!(FormatOptions);
    for name in ["properties", "$defs"] {
        let Some(more) = shared.get(name).and_then(|value| value.as_object()) else {
            continue;
        };
        let own = schema.ensure_object().entry(name);
        let own = own.or_insert_with(|| serde_json::Value::Object(serde_json::Map::new()));
        if let Some(own) = own.as_object_mut() {
            // Where a sink has an option of that name, it is the sink's.
            for (name, option) in more {
                own.entry(name).or_insert_with(|| option.clone());
            }
        }
    }
    schema
}

/// The same where `format` is another one by default.
pub(crate) fn schema_with_default<T: JsonSchema>(format: &str) -> Schema {
    let mut schema = schema_with::<T>();
    let place = schema.pointer_mut("/properties/format/default");
    if let Some(default) = place {
        *default = format.into();
    }
    schema
}
