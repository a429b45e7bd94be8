//! A reload gives the source other options while programs have files open in the mount.

use std::{
    mem,
    sync::{Mutex, MutexGuard},
    thread::JoinHandle,
};

use millstream_pipeline::{
    meters::Meters,
    stop::{Stop, Stopper, stop},
};

use super::*;
use crate::rig::context;

type Next = Arc<Mutex<Option<(Box<dyn Source>, Stop)>>>;

/// A source in a seat, as a pipeline runs it: another source can follow it.
struct Seated {
    directory: tempfile::TempDir,
    downstream: Downstream,
    context: SourceContext,
    stopper: Stopper,
    next: Next,
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl Seated {
    fn start(downstream: Downstream, options: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (stopper, stop) = stop();
        let rejects = Downstream::memory();
        let context = context(
            (&downstream, &rejects),
            rules::VALUES,
            &Meters::default(),
            stop,
            &directory.path().join("state"),
            false,
        );
        let mut seated = Self {
            directory,
            downstream,
            context,
            stopper,
            next: Next::default(),
            thread: None,
        };
        let mut source = seated.bound(options).unwrap();
        let (next, mut context) = (seated.next.clone(), seated.context.clone());
        seated.thread = Some(thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let run = async {
                loop {
                    source.run(context.clone()).await?;
                    let Some((other, stop)) = locked(&next).take() else {
                        return Ok(());
                    };
                    (source, context.stop) = (other, stop);
                }
            };
            tokio::task::LocalSet::new().block_on(&runtime, run)
        }));
        let mount = seated.directory.path().join("mnt");
        until("it is mounted", || {
            let mounted = millstream_sys::fuse::type_of_mount(&mount);
            mounted.is_ok_and(|mounted| mounted.is_some())
        });
        seated
    }

    /// A source with other options that is bound while the present one runs.
    fn bound(&self, options: &str) -> Result<Box<dyn Source>, Failure> {
        let mount = self.directory.path().join("mnt");
        let options = format!("{{\"mount\": {mount:?}{options}}}");
        let mut source = try_build(&COMPONENT, &options).unwrap();
        source.bind(&self.context)?;
        Ok(source)
    }

    fn reload(&mut self, options: &str) {
        let (stopper, stop) = stop();
        *locked(&self.next) = Some((self.bound(options).unwrap(), stop));
        mem::replace(&mut self.stopper, stopper).stop();
        until("it follows", || locked(&self.next).is_none());
        // The next source applies its options right after it has begun.
        thread::sleep(Duration::from_millis(50));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("mnt").join(name)
    }

    fn append(&self, name: &str) -> fs::File {
        let mut options = fs::File::options();
        let options = options.append(true).create(true);
        options.open(self.path(name)).unwrap()
    }

    fn lines(&self) -> Vec<String> {
        self.downstream.lines()
    }

    /// The records of all batches with separate records.
    fn messages(&self) -> Vec<String> {
        let batches = self.downstream.batches();
        let packed = batches
            .iter()
            .filter(|batch| batch.encoding == millstream_record::Encoding::Packed);
        let record = |batch: &millstream_record::Batch| {
            let record = rmpv::decode::read_value(&mut &batch.body[..]).unwrap();
            record[1]["message"].as_str().unwrap().to_owned()
        };
        packed.map(record).collect()
    }

    fn stop(&mut self) {
        self.stopper.stop();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.downstream.settle();
            self.stopper.stop();
            let _ = thread.join();
        }
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap()
}

#[test]
fn after_a_reload_open_files_live_on_and_their_next_records_follow_the_new_rules() {
    let mut seated = Seated::start(Downstream::durable(), "");
    let mut file = seated.append("a.log");
    file.write_all(b"one\nunfin").unwrap();
    let rules = r#", "rules": [{ "path": "*.log", "tag": "new", "deny": "secret", "rewrite": [{ "match": "ished", "replace": "ISHED" }] }]"#;
    seated.reload(rules);
    file.write_all(b"ished\nsecret\ntwo\nsecr").unwrap();
    assert_eq!(seated.lines(), ["one", "unfinISHED", "two"]);
    let tags = seated.downstream.batches();
    let tags: Vec<_> = tags.iter().map(|batch| batch.tag.as_str()).collect();
    assert_eq!(tags, ["source", "new"]);
    // The end of the file follows the rules, too.
    file.write_all(b"et").unwrap();
    drop(file);
    // A file that was opened before and not written follows the rules that are in force when it is written.
    let mut quiet = seated.append("b.log");
    seated.reload("");
    quiet.write_all(b"secret\n").unwrap();
    assert_eq!(seated.lines(), ["one", "unfinISHED", "two", "secret"]);
    assert_eq!(fs::metadata(seated.path("a.log")).unwrap().len(), 32);
    seated.stop();
    assert_eq!(seated.lines(), ["one", "unfinISHED", "two", "secret"]);
    assert!(quiet.write_all(b"x\n").is_err());
}

