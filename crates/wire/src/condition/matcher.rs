//! Compiled conditions: one walk over a record evaluates all of them.

use std::{fmt, ops::Range, sync::Arc};

use millstream_record::{Batch, Encoding};

use super::{
    Condition,
    find::{Fields, Finder, MISSING},
    option::{Subject, Tree},
    test::Test,
};
use crate::{
    lines, msgpack,
    record::{MESSAGE, Record, TimedRecord, Value},
    template::Shared,
};

/// Returns whether a tag matches the patterns from which the function was compiled.
pub type TagTest = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// An ordered list of conditions: the first one that matches a record counts. Every task needs its own matcher, because
/// a matcher caches the keys of records. A clone has separate caches.
#[derive(Clone)]
pub struct Matcher {
    conditions: Box<[Answer]>,
    /// The tests that have the same answer for all records of a batch.
    shared: Box<[SharedTest]>,
    /// The answers of the `shared` tests for the current batch.
    answers: Vec<bool>,
    /// The indexes of the conditions that can match records of the current batch, and whether each of them matches
    /// every record.
    live: Vec<(usize, bool)>,
    finder: Option<Finder>,
    /// The offsets of the fields in the current record. Each field has a slot: its index in this list.
    found: Vec<usize>,
    /// The slot of the field `message`, the only field of a line; [`MISSING`] if no condition tests it.
    message: usize,
}

/// Adjacent records of a batch for which the same condition counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The index of the first condition that matches these records; `None` if no condition matches.
    pub condition: Option<usize>,
    /// The range of the records in the body.
    pub range: Range<usize>,
    /// The index of the first of these records in the batch.
    pub first: u32,
    /// The number of records.
    pub count: u32,
}

/// A condition or a part of it.
#[derive(Clone, Debug)]
enum Answer {
    Is(bool),
    /// A test with the same answer for the whole batch: the index of its answer.
    Shared(usize),
    /// A test of the field in this slot.
    Field(usize, Test),
    Not(Box<Answer>),
    All(Box<[Answer]>),
    Any(Box<[Answer]>),
}

#[derive(Clone)]
enum SharedTest {
    Tag(Test),
    Tags(TagTest),
    Value(String, Test),
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher")
            .field("conditions", &self.conditions)
            .finish_non_exhaustive()
    }
}

