//! Trouble that other processes and the disk cause.

use std::{fs, path::Path, process::Command, time::Duration};

use super::{block_on, entries, names, options, read, run};
use crate::{
    file::COMPONENT,
    rig::{Rig, Upstream, lines},
};

const RAW: &str = r#""format": "raw""#;

/// Runs a sink while `happens` runs, then closes the channel and waits until the sink has ended.
fn meanwhile(
    directory: &Path,
    options: &str,
    upstream: &Upstream,
    happens: impl Future<Output = ()>,
) {
    let mut rig = Rig::new(&COMPONENT, options, upstream, &directory.join("state"));
    block_on(async {
        let happens = async {
            happens.await;
            upstream.close();
        };
        // Restarts the sink after a failure, as the supervisor does.
        let run = async {
            loop {
                match rig.run().await {
                    Ok(()) => return,
                    Err(failure) => assert_ne!(
                        failure.again,
                        millstream_pipeline::failure::Again::Never,
                        "{failure}"
                    ),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::join!(run, happens);
    });
}

async fn wait(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

#[test]
fn after_another_process_renames_a_file_a_new_one_is_started() {
    for upstream in [Upstream::memory(), Upstream::durable(7)] {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        meanwhile(
            directory.path(),
            &options(directory.path(), "a", RAW),
            &upstream,
            async {
                upstream.put(lines("t", "1\n"), false);
                wait(50).await;
                assert_eq!(
                    fs::read_to_string(out.join("a")).unwrap(),
                    "1\n",
                    "an idle stream has no added latency"
                );
                fs::rename(out.join("a"), out.join("a.1")).unwrap();
                // This record still goes to the old file, whose name is checked once a second.
                upstream.put(lines("t", "2\n"), false);
                wait(1100).await;
                upstream.put(lines("t", "3\n"), false);
                wait(50).await;
                assert_eq!(fs::read_to_string(out.join("a")).unwrap(), "3\n");
            },
        );
        assert_eq!(read(directory.path(), "a.1"), "1\n2\n");
        assert_eq!(read(directory.path(), "a"), "3\n");
    }
}

#[test]
fn records_wait_while_no_new_file_can_be_started_after_a_rename() {
    for upstream in [Upstream::memory(), Upstream::durable(7)] {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        meanwhile(
            directory.path(),
            &options(directory.path(), "a", RAW),
            &upstream,
            async {
                upstream.put(lines("t", "1\n"), false);
                wait(1100).await;
                fs::rename(out.join("a"), out.join("a.1")).unwrap();
                std::os::unix::fs::symlink("missing/x", out.join("a")).unwrap();
                upstream.put(lines("t", "2\n"), false);
                // At least two attempts fail.
                wait(2000).await;
                fs::remove_file(out.join("a")).unwrap();
                wait(6000).await;
            },
        );
        assert_eq!(read(directory.path(), "a.1"), "1\n");
        assert_eq!(read(directory.path(), "a"), "2\n");
    }
}

#[test]
fn uncommitted_records_of_a_removed_file_are_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    let out = directory.path().join("out");
    meanwhile(
        directory.path(),
        &options(directory.path(), "{tag}/a", RAW),
        &upstream,
        async {
            upstream.put(lines("t", "1\n"), false);
            wait(1300).await;
            assert_eq!(upstream.settled(), 1);
            upstream.put(lines("t", "2\n"), false);
            wait(50).await;
            fs::remove_dir_all(out.join("t")).unwrap();
            wait(1100).await;
            upstream.put(lines("t", "3\n"), false);
            wait(100).await;
        },
    );
    let text = fs::read_to_string(out.join("t/a")).unwrap();
    // If the checkpoint came before the removal was noticed, record 2 is lost with the file.
    assert!(
        text == "2\n3\n" || text == "3\n" && upstream.settled() == 3,
        "{text:?}"
    );
}

#[test]
fn a_file_locked_by_another_process_is_a_failure_that_names_the_file() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("out")).unwrap();
    let path = directory.path().join("out/a");
    let theirs = fs::File::create(&path).unwrap();
    theirs.lock().unwrap();
    let upstream = Upstream::durable(7);
    upstream.put(lines("t", "1\n"), false);
    upstream.close();
    let mut rig = Rig::new(
        &COMPONENT,
        &options(directory.path(), "a", RAW),
        &upstream,
        &directory.path().join("state"),
    );
    let failure = block_on(rig.run()).unwrap_err();
    assert!(
        failure.message.contains(path.to_str().unwrap()) && failure.message.contains("lock"),
        "{failure}"
    );
    assert_eq!((fs::read(&path).unwrap().len(), upstream.settled()), (0, 0));
    drop(theirs);
    block_on(rig.run()).unwrap();
    assert_eq!(read(directory.path(), "a"), "1\n");
}

#[test]
fn a_directory_that_cannot_be_created_is_named_and_created_when_possible() {
    for upstream in [Upstream::memory(), Upstream::durable(7)] {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        fs::write(&out, "in the way").unwrap();
        meanwhile(
            directory.path(),
            &options(directory.path(), "b/a", RAW),
            &upstream,
            async {
                upstream.put(lines("t", "1\n"), false);
                wait(200).await;
                fs::remove_file(&out).unwrap();
            },
        );
        assert_eq!(read(directory.path(), "b/a"), "1\n");
    }
}

#[test]
fn a_file_cut_by_another_process_is_appended_to_without_a_hole() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    let out = directory.path().join("out");
    meanwhile(
        directory.path(),
        &options(directory.path(), "a", RAW),
        &upstream,
        async {
            upstream.put(lines("t", "1\n"), false);
            wait(50).await;
            fs::copy(out.join("a"), out.join("a.1")).unwrap();
            fs::File::options()
                .write(true)
                .open(out.join("a"))
                .unwrap()
                .set_len(0)
                .unwrap();
            upstream.put(lines("t", "2\n"), false);
            wait(50).await;
        },
    );
    assert_eq!(
        (read(directory.path(), "a"), read(directory.path(), "a.1")),
        ("2\n".to_owned(), "1\n".to_owned())
    );
    assert_eq!(names(directory.path()).len(), 2);
}

