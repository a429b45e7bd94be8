//! Tests with an object store that answers some requests for a new manifest with 409 (Conflict),
//! that reports an upload as completed although there is no object, or that has lost a part of an
//! upload. The sink writes the lost records again, and no others.

use std::{
    collections::HashSet,
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use futures_core::stream::BoxStream;
use millstream_pipeline::failure::Failure;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    memory::InMemory,
    multipart::{MultipartStore, PartId},
    path::Path,
};
use tokio::sync::Notify;

use super::block_on;
use crate::{
    object::{COMPONENT, ObjectSink},
    rig::{Rig, Upstream, lines, node},
};

/// How a store loses an upload.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    /// The store always reports the upload as completed.
    SaysYes,
    /// The store reports the upload as completed once, and then that there is no such upload.
    SaysYesOnce,
    /// The store has lost a part and reports that.
    MissesPart,
}

/// A bucket in memory that loses one upload when the sink asks to complete it.
#[derive(Debug)]
struct Forgetful {
    bucket: InMemory,
    /// The number of uploads that are completed normally before one is lost.
    remembers: usize,
    completed: AtomicUsize,
    how: How,
    /// Whether the request that loses the upload gets a response. If it does not, `forgot` notifies the test to kill the sink.
    answers: bool,
    forgot: Notify,
    /// The ids of uploads that no longer exist: lost or aborted.
    ended: Mutex<HashSet<String>>,
    /// Of the requests to create an object, those with these numbers get the answer 409 (Conflict).
    conflicts: Range<usize>,
    /// How many requests to create an object there were.
    creations: AtomicUsize,
    /// Whether the store lists no objects.
    hides: bool,
}

impl Forgetful {
    fn new(remembers: usize, how: How, answers: bool) -> Self {
        Self {
            bucket: InMemory::new(),
            remembers,
            completed: AtomicUsize::new(0),
            how,
            answers,
            forgot: Notify::new(),
            ended: Mutex::default(),
            conflicts: 0..0,
            creations: AtomicUsize::new(0),
            hides: false,
        }
    }

    fn has_forgotten(&self) -> bool {
        self.completed.load(Ordering::Relaxed) > self.remembers
    }

    /// Returns the sorted lines of all objects except manifests.
    async fn lines(&self) -> Vec<String> {
        let (mut directories, mut found) = (vec![Path::default()], String::new());
        while let Some(directory) = directories.pop() {
            let list = self.bucket.list_with_delimiter(Some(&directory)).await;
            let ListResult {
                common_prefixes,
                objects,
                ..
            } = list.unwrap();
            let seen = |path: &Path| path.filename() != Some("_millstream");
            directories.extend(common_prefixes.into_iter().filter(seen));
            for object in objects {
                let bytes = self.bucket.get(&object.location).await.unwrap().bytes();
                found += std::str::from_utf8(&bytes.await.unwrap()).unwrap();
            }
        }
        let mut lines: Vec<String> = found.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

impl fmt::Display for Forgetful {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Forgetful")
    }
}

#[async_trait]
impl MultipartStore for Forgetful {
    async fn create_multipart(&self, path: &Path) -> Result<String> {
        self.bucket.create_multipart(path).await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &String,
        number: usize,
        bytes: PutPayload,
    ) -> Result<PartId> {
        self.bucket.put_part(path, id, number, bytes).await
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &String,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        let yes = || PutResult {
            e_tag: None,
            version: None,
            extensions: Default::default(),
        };
        let misses_part = || Error::Generic {
            store: "S3",
            source: "400 Bad Request: <Code>InvalidPart</Code>".into(),
        };
        if !self.ended.lock().unwrap().insert(id.clone()) {
            return match self.how {
                How::SaysYes => Ok(yes()),
                // The response of S3 for an upload that no longer exists.
                How::SaysYesOnce => Err(Error::NotFound {
                    path: path.to_string(),
                    source: "NoSuchUpload".into(),
                }),
                How::MissesPart => Err(misses_part()),
            };
        }
        if self.completed.fetch_add(1, Ordering::Relaxed) == self.remembers {
            self.bucket.abort_multipart(path, id).await?;
            if !self.answers {
                self.forgot.notify_one();
                std::future::pending::<()>().await;
            }
            return match self.how {
                How::MissesPart => Err(misses_part()),
                How::SaysYes | How::SaysYesOnce => Ok(yes()),
            };
        }
        self.bucket.complete_multipart(path, id, parts).await
    }

    async fn abort_multipart(&self, path: &Path, id: &String) -> Result<()> {
        self.ended.lock().unwrap().insert(id.clone());
        self.bucket.abort_multipart(path, id).await
    }
}

/// Passes all operations to the store in memory.
#[async_trait]
impl ObjectStore for Forgetful {
    async fn put_opts(&self, to: &Path, bytes: PutPayload, how: PutOptions) -> Result<PutResult> {
        let number = self.creations.fetch_add(1, Ordering::Relaxed);
        if self.conflicts.contains(&number) {
            return Err(Error::AlreadyExists {
                path: to.to_string(),
                source: "409 Conflict: ConditionalRequestConflict".into(),
            });
        }
        self.bucket.put_opts(to, bytes, how).await
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        how: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.bucket.put_multipart_opts(to, how).await
    }

