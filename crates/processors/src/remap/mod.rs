//! The processor `remap`: runs a program in VRL (Vector Remap Language) on each record.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> [process] -> encode -> write -> settle`
//!
//! The language is implemented in the crate `vrl`. Adjacent records that a program does not change are passed on as one range,
//! without a copy. Changed records are written directly into the output.

use std::{ops::Range, sync::Arc};

use millstream_config::{Node, Problem};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component},
    output::{Head, Out},
    processor::{MAIN, Processor, Task},
};
use millstream_record::{Batch, Encoding, Values};
use millstream_vrl::{Moved, Options, Outcome, Program, Remap};
use millstream_wire::{forward::TAG_BYTES_MAX, lines::write_entry};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{language::Script, zone};

/// The entry in the list of processors.
pub const COMPONENT: Component = Component {
    name: "remap",
    summary: "Runs a program in VRL on each record.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Processor(build),
};

/// The options of `remap`: one of `program` and `file` is required.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Config {
    /// Program in VRL. In it, `.` is the record, and `%tag`, `%host` and `%time` are the tag, the host and the event time.
    program: Option<String>,
    /// Path of a file with the program, instead of `program`. A relative path starts at the directory of the configuration file.
    file: Option<String>,
    /// Handling of a record on which the program fails: `reject` (it leaves by the port `NAME.rejected`) or `keep` (it is passed on
    /// unchanged, and counted). Default: `reject`.
    on_error: OnError,
    /// Time zone of times without a zone, such as `Europe/Berlin` or `+09:00`. Default: the top-level `timezone`.
    timezone: Option<String>,
}

/// Handling of a record on which the program fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum OnError {
    /// It leaves by the port `NAME.rejected`.
    #[default]
    Reject,
    /// It is passed on unchanged, and counted.
    Keep,
}

struct Remapper {
    program: Program,
    warnings: Vec<Problem>,
    on_error: OnError,
    /// The text of the program if it is in a file; otherwise empty.
    text: String,
}

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Processor>> {
    let config: Config = options.read()?;
    let timezone = config.timezone.as_deref();
    let timezone = zone::of_programs(options, timezone).map_err(|problem| vec![problem])?;
    let script = script(&config, options).map_err(|problem| vec![problem])?;
    let text = config.file.as_ref().map(|_| script.text().to_owned());
    let (program, warnings) = script.program(&Options { timezone })?;
    Ok(Arc::new(Remapper {
        program,
        warnings,
        on_error: config.on_error,
        text: text.unwrap_or_default(),
    }))
}

/// Returns the program from the option `program`, or from the file that the option `file` names.
fn script(config: &Config, options: &Node) -> Result<Script, Problem> {
    let at = |name| options.find(name).unwrap_or(options);
    match (&config.program, &config.file) {
        (Some(text), None) => Ok(Script::of_option(at("program"), text)),
        (None, Some(path)) => Script::of_file(at("file"), path),
        (None, None) => {
            let problem = options.problem_at("", "there is no program");
            Err(problem.help("write it into `program`, or name its file in `file`"))
        }
        (Some(_), Some(_)) => {
            let problem = options.problem_at("file", "there are two programs");
            Err(problem.help("remove `program` or `file`"))
        }
    }
}

impl Processor for Remapper {
    fn changes_tags(&self) -> bool {
        self.program.sets_tag()
    }

    fn uses_places(&self) -> bool {
        self.program.draws()
    }

    fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    fn text_of_file(&self) -> &str {
        &self.text
    }

    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Ok(Box::new(Remapping {
            remap: Remap::new(&self.program),
            on_error: self.on_error,
            head: None,
            entries: Vec::new(),
            is_packed: false,
        }))
    }
}

