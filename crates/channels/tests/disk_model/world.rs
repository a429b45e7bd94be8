//! The model: senders, files, sinks, and the channel between them on a simulated disk.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use millstream_channels::disk::log::{Behind, ChannelId, Dedupe, Error, Log, Options, Sync};
use millstream_record::{Batch, Pool, Position, Time};
use millstream_testkit::{Call, Crash, Random, SimulatedDisk};

use crate::{
    flows::{Sender, Tailed},
    full::FullDisk,
    sink::{Seen, Sink},
};

#[derive(Clone, Copy)]
pub struct Setting {
    pub sync: Sync,
    /// Whether a consumer that never commits holds the whole log, which is compared after every start.
    pub audit: bool,
    /// Whether disk calls fail at random.
    pub faults: bool,
    /// Whether the disk has space for only a few segments.
    pub tight: bool,
}

pub struct World {
    pub random: Random,
    pub seed: u64,
    pub setting: Setting,
    disk: SimulatedDisk,
    /// The same disk, as the channel sees it.
    full: FullDisk,
    pub now: Time,
    pub log: Option<Log>,
    pub senders: Vec<Sender>,
    pub files: Vec<Tailed>,
    pub sinks: Vec<Sink>,
    connections: u64,
    /// Acknowledgements that are not sent yet: the seq that must be kept first, the sender, its connection, and the
    /// number of chunks that are then acknowledged.
    waiting: Vec<(u64, usize, u64, usize)>,
    pub seen: Seen,
    /// Everything that is kept, as the auditor has read it, and when it was read.
    pub audited: Vec<(Position, Batch, Time)>,
    /// Lines that were lost in a power cut, as `sync: 1s` allows.
    pub taken_by_power: BTreeSet<String>,
    /// Whether the channel has dropped ids of chunks in an earlier run, because the disk had no space for them.
    forgot_ids: bool,
}

impl World {
    pub fn new(seed: u64, setting: Setting) -> Self {
        let disk = SimulatedDisk::new(seed ^ 0x5eed);
        let mut world = Self {
            random: Random::new(seed),
            seed,
            setting,
            full: FullDisk::new(&disk),
            disk,
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
            forgot_ids: false,
        };
        if setting.audit {
            world.sinks.push(Sink::new("auditor", false));
        }
        world
    }

    fn options(&self) -> Options {
        Options {
            sync: self.setting.sync,
            size_max: if self.setting.audit || self.setting.tight {
                1 << 30
            } else {
                200 << 10
            },
            segment_bytes: if self.setting.tight {
                64 << 10
            } else {
                16 << 10
            },
            hot_bytes: 3000,
            max_age: Duration::ZERO,
            dedupe: Dedupe::default(),
        }
    }

    /// Opens the channel. Returns false if the disk crashed.
    fn open(&mut self) -> bool {
        let disk = Arc::new(self.full.clone());
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
        assert_eq!(recovered.losses, [], "seed {seed}");
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

    /// Kills the process and starts it again, repeatedly until a start succeeds.
    pub fn crash(&mut self, kind: Crash) {
        let before = self.now;
        self.stop(kind);
        if self.random.chance(1, 3) {
            // The start may crash, too.
            let calls = self.disk.calls() + self.random.below(25);
            self.disk.crash_at(calls);
        }
        while !self.open() {
            self.stop(kind);
        }
        self.audit_start(kind, before);
    }

    /// Whether a repeated chunk may be stored again: only if the disk had no space for its id.
    pub fn has_forgotten_ids(&self) -> bool {
        let evicted = self.log.as_ref().map_or(0, Log::evicted_young);
        self.forgot_ids || self.setting.tight && evicted > 0
    }

    fn stop(&mut self, kind: Crash) {
        self.forgot_ids = self.has_forgotten_ids();
        self.log = None;
        self.full.clear();
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

    /// Runs `steps` steps, or until the disk crashes in the call with this number. Returns whether it crashed.
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

    /// Works for `steps` steps, or until the disk was full for a sync and for a later call; see [`FullDisk::fail`]. Returns whether the
    /// sync has failed.
    pub fn work_until_full(&mut self, syncs: u64, calls: u64, steps: u32) -> bool {
        assert!(self.open());
        self.full.fail(syncs, calls);
        for _ in 0..steps {
            self.step();
            if self.full.is_over() {
                break;
            }
        }
        self.full.has_failed()
    }

    /// Works for some steps, or until the disk crashes.
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
        if self.log.as_mut().unwrap().sync_if_due(self.now).is_err() && self.disk.crashed() {
            return;
        }
        match self.random.below(20) {
            0..6 => self.send(),
            6..9 => self.tail(),
            9..13 => self.commit(),
            13..17 => self.read(),
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
                let least = if self.setting.tight { 80 } else { 0 };
                let room = (least + self.random.below(300)) << 10;
                self.disk.set_capacity(room);
            }
        }
    }

