//! Tests how much of the page cache a sink uses, and how many bytes are dirty (written but not yet on disk), if the sink is faster
//! than its disk.

use std::{
    fs::File,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use millstream_sys::writeback::{Pages, pages};

use super::{options, run};
use crate::rig::{Upstream, gzip_members, lines, long_tag};

const PAGE_BYTES: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Runs a sink over `total` bytes in batches of `piece` bytes. Returns the cached pages of the output file after the run, and the
/// maximum number of dirty bytes during the run.
fn write(directory: &Path, more: &str, piece: u64, total: u64) -> (Pages, u64) {
    let upstream = Upstream::durable(7);
    let line = "x".repeat(127) + "\n";
    let batch = lines("t", &line.repeat((piece / 128) as usize));
    for _ in 0..total / piece {
        upstream.put(batch.clone(), false);
    }
    let more = format!(r#""format": "raw"{more}"#);
    let options = options(directory, "a", &more);
    let path = directory.join("out/a");
    let (done, look) = (AtomicBool::new(false), &path);
    let most = thread::scope(|scope| {
        let most = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                if let Ok(now) = File::open(look).and_then(|file| pages(&file)) {
                    most = most.max((now.dirty + now.writeback) * PAGE_BYTES);
                }
                thread::sleep(Duration::from_micros(500));
            }
            most
        });
        run(directory, &options, &upstream);
        done.store(true, Ordering::Relaxed);
        most.join().unwrap()
    });
    let file = File::open(&path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), total);
    (pages(&file).unwrap(), most)
}

#[test]
fn written_data_leaves_the_page_cache_whether_in_large_pieces_or_small() {
    for piece in [MIB, 64 << 10] {
        let directory = tempfile::tempdir().unwrap();
        let (left, _) = write(directory.path(), "", piece, 128 * MIB);
        // The kernel groups pages in pieces of up to 2 MiB; the piece that still grows is not dropped.
        assert!(left.cached * PAGE_BYTES <= 4 * MIB, "{piece}: {left:?}");
        assert_eq!(left.dirty + left.writeback, 0);
    }
    let directory = tempfile::tempdir().unwrap();
    let (left, _) = write(directory.path(), r#", "cache": "keep""#, MIB, 32 * MIB);
    assert_eq!(left.cached * PAGE_BYTES, 32 * MIB, "as asked for");
}

#[test]
fn dirty_max_bounds_the_bytes_that_are_not_yet_on_disk() {
    for cache in ["keep", "drop"] {
        let directory = tempfile::tempdir().unwrap();
        let more = format!(r#", "cache": "{cache}", "dirty_max": "8MiB""#);
        let (_, most) = write(directory.path(), &more, MIB, 256 * MIB);
        // The sink exceeds the limit by one write before it waits for the disk; the rest is tolerance.
        assert!(most <= 12 * MIB, "{cache}: {} KiB", most >> 10);
        assert!(most > 0, "nothing was seen");
    }
}

#[test]
fn a_batch_that_added_fields_make_very_long_is_written_in_pieces() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    upstream.put(lines(&long_tag(), &"a\n".repeat(4096)), false);
    // Each piece is compressed separately.
    let more = r#""add": {"tag": "{tag}", "time": null}, "compression": "gzip""#;
    run(
        directory.path(),
        &options(directory.path(), "a", more),
        &upstream,
    );
    let path = directory.path().join("out/a");
    assert!(gzip_members(&std::fs::read(&path).unwrap()) >= 4);
    let mut text = String::new();
    let mut decoder = flate2::read::MultiGzDecoder::new(File::open(&path).unwrap());
    std::io::Read::read_to_string(&mut decoder, &mut text).unwrap();
    let line = format!("{{\"message\":\"a\",\"tag\":\"{}\"}}\n", long_tag());
    assert!(text == line.repeat(4096));
}
