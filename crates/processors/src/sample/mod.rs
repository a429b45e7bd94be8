//! The processor `sample`: keeps a part of the records.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! A hash of the record, or of its key, decides whether the record is kept. So the decision depends neither on a counter, which a
//! replay would restart, nor on the boundaries of batches. Adjacent records that are kept are passed on as one range, without a
//! copy.

mod hash;

use std::{ops::Range, sync::Arc};

use jiff::tz::TimeZone;
use millstream_config::{Node, Problem};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component},
    output::Out,
    processor::{MAIN, Processor, Task},
};
use millstream_record::{Batch, Encoding};
use millstream_wire::{
    condition::Where,
    record::{TimedRecord, records},
    template::{Depends, Missing, Renderer, Template},
};
use schemars::JsonSchema;
use serde::Deserialize;

use self::hash::Hash;
use crate::{
    condition::{Conditions, Decider},
    zone,
};

/// The entry in the list of processors.
pub const COMPONENT: Component = Component {
    name: "sample",
    summary: "Keeps a part of the records, such as one in ten.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Processor(build),
};

/// The options of `sample`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Keeps one in this many records, on average: `every: 10` is the same as `ratio: 0.1`. Set exactly one of `every` and `ratio`.
    every: Option<u64>,
    /// The fraction of the records to keep: greater than 0, and at most 1.
    ratio: Option<f64>,
    /// Template such as `"{.trace_id}"`: of all records with the same text, either all or none are kept. Default: each record is
    /// decided independently.
    key: Option<Template>,
    /// Condition of the records that are sampled, such as `{ .level: [debug, info] }`, or a text in VRL. All other records are
    /// kept. Default: all records are sampled.
    #[serde(rename = "where")]
    condition: Option<Where>,
    /// Time zone of strftime fields in `key`. A condition in VRL uses it for times without a zone, too. Default: the top-level
    /// `timezone`.
    timezone: Option<String>,
}

struct Sample {
    conditions: Option<Conditions>,
    key: Option<Template>,
    zone: TimeZone,
    sampler: Sampler,
}

fn build(name: &str, options: &Node) -> Checked<Arc<dyn Processor>> {
    let config: Config = options.read()?;
    let mut problems = Vec::new();
    let highest = match (config.every, config.ratio) {
        (Some(every), None) => u64::MAX
            .checked_div(every)
            .ok_or(("every", "it must be 1 or more")),
        (None, Some(ratio)) if ratio > 0.0 && ratio <= 1.0 => Ok((ratio * 2_f64.powi(64)) as u64),
        (None, Some(_)) => Err(("ratio", "it must be greater than 0, and 1 at most")),
        (Some(_), Some(_)) => Err(("ratio", "there is `every`, too: one of them must go")),
        (None, None) => Err(("", "it needs `every` or `ratio`")),
    };
    let highest = highest.unwrap_or_else(|(option, why)| {
        let problem = options.problem_at(option, why);
        problems.push(problem.help("to keep one record in ten, write `every: 10` or `ratio: 0.1`"));
        0
    });
    if let Some(key) = config
        .key
        .as_ref()
        .filter(|key| key.depends() == Depends::Nothing)
    {
        let message = format!("`{key}` is the same for all records");
        let field = if key.as_str().starts_with('.') {
            key.as_str()
        } else {
            ".user"
        };
        let help = format!("write a field in braces: `\"{{{field}}}\"`");
        problems.push(options.problem_at("key", message).help(help));
    }
    let timezone = config.timezone.as_deref();
    let zone = zone::find(options, "timezone", timezone).map_err(|problem| vec![problem])?;
    let condition = config.condition.iter();
    let conditions = condition
        .map(|condition| Conditions::new(options, timezone, [("where".to_owned(), condition)]))
        .next()
        .transpose();
    let conditions = conditions.unwrap_or_else(|found| {
        problems.extend(found);
        None
    });
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(Arc::new(Sample {
        conditions,
        key: config.key,
        zone,
        sampler: Sampler {
            highest,
            seed: Hash::new().bytes(name.as_bytes()),
        },
    }))
}

