//! Tests of the spills.

use rustix::io::Errno;

use super::*;

const MIB: usize = 1 << 20;

fn open_with(directory: &Path, file: usize, all: usize) -> (Arc<Recent>, Vec<Restored>) {
    let limits = Limits {
        file: file as u64,
        all: all as u64,
    };
    let reporter = Reporter::new("fuse");
    let directory = directory.join("recent");
    Recent::open(directory, limits, &[], reporter, Meter::default()).unwrap()
}

fn named(path: &str) -> Option<(Head, Time)> {
    let head = Head {
        path: path.into(),
        target: None,
        mode: 0o600,
        uid: 1,
        gid: 2,
    };
    Some((head, Time::from_parts(5, 6)))
}

fn read(spill: &Arc<Spill>, offset: u64, bytes: usize) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime
        .unwrap()
        .block_on(spill.read(offset, bytes))
        .unwrap()
}

#[test]
fn only_the_owner_may_look_at_the_spills() {
    let directory = tempfile::tempdir().unwrap();
    let (recent, _) = open_with(directory.path(), MIB, MIB);
    recent.spill(16).save(|| named("a"));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory.path().join("recent")), 0o700);
    assert_eq!(mode(&recent.path(16)), 0o600);
}

#[test]
fn written_data_are_read_after_a_crash_and_a_removed_file_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (recent, _) = open_with(directory.path(), MIB, MIB);
    let spills = [16, 17, 18].map(|number| recent.spill(number));
    for (spill, name) in spills.iter().zip(["a", "b", "c"]) {
        spill.save(|| named(name));
        spill.write(3, name.as_bytes());
    }
    spills[0].resize(2);
    spills[0].resize(10);
    spills[1].save(|| None);
    let _ = spills.map(std::mem::forget);
    let (_, mut restored) = open_with(directory.path(), MIB, MIB);
    restored.sort_by_key(|found| found.number);
    let found = restored.iter();
    let found: Vec<_> = found
        .map(|found| (found.number, found.head.path.to_str().unwrap(), found.size))
        .collect();
    assert_eq!(found, [(16, "a", 10), (18, "c", 4)]);
    assert_eq!(read(&restored[0].spill, 0, 10), [0; 10]);
    assert_eq!(read(&restored[1].spill, 1, 3), b"\0\0c");
    assert!(!recent.path(17).exists());
}

#[test]
fn the_last_bytes_of_a_file_stay_and_older_ones_are_a_hole() {
    let directory = tempfile::tempdir().unwrap();
    let (recent, _) = open_with(directory.path(), MIB, 64 * MIB);
    let spill = recent.spill(16);
    let data: Vec<u8> = (0..MIB).map(|n| b'a' + (n / 999 % 26) as u8).collect();
    for n in 0..20 {
        spill.write((n * MIB) as u64, &data);
        assert!(spill.held() <= (MIB + MIB / 8 + MIB) as u64);
    }
    let size = 20 * MIB as u64;
    assert_eq!(read(&spill, 19 * MIB as u64, MIB), data);
    assert_eq!(read(&spill, 0, MIB), vec![0; MIB]);
    // A copy that was begun before the bytes were dropped is still one.
    assert!(!spill.holds(20 * MIB as u64, 0, &data, false));
    assert!(spill.holds(20 * MIB as u64, 0, &data, true));
    assert!(!spill.holds(20 * MIB as u64, 19 * MIB as u64, &[0; MIB], true));
    let first = spill.seek(size, 0, true).unwrap();
    assert!(
        (18 * MIB as u64..=19 * MIB as u64).contains(&first),
        "{first}"
    );
    assert_eq!(spill.seek(size, 0, false), Ok(0));
    assert_eq!(spill.seek(size, first, false), Ok(size));
    assert_eq!(spill.seek(size, size, true), Err(Errno::NXIO));
    assert!(fs::metadata(recent.path(16)).unwrap().blocks() * 512 < 3 * MIB as u64);
}

