//! The plan of one flow (one connection, or one of several sequences in a file): the next span of records, when it is due, and when
//! the flow ends.
//!
//! Spans always start at multiples of the chunk size, so a restarted generator makes the same chunks.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{chunk::Span, ledger::Page};
use crate::record::Kind;

/// The time at which a flow stops if its number of records is not given. `None`: such a flow never stops.
pub type Deadline = Option<Instant>;

/// Decides the next span of a flow.
#[derive(Debug)]
pub struct Plan {
    next: u64,
    page: Page,
    chunk: u32,
    deadline: Deadline,
    end_planned: bool,
}

/// The next step of a flow.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Send these data records.
    Data(Span),
    /// All data records were sent: write the count to the ledger, then send the end record.
    End(Span),
    /// The flow is complete.
    Nothing,
}

impl Plan {
    /// Continues from the state in the ledger. `records` is the total number of the flow's records, if it is known.
    pub fn new(mut page: Page, chunk: u32, records: Option<u64>, deadline: Deadline) -> Self {
        if page.ends.is_none() {
            page.ends = records.map(|records| records.max(Self::known(&page)));
        }
        Self {
            next: page.floor,
            end_planned: page.ended,
            page,
            chunk,
            deadline,
        }
    }

    /// One more than the highest acknowledged number. The flow cannot have fewer records.
    fn known(page: &Page) -> u64 {
        let last = page.above.last_key_value();
        last.map_or(page.floor, |(first, count)| first + u64::from(*count))
    }

    /// Returns the next step. Each span is returned only once.
    pub fn next(&mut self) -> Next {
        if self.end_planned {
            return Next::Nothing;
        }
        while let Some(count) = self.page.above.remove(&self.next) {
            self.next += u64::from(count);
        }
        let late = self
            .deadline
            .is_some_and(|deadline| Instant::now() >= deadline);
        if self.page.ends.is_none() && late && self.page.above.is_empty() {
            self.page.ends = Some(self.next);
        }
        let left = self.page.ends.map_or(u64::MAX, |ends| ends - self.next);
        if left == 0 {
            self.end_planned = true;
            return Next::End(Span {
                first: self.next,
                count: 1,
                kind: Kind::End,
            });
        }
        let count = left.min(u64::from(self.chunk)) as u32;
        let span = Span {
            first: self.next,
            count,
            kind: Kind::Data,
        };
        self.next += u64::from(count);
        Next::Data(span)
    }
}

/// Holds a flow to its rate.
#[derive(Debug)]
pub struct Pace {
    start: Instant,
    /// Records per second; `None`: no limit.
    rate: Option<f64>,
    sent: u64,
}

impl Pace {
    /// Starts the clock.
    pub fn new(rate: Option<f64>) -> Self {
        Self {
            start: Instant::now(),
            rate,
            sent: 0,
        }
    }

    /// Waits until the last of the next `count` records is due. A flow that is late, for example because the server was
    /// unavailable, skips no record. It catches up at full speed, so the total matches the rate.
    pub fn wait(&mut self, count: u32) {
        self.sent += u64::from(count);
        let Some(rate) = self.rate else { return };
        let due = Duration::from_secs_f64(self.sent as f64 / rate);
        thread::sleep(due.saturating_sub(self.start.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn all(mut plan: Plan) -> Vec<(u64, u32)> {
        let mut spans = Vec::new();
        loop {
            match plan.next() {
                Next::Data(span) => spans.push((span.first, span.count)),
                Next::End(span) => spans.push((span.first, 0)),
                Next::Nothing => return spans,
            }
        }
    }

    #[test]
    fn a_flow_is_cut_into_chunks_and_ends_with_its_count() {
        let plan = Plan::new(Page::default(), 100, Some(250), None);
        assert_eq!(all(plan), [(0, 100), (100, 100), (200, 50), (250, 0)]);
        let nothing = Plan::new(Page::default(), 100, Some(0), None);
        assert_eq!(all(nothing), [(0, 0)]);
    }

    #[test]
    fn acknowledged_records_of_the_ledger_are_not_sent_again() {
        let page = Page {
            floor: 100,
            above: BTreeMap::from([(200, 100), (400, 100)]),
            ends: Some(550),
            ended: false,
        };
        let plan = Plan::new(page, 100, Some(9999), None);
        assert_eq!(all(plan), [(100, 100), (300, 100), (500, 50), (550, 0)]);
        let page = Page {
            floor: 550,
            ends: Some(550),
            ended: true,
            ..Page::default()
        };
        assert_eq!(all(Plan::new(page, 100, None, None)), []);
    }

    #[test]
    fn after_the_deadline_a_flow_fills_its_gaps_before_it_ends() {
        let page = Page {
            above: BTreeMap::from([(100, 100)]),
            ..Page::default()
        };
        let plan = Plan::new(page, 100, None, Some(Instant::now()));
        assert_eq!(all(plan), [(0, 100), (200, 0)]);
    }
}
