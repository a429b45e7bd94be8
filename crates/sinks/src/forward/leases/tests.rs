//! Tests of leases on a simulated disk that crashes.

use std::{collections::HashMap, io::IoSlice};

use millstream_sys::{checksum::crc32c_of, disk::Open};
use millstream_testkit::{
    Crash, SimulatedDisk,
    trial::{DIRECTORY, DurableState, Trial},
};

use super::*;

fn place(seq: u64, part: u32) -> Place {
    (Position { epoch: 1, seq }, part)
}

fn open(disk: &Arc<dyn Disk>, channel: u128) -> Leases {
    Leases::open(
        disk.clone(),
        Path::new("/data/sinks/out"),
        channel,
        &Turn::default(),
    )
    .unwrap()
}

fn sync(leases: &mut Leases) -> u64 {
    let sync = leases.sync().unwrap();
    let serial = sync.serial;
    sync.run().unwrap();
    serial
}

#[test]
fn leases_survive_a_restart_and_the_newest_counts() {
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
    let mut leases = open(&disk, 7);
    let first = leases.lease(place(1, 0), "a:1");
    assert_eq!(leases.lease(place(1, 1), "b:1"), first, "one sync for both");
    assert_eq!(sync(&mut leases), first);
    assert!(leases.sync().is_none());
    assert!(leases.lease(place(1, 0), "b:1") > first);
    leases.lease(place(2, 0), "a:1");
    sync(&mut leases);
    leases.settle(place(1, 0).0);
    let leases = open(&disk, 7);
    assert_eq!(leases.holder(place(1, 0)), Some("b:1"));
    assert_eq!(leases.holder(place(2, 0)), Some("a:1"));
    assert_eq!(leases.holder(place(3, 0)), None);
    let other = open(&disk, 8);
    assert_eq!(other.holder(place(2, 0)), None, "of another channel");
}

#[test]
fn a_file_that_grew_is_rewritten_without_forgotten_leases() {
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
    let mut leases = open(&disk, 7);
    let path = Path::new("/data/sinks/out/leases");
    for seq in 0..100_000 {
        leases.lease(place(seq, 0), ["a:1", "b:1"][(seq % 2) as usize]);
        if seq % 100 == 99 {
            sync(&mut leases);
            leases.settle(place(seq - 20, 0).0);
        }
    }
    assert!(disk.metadata(path).unwrap().len <= FILE_BYTES_MAX);
    let leases = open(&disk, 7);
    assert_eq!(leases.holder(place(99_999, 0)), Some("b:1"));
    assert_eq!(leases.holder(place(99_998, 0)), Some("a:1"));
}

#[test]
fn synced_leases_survive_a_crash_at_any_call() {
    for seed in 0..300 {
        let disk = SimulatedDisk::new(seed);
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        // For each chunk: the servers of its leases, oldest first, and how many of these leases are durable.
        let mut made: HashMap<Place, (Vec<&str>, usize)> = HashMap::new();
        for round in 0..4 {
            disk.crash_at(disk.calls() + 3 + (seed * 7 + round * 13) % 29);
            let _ = use_leases(&shared, round, &mut made);
            disk.restart(if seed % 2 == 0 {
                Crash::Kill
            } else {
                Crash::Power
            });
            let leases = open(&shared, 7);
            for (place, (servers, durable)) in &made {
                let known = &servers[durable.saturating_sub(1)..];
                let holder = leases.holder(*place);
                let right = match holder {
                    Some(holder) => known.contains(&holder),
                    None => *durable == 0,
                };
                assert!(
                    right,
                    "seed {seed}: {place:?} is with {holder:?}, made {servers:?}, {durable} durable"
                );
            }
        }
    }
}