/// Unmounts the directory when it is dropped, so also if the test fails.
struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn with_a_full_disk_the_source_waits_and_no_record_is_lost_or_split() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    fs::create_dir(&out).unwrap();
    let _unmount = Unmount(&out);
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(&out)
        .status()
        .unwrap();
    assert!(
        mounted.success(),
        "this test mounts a small tmpfs: run it as root"
    );
    for upstream in [Upstream::memory(), Upstream::durable(7)] {
        fs::write(out.join("ballast"), vec![0; 900 << 10]).unwrap();
        let name = format!("a{:?}", upstream.settled());
        let text: String = (0..40_000).map(|n| format!("{n}\n")).collect();
        meanwhile(
            directory.path(),
            &options(directory.path(), &name, RAW),
            &upstream,
            async {
                for _ in 0..2 {
                    upstream.put(lines("t", &text), false);
                }
                wait(300).await;
                let stuck = fs::read_to_string(out.join(&name)).unwrap();
                assert!(stuck.len() < text.len(), "{} bytes", stuck.len());
                assert!(
                    stuck.is_empty() || stuck.ends_with('\n'),
                    "a partly written record is truncated"
                );
                fs::remove_file(out.join("ballast")).unwrap();
                wait(1000).await;
            },
        );
        assert!(
            read(directory.path(), &name) == text.repeat(2),
            "every line once, in order"
        );
        fs::remove_file(out.join(&name)).unwrap();
    }
}

#[test]
fn after_a_damaged_journal_nothing_is_truncated_and_the_sink_continues_in_a_new_file() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path(), "a", RAW);
    let upstream = Upstream::durable(7);
    upstream.put(lines("t", "1\n"), false);
    run(directory.path(), &options, &upstream);
    upstream.put(lines("t", "2\n"), false);
    run(directory.path(), &options, &upstream);
    for journal in ["journal.0", "journal.1"] {
        let path = directory.path().join("state").join(journal);
        let mut bytes = fs::read(&path).unwrap();
        bytes[40] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    upstream.put(lines("t", "3\n"), false);
    run(directory.path(), &options, &upstream);
    assert_eq!(read(directory.path(), "a"), "3\n");
    let names = names(directory.path());
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(read(directory.path(), &names[1]), "1\n2\n");
}

#[test]
fn a_journal_of_a_newer_format_is_refused_with_both_version_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path(), "a", RAW);
    let upstream = Upstream::durable(7);
    run(directory.path(), &options, &upstream);
    let path = directory.path().join("state/journal.1");
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 9;
    let checksum = millstream_sys::checksum::crc32c_of(&[&bytes[..12], &bytes[16..24]]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let mut rig = Rig::new(
        &COMPONENT,
        &options,
        &upstream,
        &directory.path().join("state"),
    );
    let failure = block_on(rig.run()).unwrap_err();
    assert!(
        failure.message.contains("format version 9") && failure.message.contains("up to 1"),
        "{failure}"
    );
    assert_eq!(failure.again, millstream_pipeline::failure::Again::Never);
}

#[test]
fn a_record_whose_path_cannot_be_a_file_is_rejected_and_delivery_continues() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("out/taken")).unwrap();
    let upstream = Upstream::durable(7);
    let long = "x".repeat(200);
    let fields = [("x", "a"), ("x", "taken"), ("x", &long), ("x", "a")];
    upstream.put(entries("t", 0, &fields), false);
    let options = options(
        directory.path(),
        "{.x}{.x}",
        r#""format": "raw", "field": "x""#,
    );
    run(
        directory.path(),
        &options.replace("{.x}{.x}", "{.x}"),
        &upstream,
    );
    assert_eq!(
        (read(directory.path(), "a"), upstream.settled()),
        ("a\na\n".to_owned(), 1)
    );
    let rejected = |upstream: &Upstream| {
        upstream
            .rejected()
            .iter()
            .map(|batch| batch.count)
            .sum::<u32>()
    };
    assert_eq!(rejected(&upstream), 1);
    let upstream = Upstream::durable(8);
    upstream.put(entries("t", 0, &fields), false);
    run(directory.path(), &options, &upstream);
    assert_eq!(
        (read(directory.path(), "aa"), rejected(&upstream)),
        ("a\na\n".to_owned(), 1)
    );
}

