//! Files that were removed, or moved out of sight, while the source did not run.

use super::*;

fn warnings(running: &Running) -> u64 {
    let events = running.reporter.events();
    let gone = events
        .iter()
        .find(|(level, kind, _)| (*level, *kind) == ("warn", "unread"));
    gone.map_or(0, |(_, _, count)| *count)
}

/// Starts the source until its first scan is over, and returns the number of warnings and of lost bytes.
fn look(place: &Place, pattern: &str, more: &str, to: &Downstream) -> (u64, u64) {
    let running = place.start(pattern, more, to);
    let mark = place.log("looked.log");
    let before = to.lines().len();
    append(&mark, "looked\n");
    until("the first scan is over", || to.lines().len() > before);
    // The report follows the start of the readers.
    thread::sleep(Duration::from_millis(300));
    let found = (warnings(&running), running.meter("lost_bytes"));
    running.stop();
    found
}

#[test]
fn a_file_that_was_moved_to_another_directory_is_a_warning_with_its_unread_bytes() {
    for to in [Downstream::memory(), Downstream::durable()] {
        let place = Place::new();
        let path = place.log("a.log");
        append(&path, "one\n");
        let running = place.start("*.log", "", &to);
        until("one line", || to.lines() == ["one"]);
        running.stop();
        append(&path, &text(0..2_000));
        let unread = text(0..2_000).len() as u64;
        fs::create_dir(place.log("old")).unwrap();
        fs::rename(&path, place.log("old/a-1")).unwrap();
        append(&path, "new\n");
        assert_eq!(look(&place, "*.log", "", &to), (1, unread));
        // It is reported once.
        assert_eq!(look(&place, "*.log", "", &to), (0, 0));
        // The warning says what to do.
        let both = format!(
            r#"{{"paths": ["{0}/*.log", "{0}/old/*"]}}"#,
            place.logs.display()
        );
        let running = Running::once(&COMPONENT, &both, &to, &place.state);
        assert_eq!(warnings(&running), 0);
        let lines = to.lines();
        assert_eq!(
            lines
                .iter()
                .filter(|line| line.starts_with("line "))
                .count(),
            2_000
        );
        assert_eq!(lines.iter().filter(|line| *line == "new").count(), 1);
    }
}

#[test]
fn a_file_that_was_removed_is_a_warning_with_the_bytes_that_were_known() {
    let (place, to) = (Place::new(), Downstream::durable());
    let path = place.log("a.log");
    append(&path, "one\ntwo\nthr");
    let running = place.start("*.log", "", &to);
    until("two lines", || to.lines().len() == 2);
    running.stop();
    fs::remove_file(&path).unwrap();
    assert_eq!(look(&place, "*.log", "", &to), (1, 3));
}

#[test]
fn a_file_that_was_read_to_its_end_at_the_stop_and_is_gone_is_a_warning_too() {
    let (place, to) = (Place::new(), Downstream::memory());
    let path = place.log("a.log");
    append(&path, "one\n");
    let running = place.start("*.log", "", &to);
    until("one line", || to.lines().len() == 1);
    running.stop();
    append(&path, "unknown\n");
    fs::remove_file(&path).unwrap();
    assert_eq!(look(&place, "*.log", "", &to), (1, 0));
}

#[test]
fn files_with_nothing_left_to_read_may_go() {
    let (place, to) = (Place::new(), Downstream::memory());
    for name in ["rotated.log", "removed.log", "zipped.log", "other.log"] {
        append(&place.log(name), &format!("{name}\n"));
    }
    let running = place.start("*.log", r#", "rotate_wait": "10ms""#, &to);
    until("all lines", || to.lines().len() == 4);
    fs::rename(place.log("rotated.log"), place.log("rotated.log.1")).unwrap();
    fs::remove_file(place.log("removed.log")).unwrap();
    until("both are closed", || running.meter("open_files") == 2);
    running.stop();
    // Rotation removes the oldest file, and compresses another one.
    fs::remove_file(place.log("rotated.log.1")).unwrap();
    append(&place.log("zipped.log"), "rest\n");
    fs::rename(place.log("zipped.log"), place.log("zipped.log.1")).unwrap();
    let packed = std::process::Command::new("gzip")
        .arg(place.log("zipped.log.1"))
        .status();
    assert!(packed.unwrap().success());
    // This file is no longer wanted.
    fs::remove_file(place.log("other.log")).unwrap();
    let more = r#", "exclude": "other.log""#;
    assert_eq!(look(&place, "*.log", more, &to), (0, 0));
    place.once("*.log", more, &to);
    assert!(to.lines().contains(&"rest".to_owned()));
}

#[test]
fn a_directory_that_is_missing_for_a_while_is_a_warning_and_its_files_are_read_when_it_is_back() {
    let (place, to) = (Place::new(), Downstream::memory());
    fs::create_dir(place.log("mount")).unwrap();
    append(&place.log("mount/a.log"), "one\n");
    let running = place.start("**/*.log", "", &to);
    until("one line", || to.lines().len() == 1);
    running.stop();
    append(&place.log("mount/a.log"), "two\n");
    let away = place
        .state
        .parent()
        .unwrap()
        .join("away")
        .join("far")
        .join("off")
        .join("x");
    fs::create_dir_all(&away).unwrap();
    fs::rename(place.log("mount"), away.join("mount")).unwrap();
    assert_eq!(look(&place, "**/*.log", "", &to), (1, 0));
    fs::rename(away.join("mount"), place.log("mount")).unwrap();
    place.once("**/*.log", "", &to);
    let lines: Vec<_> = to
        .lines()
        .into_iter()
        .filter(|line| line != "looked")
        .collect();
    assert_eq!(lines, ["one", "two"]);
}
