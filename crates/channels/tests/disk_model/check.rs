//! Checks after every start and at the end.

use std::collections::{BTreeMap, BTreeSet};

use millstream_channels::disk::log::{Item, Sync};
use millstream_record::{Origin, Time};
use millstream_testkit::Crash;

use crate::{
    flows::Tailed,
    sink::{check_same, lines_of},
    world::World,
};

impl World {
    /// Lets the auditor (a consumer that never commits) read on, and remembers all batches that it reads.
    pub fn audit(&mut self) {
        let Some(sink) = self.sinks.iter_mut().find(|sink| sink.name == "auditor") else {
            return;
        };
        let Some(reader) = &mut sink.reader else {
            return;
        };
        while let Ok(Some(item)) = reader.read() {
            match item {
                Item::Batch(position, batch) => {
                    check_same(&mut self.seen, position, &batch);
                    self.audited.push((position, batch, self.now));
                }
                Item::Lost(lost) => panic!("seed {}: {lost:?}", self.seed),
            }
        }
    }

    /// Checks after a start that all kept batches still exist, except those that the option `sync` does not protect. Also checks that the
    /// offsets of tailed files match the existing batches.
    pub fn audit_start(&mut self, kind: Crash, crashed_at: Time) {
        if !self.setting.audit {
            return;
        }
        let before = std::mem::take(&mut self.audited);
        self.audit();
        let same = before
            .iter()
            .zip(&self.audited)
            .take_while(|(a, b)| a.0 == b.0)
            .count();
        let lost = &before[same..];
        let seed = self.seed;
        if kind == Crash::Kill || self.setting.sync == Sync::Batch {
            assert!(lost.is_empty(), "seed {seed}: lost {:?}", lost[0].0);
        }
        if !lost.is_empty() {
            assert_eq!(
                same,
                self.audited.len(),
                "seed {seed}: the loss is not a suffix"
            );
        }
        for (position, batch, kept_at) in lost {
            let age = crashed_at.0 - kept_at.0;
            // A step of the model takes up to 150 ms, and a due sync is done in the next step.
            assert!(
                age <= 1_150_000_000,
                "seed {seed}: {position} lost after {age} ns"
            );
            self.taken_by_power.extend(lines_of(batch));
        }
        let mut next = BTreeMap::new();
        for (_, batch, _) in &self.audited {
            for origin in &batch.origins {
                if let Origin::File(origin) = origin {
                    next.insert(origin.file, origin.next);
                }
            }
        }
        let log = self.log.as_ref().unwrap();
        for file in &self.files {
            let (id, known) = (file.id(), next.get(&file.id()).copied());
            assert_eq!(log.next_of(&id), known, "seed {seed}: origin of {id:?}");
        }
    }

    pub fn count(&self) {
        let seed = self.seed;
        let mut flows: Vec<Vec<String>> = self.files.iter().map(Tailed::lines).collect();
        for sender in &self.senders {
            flows.push(
                (0..sender.acked)
                    .flat_map(|chunk| sender.lines(chunk))
                    .collect(),
            );
        }
        for sink in self.sinks.iter().filter(|sink| sink.name != "auditor") {
            let name = sink.name;
            for flow in &flows {
                let of_flow: BTreeSet<&String> = flow.iter().collect();
                let all: Vec<&String> = sink.lines.iter().filter(|l| of_flow.contains(l)).collect();
                let distinct: BTreeSet<&String> = all.iter().copied().collect();
                let lost = flow
                    .iter()
                    .find(|line| !distinct.contains(line) && !self.taken_by_power.contains(*line));
                assert_eq!(lost, None, "seed {seed}: lost at {name}");
                if !sink.owns_position || !self.taken_by_power.is_empty() {
                    continue;
                }
                assert!(sink.lost.is_empty(), "seed {seed}: {:?}", sink.lost);
                if self.has_forgotten_ids() {
                    continue;
                }
                assert_eq!(all.len(), flow.len(), "seed {seed}: twice at {name}");
                let in_order = all.iter().zip(flow).all(|(a, b)| *a == b);
                assert!(in_order, "seed {seed}: out of order at {name}");
            }
        }
    }
}
