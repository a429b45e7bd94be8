//! Options, and the local directory as a destination; buckets are in `crates/millstream/tests/line/object`.

mod forgetful;

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use object_store::memory::InMemory;
use parquet::file::{reader::FileReader, serialized_reader::SerializedFileReader};

use super::{COMPONENT, ObjectSink};
use crate::rig::{
    self, Rig, Upstream, build, check_contract, lines, misfit, node, packed, try_build,
};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

/// The files below `directory` without manifests, by their paths.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(at) = directories.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("_millstream") {
                directories.push(path);
            } else if path.is_file() {
                let name = path.strip_prefix(directory).unwrap().to_str().unwrap();
                found.insert(name.to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn contains(bytes: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(bytes).contains(text)
}

fn run(upstream: &Upstream, directory: &Path, template: &str, more: &str) -> Rig {
    let url = format!("file://{}/out/{template}", directory.display());
    let options = format!(r#"{{"url": {url:?}{more}}}"#);
    let mut rig = Rig::new(&COMPONENT, &options, upstream, &directory.join("state"));
    block_on(rig.run()).unwrap();
    rig
}

#[test]
fn records_go_to_an_object_of_their_tag_with_the_position_in_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(0xabcd_ef01_u128 << 96);
    upstream.put(lines("web", "a\nb\n"), false);
    upstream.put(packed("db", "c\n"), false);
    upstream.put(lines("web", "d\n"), false);
    upstream.close();
    let rig = run(
        &upstream,
        directory.path(),
        "{tag}/%Y",
        r#", "format": "raw""#,
    );
    let files = files(&directory.path().join("out"));
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "db/2020/sink-abcdef0100000000-1-0000000001-0001.log",
            "web/2023/sink-abcdef0100000000-1-0000000001-0000.log"
        ]
    );
    let bodies: Vec<_> = files.values().map(Vec::as_slice).collect();
    assert_eq!(bodies, [&b"c\n"[..], b"a\nb\nd\n"]);
    assert_eq!(upstream.settled(), 3);
    assert_eq!(rig.meter("outputs_published"), 2);
}

#[test]
fn a_second_run_continues_after_the_first_and_publishes_nothing_twice() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    upstream.put(lines("web", "a\n"), false);
    upstream.close();
    run(
        &upstream,
        directory.path(),
        "",
        r#", "compression": "gzip", "prefix": "p-""#,
    );
    upstream.put(lines("web", "b\n"), false);
    run(
        &upstream,
        directory.path(),
        "",
        r#", "compression": "gzip", "prefix": "p-""#,
    );
    run(
        &upstream,
        directory.path(),
        "",
        r#", "compression": "gzip", "prefix": "p-""#,
    );
    let names: Vec<_> = files(&directory.path().join("out")).into_keys().collect();
    assert_eq!(
        names,
        [
            "p-sink-0000000000000000-1-0000000001-0000.json.gz",
            "p-sink-0000000000000000-1-0000000002-0000.json.gz"
        ]
    );
}

#[test]
fn a_source_behind_memory_is_answered_when_its_records_are_published() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::memory();
    let receipt = upstream.put(lines("web", "a\n"), true);
    upstream.close();
    run(&upstream, directory.path(), "x", "");
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
    assert_eq!(files(&directory.path().join("out")).len(), 1);
}

#[test]
fn a_record_without_a_directory_is_rejected_and_its_neighbors_are_published() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    upstream.put(packed("web", "a\nb\n"), false);
    upstream.put(packed("web", &"x".repeat(900)), false);
    upstream.put(lines("web", "c\n"), false);
    upstream.close();
    run(&upstream, directory.path(), "{.message}{.message}", "");
    let rejected = upstream.rejected();
    assert_eq!(rejected.len(), 1, "{rejected:?}");
    assert_eq!(rejected[0].count, 1);
    assert_eq!(files(&directory.path().join("out")).len(), 3);
    assert_eq!(upstream.settled(), 3);
}

#[test]
fn a_record_whose_directory_is_a_file_is_rejected_and_its_neighbors_are_published() {
    for template in ["{.message}", "{.message}/%Y"] {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        fs::create_dir(&out).unwrap();
        fs::write(out.join("b"), "other").unwrap();
        let upstream = Upstream::durable(7);
        upstream.put(packed("web", "a\nb\nb\nc\n"), false);
        upstream.close();
        let rig = run(&upstream, directory.path(), template, "");
        let rejected = upstream.rejected();
        assert_eq!(rejected.len(), 1, "{template}: {rejected:?}");
        assert_eq!(rejected[0].count, 2);
        assert!(contains(&rejected[0].body, "it is a file, or below a file"));
        assert_eq!(rig.meter("outputs_published"), 2);
        assert_eq!(fs::read(out.join("b")).unwrap(), b"other");
        assert_eq!(upstream.settled(), 1);
    }
}

#[test]
fn a_record_whose_key_is_too_long_for_a_store_is_rejected_and_its_neighbors_are_published() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    // In a key, each of these letters has six bytes: %C3%A9.
    let long = "é".repeat(100);
    upstream.put(packed("web", &format!("a\n{long}\nc\n")), false);
    upstream.close();
    let options = r#"{"url": "s3://lake/{.message}/{.message}"}"#;
    let mut rig = Rig::new(&COMPONENT, options, &upstream, directory.path());
    let sink = ObjectSink::new("sink", &node(serde_json::from_str(options).unwrap())).unwrap();
    let (encode, store) = (sink.encode().unwrap(), Arc::new(InMemory::new()));
    let (inlet, context) = (&mut rig.inlet, rig.context.clone());
    block_on(sink.run_over(store, encode, inlet, context)).unwrap();
    let rejected = upstream.rejected();
    assert_eq!(rejected.len(), 1, "{rejected:?}");
    assert_eq!(rejected[0].count, 1);
    assert!(contains(&rejected[0].body, "stores accept 1024"));
    assert_eq!(rig.meter("outputs_published"), 2);
    assert_eq!(upstream.settled(), 1);
}