/// Sends one batch: a record for the file `a`, a record for the file of each of these names, and another record for
/// `a`.
fn put_each(upstream: &Upstream, names: &[&str]) {
    let fields: Vec<_> = ["a"].iter().chain(names).chain(&["a"]).copied().collect();
    let fields: Vec<_> = fields.into_iter().map(|name| ("x", name)).collect();
    upstream.put(entries("t", 0, &fields), false);
}

/// The reasons of all rejects.
pub(super) fn reasons(upstream: &Upstream) -> Vec<String> {
    let rejected = upstream.rejected();
    let reason = |batch: &millstream_record::Batch| {
        let rejected = millstream_pipeline::reject::Rejected::read(&batch.body);
        rejected.unwrap().reason.to_owned()
    };
    rejected.iter().map(reason).collect()
}

#[test]
fn a_pipe_or_a_dangling_link_rejects_no_records_of_other_outputs() {
    for (path, upstream) in [
        ("{.x}", Upstream::memory()),
        ("{.x}", Upstream::durable(7)),
        ("{.x}/f", Upstream::durable(7)),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        fs::create_dir(&out).unwrap();
        let pipe = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, out.join("pipe"), pipe.0, pipe.1, 0).unwrap();
        for (link, target) in [("link", "nowhere"), ("loop", "loop")] {
            std::os::unix::fs::symlink(target, out.join(link)).unwrap();
        }
        put_each(&upstream, &["pipe", "link", "loop"]);
        let options = options(directory.path(), path, r#""format": "raw", "field": "x""#);
        run(directory.path(), &options, &upstream);
        let good = path.replace("{.x}", "a");
        assert_eq!(read(directory.path(), &good), "a\na\n");
        let reasons = reasons(&upstream);
        assert_eq!(reasons.len(), 3, "{reasons:?}");
        let told = |name: &str, why: &str| {
            let place = format!("/{}: ", path.replace("{.x}", name));
            let is_told = |told: &String| told.contains(&place) && told.contains(why);
            assert!(reasons.iter().any(is_told), "{name}: {reasons:?}");
        };
        told("pipe", "it is ");
        told("link", "a symbolic link leads to nothing");
        told("loop", "a symbolic link leads to nothing");
    }
}

#[test]
fn an_output_named_like_a_rotated_file_is_rejected_because_keep_could_remove_it() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    let other = "a.20200101-000000-0";
    put_each(&upstream, &[other]);
    for _ in 0..3 {
        put_each(&upstream, &["b"]);
    }
    let more = r#""format": "raw", "field": "x", "rotate": {"records": 1, "keep": 1}"#;
    run(
        directory.path(),
        &options(directory.path(), "{.x}", more),
        &upstream,
    );
    let reasons = reasons(&upstream);
    let [why] = &reasons[..] else {
        panic!("{reasons:?}");
    };
    assert!(why.contains("like that of a rotated file"), "{why}");
    // There are two current files and one rotated file of each.
    assert_eq!(
        names(directory.path()).len(),
        4,
        "{:?}",
        names(directory.path())
    );
}

#[test]
fn records_after_half_a_line_start_a_new_line() {
    for upstream in [Upstream::memory(), Upstream::durable(7)] {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        fs::create_dir(&out).unwrap();
        fs::write(out.join("a"), "0\nhal").unwrap();
        let path = out.join("a");
        let options = options(directory.path(), "a", RAW);
        meanwhile(directory.path(), &options, &upstream, async {
            upstream.put(lines("t", "first\nsecond\n"), false);
            wait(50).await;
            let text = fs::read_to_string(&path).unwrap();
            assert_eq!(text, "0\nhal\nfirst\nsecond\n");
            // Truncates the file within the last record.
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_len(text.len() as u64 - 4).unwrap();
            upstream.put(lines("t", "third\n"), false);
            upstream.put(lines("t", "fourth\n"), false);
            wait(50).await;
        });
        let text = "0\nhal\nfirst\nsec\nthird\nfourth\n";
        assert_eq!(read(directory.path(), "a"), text);
        // Truncates the file while no sink runs.
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(text.len() as u64 - 3).unwrap();
        upstream.put(lines("t", "fifth\n"), false);
        run(directory.path(), &options, &upstream);
        let text = "0\nhal\nfirst\nsec\nthird\nfour\nfifth\n";
        assert_eq!(read(directory.path(), "a"), text);
        upstream.put(lines("t", "sixth\n"), false);
        run(directory.path(), &options, &upstream);
        assert_eq!(read(directory.path(), "a"), format!("{text}sixth\n"));
    }
}
