//! The model: senders, files, sinks and the channel between them on a disk that forgets.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use millstream_channels::disk::log::{Behind, ChannelId, Dedupe, Error, Item, Log, Options, Sync};
use millstream_record::{Batch, Origin, Pool, Position, Time};
use millstream_testkit::{Call, Crash, Random, SimulatedDisk};

use crate::{
    flows::{Sender, Tailed},
    sink::{Seen, Sink, check_same, lines_of},
};

#[derive(Clone, Copy)]
pub struct Setting {
    pub sync: Sync,
    /// A consumer that never commits holds the whole log, which is compared after every start.
    pub audit: bool,
    /// Disk calls fail at random.
    pub faults: bool,
}

pub struct World {
    pub random: Random,
    seed: u64,
    setting: Setting,
    disk: SimulatedDisk,
    now: Time,
    log: Option<Log>,
    senders: Vec<Sender>,
    files: Vec<Tailed>,
    sinks: Vec<Sink>,
    connections: u64,
    /// Seq at which a sender gets its ack, the sender, its connection, and how many chunks that is.
    waiting: Vec<(u64, usize, u64, usize)>,
    seen: Seen,
    /// All that is kept, as the auditor has read it, and when it did.
    audited: Vec<(Position, Batch, Time)>,
    /// Lines that a power cut took, as `sync: 1s` may.
    taken_by_power: BTreeSet<String>,
}

impl World {
    pub fn new(seed: u64, setting: Setting) -> Self {
        let mut world = Self {
            random: Random::new(seed),
            seed,
            setting,
            disk: SimulatedDisk::new(seed ^ 0x5eed),
            now: Time(1_000_000_000_000),
            log: None,
            senders: (0..3)
                .map(|n| Sender::new(&format!("s{n}"), n == 2, n))
                .collect(),
            files: (0..2)
                .map(|number| Tailed {
                    number,
                    next: 0,
                    bytes: 0,
                })
                .collect(),
            sinks: vec![
                Sink::new("exact", true),
                Sink::new("slow", true),
                Sink::new("cursor", false),
            ],
            connections: 10,
            waiting: Vec::new(),
            seen: Seen::new(),
            audited: Vec::new(),
            taken_by_power: BTreeSet::new(),
        };
        if setting.audit {
            world.sinks.push(Sink::new("auditor", false));
        }
        world
    }

    fn options(&self) -> Options {
        Options {
            sync: self.setting.sync,
            size_max: if self.setting.audit {
                1 << 30
            } else {
                200 << 10
            },
            segment_bytes: 16 << 10,
            hot_bytes: 3000,
            dedupe: Dedupe::default(),
        }
    }

    /// Opens the channel, as often as the disk lets it crash there; a crash in here is planned by nobody.
    fn open(&mut self) -> bool {
        let disk: Arc<SimulatedDisk> = Arc::new(self.disk.clone());
        let opened = Log::open(disk, Path::new("/c"), self.options(), ChannelId([7; 16]));
        let (log, recovered) = match opened {
            Ok(opened) => opened,
            Err(_) if self.disk.crashed() => return false,
            Err(error) => panic!("seed {}: {error}", self.seed),
        };
        let seed = self.seed;
        let damage: Vec<_> = recovered.damage.iter().collect();
        let only_cursors = damage
            .iter()
            .all(|found| found.0.extension().unwrap() == "cursor");
        assert!(only_cursors, "seed {seed}: {damage:?}");
        self.log = Some(log);
        for sink in 0..self.sinks.len() {
            if !self.attach(sink) {
                return false;
            }
        }
        for file in &mut self.files {
            let log = self.log.as_ref().unwrap();
            file.next = log.next_of(&file.id()).unwrap_or(0);
        }
        true
    }