/// Leases chunks until the disk fails.
fn use_leases(
    disk: &Arc<dyn Disk>,
    round: u64,
    made: &mut HashMap<Place, (Vec<&str>, usize)>,
) -> Result<(), Failure> {
    let mut leases = Leases::open(
        disk.clone(),
        Path::new("/data/sinks/out"),
        7,
        &Turn::default(),
    )?;
    for seq in 0..60 {
        let server = ["a:1", "b:1", "c:1"][(seq + round) as usize % 3];
        leases.lease(place(seq, 0), server);
        made.entry(place(seq, 0)).or_default().0.push(server);
        if seq % 5 == 4
            && let Some(sync) = leases.sync()
        {
            sync.run()?;
            for leased in 0..=seq {
                if let Some((servers, durable)) = made.get_mut(&place(leased, 0)) {
                    *durable = servers.len();
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_newer_format_is_refused_with_both_version_numbers() {
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
    drop(open(&disk, 7));
    let path = Path::new("/data/sinks/out/leases");
    let file = disk.open(path, Open::Write).unwrap();
    let front = [&b"MSLEASES"[..], &9_u32.to_le_bytes()].concat();
    let generation = [7; 8];
    let sum = crc32c_of(&[&front, &generation]).to_le_bytes();
    let header = [&front[..], &sum, &generation].concat();
    file.write_at(&[IoSlice::new(&header)], 0).unwrap();
    let refused = Leases::open(disk, Path::new("/data/sinks/out"), 7, &Turn::default());
    let text = refused.err().unwrap().message;
    assert!(
        text.contains("version 9") && text.contains("reads up to 2"),
        "{text}"
    );
}

#[test]
fn a_damaged_record_is_reported_and_harms_no_other_record() {
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
    let mut leases = open(&disk, 7);
    let place = |seq| (Position { epoch: 1, seq }, 0);
    for seq in 1..4 {
        leases.lease(place(seq), "a:1");
    }
    leases.sync().unwrap().run().unwrap();
    assert_eq!(leases.damaged_bytes(), 0);
    let end = lock(&leases.journal).bytes();
    drop(leases);
    let path = Path::new("/data/sinks/out/leases");
    // The damaged byte belongs to the second of the three leases.
    let lease = LEASE_RECORD_BYTES;
    let file = disk.open(path, Open::Write).unwrap();
    file.write_at(&[IoSlice::new(&[0xff])], end - lease - 10)
        .unwrap();
    drop(file);
    let leases = open(&disk, 7);
    assert_eq!(leases.damaged_bytes(), lease);
    let holders = [1, 2, 3].map(|seq| leases.holder(place(seq)));
    assert_eq!(holders, [Some("a:1"), None, Some("a:1")]);
    drop(leases);
    // A wrong byte in the version is damage, too, and not a newer format, because the checksum does not match.
    let file = disk.open(path, Open::Write).unwrap();
    file.write_at(&[IoSlice::new(&[9])], 8).unwrap();
    drop(file);
    assert!(open(&disk, 7).damaged_bytes() > 0);
}

/// A state for [`Trial`]: its number is the sequence number of the newest lease. All but the newest four leases are
/// settled.
struct Numbered {
    leases: Leases,
    disk: Arc<dyn Disk>,
    failed: bool,
}

impl Numbered {
    fn leases(disk: &Arc<dyn Disk>) -> Result<Leases, String> {
        let leases = Leases::open(disk.clone(), Path::new(DIRECTORY), 7, &Turn::default());
        leases.map_err(|failure| failure.message)
    }
}

impl DurableState for Numbered {
    fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
        Ok(Self {
            leases: Self::leases(&disk)?,
            disk,
            failed: false,
        })
    }

    fn number(&self) -> u64 {
        let Some(((position, _), _)) = self.leases.table.last_key_value() else {
            return 0;
        };
        let number = position.seq;
        let server = format!("server-{}:1", number % 3);
        assert_eq!(self.leases.holder(place(number, 0)), Some(&*server));
        number
    }

    fn advance(&mut self, number: u64) -> Result<(), String> {
        if self.failed {
            self.leases = Self::leases(&self.disk)?;
            self.failed = false;
        }
        let server = format!("server-{}:1", number % 3);
        self.leases.lease(place(number, 0), &server);
        if number > 4 {
            self.leases.settle(place(number - 4, 0).0);
        }
        if let Some(sync) = self.leases.sync() {
            let done = sync.run().map_err(|failure| failure.message);
            self.failed = done.is_err();
            done?;
        }
        Ok(())
    }
}

#[test]
fn leases_survive_power_cuts_and_failing_disks() {
    Trial::default().run::<Numbered>();
}
