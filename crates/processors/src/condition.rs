//! The option `where` of processors: conditions as maps and as texts in VRL, from the configuration to runs of records.

use std::sync::Arc;

use millstream_config::{Node, Problem};
use millstream_pipeline::tags::TagFilter;
use millstream_record::Batch;
use millstream_vrl::{Condition as Compiled, Options, Predicate};
use millstream_wire::condition::{Condition, Matcher, Run, TagTest, Where};

use crate::{language::Script, zone};

/// Checked conditions, of which the first that matches a record counts.
pub(crate) struct Conditions {
    parts: Vec<Part>,
    /// Warnings of the compiler about texts.
    pub(crate) warnings: Vec<Problem>,
}

/// Maps that follow each other, which one walk over a record answers; or one text.
enum Part {
    /// The index of the first of the maps.
    Maps(usize, Matcher),
    Text(usize, Box<Compiled>),
}

impl Conditions {
    /// Compiles conditions, each with the path of its option. `timezone` is the value of the option of this name.
    pub(crate) fn new<'a>(
        options: &Node,
        timezone: Option<&str>,
        conditions: impl IntoIterator<Item = (String, &'a Where)>,
    ) -> Result<Self, Vec<Problem>> {
        let (mut parts, mut problems, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
        let timezone = zone::of_programs(options, timezone).map_err(|problem| vec![problem])?;
        let compiler = Options { timezone };
        let mut maps: Vec<&Condition> = Vec::new();
        let mut end = 0;
        for (index, (path, condition)) in conditions.into_iter().enumerate() {
            end = index + 1;
            match condition {
                Where::Map(map) => match check(map) {
                    Ok(()) => {
                        warnings.extend(slashed(map, options.find(&path).unwrap_or(options)));
                        maps.push(map);
                    }
                    Err(why) => problems.push(options.problem_at(&path, why)),
                },
                Where::Program(text) => {
                    parts.extend(joined(index, &mut maps));
                    let option = options.find(&path).unwrap_or(options);
                    match Script::of_option(option, text).condition(&compiler) {
                        Ok((compiled, more)) => {
                            parts.push(Part::Text(index, Box::new(compiled)));
                            warnings.extend(more);
                        }
                        Err(more) => problems.extend(more),
                    }
                }
            }
        }
        parts.extend(joined(end, &mut maps));
        match problems.is_empty() {
            true => Ok(Self { parts, warnings }),
            false => Err(problems),
        }
    }

    /// The conditions at work in one task.
    pub(crate) fn decider(&self) -> Decider {
        let parts = self.parts.iter().map(|part| match part {
            Part::Maps(first, matcher) => Working::Maps(*first, matcher.clone()),
            Part::Text(index, compiled) => {
                Working::Text(*index, Box::new(Predicate::new(compiled)))
            }
        });
        Decider {
            parts: parts.collect(),
            ends: Vec::new(),
            answers: Vec::new(),
        }
    }
}

/// Takes maps that passed [`check`] and that end before the index `end`.
fn joined(end: usize, maps: &mut Vec<&Condition>) -> Option<Part> {
    let first = end - maps.len();
    let matcher = Matcher::new(maps.iter().copied(), &tags).ok();
    let part = matcher.filter(|_| !maps.is_empty());
    maps.clear();
    part.map(|matcher| Part::Maps(first, matcher))
}

/// The warning about a text between slashes.
fn slashed(map: &Condition, option: &Node) -> Option<Problem> {
    let text = map.slashed()?;
    let message = format!("`{text}` is compared as a text, with its slashes");
    let inner = text.trim_matches('/');
    let help = format!("for a regular expression, write `{{ regex: '{inner}' }}`");
    Some(Problem::warning(&option.place, message).help(help))
}

/// Why a map cannot be meant, or cannot be compiled.
fn check(map: &Condition) -> Result<(), String> {
    match map.problem() {
        Some(why) => Err(why.to_owned()),
        None => Matcher::new([map], &tags).map(drop),
    }
}

/// Patterns of tags are those of the option `tags`.
fn tags(patterns: &[String]) -> Result<TagTest, String> {
    let filter = TagFilter::new(patterns.iter().map(String::as_str))?;
    Ok(Arc::new(move |tag: &str| filter.takes(tag)))
}

/// Conditions at work.
pub(crate) struct Decider {
    parts: Vec<Working>,
    /// The offset behind each record of the batch.
    ends: Vec<usize>,
    /// The first condition that matches each of them.
    answers: Vec<Option<usize>>,
}

enum Working {
    Maps(usize, Matcher),
    Text(usize, Box<Predicate>),
}

impl Decider {
    /// Divides a batch into runs, in order: neighbours with the same answer are in one. A text that fails on a record does not
    /// match it; the number of such failures is returned.
    pub(crate) fn runs(&mut self, batch: &Batch, mut run: impl FnMut(Run)) -> u32 {
        if let [Working::Maps(_, matcher)] = &mut self.parts[..] {
            matcher.runs(batch, run);
            return 0;
        }
        self.ends.clear();
        self.answers.clear();
        let mut failed = 0;
        let mut parts = self.parts.iter_mut();
        if let Some(part) = parts.next() {
            failed += part.begin(batch, &mut self.ends, &mut self.answers);
        }
        for part in parts {
            failed += part.resume(batch, &self.ends, &mut self.answers);
        }
        let (mut start, mut first) = (0, 0);
        for same in self.answers.chunk_by(|one, other| one == other) {
            let behind = first + same.len();
            let end = self.ends[behind - 1];
            run(Run {
                condition: same[0],
                range: start..end,
                first: count(first),
                count: count(same.len()),
            });
            (start, first) = (end, behind);
        }
        failed
    }
}

/// A batch has at most this many records.
fn count(records: usize) -> u32 {
    u32::try_from(records).unwrap_or(u32::MAX)
}

impl Working {
    /// Walks a batch and answers every record; returns the number of failures.
    fn begin(
        &mut self,
        batch: &Batch,
        ends: &mut Vec<usize>,
        answers: &mut Vec<Option<usize>>,
    ) -> u32 {
        match self {
            Self::Maps(first, matcher) => {
                matcher.each(batch, |range, _, answer| {
                    ends.push(range.end);
                    answers.push(answer.map(|index| *first + index));
                });
                0
            }
            Self::Text(index, predicate) => {
                let (mut failed, mut at) = (0, 0);
                predicate.begin(batch);
                while at < batch.len() {
                    answers.push(answer(predicate, at, *index, &mut failed));
                    at = predicate.next();
                    ends.push(at);
                }
                predicate.end();
                failed
            }
        }
    }