struct Remapping {
    remap: Remap,
    on_error: OnError,
    /// The head (tag and values) of the last record that was written. `None` means that the record has the head of its batch.
    head: Option<(Moved, Head)>,
    /// The entries (`[time, record]` in MessagePack) that the program made from one record. They are held here until their head is
    /// known, and then written to the output.
    entries: Vec<u8>,
    /// Whether the output with the head of the batch consists of entries. For a packed batch, this is always true. For a batch of
    /// lines, it becomes true when the first entry is written with this head. From then on, unchanged lines are converted to
    /// entries as well: a batch cannot hold both lines and entries, so each change from one to the other would begin a new batch.
    is_packed: bool,
}

/// The output for one record may be at most this many times as long as the record, or [`FREE_BYTES`] long if that is more. The
/// limit depends on the record alone, so a replay rejects the same records.
const GROWTH_MAX: usize = 32;
const FREE_BYTES: usize = 1 << 20;
/// The limit for the output for one record of any size. A record of about this size or more may still grow by [`FREE_BYTES`].
const RECORD_BYTES_MAX: usize = 64 << 20;
/// The largest buffer that a task holds between two batches.
const KEPT_BYTES: usize = 1 << 20;

/// Turns `outcome` into a failure if the `written` bytes exceed the limits for a record of `bytes` bytes, or the `left` bytes that the
/// records of its batch may still take.
fn bounded(outcome: Outcome, bytes: usize, written: usize, left: usize) -> Outcome {
    let largest = RECORD_BYTES_MAX.max(bytes + FREE_BYTES);
    let limit = bytes.saturating_mul(GROWTH_MAX).max(FREE_BYTES);
    let limit = limit.min(largest);
    match outcome {
        Outcome::Written(_) if written > limit => Outcome::Failed(format!(
            "the program turns {bytes} bytes into {written}; the limit is {limit}"
        )),
        Outcome::Written(_) if written > left => Outcome::Failed(format!(
            "the program turns {bytes} bytes into {written}; all records of the batch may take only {left} bytes more"
        )),
        outcome => outcome,
    }
}

/// A record of the batch and the result of the program. The entries that the program made are in [`Remapping::entries`].
struct Ran {
    record: Range<usize>,
    outcome: Outcome,
}

impl Task for Remapping {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        self.remap.begin(batch, out.place());
        self.is_packed = batch.encoding == Encoding::Packed;
        self.head = None;
        let mut next = self.run(batch, 0, out.left_bytes());
        while let Some(Ran { record, outcome }) = next {
            let end = record.end;
            let moved = match outcome {
                Outcome::Unchanged | Outcome::Written(1..) => self.turn(batch),
                Outcome::Written(0) | Outcome::Aborted(_) | Outcome::Failed(_) => Ok(()),
            };
            next = match (moved, outcome) {
                (Ok(()), Outcome::Written(count @ 1..)) => self.write(batch, out, end, count),
                (moved, outcome) => {
                    match (moved, outcome) {
                        (Err(why), _) => self.fail(batch, out, record, why),
                        (_, Outcome::Failed(why)) => self.fail(batch, out, record, &why),
                        (_, Outcome::Unchanged) => self.pass(batch, out, record),
                        (_, Outcome::Written(_) | Outcome::Aborted(_)) => out.filter(1),
                    }
                    self.run(batch, end, out.left_bytes())
                }
            };
        }
        self.remap.end();
        self.entries.clear();
        self.entries.shrink_to(KEPT_BYTES);
        Ok(())
    }
}

impl Remapping {
    /// Runs the program on the record at the offset `start`. All records of the batch may take `left` bytes more. Returns `None` at the
    /// end of the batch.
    fn run(&mut self, batch: &Batch, start: usize, left: usize) -> Option<Ran> {
        if start >= batch.len() {
            return None;
        }
        self.entries.clear();
        let outcome = self.remap.run(start, &mut self.entries);
        let record = start..self.remap.next();
        let outcome = bounded(outcome, record.len(), self.entries.len(), left);
        Some(Ran { record, outcome })
    }

