use std::{
    io,
    sync::{Arc, Mutex},
};

use millstream_pipeline::{failure::Again, reject::Rejected};
use millstream_record::Batch;
use millstream_testkit::{block_on, contract::SinkCase};

use super::*;
use crate::rig::{Rig, Upstream, lines, misfit, packed, try_build};

/// A standard output that stores each write, or is closed.
#[derive(Clone, Default)]
struct Output {
    writes: Arc<Mutex<Vec<Vec<u8>>>>,
    closed: bool,
}

impl Output {
    fn text(&self) -> String {
        String::from_utf8(self.writes.lock().unwrap().concat()).unwrap()
    }
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        // Like a pipe that is nearly full: it accepts a part of each write.
        let taken = bytes.len().min(100);
        self.writes.lock().unwrap().push(bytes[..taken].to_vec());
        Ok(taken)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn formatting(options: &str) -> Formatting {
    let node = crate::rig::node(serde_json::from_str(options).unwrap());
    Formatting::with::<super::Config>(&node).unwrap().0
}

fn run_with(options: &str, upstream: &Upstream, output: Output) -> Result<(), Failure> {
    let mut rig = Rig::new(&COMPONENT, options, upstream, "unused".as_ref());
    let encoder = formatting(options).encoder();
    let writer = Writer::new(output, encoder, rig.context.pool.clone());
    block_on(run(&mut rig.inlet, writer))
}

fn written(options: &str) -> String {
    let (upstream, output) = (Upstream::memory(), Output::default());
    let receipts = [
        upstream.put(lines("web.a", "one\ntwo\n"), true),
        upstream.put(packed("web.b", "three\n"), true),
    ];
    upstream.close();
    run_with(options, &upstream, output.clone()).unwrap();
    assert!(
        receipts
            .iter()
            .all(|receipt| receipt.try_outcome() == Some(Ok(())))
    );
    output.text()
}

#[test]
fn records_leave_as_json_with_their_times() {
    let expected = concat!(
        "{\"message\":\"one\",\"time\":\"2023-11-14T22:13:20.123456789Z\"}\n",
        "{\"message\":\"two\",\"time\":\"2023-11-14T22:13:20.123456789Z\"}\n",
        "{\"message\":\"three\",\"time\":\"2020-09-13T12:26:40.000000001Z\"}\n",
    );
    assert_eq!(written("{}"), expected);
}

#[test]
fn raw_and_template_write_what_their_options_say() {
    assert_eq!(written(r#"{"format": "raw"}"#), "one\ntwo\nthree\n");
    let options = r#"{"format": "template", "template": "{tag}:{.message};"}"#;
    assert_eq!(written(options), "web.a:one;web.a:two;web.b:three;");
}

#[test]
fn csv_starts_with_its_columns_and_ltsv_labels_each_value() {
    let options = r#"{"format": "csv", "columns": ["message", "time", "tag"], "header": true, "add": {"tag": "{tag}", "time": null}}"#;
    assert_eq!(
        written(options),
        "message,time,tag\none,,web.a\ntwo,,web.a\nthree,,web.b\n"
    );
    assert_eq!(
        written(r#"{"format": "ltsv", "add": {"tag": "{tag}", "time": null}}"#),
        "message:one\ttag:web.a\nmessage:two\ttag:web.a\nmessage:three\ttag:web.b\n"
    );
}

#[test]
fn a_record_that_cannot_be_written_is_rejected_and_its_neighbors_are_written() {
    let (upstream, output) = (Upstream::memory(), Output::default());
    let mut batch = packed("t", "good\n");
    let mut body = batch.body.to_vec();
    // [0, {}]: a record without the field that raw writes.
    body.extend_from_slice(&[0x92, 0x00, 0x80]);
    body.extend_from_slice(&batch.body.clone());
    batch.body = body.into();
    batch.count = 3;
    upstream.put(batch, true);
    upstream.close();
    run_with(r#"{"format": "raw"}"#, &upstream, output.clone()).unwrap();
    assert_eq!(output.text(), "good\ngood\n");
    let rejected = upstream.rejected();
    assert_eq!(rejected.len(), 1);
    let rejected = Rejected::read(&rejected[0].body).unwrap();
    assert_eq!(&*rejected.message, [0x92, 0x00, 0x80]);
}

#[test]
fn records_that_are_rejected_for_the_same_reason_leave_together() {
    let (upstream, output) = (Upstream::memory(), Output::default());
    let batch = Batch {
        count: 3,
        body: [0x92, 0x00, 0x80].repeat(3).into(),
        ..misfit()
    };
    upstream.put(batch, true);
    upstream.close();
    run_with(r#"{"format": "raw"}"#, &upstream, output).unwrap();
    let counts: Vec<u32> = upstream
        .rejected()
        .iter()
        .map(|group| group.count)
        .collect();
    assert_eq!(counts, [3]);
}

#[test]
fn nothing_is_settled_before_it_is_written() {
    let upstream = Upstream::memory();
    let receipt = upstream.put(lines("t", "a\n"), true);
    let closed = Output {
        closed: true,
        ..Output::default()
    };
    let failure = run_with("{}", &upstream, closed).unwrap_err();
    assert_eq!(failure.again, Again::Never);
    assert!(failure.message.contains("closed"), "{failure}");
    drop(upstream);
    assert!(
        receipt
            .try_outcome()
            .is_some_and(|outcome| outcome.is_err())
    );
}

#[test]
fn output_is_written_when_no_more_input_is_ready_before_a_checkpoint_is_due() {
    let (upstream, output) = (Upstream::memory(), Output::default());
    let mut rig = Rig::new(
        &COMPONENT,
        r#"{"format": "raw"}"#,
        &upstream,
        "unused".as_ref(),
    );
    let encoder = formatting(r#"{"format": "raw"}"#).encoder();
    let writer = Writer::new(output.clone(), encoder, rig.context.pool.clone());
    // Nothing waits for the receipt, so the checkpoint follows a second later.
    let _receipt = upstream.put(packed("t", "now\n"), false);
    block_on(async {
        let limit = std::time::Duration::from_millis(300);
        let running = tokio::time::timeout(limit, run(&mut rig.inlet, writer));
        assert!(running.await.is_err(), "it keeps waiting for records");
    });
    assert_eq!(output.text(), "now\n");
}

#[test]
fn wrong_options_are_reported_by_name() {
    let problems = try_build(&COMPONENT, r#"{"format": "template"}"#)
        .err()
        .unwrap();
    assert!(problems[0].contains("template"), "{problems:?}");
    let problems = try_build(&COMPONENT, r#"{"timezone": "Mars"}"#)
        .err()
        .unwrap();
    assert!(problems[0].contains("Mars"), "{problems:?}");
    let problems = try_build(&COMPONENT, r#"{"pretty": true}"#).err().unwrap();
    assert!(problems[0].contains("pretty"), "{problems:?}");
}

#[test]
fn it_keeps_the_contract_of_sinks() {
    const RAW: &str = r#"{"format": "raw"}"#;
    let output = Output::default();
    let at_destination = output.clone();
    let case = SinkCase {
        run: &|inlet, context| {
            let encoder = formatting(RAW).encoder();
            Box::pin(run(
                inlet,
                Writer::new(output.clone(), encoder, context.pool),
            ))
        },
        arrived: Some(Arc::new(move || {
            at_destination.text().lines().map(str::to_owned).collect()
        })),
        directory: "unused".as_ref(),
        misfit: Some(misfit()),
    };
    block_on(case.check());
}