    /// Answers the records that have no answer yet; returns the number of failures.
    fn resume(&mut self, batch: &Batch, ends: &[usize], answers: &mut [Option<usize>]) -> u32 {
        match self {
            Self::Maps(first, matcher) => {
                matcher.runs(batch, |run| {
                    let Some(index) = run.condition else { return };
                    let same = answers.iter_mut().skip(run.first as usize);
                    for answer in same.take(run.count as usize) {
                        answer.get_or_insert(*first + index);
                    }
                });
                0
            }
            Self::Text(index, predicate) => {
                let (mut failed, mut start) = (0, 0);
                predicate.begin(batch);
                for (end, found) in ends.iter().zip(answers) {
                    if found.is_none() {
                        *found = answer(predicate, start, *index, &mut failed);
                    }
                    start = *end;
                }
                predicate.end();
                failed
            }
        }
    }
}

/// The index of a text, if the record at `start` matches it.
fn answer(
    predicate: &mut Predicate,
    start: usize,
    index: usize,
    failed: &mut u32,
) -> Option<usize> {
    let matches = predicate.matches(start).unwrap_or_else(|_| {
        *failed += 1;
        false
    });
    matches.then_some(index)
}

#[cfg(test)]
#[cfg(feature = "vrl")]
mod tests;
