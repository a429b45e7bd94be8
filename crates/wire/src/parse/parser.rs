//! Parses one record: writes its head and other fields, then the parsed fields, and finally the lengths of the maps.

use jiff::tz::TimeZone;
use millstream_record::Time;

pub use super::join::Input;
use super::{
    Fault, Kind, OnError, OptionError, ParseOptions, TextFormat,
    access::Access,
    fields::{Fields, Meaning, Slot},
    join::{Begun, Joint, set_map_len, set_time},
    logfmt,
    options::name,
    others::{Others, Own},
    packed::{Json, Syslog},
    pattern::Pattern,
    separated,
    time::Stamps,
};
use crate::msgpack::write_str;

/// Parses records. The buffers are reused, so there are no allocations per record.
#[derive(Debug)]
pub struct Parser {
    joint: Joint,
    text: Text,
    meaning: Meaning,
    stamps: Stamps,
    others: Others,
    own: Own,
    /// A buffer for a text with its escapes resolved, or for a map that is not part of the record yet.
    scratch: Vec<u8>,
    on_error: OnError,
}

/// The format of the text.
#[derive(Debug)]
enum Text {
    Json(Json),
    Regex(Pattern),
    Logfmt,
    Ltsv,
    Csv(Box<[Slot]>),
    Tsv(Box<[Slot]>),
    Syslog(Box<Syslog>),
    Access(Box<Access>),
}

impl Parser {
    /// Creates a parser for these options. Times without a zone are in `zone`. The caller takes this zone from
    /// [`ParseOptions::time`] or, if no zone is set there, from [`ParseOptions::timezone`].
    ///
    /// # Errors
    /// If the format does not use an option that is set, if it needs an option that is missing, or if an option has a
    /// wrong value.
    pub fn new(options: &ParseOptions, zone: TimeZone) -> Result<Self, OptionError> {
        options.check()?;
        let into = options.name_of_into()?;
        let time = match options.time.as_ref().and_then(|time| time.field.as_deref()) {
            Some(field) => name(field, "time.field")?,
            None => "time".to_owned(),
        };
        let types = options.types.iter().map(|(field, kind)| {
            let name = name(field, "types")?;
            Ok((name.into_bytes().into(), *kind))
        });
        let syslog = options.format == TextFormat::Syslog;
        let format = options
            .time
            .as_ref()
            .and_then(|time| time.format.as_deref());
        let none = format == Some("none");
        let meaning = Meaning {
            time: (!syslog && !none).then(|| time.into_bytes().into()),
            types: types.collect::<Result<Vec<(Box<[u8]>, Kind)>, OptionError>>()?,
        };
        let slots = || -> Result<Box<[Slot]>, OptionError> {
            let columns = options.columns.iter().flatten();
            let slots = columns.map(|column| {
                let name = name(column, "columns")?;
                Ok(Slot::new(&name, None, &meaning))
            });
            slots.collect()
        };
        let mut stamps = Stamps::new(options.time.as_ref(), options.format, zone.clone())?;
        stamps.strict = options.on_error == OnError::Reject;
        let text = match options.format {
            TextFormat::Json => Text::Json(Json::new(&meaning)),
            TextFormat::Regex => {
                let pattern = options.pattern.as_deref().unwrap_or_default();
                Text::Regex(Pattern::new(pattern, &meaning)?)
            }
            TextFormat::Logfmt => Text::Logfmt,
            TextFormat::Ltsv => Text::Ltsv,
            TextFormat::Csv => Text::Csv(slots()?),
            TextFormat::Tsv => Text::Tsv(slots()?),
            TextFormat::Syslog => Text::Syslog(Box::new(Syslog::new(zone))),
            TextFormat::Apache => Text::Access(Box::new(Access::apache(&meaning))),
            TextFormat::Nginx => Text::Access(Box::new(Access::nginx(&meaning))),
        };
        Ok(Self {
            joint: Joint {
                field: options.field.clone(),
                keep: options.keep,
                into: into.map(|name| name.as_bytes().into()),
            },
            text,
            meaning,
            stamps,
            others: Others::default(),
            own: Own::default(),
            scratch: Vec::new(),
            on_error: options.on_error,
        })
    }

