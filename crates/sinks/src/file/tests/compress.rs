//! Tests that other tools can read compressed files, and that every file begins with its header.

use std::{fs, path::Path, process::Command};

use super::{names, options, read, run};
use crate::rig::{Upstream, lines, packed};

/// Returns the text that the tool unpacks from a file. Panics if a stream is incomplete.
fn unpack(tool: &str, path: &Path) -> String {
    let output = Command::new(tool).arg(path).output();
    let output = output.unwrap_or_else(|error| panic!("{tool}: {error}: run `make deps`"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {path:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

const TOOLS: [(&str, &str, &str); 2] = [("gzip", "zcat", "gz"), ("zstd", "zstdcat", "zst")];

fn numbered(count: usize) -> String {
    (0..count)
        .map(|n| format!("line {n} of the text\n"))
        .collect()
}

#[test]
fn other_tools_read_compressed_files_after_every_run() {
    for (compression, tool, end) in TOOLS {
        for upstream in [Upstream::memory(), Upstream::durable(7)] {
            let directory = tempfile::tempdir().unwrap();
            let name = format!("a.{end}");
            let options = options(
                directory.path(),
                &name,
                &format!(r#""format": "raw", "compression": "{compression}""#),
            );
            let text = numbered(300_000);
            for _ in 0..2 {
                upstream.put(lines("t", &text), false);
                upstream.put(packed("t", "packed\n"), false);
                run(directory.path(), &options, &upstream);
            }
            let file = directory.path().join("out").join(&name);
            let expected = format!("{text}packed\n").repeat(2);
            assert!(unpack(tool, &file) == expected);
            let length = fs::metadata(file).unwrap().len() as usize;
            assert!(
                length < expected.len() / 4,
                "{length} of {}",
                expected.len()
            );
        }
    }
}

#[test]
fn compressed_files_are_rotated_by_their_compressed_size_and_keep_their_extension() {
    for (compression, tool, end) in TOOLS {
        let directory = tempfile::tempdir().unwrap();
        let upstream = Upstream::durable(7);
        let text = numbered(100_000);
        for _ in 0..3 {
            upstream.put(lines("t", &text), false);
        }
        let more = format!(
            r#""format": "raw", "compression": "{compression}", "rotate": {{"size": "50KB"}}"#
        );
        let options = options(directory.path(), &format!("a.log.{end}"), &more);
        run(directory.path(), &options, &upstream);
        let current = format!("a.log.{end}");
        let mut names = names(directory.path());
        names.retain(|name| *name != current);
        let number = |name: &String| -> u64 {
            let name = name.strip_suffix(&format!(".{end}")).unwrap();
            name.rsplit_once('-').unwrap().1.parse().unwrap()
        };
        names.sort_by_key(number);
        assert!(names.len() >= 3, "{names:?}");
        let mut all = String::new();
        for name in names.iter().chain([&current]) {
            let path = directory.path().join("out").join(name);
            let length = fs::metadata(&path).unwrap().len();
            assert!(length <= 50_000, "{name}: {length}");
            assert!(length > 45_000 || *name == current, "{name}: {length}");
            let part = unpack(tool, &path);
            assert!(part.ends_with('\n'));
            all += &part;
        }
        assert!(all == text.repeat(3));
    }
}

#[test]
fn many_compressed_files_are_written_with_few_open() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    let values: Vec<String> = (0..700).map(|n| n.to_string()).collect();
    for _ in 0..3 {
        let fields: Vec<_> = values.iter().map(|value| ("x", value.as_str())).collect();
        upstream.put(super::entries("t", 0, &fields), false);
    }
    let more = r#""open_files": 60, "format": "raw", "field": "x", "compression": "zstd""#;
    run(
        directory.path(),
        &options(directory.path(), "{.x}", more),
        &upstream,
    );
    for n in 0..700 {
        let path = directory.path().join("out").join(n.to_string());
        let mut file = fs::File::open(path).unwrap();
        let mut text = Vec::new();
        zstd_of(&mut file, &mut text);
        assert_eq!(text, format!("{n}\n").repeat(3).into_bytes());
    }
}

fn zstd_of(file: &mut fs::File, text: &mut Vec<u8>) {
    use std::io::Read;

    use millstream_wire::compression::{Codec, Inflated, Inflater};
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    text.reserve(1 << 10);
    let done = Inflater::new(Codec::Zstd).unwrap().inflate(&bytes, text);
    assert_eq!(done, Ok(Inflated::Done));
}

#[test]
fn a_file_with_another_compression_is_rotated_before_the_first_write() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    let with = |compression: &str| {
        let more = format!(r#""format": "raw", "compression": "{compression}""#);
        options(directory.path(), "a", &more)
    };
    for (n, compression) in ["none", "gzip", "gzip", "zstd", "none"].iter().enumerate() {
        upstream.put(lines("t", &format!("{n}\n")), false);
        run(directory.path(), &with(compression), &upstream);
    }
    assert_eq!(read(directory.path(), "a"), "4\n");
    let mut old: Vec<_> = names(directory.path());
    old.retain(|name| name != "a");
    old.sort_by_key(|name| name.rsplit_once('-').unwrap().1.to_owned());
    let texts: Vec<_> = old
        .iter()
        .zip(["cat", "zcat", "zstdcat"])
        .map(|(name, tool)| unpack(tool, &directory.path().join("out").join(name)))
        .collect();
    assert_eq!(texts, ["0\n", "1\n2\n", "3\n"]);
}

#[test]
fn behind_memory_a_piece_torn_by_a_kill_is_truncated_before_the_next_one() {
    for (compression, tool, _) in TOOLS {
        let directory = tempfile::tempdir().unwrap();
        let more = format!(r#""format": "raw", "compression": "{compression}""#);
        let options = options(directory.path(), "a", &more);
        let path = directory.path().join("out/a");
        let put = |text: &str| {
            let upstream = Upstream::memory();
            upstream.put(lines("t", text), false);
            run(directory.path(), &options, &upstream);
        };
        put("1\n");
        let first = fs::read(&path).unwrap();
        // Appends another whole piece, and an incomplete piece.
        fs::write(
            &path,
            [&first[..], &first, &first[..first.len() - 5]].concat(),
        )
        .unwrap();
        put("2\n");
        assert_eq!(unpack(tool, &path), "1\n1\n2\n");
    }
}

#[test]
fn a_compressed_file_cut_by_another_process_is_put_aside_and_a_new_file_can_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let more = r#""format": "raw", "compression": "gzip""#;
    let options = options(directory.path(), "a.gz", more);
    let path = directory.path().join("out/a.gz");
    let upstream = Upstream::durable(7);
    upstream.put(lines("t", "1\n"), false);
    run(directory.path(), &options, &upstream);
    let whole = fs::read(&path).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(whole.len() as u64 - 3).unwrap();
    upstream.put(lines("t", "2\n"), false);
    run(directory.path(), &options, &upstream);
    assert_eq!(unpack("zcat", &path), "2\n");
    let names = names(directory.path());
    assert_eq!(names.len(), 2);
    let aside = directory.path().join("out").join(&names[0]);
    assert_eq!(fs::read(aside).unwrap(), whole[..whole.len() - 3]);
}

#[test]
fn a_cut_compressed_file_that_is_not_in_the_journal_is_put_aside() {
    for (compression, tool, end) in TOOLS {
        let directory = tempfile::tempdir().unwrap();
        let name = format!("a.{end}");
        let more = format!(r#""format": "raw", "compression": "{compression}""#);
        let options = options(directory.path(), &name, &more);
        let path = directory.path().join("out").join(&name);
        let put = |text: &str| {
            let upstream = Upstream::memory();
            upstream.put(lines("t", text), false);
            run(directory.path(), &options, &upstream);
            fs::remove_dir_all(directory.path().join("state")).unwrap();
        };
        put("1\n");
        put("2\n");
        assert_eq!(unpack(tool, &path), "1\n2\n", "a whole file is appended to");
        let whole = fs::read(&path).unwrap();
        let cut = &whole[..whole.len() - 3];
        fs::write(&path, cut).unwrap();
        put("3\n");
        assert_eq!(unpack(tool, &path), "3\n");
        let mut names = names(directory.path());
        names.retain(|other| *other != name);
        assert_eq!(names.len(), 1, "{names:?}");
        let aside = directory.path().join("out").join(&names[0]);
        assert_eq!(fs::read(aside).unwrap(), cut);
    }
}

#[test]
fn every_file_starts_with_the_header_once() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    let more = r#""format": "csv", "columns": ["message", "tag"], "add": {"tag": "{tag}"}, "header": true,
        "rotate": {"records": 3}"#;
    let options = options(directory.path(), "a.csv", more);
    for text in ["1\n2\n", "3\n4\n5\n6\n7\n"] {
        upstream.put(lines("t", text), false);
        run(directory.path(), &options, &upstream);
    }
    let mut texts: Vec<_> = names(directory.path())
        .iter()
        .map(|name| read(directory.path(), name))
        .collect();
    texts.sort();
    assert_eq!(
        texts,
        [
            "message,tag\n1,t\n2,t\n3,t\n",
            "message,tag\n4,t\n5,t\n6,t\n",
            "message,tag\n7,t\n"
        ]
    );
}
