//! `parse_syslog`. If a message has no year, the original function takes the year from the clock. This version takes it from the
//! receive time of the batch.

use chrono::{DateTime, Datelike, NaiveDate, Utc};
use millstream_record::Time;
use millstream_wire::syslog::newest;
use syslog_loose::{Message, ProcId, Protocol, Variant, parse_message_with_year_exact_tz};
use vrl::{
    compiler::{Context, Resolved, TimeZone},
    value::{ObjectMap, Value},
};

use super::repeatable::now;

/// Parses the first argument. Apart from the year, the result is that of the original function.
pub(super) fn parse(arguments: &[Option<Value>], context: &mut Context<'_>) -> Resolved {
    let Value::Timestamp(received) = now(&[], context)? else {
        return Err("there is no record".into());
    };
    let Some(Some(value)) = arguments.first() else {
        return Err("there is no value".into());
    };
    let text = value.as_bytes().ok_or("expected a string")?;
    let text = String::from_utf8_lossy(text);
    let zone = match context.timezone() {
        TimeZone::Named(zone) => Some(*zone),
        TimeZone::Local => None,
    };
    let now = Time::from_parts(received.timestamp(), 0);
    let year = |(month, day, hour, minute, second): syslog_loose::IncompleteDate| {
        let in_year = |year: i64| {
            let date = NaiveDate::from_ymd_opt(i32::try_from(year).ok()?, month, day)?;
            Some(
                date.and_hms_opt(hour, minute, second)?
                    .and_utc()
                    .timestamp(),
            )
        };
        let newest = newest(received.year().into(), now, in_year);
        let newest = newest.and_then(|seconds| DateTime::from_timestamp(seconds, 0));
        newest.map_or(received.year(), |time| time.year())
    };
    let message = parse_message_with_year_exact_tz(&text, year, zone, Variant::Either)?;
    Ok(value_of(message))
}

fn value_of(message: Message<&str>) -> Value {
    let mut fields = ObjectMap::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(name.into(), value);
        }
    };
    set("message", Some(message.msg.into()));
    set("hostname", message.hostname.map(Value::from));
    let severity = message.severity.map(|severity| severity.as_str());
    set("severity", severity.map(Value::from));
    let facility = message.facility.map(|facility| facility.as_str());
    set("facility", facility.map(Value::from));
    if let Protocol::RFC5424(version) = message.protocol {
        set("version", Some(version.into()));
    }
    set("appname", message.appname.map(Value::from));
    set("msgid", message.msgid.map(Value::from));
    let time = message.timestamp.map(DateTime::<Utc>::from);
    set("timestamp", time.map(Value::from));
    let process = message.procid.map(|process| match process {
        ProcId::PID(number) => Value::from(number),
        ProcId::Name(name) => Value::from(name),
    });
    set("procid", process);
    for element in message.structured_data {
        let parameters = element.params();
        let parameters: ObjectMap = parameters
            .map(|(name, value)| ((*name).into(), value.into()))
            .collect();
        set(element.id, Some(Value::Object(parameters)));
    }
    Value::Object(fields)
}
