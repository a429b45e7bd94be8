//! `millstream rejected ls`: counts rejected records by node and reason.

use std::collections::BTreeMap;

use clap::Args;
use jiff::Timestamp;
use millstream_pipeline::reject::{Rejected, excerpt};
use millstream_record::Time;

use super::{Which, ended};
use crate::page::{self, columns, grouped};

/// The maximum number of reasons that are counted separately. A reason may contain an offset in the record, so every record may have a
/// different reason.
const REASONS_MAX: usize = 1000;
/// The row of all other reasons.
const OTHERS: &str = "(other reasons)";
/// The maximum number of characters of a reason that are shown.
const REASON_CHARS: usize = 200;

/// Count rejected records by node and reason, with the times of the first and the last one.
#[derive(Args)]
pub struct Ls {
    #[command(flatten)]
    which: Which,
}

/// The records of one node with one reason.
struct Row {
    records: u64,
    first: Time,
    last: Time,
}

impl Ls {
    /// Lists; returns the exit code.
    pub fn execute(self) -> u8 {
        let place = match self.which.place() {
            Ok(place) => place,
            Err(code) => return code,
        };
        let mut rows = BTreeMap::new();
        let read = self.which.read(&place, |rejected| {
            count(&mut rows, rejected);
            Ok(())
        });
        if read.is_ok() && rows.is_empty() {
            return page::print(&format!("no rejected records in {}\n", place.display()));
        }
        page::print(&table(rows));
        ended(&place, read)
    }
}

fn count(rows: &mut BTreeMap<(String, String), Row>, rejected: &Rejected<'_>) {
    let reason = excerpt(rejected.reason, REASON_CHARS);
    let mut key = (excerpt(rejected.node, REASON_CHARS), reason);
    if rows.len() >= REASONS_MAX && !rows.contains_key(&key) {
        key.1 = OTHERS.to_owned();
    }
    let row = rows.entry(key).or_insert(Row {
        records: 0,
        first: rejected.time,
        last: rejected.time,
    });
    row.records += 1;
    row.first = row.first.min(rejected.time);
    row.last = row.last.max(rejected.time);
}

/// The table, sorted by node. The most frequent reason of a node comes first.
fn table(rows: BTreeMap<(String, String), Row>) -> String {
    let heads = ["NODE", "RECORDS", "FIRST", "LAST", "REASON"];
    let mut all: Vec<_> = rows.into_iter().collect();
    all.sort_by(|((a, _), x), ((b, _), y)| (a, y.records).cmp(&(b, x.records)));
    let mut cells = vec![heads.map(str::to_owned).to_vec()];
    for ((node, reason), row) in all {
        let times = [row.first, row.last].map(second);
        let [first, last] = times;
        cells.push(vec![node, grouped(row.records), first, last, reason]);
    }
    columns(0, &cells, &[1])
}

/// A time in whole seconds.
fn second(time: Time) -> String {
    Timestamp::from_second(time.seconds()).map_or(String::new(), |time| time.to_string())
}
