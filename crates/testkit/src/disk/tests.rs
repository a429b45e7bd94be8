//! The simulated disk may lose data that is not synced, and keeps data that is.

use std::{io::IoSlice, path::Path};

use millstream_sys::disk::{Disk, Open};

use super::{Call, Crash, SimulatedDisk};

fn read(disk: &SimulatedDisk, path: &str) -> Option<Vec<u8>> {
    let file = disk.open(Path::new(path), Open::Read).ok()?;
    let mut bytes = Vec::new();
    file.read_at(&mut bytes, 1 << 20, 0).unwrap();
    Some(bytes)
}

fn write(
    disk: &SimulatedDisk,
    path: &str,
    bytes: &[u8],
) -> std::sync::Arc<dyn millstream_sys::disk::File> {
    let file = disk.open(Path::new(path), Open::Create).unwrap();
    file.write_at(&[IoSlice::new(bytes)], 0).unwrap();
    file
}

#[test]
fn synced_files_survive_every_power_cut() {
    for seed in 0..200 {
        let disk = SimulatedDisk::new(seed);
        write(&disk, "/a", &[7; 5000]).sync().unwrap();
        disk.sync_directory(Path::new("/")).unwrap();
        disk.restart(Crash::Power);
        assert_eq!(read(&disk, "/a"), Some(vec![7; 5000]), "seed {seed}");
    }
}

#[test]
fn every_unsynced_sector_and_name_can_be_lost_alone() {
    let (mut name_lost, mut gap, mut whole) = (0, 0, 0);
    for seed in 0..400 {
        let disk = SimulatedDisk::new(seed);
        let file = write(&disk, "/a", &[0; 1536]);
        file.sync().unwrap();
        file.write_at(&[IoSlice::new(&[1; 1536])], 0).unwrap();
        disk.restart(Crash::Power);
        match read(&disk, "/a") {
            None => name_lost += 1,
            Some(bytes) if bytes == [1; 1536] => whole += 1,
            Some(bytes) if bytes[512] == 0 && bytes[1024] == 1 => gap += 1,
            Some(_) => {}
        }
    }
    assert!(
        name_lost > 50 && gap > 5 && whole > 20,
        "{name_lost} {gap} {whole}"
    );
}

#[test]
fn a_kill_loses_nothing_and_frees_the_lock() {
    let disk = SimulatedDisk::new(1);
    let file = write(&disk, "/a", b"abc");
    assert!(file.try_lock().unwrap());
    assert!(
        !disk
            .open(Path::new("/a"), Open::Read)
            .unwrap()
            .try_lock()
            .unwrap()
    );
    disk.restart(Crash::Kill);
    assert!(file.sync().is_err());
    assert_eq!(read(&disk, "/a").unwrap(), b"abc");
    assert!(
        disk.open(Path::new("/a"), Open::Read)
            .unwrap()
            .try_lock()
            .unwrap()
    );
}

#[test]
fn after_a_failed_sync_a_second_one_proves_nothing() {
    let mut lost = 0;
    for seed in 0..100 {
        let disk = SimulatedDisk::new(seed);
        let file = write(&disk, "/a", b"");
        disk.sync_directory(Path::new("/")).unwrap();
        file.write_at(&[IoSlice::new(&[1; 512])], 0).unwrap();
        disk.fail(Call::Sync, 1, 5);
        assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(5));
        file.sync().unwrap();
        assert_eq!(read(&disk, "/a").unwrap(), [1; 512]);
        disk.restart(Crash::Power);
        lost += u32::from(read(&disk, "/a").unwrap() != [1; 512]);
    }
    assert!(lost > 20, "{lost}");
}

#[test]
fn a_full_disk_fails_with_enospc_until_a_file_is_removed() {
    let disk = SimulatedDisk::new(1);
    disk.set_capacity(1000);
    let first = write(&disk, "/a", b"");
    first.allocate(800).unwrap();
    let second = write(&disk, "/b", b"");
    assert_eq!(second.allocate(300).unwrap_err().raw_os_error(), Some(28));
    disk.remove(Path::new("/a")).unwrap();
    second.allocate(300).unwrap();
}

#[test]
fn no_call_succeeds_after_the_one_that_crashes() {
    let disk = SimulatedDisk::new(3);
    let file = write(&disk, "/a", b"");
    disk.crash_at(disk.calls());
    assert!(file.write_at(&[IoSlice::new(&[1; 4096])], 0).is_err());
    assert!(disk.crashed());
    assert!(file.sync().is_err());
    disk.restart(Crash::Kill);
    assert!(read(&disk, "/a").unwrap().len() <= 4096);
}