    fn attach(&mut self, sink: usize) -> bool {
        let log = self.log.as_ref().unwrap();
        let sink = &mut self.sinks[sink];
        match log.reader(sink.name, Behind::default(), Pool::new(1 << 20)) {
            Ok(reader) => {
                sink.attach(reader);
                true
            }
            Err(_) if self.disk.crashed() => false,
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
    }

    /// The process is gone and starts again, maybe several times until it is up.
    pub fn crash(&mut self, kind: Crash) {
        let before = self.now;
        self.stop(kind);
        if self.random.chance(1, 3) {
            // It may not even get through its start.
            let calls = self.disk.calls() + self.random.below(25);
            self.disk.crash_at(calls);
        }
        while !self.open() {
            self.stop(kind);
        }
        self.audit_start(kind, before);
    }

    fn stop(&mut self, kind: Crash) {
        self.log = None;
        self.waiting.clear();
        for sink in &mut self.sinks {
            sink.crash();
        }
        self.disk.restart(kind);
        for sender in &mut self.senders {
            sender.sent = sender.acked;
            self.connections += 1;
            sender.connection = self.connections;
        }
    }

    /// Works until the disk crashes in the call with this number, or `steps` are done; false if it did not crash.
    pub fn work_until_call(&mut self, call: u64, steps: u32) -> bool {
        self.disk.crash_at(call);
        if self.open() {
            for _ in 0..steps {
                self.step();
                if self.disk.crashed() {
                    break;
                }
            }
        }
        let crashed = self.disk.crashed();
        if !crashed {
            self.disk.crash_at(u64::MAX);
        }
        crashed
    }

    /// Works for a while; the disk may crash in the middle, and then the rest is not done.
    pub fn work(&mut self, steps: u32) {
        if self.log.is_none() && !self.open() {
            return;
        }
        if self.random.chance(3, 4) {
            let calls = self.disk.calls() + self.random.below(150);
            self.disk.crash_at(calls);
        }
        for _ in 0..steps {
            self.step();
            if self.disk.crashed() {
                return;
            }
        }
    }

    fn step(&mut self) {
        self.now.0 += self.random.below(150) as i64 * 1_000_000;
        if self.log.as_mut().unwrap().tick(self.now).is_err() && self.disk.crashed() {
            return;
        }
        match self.random.below(20) {
            0..6 => self.send(),
            6..9 => self.tail(),
            9..13 => self.commit(),
            13..17 => self.take(),
            17 if self.setting.faults => self.break_something(),
            _ => {
                let sink = self.random.below(self.sinks.len() as u64) as usize;
                if self.sinks[sink].name != "auditor" {
                    self.sinks[sink].commit(&mut self.random);
                }
            }
        }
    }

    fn break_something(&mut self) {
        let errno = if self.random.chance(1, 3) { 28 } else { 5 };
        match self.random.below(4) {
            0 => self.disk.fail(Call::Sync, 1, errno),
            1 => self.disk.fail(Call::Write, 1, errno),
            2 => self.disk.fail(Call::Allocate, 2, 28),
            _ => {
                let room = self.random.below(300) << 10;
                self.disk.set_capacity(room);
            }
        }
    }

    fn send(&mut self) {
        let log = self.log.as_mut().unwrap();
        let place = self.random.below(self.senders.len() as u64) as usize;
        let sender = &mut self.senders[place];
        if log.staged_bytes() > 12_000 || (sender.content_ids && sender.sent != sender.acked) {
            return;
        }
        let (group, _) = sender.send(&mut self.random);
        if let Ok(seq) = log.append(group, 0, self.now) {
            self.waiting
                .push((seq, place, sender.connection, sender.sent));
        }
    }

    fn tail(&mut self) {
        let log = self.log.as_mut().unwrap();
        let place = self.random.below(self.files.len() as u64) as usize;
        if log.staged_bytes() <= 12_000 {
            let batch = self.files[place].read(&mut self.random);
            let _ = log.append(vec![batch], 0, self.now);
        }
    }

    fn commit(&mut self) {
        let log = self.log.as_mut().unwrap();
        match log.commit(self.now) {
            Ok(()) => {}
            // No room now, or a crash: both pass.
            Err(error) if error.is_for_now() => self.disk.set_capacity(u64::MAX),
            Err(_) if self.disk.crashed() => return,
            Err(Error::Disk { .. }) if self.setting.faults => {
                // The second failure in a row: the channel has stopped, and the operator starts it again.
                self.crash(Crash::Kill);
                return;
            }
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
        self.answer();
        self.audit();
    }

    /// Acks what is kept. Some acks get lost with their connection.
    fn answer(&mut self) {
        let log = self.log.as_mut().unwrap();
        let kept = log.kept().seq;
        for (seq, place, connection, chunks) in std::mem::take(&mut self.waiting) {
            let sender = &mut self.senders[place];
            if sender.connection != connection {
                continue;
            }
            if seq > kept {
                self.waiting.push((seq, place, connection, chunks));
                continue;
            }
            let lost = self.random.chance(1, 8);
            if !lost {
                sender.acked = sender.acked.max(chunks);
            }
            if lost || (sender.content_ids && self.random.chance(1, 4)) {
                log.close_connection(connection, !lost);
                self.connections += 1;
                sender.connection = self.connections;
                sender.sent = sender.acked;
            }
        }
    }

    fn take(&mut self) {
        let place = self.random.below(self.sinks.len() as u64) as usize;
        let sink = &mut self.sinks[place];
        if sink.name == "slow" && self.random.chance(3, 4) || sink.name == "auditor" {
            return;
        }
        sink.take(1 + self.random.below(8), &mut self.seen);
    }

    /// Reads on with the auditor, and keeps what it sees.
    fn audit(&mut self) {
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

    /// After a start: everything that was kept is there, but for what the policy may lose; and the origins are those of
    /// what is there.
    fn audit_start(&mut self, kind: Crash, crashed_at: Time) {
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
                "seed {seed}: the loss is no suffix"
            );
        }
        for (position, batch, kept_at) in lost {
            let age = crashed_at.0 - kept_at.0;
            // A step of the model lasts up to 150 ms, and a sync that is due is done in the next one.
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

    /// Everything is sent and taken to its end, and every line is counted.
    pub fn finish(&mut self) {
        self.disk.restart(Crash::Kill);
        self.disk.set_capacity(u64::MAX);
        self.stop(Crash::Kill);
        assert!(self.open());
        for _ in 0..2000 {
            self.now.0 += 2_000_000_000;
            let busy = self.senders.iter().any(|sender| sender.acked < sender.made);
            for place in 0..self.senders.len() {
                let sender = &mut self.senders[place];
                if sender.sent < sender.made && (!sender.content_ids || sender.sent == sender.acked)
                {
                    let (group, _) = sender.send(&mut self.random);
                    let log = self.log.as_mut().unwrap();
                    let seq = log.append(group, 0, self.now).unwrap();
                    self.waiting
                        .push((seq, place, sender.connection, sender.sent));
                }
            }
            self.commit();
            let mut took = 0;
            for sink in self.sinks.iter_mut().filter(|sink| sink.name != "auditor") {
                took += sink.take(50, &mut self.seen);
                sink.commit(&mut self.random);
            }
            if !busy && took == 0 && self.log.as_ref().unwrap().staged_bytes() == 0 {
                break;
            }
        }
        self.read_files_to_their_ends();
        self.count();
    }

    /// The files are read again from where the channel says.
    fn read_files_to_their_ends(&mut self) {
        for place in 0..self.files.len() {
            let log = self.log.as_mut().unwrap();
            let file = &mut self.files[place];
            let bytes = file.bytes;
            file.next = log.next_of(&file.id()).unwrap_or(0);
            while file.next < bytes {
                let batch = file.read(&mut self.random);
                log.append(vec![batch], 0, self.now).unwrap();
            }
        }
        for _ in 0..200 {
            self.commit();
            for sink in self.sinks.iter_mut().filter(|sink| sink.name != "auditor") {
                sink.take(50, &mut self.seen);
                sink.commit(&mut self.random);
            }
        }
    }

    fn count(&self) {
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
                assert_eq!(all.len(), flow.len(), "seed {seed}: twice at {name}");
                let in_order = all.iter().zip(flow).all(|(a, b)| *a == b);
                assert!(in_order, "seed {seed}: out of order at {name}");
            }
        }
    }
}
