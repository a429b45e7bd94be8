use std::{
    fs,
    io::{Seek, SeekFrom, Write},
};

use super::{COMPONENT, Config, Stdin};
use crate::{
    framing::{Charset, Cr, Framer, Framing, TooLong},
    rig::{Downstream, Running, try_build, until},
    tagging::Tagging,
};
use millstream_config::Size;
use millstream_testkit::{block_on, contract::SourceCase};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn source(input: fs::File, line_max: u64, too_long: TooLong) -> Box<Stdin> {
    let config = Config {
        tag: Some("typed".to_owned()),
        framing: Framing::Lines,
        line_max: Size::bytes(line_max),
        too_long,
        cr: Cr::Drop,
        encoding: "utf-8".to_owned(),
    };
    source_of(config, input)
}

fn source_of(config: Config, input: fs::File) -> Box<Stdin> {
    let charset = Charset::named(&config.encoding).unwrap();
    let line_max = config.line_max.as_usize();
    let framer = Framer::new(&config.framing, charset, line_max, config.too_long).unwrap();
    let tag = Tagging::new(config.tag.as_deref(), &["host"]).unwrap();
    Box::new(Stdin::new(config, tag, framer, Some(input)))
}

fn file(text: &str) -> fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file
}

fn run(input: fs::File, line_max: u64, too_long: TooLong, to: &Downstream) -> Running {
    Running::of(
        source(input, line_max, too_long),
        to,
        "unused".as_ref(),
        false,
    )
}

#[test]
fn a_file_is_read_to_its_end_and_the_last_line_needs_no_newline() {
    let to = Downstream::memory();
    let text: String = (0..100_000)
        .map(|number| format!("line {number}\n"))
        .collect();
    run(file(&format!("{text}last")), 1 << 20, TooLong::Split, &to)
        .ended()
        .unwrap();
    let lines = to.lines();
    assert_eq!(lines.len(), 100_001);
    assert!(
        lines
            .iter()
            .take(100_000)
            .enumerate()
            .all(|(n, line)| *line == format!("line {n}"))
    );
    assert_eq!(lines[100_000], "last");
    assert_eq!(to.batches()[0].tag.as_str(), "typed");
}

#[test]
fn lines_of_a_pipe_are_sent_as_they_arrive_until_it_is_closed() {
    let to = Downstream::memory();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut writer = fs::File::from(std::os::fd::OwnedFd::from(writer));
    let running = run(
        std::os::fd::OwnedFd::from(reader).into(),
        1 << 20,
        TooLong::Split,
        &to,
    );
    writer.write_all(b"one\ntw").unwrap();
    until("the first line", || to.lines() == ["one"]);
    writer.write_all(b"o\n\n").unwrap();
    until("the second", || to.lines() == ["one", "two", ""]);
    drop(writer);
    running.ended().unwrap();
}

#[test]
fn it_stops_while_the_pipe_is_silent() {
    let to = Downstream::memory();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let running = run(
        std::os::fd::OwnedFd::from(reader).into(),
        1 << 20,
        TooLong::Split,
        &to,
    );
    writer.write_all(b"one\n").unwrap();
    until("the first line", || to.lines() == ["one"]);
    running.stop();
}

#[test]
fn a_stop_sends_everything_that_was_read_although_the_queue_is_full() {
    let to = Downstream::memory();
    to.set_full(true);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let watched = reader.try_clone().unwrap();
    let input = std::os::fd::OwnedFd::from(reader).into();
    let running = run(input, 8, TooLong::Split, &to);
    // Each long line makes two pieces, which is more than the queue holds.
    writer
        .write_all("0123456789\n".repeat(50).as_bytes())
        .unwrap();
    writer.write_all(b"last").unwrap();
    until("everything is read", || {
        let mut watched = [PollFd::new(&watched, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())) == Ok(0)
    });
    let stopping = std::thread::spawn(move || running.stop());
    std::thread::sleep(std::time::Duration::from_millis(50));
    to.set_full(false);
    stopping.join().unwrap();
    let mut expected = ["01234567", "89"].repeat(50);
    expected.push("last");
    assert_eq!(to.lines(), expected);
}

#[test]
fn lines_that_are_too_long_are_split_truncated_or_rejected() {
    let text = "ok\n0123456789abcdefghij\nend\n01234567\n0123456789";
    for (policy, expected, rejected) in [
        (
            TooLong::Split,
            "ok 01234567 89abcdef ghij end 01234567 01234567 89",
            0,
        ),
        (TooLong::Truncate, "ok 01234567 end 01234567 01234567", 0),
        (TooLong::Reject, "ok end 01234567", 5),
    ] {
        let to = Downstream::memory();
        let running = run(file(text), 8, policy, &to);
        let out = running.rejected.clone();
        running.ended().unwrap();
        assert_eq!(to.lines().join(" "), expected, "{policy:?}");
        assert_eq!(out.batches().len(), rejected, "{policy:?}");
    }
}

#[test]
fn a_line_longer_than_a_read_arrives_whole() {
    let to = Downstream::memory();
    let long = "x".repeat(1 << 20);
    run(
        file(&format!("a\n{long}\nb\n")),
        1 << 20,
        TooLong::Split,
        &to,
    )
    .ended()
    .unwrap();
    assert_eq!(to.lines(), ["a", &long[..], "b"]);
}

#[test]
fn an_unknown_option_is_refused() {
    let problems = try_build(&COMPONENT, r#"{"path": "/x"}"#).err().unwrap();
    assert!(problems[0].contains("path"), "{problems:?}");
}

#[test]
fn multiline_records_and_other_encodings_are_read_from_a_pipe() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let multiline = crate::framing::Multiline {
        start: "^[0-9]".to_owned(),
        wait: "1s".parse().unwrap(),
    };
    let config = Config {
        tag: None,
        framing: Framing::Multiline(multiline),
        line_max: Size::mib(1),
        too_long: TooLong::Split,
        cr: Cr::Drop,
        encoding: "latin1".to_owned(),
    };
    let input = fs::File::from(std::os::fd::OwnedFd::from(reader));
    let to = Downstream::memory();
    let running = Running::of(source_of(config, input), &to, "unused".as_ref(), false);
    writer.write_all(b"1 \xe4\n  more\n2 two\n  hal").unwrap();
    until("the first", || to.batches().len() == 1);
    writer.write_all(b"f\n").unwrap();
    until("the second, without the next", || to.batches().len() == 2);
    writer.write_all(b"3 last").unwrap();
    drop(writer);
    running.ended().unwrap();
    let bodies: Vec<_> = to.batches().into_iter().map(|batch| batch.body).collect();
    for (body, text) in bodies
        .iter()
        .zip(["1 \u{e4}\n  more", "2 two\n  half", "3 last"])
    {
        assert!(body.ends_with(text.as_bytes()), "{body:?}");
    }
    assert_eq!(bodies.len(), 3);
}

#[test]
fn it_keeps_the_contract_of_sources() {
    let case = SourceCase {
        build: &|| source(file("one\nmuch too long\ntwo\n"), 8, TooLong::Reject),
        peer: None,
        // The long line is rejected in two pieces.
        records: 4,
        rejected: 2,
        directory: "unused".as_ref(),
    };
    block_on(case.check());
}