#[test]
fn files_that_were_written_longest_ago_are_dropped_first() {
    let directory = tempfile::tempdir().unwrap();
    let (recent, _) = open_with(directory.path(), 4 * MIB, 8 * MIB);
    let spills: Vec<_> = (0..12).map(|n| recent.spill(16 + n)).collect();
    for spill in &spills {
        spill.save(|| named(&spill.last_use().to_string()));
        spill.write(0, &vec![b'x'; MIB]);
    }
    spills[0].write(0, b"new");
    recent.shed();
    let held: u64 = spills.iter().map(|spill| spill.held()).sum();
    assert!(held <= 7 * MIB as u64 && held >= 5 * MIB as u64, "{held}");
    assert_eq!(recent.held.load(Relaxed), held);
    assert_eq!(read(&spills[0], 0, 4), b"newx");
    assert_eq!(read(&spills[11], 0, 4), b"xxxx");
    assert_eq!(read(&spills[1], 0, 4), [0; 4]);
    // A dropped file keeps its size, also after a restart.
    drop(spills);
    assert_eq!(recent.held.load(Relaxed), 0);
    let (again, restored) = open_with(directory.path(), 4 * MIB, 8 * MIB);
    assert_eq!(restored.len(), 12);
    assert!(restored.iter().all(|found| found.size == MIB as u64));
    again.shed();
    assert!(again.held.load(Relaxed) >= 5 * MIB as u64);
}

#[test]
fn while_space_is_short_nothing_is_added_and_old_bytes_do_not_show() {
    let directory = tempfile::tempdir().unwrap();
    let (recent, _) = open_with(directory.path(), MIB, MIB);
    let spill = recent.spill(16);
    spill.write(0, b"old old old");
    recent.is_short.store(true, Relaxed);
    spill.write(4, b"new");
    spill.write(MIB as u64 / 2, b"end");
    assert_eq!(read(&spill, 0, 12), b"old \0\0\0 old\0");
    assert_eq!(read(&spill, MIB as u64 / 2, 3), [0; 3]);
    assert_eq!(
        spill.seek(MIB as u64, MIB as u64 / 4, true),
        Err(Errno::NXIO)
    );
    // There is enough free space in fact.
    recent.shed();
    spill.write(20, b"end");
    assert_eq!(read(&spill, 18, 5), b"\0\0end");
}

#[test]
fn few_spills_are_open_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let (recent, _) = open_with(directory.path(), MIB, 64 * MIB);
    let spills: Vec<_> = (0..3 * OPEN_MAX as u64)
        .map(|n| recent.spill(16 + n))
        .collect();
    for round in 0..2 {
        for spill in &spills {
            spill.write(round, b"x");
        }
    }
    let own = directory.path().join("recent");
    let open = fs::read_dir("/proc/self/fd").unwrap();
    let open = open.filter(|entry| {
        let target = fs::read_link(entry.as_ref().unwrap().path());
        target.is_ok_and(|target| target.starts_with(&own))
    });
    assert!(open.count() <= OPEN_MAX);
    assert!(spills.iter().all(|spill| read(spill, 0, 2) == b"xx"));
}

#[test]
fn data_that_are_written_behind_are_read_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let (recent, _) = open_with(directory.path(), 64 * MIB, 64 * MIB);
    let spill = recent.spill(16);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        for n in 0..50_u8 {
            let data = bytes::Bytes::from(vec![n; MIB]);
            let written = spill
                .write_behind(u64::from(n / 2) * MIB as u64, data)
                .await;
            if n % 7 == 0 {
                written.unwrap().await.unwrap();
            }
        }
        let read = spill.read(0, 25 * MIB).await.unwrap();
        for (n, part) in read.chunks(MIB).enumerate() {
            assert!(
                part.iter().all(|byte| usize::from(*byte) == 2 * n + 1),
                "{n}"
            );
        }
    });
    spill.write(0, b"last");
    assert!(spill.holds(25 * MIB as u64, 0, b"last\x01", false));
    assert!(!spill.holds(4, 0, b"last\x01", false));
    spill.fit(2);
    assert_eq!(read(&spill, 0, 4), b"la\0\0");
}