impl Processor for Sample {
    fn warnings(&self) -> &[Problem] {
        let conditions = self.conditions.as_ref();
        conditions.map_or(&[], |conditions| &conditions.warnings)
    }

    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        let renderer = |key| Renderer::text(key, self.zone.clone());
        Ok(Box::new(Sampling {
            decider: self.conditions.as_ref().map(Conditions::decider),
            key: self.key.as_ref().map(renderer),
            sampler: self.sampler.clone(),
            text: Vec::new(),
        }))
    }
}

/// Decides which records to keep, by their hashes.
#[derive(Clone, Debug)]
struct Sampler {
    /// Records whose hash is at most this are kept.
    highest: u64,
    /// The initial state of the hashes of records. It differs from node to node. Otherwise a second sampling node would keep
    /// everything that the first one kept.
    seed: Hash,
}

struct Sampling {
    decider: Option<Decider>,
    key: Option<Renderer>,
    sampler: Sampler,
    /// The key of the current record.
    text: Vec<u8>,
}

impl Task for Sampling {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        let Self {
            decider,
            key,
            sampler,
            text,
        } = self;
        let of_batch = sampler.seed.bytes(batch.tag.as_str().as_bytes());
        let mut runs = Runs {
            out,
            kept: 0..0,
            count: 0,
        };
        let mut decide = |range: Range<usize>, timed: TimedRecord<'_>, is_sampled: bool| {
            let kept = match key {
                _ if !is_sampled => Ok(true),
                None => Ok(sampler.keeps(of_batch.record(batch, &range, timed))),
                Some(key) => sampler.keeps_key(key, batch, timed, text),
            };
            match kept {
                Ok(true) => runs.keep(range),
                Ok(false) => runs.out.filter(1),
                Err(missing) => runs.out.reject(&batch.body[range], &missing.to_string()),
            }
        };
        let mut all = records(batch);
        match decider {
            Some(decider) => {
                let failed = decider.runs(batch, |run| {
                    let records = all.by_ref().take(run.count as usize);
                    records
                        .for_each(|(range, timed)| decide(range, timed, run.condition.is_some()));
                });
                runs.flush();
                runs.out.fail(failed);
            }
            None => {
                all.for_each(|(range, timed)| decide(range, timed, true));
                runs.flush();
            }
        }
        Ok(())
    }
}

impl Sampler {
    fn keeps(&self, hash: Hash) -> bool {
        hash.finish() <= self.highest
    }

    /// Decides by the key. The same key gives the same decision on every machine and in every node with the same ratio.
    fn keeps_key(
        &self,
        key: &mut Renderer,
        batch: &Batch,
        timed: TimedRecord<'_>,
        text: &mut Vec<u8>,
    ) -> Result<bool, Missing> {
        text.clear();
        key.render(batch.into(), timed, text)?;
        Ok(self.keeps(Hash::new().bytes(text)))
    }
}

impl Hash {
    /// Adds the bytes and the time of a record.
    #[inline]
    fn record(self, batch: &Batch, range: &Range<usize>, timed: TimedRecord<'_>) -> Self {
        let bytes = &batch.body[range.clone()];
        match batch.encoding {
            Encoding::Lines => self.bytes(bytes.strip_suffix(b"\n").unwrap_or(bytes)),
            Encoding::Packed => self.bytes(bytes),
        }
        .number(timed.time.0.cast_unsigned())
    }
}

/// Joins adjacent records that are kept.
struct Runs<'a, 'b> {
    out: &'a mut Out<'b>,
    kept: Range<usize>,
    count: u32,
}

impl Runs<'_, '_> {
    fn keep(&mut self, range: Range<usize>) {
        if self.count > 0 && self.kept.end == range.start {
            self.kept.end = range.end;
            self.count += 1;
            return;
        }
        self.flush();
        (self.kept, self.count) = (range, 1);
    }

    fn flush(&mut self) {
        self.out.keep(MAIN, self.kept.clone(), self.count);
        self.count = 0;
    }
}

#[cfg(test)]
mod tests;
