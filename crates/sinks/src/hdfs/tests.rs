//! Tests of options. The tests with a cluster are in `line::hdfs` of the program's tests.

use super::*;
use crate::rig::{build as built, try_build};

fn problems(options: &str) -> Vec<String> {
    match try_build(&COMPONENT, options) {
        Ok(_) => Vec::new(),
        Err(problems) => problems,
    }
}

#[test]
fn invalid_options_are_refused_with_the_reason() {
    let cases = [
        (r#"{"url": "/logs"}"#, "no URL of HDFS"),
        (r#"{"url": "hdfs://{host}/logs"}"#, "cannot change"),
        (
            r#"{"url": "hdfs://a/b", "format": "avro_event", "compression": "gzip"}"#,
            "no gzip",
        ),
        (
            r#"{"url": "hdfs://a/b", "compression": "snappy"}"#,
            "text is compressed by",
        ),
        (
            r#"{"url": "hdfs://a/b", "prefix": "_x"}"#,
            "Hive and Spark ignore",
        ),
        (
            r#"{"url": "hdfs://a/b", "marker": "done"}"#,
            "a marker's name",
        ),
        (r#"{"url": "hdfs://a/b", "open_files": 0}"#, "at least one"),
        (
            r#"{"url": "hdfs://a/b", "user": "u", "auth": {"kerberos": {"principal": "p", "keytab": "k"}}}"#,
            "the principal says",
        ),
        (
            r#"{"url": "hdfs://a/b", "headers": "flume"}"#,
            "has no effect",
        ),
        (
            r#"{"url": "hdfs://a/b", "retry": {"give_up": "1h"}}"#,
            "given up",
        ),
    ];
    for (options, said) in cases {
        let told = problems(options);
        assert!(
            told.iter().any(|text| text.contains(said)),
            "{options}: {told:?}"
        );
    }
}

#[test]
fn other_sinks_refuse_avro_files_and_name_the_sinks_that_write_them() {
    let file = crate::COMPONENTS.iter().find(|one| one.name == "file");
    let options = r#"{"path": "/srv/a", "format": "avro_event"}"#;
    let told = match try_build(file.unwrap(), options) {
        Ok(_) => panic!("it was taken"),
        Err(told) => told,
    };
    assert_eq!(told, ["this sink writes no Avro files"]);
}

#[test]
fn the_promise_is_exactly_once_behind_a_disk_channel() {
    let sink = built(&COMPONENT, r#"{"url": "hdfs://ns/logs/%Y/{.host}"}"#);
    assert_eq!(sink.promise(true).guarantee, Guarantee::ExactlyOnce);
    assert_eq!(sink.promise(false).guarantee, Guarantee::AtLeastOnce);
    assert_eq!(sink.settles_within(), Some(Duration::from_secs(300)));
}

#[test]
fn a_url_is_split_into_cluster_root_and_directories() {
    let place = |url: &str| {
        let config = format!(r#"{{"url": "{url}"}}"#);
        let node = crate::rig::node(serde_json::from_str(&config).unwrap());
        let (_, config): (_, Config) = Formatting::with_avro(&node).unwrap();
        let (cluster, root, directory) = config.place(&node).unwrap();
        (cluster, root, directory.as_str().to_owned())
    };
    let own = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
    assert_eq!(
        place("hdfs://ns/logs/%Y/{.host}"),
        own("hdfs://ns", "/logs", "%Y/{.host}")
    );
    assert_eq!(
        place("hdfs://nn:8020/a/b"),
        own("hdfs://nn:8020", "/a/b", "")
    );
    assert_eq!(place("hdfs://nn:8020"), own("hdfs://nn:8020", "", ""));
    assert_eq!(place("hdfs:///a/{tag}"), own("hdfs://", "/a", "{tag}"));
}