impl Matcher {
    /// Compiles conditions, in the order in which they are tried. `tags` compiles patterns of tags. The patterns have
    /// the same syntax as the option `tags` of consumers.
    ///
    /// # Errors
    /// The error of `tags`.
    pub fn new<'a>(
        conditions: impl IntoIterator<Item = &'a Condition>,
        tags: &dyn Fn(&[String]) -> Result<TagTest, String>,
    ) -> Result<Self, String> {
        let mut compiler = Compiler {
            tags,
            shared: Vec::new(),
            fields: Fields::default(),
            slots: 0,
        };
        let compiled = conditions
            .into_iter()
            .map(|condition| compiler.compile(&condition.tree));
        let conditions: Box<[Answer]> = compiled.collect::<Result<_, _>>()?;
        // A line has only the field `message`.
        let message = compiler.fields.known(MESSAGE).unwrap_or(MISSING);
        let finder = compiler.fields.finder();
        Ok(Self {
            conditions,
            answers: Vec::with_capacity(compiler.shared.len()),
            shared: compiler.shared.into(),
            live: Vec::new(),
            finder,
            found: vec![MISSING; compiler.slots],
            message,
        })
    }

    /// Returns the index of the first condition that matches a record; `None` if no condition matches.
    pub fn matches(&mut self, shared: Shared<'_>, record: Record<'_>) -> Option<usize> {
        self.begin(shared);
        match record {
            Record::Line(line) => self.line(line),
            Record::Packed(map) => self.packed(map, 0).and_then(|(condition, _)| condition),
            Record::None => self.packed(&[0x80], 0).and_then(|(condition, _)| condition),
        }
    }

    /// Divides a batch into runs and calls `run` for each, in order. Adjacent records with the same answer are in one
    /// run.
    pub fn runs(&mut self, batch: &Batch, mut run: impl FnMut(Run)) {
        self.begin(batch.into());
        if let Some(condition) = self.constant() {
            if batch.count > 0 {
                run(Run {
                    condition,
                    range: 0..batch.body.len(),
                    first: 0,
                    count: batch.count,
                });
            }
            return;
        }
        let mut current = Run {
            condition: None,
            range: 0..0,
            first: 0,
            count: 0,
        };
        self.walk(batch, |range, _, condition| {
            if condition == current.condition {
                current.count += 1;
                current.range.end = range.end;
                return;
            }
            let next = Run {
                condition,
                first: current.first + current.count,
                count: 1,
                range,
            };
            let finished = std::mem::replace(&mut current, next);
            if finished.count > 0 {
                run(finished);
            }
        });
        if current.count > 0 {
            run(current);
        }
    }

    /// Calls `each` for every record of a batch, in order. The arguments are the range of the record in the body, the
    /// record, and the index of the first condition that matches the record.
    pub fn each(
        &mut self,
        batch: &Batch,
        mut each: impl FnMut(Range<usize>, TimedRecord<'_>, Option<usize>),
    ) {
        self.begin(batch.into());
        self.walk(batch, |range, record, condition| {
            each(range, record, condition)
        });
    }

    /// Evaluates the tests that have the same answer for all records of a batch.
    fn begin(&mut self, shared: Shared<'_>) {
        let passes = |test: &Test, value: Option<&str>| {
            value.is_some_and(|value| test.passes_text(value.as_bytes()))
        };
        self.answers.clear();
        let answers = self.shared.iter().map(|test| match test {
            SharedTest::Tag(test) => passes(test, Some(shared.tag)),
            SharedTest::Tags(test) => test(shared.tag),
            SharedTest::Value(name, test) => passes(test, shared.values.get(name)),
        });
        self.answers.extend(answers);
        self.live.clear();
        for (index, condition) in self.conditions.iter().enumerate() {
            match condition.constant(&self.answers) {
                Some(false) => {}
                Some(true) => {
                    self.live.push((index, true));
                    break;
                }
                None => self.live.push((index, false)),
            }
        }
    }

    /// Returns the answer if it is the same for all records of the batch: `Some(Some(index))` if the condition with
    /// this index matches every record, `Some(None)` if no condition matches any record. Returns `None` if the answer
    /// depends on the fields, so that the records must be read.
    fn constant(&self) -> Option<Option<usize>> {
        match self.live.first() {
            None => Some(None),
            Some((index, true)) => Some(Some(*index)),
            Some((_, false)) => None,
        }
    }

    #[inline(always)]
    fn walk<'a>(
        &mut self,
        batch: &'a Batch,
        mut each: impl FnMut(Range<usize>, TimedRecord<'a>, Option<usize>),
    ) {
        let body = &*batch.body;
        let mut start = 0;
        if batch.encoding == Encoding::Lines {
            for line in lines::lines(body) {
                let end = (start + line.len() + 1).min(body.len());
                let record = TimedRecord {
                    time: batch.received,
                    record: Record::Line(line),
                    metadata: &[],
                };
                each(start..end, record, self.line(line));
                start = end;
            }
            return;
        }
        while let Ok(head) = msgpack::entry_head(body, start) {
            let Some((condition, end)) = self.packed(body, head.record) else {
                break;
            };
            let record = TimedRecord {
                time: head.time.unwrap_or(batch.received),
                record: Record::Packed(body.get(head.record..).unwrap_or_default()),
                metadata: head.metadata(body),
            };
            each(start..end, record, condition);
            start = end;
        }
    }

    /// Returns the index of the first condition that matches a line.
    #[inline]
    fn line(&self, line: &[u8]) -> Option<usize> {
        let message = self.message;
        self.first(|slot| (slot == message).then_some(Value::Line(line)))
    }

    /// Returns the index of the first condition that matches the map at `at`, and the offset after the map. The outer
    /// `None` means that there is no complete map.
    #[inline(always)]
    fn packed(&mut self, body: &[u8], at: usize) -> Option<(Option<usize>, usize)> {
        let Some(finder) = &mut self.finder else {
            let mut open = 1;
            let end = msgpack::skip(body, at, &mut open).ok()?;
            return (open == 0).then(|| (self.first(|_| None), end));
        };
        self.found.fill(MISSING);
        let end = finder.find(body, at, &mut self.found)?;
        let found = &self.found;
        let value = |slot: usize| {
            let at = found.get(slot).copied().unwrap_or(MISSING);
            body.get(at..).map(Value::Packed)
        };
        Some((self.first(value), end))
    }

    #[inline(always)]
    fn first<'a>(&self, value: impl Fn(usize) -> Option<Value<'a>> + Copy) -> Option<usize> {
        for &(index, always) in &self.live {
            let matches = |condition: &Answer| condition.matches(&self.answers, value);
            if always || self.conditions.get(index).is_some_and(matches) {
                return Some(index);
            }
        }
        None
    }
}

