//! Tests of `records.rs`: how the bytes of one file become batches.

use std::{fs, sync::Arc};

use millstream_pipeline::{
    meters::Meters,
    stop::{Stopper, stop},
};
use millstream_record::Pool;

use crate::{
    rig::{self, Downstream},
    tail::{
        chunk::Chunk,
        context::FileContext,
        decoder::After,
        identity::{Mark, Stat},
        options,
        records::{Records, Step},
        source_state::SourceState,
        tracked::Tracked,
    },
};

/// The records of a file with a given text. They are sent to a channel that the test controls.
struct Rig {
    records: Records,
    file: fs::File,
    context: FileContext,
    to: Downstream,
    rejects: Downstream,
    _stopper: Stopper,
    _directory: tempfile::TempDir,
}

impl Rig {
    fn new(to: Downstream, json: &str, text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        fs::write(&path, text).unwrap();
        let file = fs::File::open(&path).unwrap();
        let options = options::check(&rig::node(serde_json::from_str(json).unwrap()));
        let (meters, (stopper, stop)) = (Meters::default(), stop());
        let rejects = Downstream::memory();
        let (ports, at) = ((&to, &rejects), directory.path());
        let values = &["host", "path"];
        let source = rig::context(ports, values, &meters, stop.clone(), at, false);
        let durable = source.outlet.file_origins().is_some();
        let common = SourceState::new(options.ok().unwrap(), durable, None, &source.meters);
        let context = FileContext {
            common: Arc::new(common),
            tracked: Tracked::new(Stat::of(&file).unwrap().inode, path, None),
            source,
            stop,
        };
        Self {
            records: Records::new(&context, None, Mark::default(), 0, false),
            file,
            context,
            to,
            rejects,
            _stopper: stopper,
            _directory: directory,
        }
    }

    /// Reads `bytes` bytes at the position, and sends the records in them.
    async fn step(&mut self, bytes: usize) -> Step {
        let next = self.records.position.next();
        let buffer = Pool::new(1 << 20).reserve(Chunk::memory(next, bytes)).await;
        let chunk = Chunk::read(&self.file, buffer, next, bytes).unwrap();
        let chunk = chunk.expect("the file is the same");
        let len = self.file.metadata().unwrap().len();
        let after = match next.offset + (chunk.text().len() as u64) < len {
            true => After::More,
            false => After::Nothing,
        };
        let step = self.records.send_chunk(&self.file, chunk, after, len);
        step.await.unwrap()
    }

    fn position(&self) -> u64 {
        self.records.position.next().offset
    }
}

#[tokio::test]
async fn whole_lines_are_sent_and_the_rest_waits() {
    let to = Downstream::memory();
    let mut rig = Rig::new(to, r#"{"paths": "/a"}"#, "one\ntwo\nthr");
    assert_eq!(rig.step(100).await, Step::Continue);
    assert_eq!(rig.position(), 8);
    assert_eq!(rig.step(100).await, Step::End);
    rig.records.position.land().await.unwrap();
    assert_eq!(rig.to.lines(), ["one", "two"]);
    assert!(rig.records.position.is_settled());
}

#[tokio::test]
async fn a_long_line_is_rejected_once_its_end_is_written_and_its_neighbours_are_sent() {
    let json = r#"{"paths": "/a", "line_max": "4B", "too_long": "reject"}"#;
    let mut rig = Rig::new(Downstream::memory(), json, "a\n123456789\nb\n");
    for at in [2, 12, 14] {
        assert_eq!(rig.step(100).await, Step::Continue);
        assert_eq!(rig.position(), at);
    }
    assert_eq!(rig.to.lines(), ["a", "b"]);
    assert_eq!(rig.rejects.batches().len(), 3, "pieces of four bytes");
    assert_eq!(rig.context.common.meters.too_long.get(), 1);
}

#[tokio::test]
async fn dropped_records_are_read_again() {
    let mut rig = Rig::new(Downstream::memory(), r#"{"paths": "/a"}"#, "one\ntwo\n");
    assert_eq!(rig.step(4).await, Step::Continue);
    rig.records.position.land().await.unwrap();
    rig.to.hold();
    assert_eq!(rig.step(4).await, Step::Continue);
    assert_eq!(rig.position(), 8);
    rig.to.drop_held();
    let file = Some(&rig.file);
    rig.records.go_back(&mut rig.context, file).await;
    assert_eq!(rig.position(), 4, "the settled mark");
    assert_eq!(rig.step(4).await, Step::Continue);
    assert_eq!(rig.to.lines(), ["one", "two"]);
}