#[test]
fn after_a_reload_unfinished_lines_end_by_the_new_framing() {
    let joined = |wait: &str| {
        format!(r#", "framing": {{ "multiline": {{ "start": "^A", "wait": "{wait}" }} }}"#)
    };
    let mut seated = Seated::start(Downstream::durable(), &joined("1h"));
    let mut file = seated.append("f");
    file.write_all(b"A 1\n 2\n 3").unwrap();
    seated.reload("");
    assert!(seated.messages().is_empty() && seated.lines().is_empty());
    file.write_all(b"4\nA").unwrap();
    assert_eq!(seated.lines(), ["A 1", " 2", " 34"]);
    seated.reload(&joined("100ms"));
    file.write_all(b" 5\n 6\n").unwrap();
    until("the pause ends the record", || {
        !seated.messages().is_empty()
    });
    assert_eq!(seated.messages(), ["A 5\n 6"]);
    // A line that has begun is not torn by `framing: write`: it ends with the next write.
    seated.reload("");
    file.write_all(b"to").unwrap();
    seated.reload(r#", "framing": "write""#);
    file.write_all(b"re\n").unwrap();
    file.write_all(b"xy").unwrap();
    assert_eq!(seated.downstream.batches().len(), 4);
    assert_eq!(seated.messages(), ["A 5\n 6", "tore\n", "xy"]);
    seated.stop();
}

#[test]
fn a_reload_does_not_disturb_a_writer_that_waits_and_changes_its_copies() {
    let copies = tempfile::tempdir().unwrap();
    let place = copies.path().display();
    let exec = format!(
        r#", "rules": [{{ "path": "*", "tee": "{place}/one", "exec": ["sh", "-c", "cat > {place}/out; echo end >> {place}/out"] }}]"#
    );
    let mut seated = Seated::start(Downstream::durable(), &exec);
    let mut file = seated.append("f");
    file.write_all(b"a\n").unwrap();
    seated.downstream.hold();
    let writes = thread::spawn(move || file.write_all(b"b\n").map(|()| file));
    until("it waits", || seated.lines().len() == 2);
    seated.reload(&format!(
        r#", "rules": [{{ "path": "new/*", "tag": "t" }}, {{ "path": "*", "tee": "{place}/two" }}]"#
    ));
    thread::sleep(Duration::from_millis(100));
    assert!(!writes.is_finished());
    // The directories that the new rules name exist.
    assert!(fs::metadata(seated.path("new")).unwrap().is_dir());
    seated.downstream.settle();
    let mut file = writes.join().unwrap().unwrap();
    file.write_all(b"c\n").unwrap();
    assert_eq!(seated.lines(), ["a", "b", "c"]);
    let copy = |name: &str| fs::read_to_string(copies.path().join(name)).unwrap_or_default();
    assert_eq!([copy("one"), copy("two")], ["a\nb\n", "c\n"]);
    // The command has got the end of its input, and nothing starts it again.
    until("it ends", || copy("out") == "a\nend\n");
    seated.stop();
}

#[test]
fn a_reload_that_fails_or_needs_another_mount_leaves_everything_as_it_was() {
    let mut seated = Seated::start(Downstream::durable(), "");
    let mut file = seated.append("f");
    let refused = seated.bound(r#", "allow_other": true"#).err().unwrap();
    assert!(refused.message.contains("`allow_other`"), "{refused}");
    // Another node makes the reload fail, so the source is dropped before it runs.
    drop(seated.bound(r#", "rules": [{ "path": "*", "deny": "a" }]"#));
    file.write_all(b"a\n").unwrap();
    assert_eq!(seated.lines(), ["a"]);
    seated.stop();
    assert!(
        !millstream_sys::fuse::type_of_mount(&seated.directory.path().join("mnt"))
            .is_ok_and(|mounted| mounted.is_some())
    );
}