    /// Updates the head to the tag and host that the last run of the program has set. The error is the reason why they cannot be
    /// used.
    fn turn(&mut self, batch: &Batch) -> Result<(), &'static str> {
        let moved = self.remap.moved();
        if moved == self.head.as_ref().map(|(moved, _)| moved) {
            return Ok(());
        }
        self.head = None;
        if let Some(moved) = moved {
            self.head = Some((moved.clone(), head(batch, moved)?));
        }
        Ok(())
    }

    /// Writes `self.entries`, then runs the program on the following records (from the offset `end` of the batch) and writes their
    /// entries as long as the head stays the same. Returns the first record that is not written, or `None` at the end of the batch.
    fn write(
        &mut self,
        batch: &Batch,
        out: &mut Out<'_>,
        mut end: usize,
        mut count: u32,
    ) -> Option<Ran> {
        let (remap, entries) = (&mut self.remap, &mut self.entries);
        let (moved, head) = match &self.head {
            Some((moved, head)) => (Some(moved), Some(head)),
            None => (None, None),
        };
        self.is_packed |= head.is_none();
        let mut different = None;
        let left = out.left_bytes();
        let _ = out.append(MAIN, head, |buffer| {
            let most = buffer.len() + left;
            buffer.extend_from_slice(entries);
            while end < batch.len() {
                let before = buffer.len();
                let outcome = remap.run(end, buffer);
                let record = end..remap.next();
                let written = buffer.len() - before;
                let outcome = bounded(outcome, record.len(), written, most.saturating_sub(before));
                match outcome {
                    Outcome::Written(more @ 1..) if remap.moved() == moved => {
                        count = count.saturating_add(more);
                        end = record.end;
                    }
                    outcome => {
                        entries.clear();
                        if matches!(outcome, Outcome::Written(_)) {
                            entries.extend_from_slice(&buffer[before..]);
                        }
                        buffer.truncate(before);
                        different = Some(Ran { record, outcome });
                        break;
                    }
                }
            }
            Ok::<_, Failure>(count)
        });
        different
    }

    /// Passes a record on with its original bytes.
    fn pass(&mut self, batch: &Batch, out: &mut Out<'_>, record: Range<usize>) {
        let head = self.head.as_ref().map(|(_, head)| head);
        let is_line = batch.encoding == Encoding::Lines;
        if head.is_none() && !(is_line && self.is_packed) {
            return out.keep(MAIN, record, 1);
        }
        let bytes = &batch.body[record];
        let _ = out.append(MAIN, head, |buffer| {
            match is_line {
                true => {
                    let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
                    write_entry(buffer, batch.received, line);
                }
                false => buffer.extend_from_slice(bytes),
            }
            Ok::<_, Failure>(1)
        });
    }

    /// Handles a record on which the program failed.
    fn fail(&mut self, batch: &Batch, out: &mut Out<'_>, record: Range<usize>, why: &str) {
        match self.on_error {
            OnError::Reject => out.reject(&batch.body[record], why),
            OnError::Keep => {
                out.fail(1);
                self.head = None;
                self.pass(batch, out, record);
            }
        }
    }
}

/// Returns the head of a batch, changed by the values that a program has set.
fn head(batch: &Batch, moved: &Moved) -> Result<Head, &'static str> {
    let tag = match &moved.tag {
        Some(tag) if tag.is_empty() || tag.len() > TAG_BYTES_MAX => {
            return Err("the new tag is empty or longer than 8192 bytes");
        }
        Some(tag) => tag.as_str().into(),
        None => batch.tag.clone(),
    };
    let values = match &moved.host {
        Some(host) => {
            let mut values = Values::new();
            for (name, value) in batch.values.iter().filter(|(name, _)| *name != HOST) {
                values.set(name, value);
            }
            if let Some(host) = host {
                values.set(HOST, host);
            }
            Arc::new(values)
        }
        None => batch.values.clone(),
    };
    Ok(Head { tag, values })
}

/// The name of the batch value that `%host` stands for.
const HOST: &str = "host";

#[cfg(test)]
#[cfg(feature = "vrl")]
mod tests;
