//! The options for the output format, shared by all sinks that format records.

use jiff::tz::TimeZone;
use millstream_config::{Node, Problem, Value};
use millstream_pipeline::node::Checked;
use millstream_wire::{
    format::{Add, Encoder, Format, Headers, Options},
    json::InvalidUtf8,
    record::FieldPath,
    template::Template,
    zone,
};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, de::DeserializeOwned};

/// How records are written.
#[derive(Debug, std::default::Default, Deserialize, JsonSchema)]
#[serde(default)]
struct FormatOptions {
    /// Format of records: `json` (one object per line), `ltsv` (`label:value`, separated by tabs), `csv` (the fields of
    /// `columns`, quoted as in RFC 4180), `raw` (the field `message` and a newline; a plain line is written unchanged), `msgpack`
    /// (entries `[time, record]`), `template`, or `avro_event` (Avro files of Flume events: only the sinks `hdfs` and `object`).
    format: Format,
    /// New fields and their templates; never overwrites a field of the record. The formats json, ltsv and csv also add `time:
    /// "{time}"`, and avro_event adds `timestamp: "{time:unix_ms}"`, unless a template here shows the event time. `time: null`
    /// leaves out the field `time`; `{}` adds nothing.
    add: Option<Add>,
    /// Fields of the record or of `add` that `format: csv` writes, in this order, such as `[time, host, .user.id, message]`.
    columns: Option<Vec<FieldPath>>,
    /// Whether the output of `format: csv` (each file) starts with the names of the columns. Default: `false`.
    header: Option<bool>,
    /// Field that `format: raw` writes, and that `format: avro_event` writes as the body of the event. Default: `message`.
    field: Option<FieldPath>,
    /// Names of the headers of `format: avro_event`: `own` (the fields' names) or `flume` (facility and severity as Flume's
    /// syslog sources name and number them, and `priority`). Default: `own`.
    headers: Option<Headers>,
    /// Template that `format: template` writes for each record.
    template: Option<Template>,
    /// Text after each record. Default: a newline; nothing for template.
    delimiter: Option<String>,
    /// How text that is not UTF-8 is written: `base64` (of the whole text), `replace` (U+FFFD for each invalid part) or
    /// `escape` (`\xff` for each invalid byte). Default: `base64` for json, where nothing marks such a text as encoded; unchanged
    /// bytes for ltsv, csv, raw and template.
    invalid_utf8: Option<InvalidUtf8>,
    /// Time zone of strftime fields in templates, such as `Europe/Berlin` or `+09:00`. Default: the top-level `timezone` (`UTC`).
    timezone: Option<String>,
}

/// The defaults of a sink.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Default {
    /// JSON, each record followed by its delimiter.
    Lines,
    /// No delimiter after each record, and this format unless the options name another.
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

/// The checked options of a format. Makes an encoder for each lane (parallel task) of a sink.
#[derive(Clone, Debug)]
pub(crate) struct Formatting {
    options: Options,
    zone: TimeZone,
}

impl Formatting {
    /// Removes the format's options from a sink's options and checks them.
    fn split_off(node: &mut Node, default: Default) -> Checked<Self> {
        let place = node.clone();
        let mut read: FormatOptions = node.take_part()?;
        default.fill_in(&mut read, &place);
        let at = |option: &str, message: String| place.problem_at(option, message);
        let zone = match &read.timezone {
            None => TimeZone::UTC,
            Some(name) => zone::find(name).ok_or_else(|| {
                let problem = at("timezone", format!("there is no time zone `{name}`"));
                vec![problem.help(zone::HELP)]
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

    /// Like [`Formatting::with_avro`], but for sinks that write no Avro files.
    pub(crate) fn with<T: DeserializeOwned>(node: &Node) -> Checked<(Self, T)> {
        let (format, config) = Self::read(node, Default::Lines, false)?;
        Self::without_avro(node, format, config)
    }

    /// Like [`Formatting::with`], but for sinks with other defaults. For these sinks, the option `headers` belongs to the sink,
    /// not to the format.
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

    /// Reads all options of a sink: those of the format, and its own as `T`. Reports the problems of both together.
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
        let format = Self::split_off(&mut own, default);
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

    /// The format in which records are written.
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

    /// The same options, except that the encoder does not add the event time, which some formats add by default.
    pub(crate) fn without_time(mut self) -> Self {
        let add = self.options.add.get_or_insert_with(Add::default);
        add.without.push("time".to_owned());
        self
    }

    /// The encoder of a lane.
    pub(crate) fn encoder(&self) -> Encoder {
        let encoder = self.options.encoder(&self.zone);
        encoder.expect("these options made an encoder when they were checked")
    }
}

/// The schema of a sink's own options `T` together with those of the format.
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
            // An option of the sink hides one of the format with the same name.
            for (name, option) in more {
                own.entry(name).or_insert_with(|| option.clone());
            }
        }
    }
    schema
}

/// Like [`schema_with`], but for a sink with another default format.
pub(crate) fn schema_with_default<T: JsonSchema>(format: &str) -> Schema {
    let mut schema = schema_with::<T>();
    let place = schema.pointer_mut("/properties/format/default");
    if let Some(default) = place {
        *default = format.into();
    }
    schema
}
