//! Runs a processor on batches, for tests.

use std::{collections::HashMap, sync::Arc};

use millstream_config::{Environment, Node, Problem, load};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Component},
    output::{Counts, Made as Output},
    processor::Processor,
    trial::Trial,
};
#[cfg(feature = "vrl")]
use millstream_record::Time;
use millstream_record::{Batch, Encoding};
pub(crate) use millstream_testkit::lines;
use millstream_wire::{json, msgpack};

/// A processor with one task.
pub(crate) struct Rig {
    processor: Arc<dyn Processor>,
    trial: Trial,
}

/// The output for a batch.
pub(crate) struct Made {
    /// The batches of each port, by the name of the port.
    pub(crate) ports: HashMap<Arc<str>, Vec<Batch>>,
    pub(crate) counts: Counts,
    pub(crate) rejected: Option<Batch>,
}

/// Parses YAML into options, as from a configuration file.
pub(crate) fn options(text: &str) -> Node {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let loaded = load(&[file.path().to_owned()], &Environment::empty());
    loaded
        .unwrap_or_else(|_| panic!("{text} is no YAML"))
        .tree
        .root
}

/// A processor with these options.
pub(crate) fn built(
    component: &Component,
    options: &str,
) -> Result<Arc<dyn Processor>, Vec<Problem>> {
    let Build::Processor(build) = component.build else {
        panic!("{} is no processor", component.name);
    };
    build("p", &self::options(options))
}

/// Returns the problems of unusable options. The list is empty if the options can be used.
pub(crate) fn found(component: &Component, options: &str) -> Vec<Problem> {
    built(component, options).err().unwrap_or_default()
}

/// The line, the column and the text that a problem refers to.
#[cfg(feature = "vrl")]
pub(crate) fn pointed(problem: &Problem) -> (u32, u32, String) {
    let place = &problem.place;
    let text = place.slice().unwrap_or_default().to_owned();
    (place.line, place.column, text)
}

/// Returns the messages of the problems of unusable options, each with its help text.
pub(crate) fn problems(component: &Component, options: &str) -> Vec<String> {
    let text = |problem: Problem| match problem.help {
        Some(help) => format!("{}: {help}", problem.message),
        None => problem.message,
    };
    found(component, options).into_iter().map(text).collect()
}

impl Rig {
    pub(crate) fn new(component: &Component, options: &str) -> Self {
        let processor = built(component, options).unwrap_or_else(|problems| {
            panic!("{options}: {}", problems[0].message);
        });
        let trial = Trial::new("p", &*processor).unwrap();
        Self { processor, trial }
    }

    pub(crate) fn changes_tags(&self) -> bool {
        self.processor.changes_tags()
    }

    #[cfg(feature = "vrl")]
    pub(crate) fn warnings(&self) -> &[Problem] {
        self.processor.warnings()
    }

    /// As if a reload had replaced the processor.
    pub(crate) fn retire(&self) {
        self.processor.retire();
    }

    pub(crate) fn run(&mut self, batch: &Batch) -> Made {
        self.try_run(batch).unwrap()
    }

    pub(crate) fn try_run(&mut self, batch: &Batch) -> Result<Made, Failure> {
        let Output {
            ports,
            counts,
            rejected,
            ..
        } = self.trial.run(batch)?;
        Ok(Made {
            ports: self.trial.ports().iter().cloned().zip(ports).collect(),
            counts,
            rejected,
        })
    }
}

impl Made {
    /// The records of a port as texts: lines unchanged, entries as JSON.
    pub(crate) fn lines(&self, port: &str) -> Vec<String> {
        self.ports[port].iter().flat_map(texts).collect()
    }
}

pub(crate) fn texts(batch: &Batch) -> Vec<String> {
    if batch.encoding == Encoding::Lines {
        let text = String::from_utf8_lossy(&batch.body).into_owned();
        return text.lines().map(str::to_owned).collect();
    }
    let (mut at, mut texts) = (0, Vec::new());
    while at < batch.len() {
        let head = msgpack::entry_head(&batch.body, at).unwrap();
        let mut text = Vec::new();
        json::write_value(&batch.body, head.record, &mut text).unwrap();
        texts.push(String::from_utf8(text).unwrap());
        let mut open = 1;
        at = msgpack::skip(&batch.body, at, &mut open).unwrap();
    }
    texts
}

/// The time of every entry that [`packed`] writes.
#[cfg(feature = "vrl")]
pub(crate) const EVENT: Time = Time(1_600_000_000_000_000_007);

/// A batch of entries (`[time, record]` in MessagePack), one for each JSON text.
#[cfg(feature = "vrl")]
pub(crate) fn packed(tag: &str, records: &[String]) -> Batch {
    let mut body = Vec::new();
    for record in records {
        msgpack::write_array_len(&mut body, 2);
        msgpack::write_time(&mut body, EVENT);
        json::to_msgpack(record.as_bytes(), &mut body).unwrap();
    }
    Batch {
        tag: tag.into(),
        plain: true,
        ..entries(body, records.len() as u32)
    }
}

/// Splits a batch into batches of one record each.
#[cfg(feature = "vrl")]
pub(crate) fn singles(batch: &Batch) -> Vec<Batch> {
    let single = |(range, _)| Batch {
        body: batch.body.slice(range),
        count: 1,
        ..batch.clone()
    };
    millstream_wire::record::records(batch)
        .map(single)
        .collect()
}

/// A small generator of pseudo-random numbers. The same seed always gives the same numbers.
#[cfg(feature = "vrl")]
pub(crate) struct Chance(pub(crate) u64);

#[cfg(feature = "vrl")]
impl Chance {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }

    pub(crate) fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

/// A batch of entries.
pub(crate) fn entries(body: Vec<u8>, count: u32) -> Batch {
    Batch {
        encoding: Encoding::Packed,
        body: body.into(),
        count,
        ..lines("t", "")
    }
}