    /// Returns how to handle a record whose text does not have the format.
    pub fn on_error(&self) -> OnError {
        self.on_error
    }

    /// Returns why the time of the last record could not be read. Its other fields were parsed all the same, because
    /// [`Parser::on_error`] is [`OnError::Keep`].
    pub fn time_fault(&self) -> Option<Fault> {
        self.stamps.unread
    }

    /// Appends the record with its parsed fields to `out`, as one entry of the packed encoding (MessagePack
    /// `[time, map]`). A record without a time gets `received`.
    ///
    /// # Errors
    /// If the text cannot be parsed. In that case, `out` is unchanged.
    pub fn entry(
        &mut self,
        input: Input<'_>,
        received: Time,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let start = out.len();
        self.stamps.unread = None;
        let result = self.append(input, received, out);
        if result.is_err() {
            out.truncate(start);
        }
        if self.scratch.capacity() > SCRATCH_BYTES {
            self.scratch.truncate(0);
            self.scratch.shrink_to(SCRATCH_BYTES);
        }
        result
    }

    #[inline]
    fn append(&mut self, input: Input<'_>, received: Time, out: &mut Vec<u8>) -> Result<(), Fault> {
        let start = out.len();
        let begun = self.joint.begin(input, received, &mut self.others, out)?;
        let Begun {
            text,
            time,
            map_at,
            others,
            plain,
        } = begun;
        // Whether the parsed fields are the only fields of the record.
        let alone = others == 0 && self.joint.into.is_none();
        if let Text::Syslog(syslog) = &mut self.text
            && alone
            && plain
            && self.meaning.types.is_empty()
        {
            out.truncate(start);
            return syslog.append(text, time, out);
        }
        let at = match &self.joint.into {
            None => map_at,
            Some(into) => {
                write_str(out, into);
                out.push(0x80);
                out.len() - 1
            }
        };
        let whole = alone || self.joint.into.is_some();
        if let Text::Json(json) = &mut self.text {
            let direct = whole && self.meaning.types.is_empty();
            if json.read(text, at, direct, out)? {
                if at > map_at {
                    set_map_len(out, map_at, others + 1);
                }
                return Ok(());
            }
        }
        self.own.begin(out.len());
        let mut fields = Fields {
            out,
            count: 0,
            time: None,
            now: time,
            others: &mut self.others,
            own: &mut self.own,
            meaning: &self.meaning,
            stamps: &mut self.stamps,
            scratch: &mut self.scratch,
        };
        self.text.fields(text, &mut fields)?;
        let (count, time) = (fields.count, fields.time);
        let count = count - self.own.remove_repeats(out)?;
        if at > map_at {
            set_map_len(out, at, count);
            set_map_len(out, map_at, others + 1);
        } else {
            let replaced = self.others.remove_replaced(out)?;
            set_map_len(out, map_at, others - replaced + count);
        }
        match time {
            Some(time) => set_time(out, start, time),
            None => Ok(()),
        }
    }
}

impl Text {
    /// Appends the fields of `text`.
    #[inline]
    fn fields(&mut self, text: &[u8], fields: &mut Fields<'_>) -> Result<(), Fault> {
        match self {
            Self::Json(json) => fields.map(json.map()),
            Self::Regex(pattern) => pattern.fields(text, fields),
            Self::Logfmt => logfmt::fields(text, fields),
            Self::Ltsv => separated::ltsv(text, fields),
            Self::Csv(columns) => separated::csv(text, columns, fields),
            Self::Tsv(columns) => separated::tsv(text, columns, fields),
            Self::Syslog(syslog) => syslog.fields(text, fields),
            Self::Access(access) => access.fields(text, fields),
        }
    }
}

/// The number of bytes that [`Parser::scratch`] may keep for the next record.
const SCRATCH_BYTES: usize = 1 << 20;