    async fn get_opts(&self, from: &Path, how: GetOptions) -> Result<GetResult> {
        self.bucket.get_opts(from, how).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.bucket.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.bucket.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut list = self.bucket.list_with_delimiter(prefix).await?;
        list.objects.retain(|_| !self.hides);
        Ok(list)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> Result<()> {
        self.bucket.copy_opts(from, to, how).await
    }
}

/// Each tag has its own object path. So each manifest, the file that lists the objects to be completed together, lists three
/// objects.
const TAGS: [&str; 3] = ["a", "b", "c"];

fn put(upstream: &Upstream, round: &str) -> Vec<String> {
    let sent = TAGS.map(|tag| [format!("{tag} {round} 1"), format!("{tag} {round} 2")]);
    for (tag, [one, two]) in TAGS.iter().zip(&sent) {
        upstream.put(lines(tag, &format!("{one}\n{two}\n")), false);
    }
    sent.concat()
}

/// Restarts the sink after each failure or kill, as the supervisor does, until it ends without an error. Returns the number of
/// runs.
fn run(store: &Arc<Forgetful>, upstream: &Upstream, directory: &std::path::Path) -> usize {
    let ends_well = || run_once(store, upstream, directory).is_ok();
    let tries = (1..10).find(|_| ends_well());
    tries.expect("the sink failed or was killed in every run")
}

/// Runs the sink until it ends, or until `forgot` kills it.
fn run_once(
    store: &Arc<Forgetful>,
    upstream: &Upstream,
    directory: &std::path::Path,
) -> Result<(), Failure> {
    let options = r#"{"url": "s3://lake/logs/{tag}", "format": "raw", "retry": {"first": "1ms", "max": "1ms"}}"#;
    let mut rig = Rig::new(&COMPONENT, options, upstream, directory);
    let options = serde_json::from_str(options).unwrap();
    let sink = ObjectSink::new("sink", &node(options)).unwrap();
    let encode = sink.encode().unwrap();
    let (inlet, context) = (&mut rig.inlet, rig.context.clone());
    block_on(async {
        tokio::select! {
            ended = sink.run_over(store.clone(), encode, inlet, context) => ended,
            () = store.forgot.notified() => Err(Failure::us("killed")),
        }
    })
}

/// S3 answers a conditional request with 409 while another request for the same name is in
/// progress, perhaps an earlier attempt whose answer was lost.
#[test]
fn a_passing_conflict_is_not_taken_for_another_writer() {
    // Object 0 is the claim of the run, object 1 a manifest with outputs.
    for first in [0, 1] {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Forgetful::new(usize::MAX, How::SaysYes, true);
        store.conflicts = first..first + 3;
        let store = Arc::new(store);
        let upstream = Upstream::durable(7);
        let sent = put(&upstream, "first");
        upstream.close();
        assert_eq!(run(&store, &upstream, directory.path()), 1);
        assert!(store.creations.load(Ordering::Relaxed) >= first + 4);
        assert_eq!(block_on(store.lines()), sent);
    }
}

/// The listing of a store may lag behind, or a foreign object may have the name of a manifest.
#[test]
fn a_manifest_that_exists_but_is_not_listed_is_asked_for_with_a_back_off() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Forgetful::new(usize::MAX, How::SaysYes, true);
    store.hides = true;
    let store = Arc::new(store);
    let upstream = Upstream::durable(7);
    put(&upstream, "first");
    upstream.close();
    let taken = Path::from(format!("logs/_millstream/sink/{:032x}/{:020}", 7, 1));
    block_on(store.bucket.put(&taken, "foreign".into())).unwrap();
    let failed = run_once(&store, &upstream, directory.path());
    assert!(failed.unwrap_err().message.contains("does not list it"));
    assert_eq!(store.creations.load(Ordering::Relaxed), 1);
}

fn check(forgotten: usize, how: How, answers: bool) {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(Forgetful::new(forgotten, how, answers));
    let upstream = Upstream::durable(7);
    upstream.close();
    let mut sent = put(&upstream, "first");
    let mut runs = run(&store, &upstream, directory.path());
    sent.extend(put(&upstream, "second"));
    runs += run(&store, &upstream, directory.path());
    sent.sort();
    assert!(store.has_forgotten());
    let found = block_on(store.lines());
    assert_eq!(found, sent, "{forgotten} {how:?} {answers}");
    assert_eq!(upstream.settled(), 2 * TAGS.len());
    assert_eq!(runs, 3, "one run failed, and no other");
}

#[test]
fn an_upload_that_the_store_loses_is_written_again_and_no_record_twice() {
    for forgotten in 0..2 * TAGS.len() {
        for how in [How::SaysYes, How::SaysYesOnce, How::MissesPart] {
            check(forgotten, how, true);
        }
    }
}

#[test]
fn an_upload_that_the_store_loses_during_a_crash_is_noticed_by_the_next_start() {
    for forgotten in 0..2 * TAGS.len() {
        for how in [How::SaysYes, How::SaysYesOnce, How::MissesPart] {
            check(forgotten, how, false);
        }
    }
}
