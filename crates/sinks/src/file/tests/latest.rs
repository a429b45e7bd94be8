//! The option `latest`: a link to the current file.

use std::{fs, path::Path};

use super::{entries, names, options, read, run};
use crate::rig::{Upstream, lines};

const DAY: i64 = 86_400_000_000_000;

fn link(directory: &Path, name: &str) -> String {
    let link = fs::read_link(directory.join("out").join(name)).unwrap();
    link.to_str().unwrap().to_owned()
}

/// Options with the link `latest` below the output directory.
fn linked(directory: &Path, path: &str, latest: &str) -> String {
    let latest = directory.join("out").join(latest);
    let more = format!(r#""format": "raw", "field": "x", "latest": {latest:?}"#);
    options(directory, path, &more)
}

#[test]
fn the_link_leads_to_the_newest_file_and_late_records_do_not_point_it_to_an_older_one() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    let options = linked(directory.path(), "{tag}.%F.log", "{tag}.log");
    for (day, value) in [(1, "a"), (2, "b"), (1, "late"), (0, "very late")] {
        upstream.put(entries("web", day * DAY, &[("x", value)]), false);
    }
    upstream.put(entries("db", 0, &[("x", "c")]), false);
    run(directory.path(), &options, &upstream);
    assert_eq!(link(directory.path(), "web.log"), "web.1970-01-03.log");
    assert_eq!(read(directory.path(), "web.log"), "b\n");
    assert_eq!(link(directory.path(), "db.log"), "db.1970-01-01.log");
    assert_eq!(read(directory.path(), "web.1970-01-02.log"), "a\nlate\n");
    // A later run continues, and leaves no temporary link behind.
    upstream.put(entries("web", 3 * DAY, &[("x", "d")]), false);
    run(directory.path(), &options, &upstream);
    assert_eq!(read(directory.path(), "web.log"), "d\n");
    let hidden = names(directory.path());
    assert!(
        !hidden.iter().any(|name| name.starts_with('.')),
        "{hidden:?}"
    );
}

#[test]
fn a_link_in_another_directory_has_an_absolute_target_and_survives_rotation() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    let options = linked(directory.path(), "a.log", "links/now");
    let options = options.replace(r#""field""#, r#""rotate": {"records": 1}, "field""#);
    let options = options.replace(r#""field": "x", "#, "");
    upstream.put(lines("t", "1\n2\n"), false);
    fs::create_dir_all(directory.path().join("out/links")).unwrap();
    // A run that was killed has left this temporary link.
    std::os::unix::fs::symlink("nowhere", directory.path().join("out/links/.now.new")).unwrap();
    run(directory.path(), &options, &upstream);
    let path = directory.path().join("out/a.log");
    assert_eq!(link(directory.path(), "links/now"), path.to_str().unwrap());
    assert_eq!(read(directory.path(), "links/now"), "2\n");
}

#[test]
fn a_file_with_the_name_of_the_link_is_left_alone_and_delivery_continues() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::durable(7);
    fs::create_dir(directory.path().join("out")).unwrap();
    fs::write(directory.path().join("out/now"), "mine").unwrap();
    let options = linked(directory.path(), "a.log", "now");
    upstream.put(entries("t", 0, &[("x", "1")]), false);
    run(directory.path(), &options, &upstream);
    assert_eq!(read(directory.path(), "now"), "mine");
    assert_eq!(read(directory.path(), "a.log"), "1\n");
    assert_eq!(upstream.settled(), 1);
}

#[test]
fn an_output_is_never_written_through_a_link_to_another_output() {
    for first in ["a", "a.x"] {
        let directory = tempfile::tempdir().unwrap();
        let upstream = Upstream::durable(7);
        // The link for tag `a` and the file for tag `a.x` have the same name.
        let options = linked(directory.path(), "{tag}", "{tag}.x");
        let second = if first == "a" { "a.x" } else { "a" };
        for round in ["1", "2"] {
            for tag in [first, second] {
                upstream.put(entries(tag, 0, &[("x", &format!("{tag} {round}"))]), false);
            }
            run(directory.path(), &options, &upstream);
        }
        assert_eq!(read(directory.path(), "a"), "a 1\na 2\n", "{first} first");
        assert_eq!(
            read(directory.path(), "a.x"),
            "a.x 1\na.x 2\n",
            "{first} first"
        );
        let made = directory.path().join("out/a.x");
        assert!(
            fs::symlink_metadata(made).unwrap().is_file(),
            "{first} first"
        );
    }
}