    fn send(&mut self) {
        let log = self.log.as_mut().unwrap();
        let place = self.random.below(self.senders.len() as u64) as usize;
        let sender = &mut self.senders[place];
        if sender.sent > sender.acked && self.random.chance(1, 12) {
            // The sender gives up waiting and sends again, while the first copy may still be in flight.
            log.close_connection(sender.connection, false);
            self.connections += 1;
            sender.connection = self.connections;
            sender.sent = sender.acked;
        }
        if log.staged_bytes() > 12_000 || (sender.content_ids && sender.sent != sender.acked) {
            return;
        }
        let (group, _) = sender.send(&mut self.random);
        if let Ok(seq) = log.append(group, self.now) {
            self.waiting
                .push((seq, place, sender.connection, sender.sent));
        }
    }

    fn tail(&mut self) {
        let log = self.log.as_mut().unwrap();
        let place = self.random.below(self.files.len() as u64) as usize;
        if log.staged_bytes() <= 12_000 {
            let batch = self.files[place].read(&mut self.random);
            let _ = log.append(vec![batch], self.now);
        }
    }

    fn commit(&mut self) {
        let log = self.log.as_mut().unwrap();
        match log.commit(self.now) {
            Ok(()) => {}
            // There is no space, or the disk has crashed; both are temporary.
            Err(error) if error.is_for_now() => self.free_space(),
            Err(_) if self.disk.crashed() => return,
            Err(Error::Disk { .. }) if self.setting.faults => {
                // After the second failure in a row the channel has stopped, and an operator starts it again.
                self.crash(Crash::Kill);
                return;
            }
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
        self.answer();
        self.audit();
    }

    /// Frees space, either as if other programs did, or by letting the sinks settle waiting batches.
    fn free_space(&mut self) {
        if !self.setting.tight || self.random.chance(1, 8) {
            self.disk.set_capacity(u64::MAX);
            return;
        }
        for sink in &mut self.sinks {
            sink.read(100, &mut self.seen);
            sink.commit(&mut self.random);
        }
    }

    /// Acknowledges kept chunks. Some acknowledgements are lost with their connection.
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

    fn read(&mut self) {
        let place = self.random.below(self.sinks.len() as u64) as usize;
        let sink = &mut self.sinks[place];
        if sink.name == "slow" && self.random.chance(3, 4) || sink.name == "auditor" {
            return;
        }
        sink.read(1 + self.random.below(8), &mut self.seen);
    }

    /// Sends and reads everything to the end, and counts every line.
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
                    let seq = log.append(group, self.now).unwrap();
                    self.waiting
                        .push((seq, place, sender.connection, sender.sent));
                }
            }
            self.commit();
            let mut count = 0;
            for sink in self.sinks.iter_mut().filter(|sink| sink.name != "auditor") {
                count += sink.read(50, &mut self.seen);
                sink.commit(&mut self.random);
            }
            if !busy && count == 0 && self.log.as_ref().unwrap().staged_bytes() == 0 {
                break;
            }
        }
        self.read_files_to_their_ends();
        self.count();
    }

    /// Reads the files again from the offsets in the channel.
    fn read_files_to_their_ends(&mut self) {
        for place in 0..self.files.len() {
            let log = self.log.as_mut().unwrap();
            let file = &mut self.files[place];
            let bytes = file.bytes;
            file.next = log.next_of(&file.id()).unwrap_or(0);
            while file.next < bytes {
                let batch = file.read(&mut self.random);
                log.append(vec![batch], self.now).unwrap();
            }
        }
        for _ in 0..200 {
            self.commit();
            for sink in self.sinks.iter_mut().filter(|sink| sink.name != "auditor") {
                sink.read(50, &mut self.seen);
                sink.commit(&mut self.random);
            }
        }
    }
}
