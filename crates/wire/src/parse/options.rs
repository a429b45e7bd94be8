//! The options of the processor `parse`, and their validation.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Kind, OptionError};
use crate::record::{FieldPath, MESSAGE};

/// Format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TextFormat {
    /// A JSON object.
    Json,
    /// The named groups of `pattern`.
    Regex,
    /// `key=value key="quoted value"`; a key without a value is true.
    Logfmt,
    /// `label:value`, separated by tabs.
    Ltsv,
    /// Values separated by commas, quoted as in RFC 4180, with the names of `columns`.
    Csv,
    /// Values separated by tabs, without quotes, with the names of `columns`.
    Tsv,
    /// RFC 3164 and RFC 5424, with the fields of the source `syslog`.
    Syslog,
    /// Apache's access log: `common`, `combined` and Debian's `vhost_combined`.
    Apache,
    /// The access log of nginx: `combined`, also with `"$http_x_forwarded_for"` at its end.
    Nginx,
}

/// Handling of a record whose text does not have the format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The record is passed on unchanged, and counted.
    #[default]
    Keep,
    /// The record leaves by the port `NAME.rejected`.
    Reject,
}

/// The field that holds the event time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TimeOptions {
    /// Name of the parsed field that holds the time. Default: `time`.
    pub field: Option<String>,
    /// Format of the time: strftime as in Fluentd (`%d/%b/%Y:%H:%M:%S %z`; `%L` and `%N` are fractions of any length), `iso8601` or
    /// `rfc3339`, `unix`, `unix_ms`, `unix_us`, `unix_ns`, `auto` (RFC 3339, the time of access logs, or a number of seconds or
    /// milliseconds since 1970 that is a time in 1973 or later), or `none` (the field is not a time). Default: the time of access
    /// logs for apache and nginx, and `auto` for all other formats.
    pub format: Option<String>,
    /// Time zone of times without a zone in this field, such as `Europe/Berlin` or `+09:00`. Default: the option `timezone` of the
    /// node.
    pub timezone: Option<String>,
    /// Whether the field stays in the record. Default: `false`.
    pub keep: bool,
}

/// The options of `parse`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParseOptions {
    /// Field whose text is parsed. Default: `.message`. The text of a line is its `.message`.
    #[serde(default = "message")]
    pub field: FieldPath,
    /// Format of the text: `json`, `regex`, `logfmt`, `ltsv`, `csv`, `tsv`, `syslog`, `apache` or `nginx`.
    #[serde(rename = "as")]
    pub format: TextFormat,
    /// Regular expression of `as: regex`. Its named groups, such as `(?<level>\\w+)`, become fields. A group that does not take
    /// part in the match is left out. Matching takes linear time, so look-around and back-references are not supported. Patterns of Fluentd and Fluent
    /// Bit keep their meaning: `/.../` around the pattern, `\\<` and `\\>` for `<` and `>`, and `(?m)`, with which `.` also matches a
    /// newline.
    #[serde(default)]
    pub pattern: Option<String>,
    /// Names of the values of `as: csv` and `as: tsv`, in the order of the values.
    #[serde(default)]
    pub columns: Option<Vec<String>>,
    /// Types of parsed fields: `integer`, `float`, `boolean` or `string`, such as `{ size: integer }`. A value that cannot be
    /// converted stays as it is. Default: text for all fields. Exceptions: json keeps the types of the text, and `code` and `size`
    /// of apache and nginx are integers.
    #[serde(default)]
    pub types: BTreeMap<String, Kind>,
    /// Parsed field that becomes the event time. Default: the field `time`, if it holds a time that `auto` can read. If this option
    /// is set, or with `as: apache` and `as: nginx`, a record whose field does not hold a time in the expected format is counted,
    /// and keeps the field and its time; with `on_error: reject`, it leaves by `NAME.rejected`. A record without the field keeps
    /// its time.
    #[serde(default)]
    pub time: Option<TimeOptions>,
    /// Time zone of times without a zone, such as `Europe/Berlin` or `+09:00`. Default: the top-level `timezone`.
    #[serde(default)]
    pub timezone: Option<String>,
    /// Field that gets the parsed fields as a map, such as `.http`. Default: the parsed fields become fields of the record.
    #[serde(default)]
    pub into: Option<FieldPath>,
    /// Whether the field whose text is parsed stays in the record. Default: `false`.
    #[serde(default)]
    pub keep: bool,
    /// Handling of a record whose text does not have the format: `keep` (it is passed on unchanged, and counted) or `reject`
    /// (it leaves by the port `NAME.rejected`). Default: `keep`.
    #[serde(default)]
    pub on_error: OnError,
}