#[test]
fn options_that_cannot_work_are_refused() {
    let refused = |options: &str| try_build(&COMPONENT, options).err().unwrap_or_default();
    for (options, what) in [
        (r#"{"url": "logs/x"}"#, "not the URL"),
        (r#"{"url": "s3://{tag}/x"}"#, "a bucket cannot change"),
        (r#"{"url": "s3:///x"}"#, "a bucket cannot change"),
        (r#"{"url": "file://srv/x"}"#, "a host instead"),
        (r#"{"url": "s3://b/a/../c"}"#, "no directories here"),
        (
            r#"{"url": "s3://b", "endpoint": "host:9000"}"#,
            "no URL of a server",
        ),
        (r#"{"url": "s3://b", "part": "1MiB"}"#, "parts of 5MiB"),
        (r#"{"url": "s3://b", "prefix": "a/b"}"#, "cannot hold"),
        (
            r#"{"url": "s3://b", "retry": {"give_up": "1h"}}"#,
            "given up",
        ),
        (r#"{"url": "s3://b", "rotate": {"keep": 3}}"#, "keep"),
        (r#"{"url": "file:///b", "tls": true}"#, "not reached by TLS"),
        (
            r#"{"url": "s3://b", "endpoint": "http://a", "tls": true}"#,
            "begins with http://",
        ),
        (
            r#"{"url": "s3://b", "tls": {"server_name": "a"}}"#,
            "the name by which it is reached",
        ),
        (r#"{"url": "s3://b", "tls": {"ca": "no.pem"}}"#, "no.pem"),
    ] {
        let problems = refused(options);
        assert!(
            problems.iter().any(|problem| problem.contains(what)),
            "{options}: {problems:?}"
        );
    }
    assert!(refused(r#"{"url": "s3://b/{tag}/dt=%F"}"#).is_empty());
}

#[test]
fn parquet_is_written_by_column_and_is_a_format_in_the_schema() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    upstream.put(packed("web", "a\nb\n"), false);
    upstream.put(lines("web", "c\n"), false);
    upstream.close();
    let more = r#", "format": "parquet", "compression": "gzip", "add": {"t": "{tag}"}"#;
    run(&upstream, directory.path(), "{tag}", more);
    let files = files(&directory.path().join("out"));
    let (name, bytes) = files.first_key_value().unwrap();
    assert!(name.ends_with("-0000.parquet"), "{name}");
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes.clone())).unwrap();
    let rows: Vec<String> = reader
        .get_row_iter(None)
        .unwrap()
        .map(|row| row.unwrap().to_string())
        .collect();
    assert_eq!(rows.len(), 3);
    assert!(rows[0].contains(r#"tag: "web""#), "{rows:?}");
    assert!(rows[2].contains(r#"{"message":"c","t":"web"}"#), "{rows:?}");
    let schema = serde_json::to_string(&(COMPONENT.schema)()).unwrap();
    assert!(schema.contains(r#""parquet""#));
}

#[test]
fn it_keeps_the_contract_of_sinks() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let options = format!(r#"{{"url": "file://{}/", "format": "raw"}}"#, out.display());
    let sink = build(&COMPONENT, &options);
    let arrived = move || {
        if !out.exists() {
            return Vec::new();
        }
        let bodies = files(&out).into_values();
        let texts = bodies.map(|body| String::from_utf8(body).unwrap());
        texts
            .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
            .collect()
    };
    let state = directory.path().join("state");
    block_on(check_contract(&sink, &state, arrived, Some(misfit())));
}

#[test]
fn a_file_with_the_name_of_an_output_is_reported_and_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let upstream = Upstream::durable(7);
    upstream.put(lines("web", "a\n"), false);
    upstream.close();
    let run = || {
        let options = format!(r#"{{"url": "file://{}/", "format": "raw"}}"#, out.display());
        let state = directory.path().join("state");
        block_on(Rig::new(&COMPONENT, &options, &upstream, &state).run())
    };
    fs::create_dir(&out).unwrap();
    let taken = out.join("sink-0000000000000000-1-0000000001-0000.log");
    fs::write(&taken, "other\n").unwrap();
    let failure = run().unwrap_err();
    assert!(failure.message.contains("move it away"), "{failure}");
    assert_eq!(fs::read(&taken).unwrap(), b"other\n");
    assert_eq!(upstream.settled(), 0);
    fs::rename(&taken, directory.path().join("moved")).unwrap();
    run().unwrap();
    assert_eq!(fs::read(&taken).unwrap(), b"a\n");
    assert_eq!(upstream.settled(), 1);
}

#[test]
fn a_batch_that_added_fields_make_very_long_is_compressed_in_pieces() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    upstream.put(lines(&rig::long_tag(), &"a\n".repeat(4096)), false);
    upstream.close();
    let more = r#", "add": {"tag": "{tag}"}, "compression": "gzip""#;
    run(&upstream, directory.path(), "x", more);
    let files = files(&directory.path().join("out"));
    let members: Vec<_> = files.values().map(|file| rig::gzip_members(file)).collect();
    assert!(members[0] >= 4, "{members:?}");
}
