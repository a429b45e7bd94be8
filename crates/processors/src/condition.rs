//! The option `where` of processors. Compiles its conditions, which are maps or texts in VRL (Vector Remap Language). Divides
//! batches into runs. A run consists of adjacent records for which the same condition is the first that matches.

use std::sync::Arc;

use millstream_config::{Node, Problem};
use millstream_pipeline::tags::TagFilter;
use millstream_record::Batch;
use millstream_vrl::{Condition as Compiled, Options, Predicate};
use millstream_wire::condition::{Condition, Matcher, Run, TagTest, Where};

use crate::{language::Script, zone};

/// Compiled conditions. A record belongs to the first condition that it matches.
pub(crate) struct Conditions {
    parts: Vec<Part>,
    /// Warnings about the conditions, such as those of the VRL compiler.
    pub(crate) warnings: Vec<Problem>,
}

/// Either consecutive conditions that are maps, which are evaluated together in one pass over a record, or a single condition that
/// is a text.
enum Part {
    /// The index of the first of these conditions, and the matcher for all of them.
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

    /// Returns the conditions with the state that one task needs to evaluate them.
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

/// Returns one part for all `maps`, and empties the list. Returns `None` if the list is already empty. The maps have passed
/// [`check`], and `end` is the index after the last map.
fn joined(end: usize, maps: &mut Vec<&Condition>) -> Option<Part> {
    let first = end - maps.len();
    let matcher = Matcher::new(maps.iter().copied(), &tags).ok();
    let part = matcher.filter(|_| !maps.is_empty());
    maps.clear();
    part.map(|matcher| Part::Maps(first, matcher))
}

/// Warns about a text between slashes, which looks like a regular expression but is none.
fn slashed(map: &Condition, option: &Node) -> Option<Problem> {
    let text = map.slashed()?;
    let message = format!("`{text}` is compared as a text, with its slashes");
    let inner = text.trim_matches('/');
    let help = format!("for a regular expression, write `{{ regex: '{inner}' }}`");
    Some(Problem::warning(&option.place, message).help(help))
}

/// Fails with the reason if a map is probably a mistake, or cannot be compiled.
fn check(map: &Condition) -> Result<(), String> {
    match map.problem() {
        Some(why) => Err(why.to_owned()),
        None => Matcher::new([map], &tags).map(drop),
    }
}

/// Compiles tag patterns, which have the syntax of the option `tags`.
fn tags(patterns: &[String]) -> Result<TagTest, String> {
    let filter = TagFilter::new(patterns.iter().map(String::as_str))?;
    Ok(Arc::new(move |tag: &str| filter.takes(tag)))
}

/// Conditions with the evaluation state of one task.
pub(crate) struct Decider {
    parts: Vec<Working>,
    /// The end offset of each record of the batch.
    ends: Vec<usize>,
    /// For each record, the index of the first condition that it matches, or `None`.
    answers: Vec<Option<usize>>,
}

enum Working {
    Maps(usize, Matcher),
    Text(usize, Box<Predicate>),
}

impl Decider {
    /// Divides a batch into runs: adjacent records whose first matching condition is the same. Calls `run` for each run, in order.
    /// If a condition in VRL fails on a record with an error, the record does not match the condition. Returns the number of these
    /// failures.
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

/// Converts a number of records to `u32`. A batch never has more than `u32::MAX`.
fn count(records: usize) -> u32 {
    u32::try_from(records).unwrap_or(u32::MAX)
}

impl Working {
    /// Evaluates this part, which is the first one, for every record of a batch. Fills `ends` and `answers`. Returns the number of
    /// failures.
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

    /// Evaluates this part, which is not the first one. Its result counts only for records that match no condition of the parts
    /// before it. Returns the number of failures.
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

/// Returns `index` if the record at the offset `start` matches the condition. Returns `None` if the record does not match, or if
/// the condition fails; a failure is counted in `failed`.
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
