//! The format options of sinks, and their validation.

use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Add, Encoder, OptionError};
use crate::{json::InvalidUtf8, record::FieldPath, template::Template};

/// Format of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One JSON object per line: the record's fields and those of `add`. A record that is a plain line becomes `{"message": line}`.
    #[default]
    Json,
    /// `label:value` for each field, separated by tabs, and a newline. A plain line becomes `message:line`.
    Ltsv,
    /// The fields that `columns` names, separated by commas (RFC 4180), and a newline.
    Csv,
    /// The record's field `message` (option `field`) and a newline. A plain line is written unchanged.
    Raw,
    /// Each record as a MessagePack entry `[time, record]`. The record of a plain line is `{"message": line}`.
    Msgpack,
    /// The text of the option `template`.
    Template,
    /// Flume's Avro event: a map of headers and a body.
    #[serde(rename = "avro_event")]
    AvroEvent,
}

/// Names of the headers of `format: avro_event`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Headers {
    /// The names of the record's fields.
    #[default]
    Own,
    /// The names that Flume's syslog sources use: `Facility` and `Severity` with numbers, and `priority`. All other headers
    /// have the names of the record's fields.
    Flume,
}

/// The options `format`, `add`, `columns`, `header`, `field`, `headers`, `template` and `delimiter` of a sink.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The format.
    pub format: Format,
    /// Fields to add to records that do not have them. json, ltsv and csv add `time: "{time}"`, and avro_event
    /// `timestamp: "{time:unix_ms}"`, as described at [`Add`].
    pub add: Option<Add>,
    /// The columns of csv.
    pub columns: Option<Vec<FieldPath>>,
    /// Whether csv begins with the names of the columns; default no.
    pub header: Option<bool>,
    /// The field that `raw` writes, and the body of avro_event; default `message`.
    pub field: Option<FieldPath>,
    /// The names of avro_event's headers.
    pub headers: Option<Headers>,
    /// The text that `template` writes.
    pub template: Option<Template>,
    /// The end of each record; default a newline, nothing for template.
    pub delimiter: Option<String>,
    /// The replacement for text that is not UTF-8; default base64 in JSON, unchanged bytes otherwise.
    pub invalid_utf8: Option<InvalidUtf8>,
}

impl Options {
    /// The encoder for these options; strftime in templates uses the time zone `zone`.
    ///
    /// # Errors
    /// [`OptionError`]: an option is set that the format does not have, or an option is missing that the format needs.
    pub fn encoder(&self, zone: &TimeZone) -> Result<Encoder, OptionError> {
        self.check()?;
        Encoder::new(self, zone)
    }

    fn check(&self) -> Result<(), OptionError> {
        let unused = |option, only| {
            let help = format!("remove it, or set `format: {only}`");
            Err(OptionError::new(
                option,
                format!("`{option}` has no effect with this format"),
                help,
            ))
        };
        match self.format {
            Format::Json | Format::Ltsv | Format::Csv | Format::Msgpack | Format::AvroEvent => {}
            _ if self.add.is_some() => return unused("add", "json"),
            _ => {}
        }
        match (self.format, self.columns.as_deref()) {
            (Format::Csv, None | Some([])) => {
                return Err(OptionError::new(
                    "columns",
                    "`format: csv` without `columns`",
                    "name the fields, such as `columns: [time, host, .user.id, message]`",
                ));
            }
            (Format::Csv, Some(_)) | (_, None) => {}
            (_, Some(_)) => return unused("columns", "csv"),
        }
        if self.header.is_some() && self.format != Format::Csv {
            return unused("header", "csv");
        }
        if self.field.is_some() && !matches!(self.format, Format::Raw | Format::AvroEvent) {
            return unused("field", "raw");
        }
        if self.headers.is_some() && self.format != Format::AvroEvent {
            return unused("headers", "avro_event");
        }
        if self.delimiter.is_some() && matches!(self.format, Format::Msgpack | Format::AvroEvent) {
            return unused("delimiter", "json");
        }
        if self.invalid_utf8.is_some() && matches!(self.format, Format::Msgpack | Format::AvroEvent)
        {
            return unused("invalid_utf8", "json");
        }
        match (self.format, &self.template) {
            (Format::Template, None) => Err(OptionError::new(
                "template",
                "`format: template` without a `template`",
                "add one, such as `template: \"%FT%TZ {host} {.message}\\n\"`",
            )),
            (Format::Template, Some(_)) | (_, None) => Ok(()),
            (_, Some(_)) => unused("template", "template"),
        }
    }
}
