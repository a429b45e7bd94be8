//! Runs a case: passes its records through the processors, one record at a time. Sources and sinks do not run.

use std::sync::Arc;

use jiff::Timestamp;
use millstream_pipeline::{
    failure::Failure,
    plan::{Link, Plan},
    reject::{Original, Rejected},
    tags::TagFilter,
    trial::Trial,
};
use millstream_record::{Batch, Time};
use millstream_wire::{
    json,
    record::{MESSAGE, Record, records},
};
use serde_json::{Map, Value};

use super::{
    Case, Seen,
    differ::{Difference, differences},
    find,
    order::{between, links},
};

/// A node that the records of a case pass through.
struct Step {
    /// The processor. `None` if the node is a source or a channel, which passes all records on.
    trial: Option<Trial>,
    /// The connections of each port to later steps.
    ports: Vec<Vec<Hop>>,
}

/// A connection to another step.
struct Hop {
    to: usize,
    tags: Option<TagFilter>,
}

/// The records that left the tested processor.
#[derive(Default)]
struct Left {
    /// The records of each port.
    ports: Vec<(Arc<str>, Vec<Seen>)>,
    rejected: Vec<Seen>,
}

impl Case {
    /// Runs the case. Returns the differences between the records that left and the expected ones.
    pub fn run(&self, plan: &Plan) -> Result<Vec<Difference>, Failure> {
        let left = self.left(plan)?;
        let mut found = Vec::new();
        for (port, records) in &left.ports {
            let expected = self.expect.iter().find(|leaving| *leaving.port == **port);
            let expected = expected.map_or(&[][..], |leaving| &leaving.records);
            found.extend(differences(port, expected, records));
        }
        found.extend(differences("rejected", &self.rejected, &left.rejected));
        Ok(found)
    }

    /// Passes the given records through all steps. Returns the records that left the tested processor.
    fn left(&self, plan: &Plan) -> Result<Left, Failure> {
        let mut steps = self.steps(plan)?;
        let mut left = Left::default();
        let Some(last) = steps.len().checked_sub(1) else {
            return Ok(left);
        };
        if let Some(trial) = &steps[last].trial {
            let ports = trial.ports().iter();
            left.ports = ports.map(|port| (port.clone(), Vec::new())).collect();
        }
        let mut waiting: Vec<Vec<Batch>> = steps.iter().map(|_| Vec::new()).collect();
        for given in &self.given {
            waiting[0].push(given.clone());
            for at in 0..steps.len() {
                for batch in std::mem::take(&mut waiting[at]) {
                    let (ports, rejects) = steps[at].run(batch)?;
                    left.rejected.extend(rejects.iter().flat_map(rejected));
                    for (number, batches) in ports.into_iter().enumerate() {
                        if at == last {
                            left.ports[number].1.extend(batches.iter().flat_map(seen));
                        } else {
                            steps[at].pass_on(number, &batches, &mut waiting);
                        }
                    }
                }
            }
        }
        Ok(left)
    }

    /// Makes a step for each node that is on a path from the node that the records enter to the tested processor. The tested processor is
    /// the last step.
    fn steps(&self, plan: &Plan) -> Result<Vec<Step>, Failure> {
        let start = self.from.as_ref().map_or(&*self.node, |(from, _)| from);
        let names = between(plan, start, &self.node).unwrap_or_default();
        let hops = |name: &str, port: &str| {
            let behind = links(plan).filter(|link| *link.from == *name && *link.port == *port);
            let hop = |link: &Link| {
                let to = names.iter().position(|name| *name == link.to)?;
                let tags = link.tags.clone();
                Some(Hop { to, tags })
            };
            behind.filter_map(hop).collect::<Vec<_>>()
        };
        let step = |name: &Arc<str>| {
            let processor = find(plan, name).map(|found| &found.processor);
            let trial = processor.map(|processor| Trial::new(name, &**processor));
            let trial = trial.transpose()?;
            let ports = match &trial {
                Some(trial) => trial.ports().iter().map(|port| hops(name, port)).collect(),
                None => vec![hops(name, "")],
            };
            Ok(Step { trial, ports })
        };
        names.iter().map(step).collect()
    }
}

impl Step {
    /// Processes a batch. Returns the batches of each port, and the rejected records.
    fn run(&mut self, batch: Batch) -> Result<(Vec<Vec<Batch>>, Option<Batch>), Failure> {
        let Some(trial) = &mut self.trial else {
            return Ok((vec![vec![batch]], None));
        };
        let made = trial.run(&batch)?;
        Ok((made.ports, made.rejected))
    }

    fn pass_on(&self, port: usize, batches: &[Batch], waiting: &mut [Vec<Batch>]) {
        for batch in batches {
            for hop in &self.ports[port] {
                let tags = hop.tags.as_ref();
                if tags.is_none_or(|tags| tags.takes(batch.tag.as_str())) {
                    waiting[hop.to].push(batch.clone());
                }
            }
        }
    }
}

/// The records of a batch.
fn seen(batch: &Batch) -> impl Iterator<Item = Seen> {
    records(batch).map(|(_, event)| Seen {
        record: match event.record {
            Record::Line(line) => of_text(&String::from_utf8_lossy(line)),
            Record::Packed(entry) => json_of(entry),
            Record::None => Value::Null,
        },
        metadata: metadata(batch.tag.as_str(), event.time, batch.values.iter()),
        reason: None,
    })
}

/// The rejected records in a batch, as they were before the rejection.
fn rejected(batch: &Batch) -> impl Iterator<Item = Seen> {
    records(batch).filter_map(|(range, _)| {
        let rejected = Rejected::read(&batch.body[range])?;
        let (time, record) = match rejected.original() {
            Original::Text(text) => (None, of_text(text.strip_suffix('\n').unwrap_or(text))),
            Original::Entry(time, record) => {
                let text = || record.as_str().into();
                (
                    time,
                    serde_json::from_str(&record).unwrap_or_else(|_| text()),
                )
            }
            Original::Binary(bytes) => (None, of_text(&String::from_utf8_lossy(bytes))),
        };
        let time = time.unwrap_or(rejected.time);
        Some(Seen {
            record,
            metadata: metadata(rejected.tag, time, rejected.values.iter().copied()),
            reason: Some(format!("{}: {}", rejected.node, rejected.reason)),
        })
    })
}

fn metadata<'a>(
    tag: &str,
    time: Time,
    values: impl Iterator<Item = (&'a str, &'a str)>,
) -> Vec<(String, String)> {
    let time = Timestamp::from_nanosecond(time.0.into()).unwrap_or_default();
    let first = [("tag", tag.to_owned()), ("time", time.to_string())];
    let values = values.map(|(name, value)| (name, value.to_owned()));
    let all = first.into_iter().chain(values);
    all.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The record that has this text in the field `message`.
fn of_text(text: &str) -> Value {
    Map::from_iter([(MESSAGE.to_owned(), text.into())]).into()
}

/// A record as JSON. A record that JSON cannot represent is shown as text.
pub(super) fn json_of(packed: &[u8]) -> Value {
    let mut text = Vec::new();
    match json::write_value(packed, 0, &mut text) {
        Ok(_) => {
            serde_json::from_slice(&text).unwrap_or_else(|_| String::from_utf8_lossy(&text).into())
        }
        Err(why) => format!("no JSON: {why}").into(),
    }
}
