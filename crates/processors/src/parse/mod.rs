//! The processor `parse`: parses the text of a field into separate fields.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! The formats are in `wire::parse`. A record whose text does not have the format is passed on unchanged or rejected.

use std::sync::Arc;

use jiff::tz::TimeZone;
use millstream_config::Node;
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component},
    output::Out,
    processor::{MAIN, Processor, Task},
    report::Reporter,
};
use millstream_record::{Batch, Encoding};
use millstream_wire::{
    lines::write_entry,
    parse::{Fault, Input, OnError, OptionError, ParseOptions, Parser},
    record::records,
};

use crate::zone;

/// The entry in the list of processors.
pub const COMPONENT: Component = Component {
    name: "parse",
    summary: "Reads JSON, logfmt, CSV, access logs and other texts of a field and makes fields of them.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(ParseOptions),
    build: Build::Processor(build),
};

struct Parse {
    options: ParseOptions,
    zone: TimeZone,
    reporter: Reporter,
}

fn build(name: &str, options: &Node) -> Checked<Arc<dyn Processor>> {
    if let Some(field) = options.find("time").and_then(Node::as_text) {
        let problem = options.problem_at("time", "`time` wants a map");
        let help = format!("write `time: {{ field: \"{field}\" }}`");
        return Err(vec![problem.help(help)]);
    }
    let parse: ParseOptions = options.read()?;
    let in_time = parse.time.as_ref().and_then(|time| time.timezone.as_ref());
    let (path, zone) = match in_time {
        Some(zone) => ("time.timezone", Some(zone)),
        None => ("timezone", parse.timezone.as_ref()),
    };
    let zone = zone.map(String::as_str);
    let zone = zone::find(options, path, zone).map_err(|problem| vec![problem])?;
    if let Err(OptionError {
        option,
        message,
        help,
    }) = Parser::new(&parse, zone.clone())
    {
        return Err(vec![options.problem_at(option, message).help(help)]);
    }
    Ok(Arc::new(Parse {
        options: parse,
        zone,
        reporter: Reporter::new(name),
    }))
}

impl Processor for Parse {
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        let parser = Parser::new(&self.options, self.zone.clone());
        let parser = parser.map_err(|error| Failure::config(error.to_string()))?;
        Ok(Box::new(Parsing {
            parser,
            reporter: self.reporter.clone(),
        }))
    }
}

struct Parsing {
    parser: Parser,
    reporter: Reporter,
}

impl Task for Parsing {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        for (range, _) in records(batch) {
            let record = &batch.body[range.clone()];
            let line = record.strip_suffix(b"\n").unwrap_or(record);
            let input = match batch.encoding {
                Encoding::Lines => Input::Line(line),
                Encoding::Packed => Input::Entry(record),
            };
            let parsed = out.append(MAIN, None, |buffer| {
                self.parser.entry(input, batch.received, buffer).map(|()| 1)
            });
            match (parsed, self.parser.on_error(), batch.encoding) {
                (Ok(()), ..) => {
                    if let Some(fault) = self.parser.time_fault() {
                        out.fail(1);
                        let text = format_args!(
                            "{fault}; the field stays in the record, which keeps the time that it had: change `time`"
                        );
                        self.reporter.warn("time", text);
                    }
                }
                (Err(fault), OnError::Reject, _) => out.reject(record, &fault.to_string()),
                (Err(_), OnError::Keep, Encoding::Packed) => {
                    out.fail(1);
                    out.keep(MAIN, range, 1);
                }
                (Err(_), OnError::Keep, Encoding::Lines) => {
                    out.fail(1);
                    // Parsed records are entries (`[time, record]` in MessagePack). The line becomes an entry, too, because all
                    // records of an output batch have the same encoding.
                    let _ = out.append(MAIN, None, |buffer| {
                        write_entry(buffer, batch.received, line);
                        Ok::<_, Fault>(1)
                    });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