fn message() -> FieldPath {
    FieldPath::top(MESSAGE)
}

impl ParseOptions {
    /// Returns the options for a format, with the defaults of all other options.
    pub fn new(format: TextFormat) -> Self {
        Self {
            field: message(),
            format,
            pattern: None,
            columns: None,
            types: BTreeMap::new(),
            time: None,
            timezone: None,
            into: None,
            keep: false,
            on_error: OnError::Keep,
        }
    }

    /// Fails if an option is set that has no effect with the format, or if an option that the format needs is missing.
    pub(super) fn check(&self) -> Result<(), OptionError> {
        let unused = |option, only| {
            let message = format!("`{option}` has no effect with this format");
            let help = format!("remove it, or set `as: {only}`");
            Err(OptionError::new(option, message, help))
        };
        match (self.format, self.pattern.is_some()) {
            (TextFormat::Regex, false) => {
                return Err(OptionError::new(
                    "pattern",
                    "`as: regex` without a `pattern`",
                    r"write one with named groups, such as `pattern: '^(?<level>\w+) (?<text>.*)$'`",
                ));
            }
            (TextFormat::Regex, true) | (_, false) => {}
            (_, true) => return unused("pattern", "regex"),
        }
        match (self.format, self.columns.as_deref()) {
            (TextFormat::Csv | TextFormat::Tsv, None | Some([])) => {
                return Err(OptionError::new(
                    "columns",
                    "`as: csv` and `as: tsv` need `columns`",
                    "name the values in their order, such as `columns: [time, host, size]`",
                ));
            }
            (TextFormat::Csv | TextFormat::Tsv, Some(_)) | (_, None) => {}
            (_, Some(_)) => return unused("columns", "csv"),
        }
        self.check_columns()?;
        let own = |time: &TimeOptions| time.field.is_some() || time.format.is_some() || time.keep;
        if self.format == TextFormat::Syslog && self.time.as_ref().is_some_and(own) {
            return Err(OptionError::new(
                "time",
                "a syslog message has its time at a fixed place",
                "remove all but `timezone`",
            ));
        }
        Ok(())
    }

    fn check_columns(&self) -> Result<(), OptionError> {
        let columns = self.columns.iter().flatten();
        // A name may begin with a dot.
        let mut names: Vec<_> = columns
            .map(|name| name.strip_prefix('.').unwrap_or(name))
            .collect();
        names.sort_unstable();
        let mut pairs = names.windows(2);
        match pairs.find(|pair| matches!(pair, [one, next] if one == next)) {
            Some([name, ..]) => Err(OptionError::new(
                "columns",
                format!("`{name}` is named twice, so only the last of its values would remain"),
                "give each value another name",
            )),
            _ => Ok(()),
        }
    }

    /// Returns the name in the option `into`. Fails if it is not a top-level field.
    pub(super) fn name_of_into(&self) -> Result<Option<&str>, OptionError> {
        let Some(path) = &self.into else {
            return Ok(None);
        };
        let name = path.top_name().ok_or_else(|| {
            let message = format!("`{path}` is inside another field");
            OptionError::new(
                "into",
                message,
                "name a field of the record, such as `.parsed`",
            )
        })?;
        Ok(Some(name))
    }
}

/// Parses the name of a parsed field, which may begin with a dot.
pub(super) fn name(text: &str, option: &'static str) -> Result<String, OptionError> {
    let path: FieldPath = text.parse().map_err(|error| {
        OptionError::new(
            option,
            format!("`{text}` is not the name of a field ({error})"),
            "a name is `size` or `.size`; put it in quotes if it has other characters",
        )
    })?;
    let top = path.top_name().ok_or_else(|| {
        OptionError::new(
            option,
            format!("`{text}` is inside another field"),
            "name a field at the top level of the parsed text",
        )
    })?;
    Ok(top.to_owned())
}