impl Answer {
    /// Whether a record matches. `value` returns the field in a slot, or `None` if the record does not have it.
    #[inline]
    fn matches<'a>(
        &self,
        answers: &[bool],
        value: impl Fn(usize) -> Option<Value<'a>> + Copy,
    ) -> bool {
        match self {
            Self::Field(slot, test) => value(*slot).is_some_and(|value| test.passes(value)),
            Self::Shared(index) => answers.get(*index).copied().unwrap_or(false),
            Self::Is(answer) => *answer,
            Self::Not(inner) => !inner.matches(answers, value),
            Self::All(inner) => inner.iter().all(|one| one.matches(answers, value)),
            Self::Any(inner) => inner.iter().any(|one| one.matches(answers, value)),
        }
    }

    /// The answer that all records of a batch have; `None` if it depends on their fields.
    fn constant(&self, answers: &[bool]) -> Option<bool> {
        let all = |inner: &[Self], wanted: bool| {
            let mut open = false;
            for one in inner {
                match one.constant(answers) {
                    Some(answer) if answer == wanted => {}
                    Some(answer) => return Some(answer),
                    None => open = true,
                }
            }
            (!open).then_some(wanted)
        };
        match self {
            Self::Is(answer) => Some(*answer),
            Self::Shared(index) => answers.get(*index).copied(),
            Self::Field(..) => None,
            Self::Not(inner) => inner.constant(answers).map(|answer| !answer),
            Self::All(inner) => all(inner, true),
            Self::Any(inner) => all(inner, false),
        }
    }

    /// A rough estimate of the time that evaluating the condition takes.
    fn cost(&self) -> usize {
        match self {
            Self::Is(_) | Self::Shared(_) => 0,
            Self::Field(_, test) if test.is_slow() => 100,
            Self::Field(..) => 1,
            Self::Not(inner) => inner.cost(),
            Self::All(inner) | Self::Any(inner) => inner.iter().map(Self::cost).sum(),
        }
    }
}

struct Compiler<'a> {
    tags: &'a dyn Fn(&[String]) -> Result<TagTest, String>,
    shared: Vec<SharedTest>,
    fields: Fields,
    slots: usize,
}

impl Compiler<'_> {
    fn compile(&mut self, tree: &Tree) -> Result<Answer, String> {
        Ok(match tree {
            Tree::All(trees) if trees.is_empty() => Answer::Is(true),
            Tree::Any(trees) if trees.is_empty() => Answer::Is(false),
            Tree::All(trees) => Answer::All(self.cheapest_first(trees)?),
            Tree::Any(trees) => Answer::Any(self.cheapest_first(trees)?),
            Tree::Not(tree) => Answer::Not(Box::new(self.compile(tree)?)),
            Tree::Tag(patterns) => {
                let test = (self.tags)(patterns)?;
                self.answer(SharedTest::Tags(test))
            }
            Tree::Test(Subject::Field(path), test) => {
                let slot = self.fields.slot(path, &mut self.slots);
                Answer::Field(slot, test.clone())
            }
            Tree::Test(Subject::Tag, test) => self.answer(SharedTest::Tag(test.clone())),
            Tree::Test(Subject::Value(name), test) => {
                self.answer(SharedTest::Value(name.clone(), test.clone()))
            }
        })
    }

    fn answer(&mut self, test: SharedTest) -> Answer {
        self.shared.push(test);
        Answer::Shared(self.shared.len() - 1)
    }

    /// The order does not change the answer, so the cheapest part is tried first.
    fn cheapest_first(&mut self, trees: &[Tree]) -> Result<Box<[Answer]>, String> {
        let parts = trees.iter().map(|tree| self.compile(tree));
        let mut parts = parts.collect::<Result<Vec<_>, _>>()?;
        parts.sort_by_key(Answer::cost);
        Ok(parts.into())
    }
}
