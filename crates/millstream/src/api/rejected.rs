//! `GET /rejected` and `GET /rejected/{node}`: the rejected records in `data_dir/rejected`.
//!
//! The files may be large, so only one request at a time reads them, on a thread for blocking work. To count records, a request reads at
//! most [`READ_BYTES_MAX`] of each file. The list of nodes is cached for [`FRESH`].

use std::{
    collections::BTreeMap,
    io,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::{Path, State},
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use millstream_pipeline::{redact::Redaction, rejected::RejectedFile};
use millstream_record::Time;
use serde_json::{Value, json};
use tokio::{sync::Mutex, task::spawn_blocking};

use super::{Shown, query};
use crate::rejects::{line, stamp};

/// The maximum number of bytes of a file that are read to count its records.
const READ_BYTES_MAX: u64 = 64 << 20;
/// How long the list of nodes is cached.
const FRESH: Duration = Duration::from_secs(2);
/// The number of records in an answer: the default and the maximum.
const RECORDS: (u64, u64) = (20, 1000);
/// The maximum number of bytes of an answer without its last record.
const ANSWER_BYTES: usize = 4 << 20;

/// The cached list of nodes, and when it was made.
type List = Option<(Instant, Value)>;

/// The directory of rejected records, read by one request at a time.
pub struct Kept {
    directory: PathBuf,
    list: Arc<Mutex<List>>,
}

impl Kept {
    /// Reads nothing yet.
    pub fn new(directory: &FilePath) -> Self {
        Self {
            directory: directory.to_owned(),
            list: Arc::default(),
        }
    }

    /// Reads the directory on a thread for blocking work. The work holds the lock until it ends, even if the client has closed its
    /// connection. Without this, the work of abandoned requests could run in parallel on many threads.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&FilePath, &mut List) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Response> {
        let mut list = self.list.clone().lock_owned().await;
        let directory = self.directory.clone();
        let read = spawn_blocking(move || work(&directory, &mut list)).await;
        let read = read.map_err(io::Error::other).flatten();
        read.map_err(|error| {
            let why = format!("cannot read {}: {error}\n", self.directory.display());
            (StatusCode::INTERNAL_SERVER_ERROR, why).into_response()
        })
    }
}

/// Answers with the nodes that have rejected records: for each node, the number of these records, their bytes, and the times of the
/// oldest and the newest.
pub async fn nodes(State(shown): State<Arc<Shown>>) -> Response {
    let read = shown.rejected.read(|directory, list| match list {
        Some((read, known)) if read.elapsed() < FRESH => Ok(known.clone()),
        _ => {
            let new = summary(directory, READ_BYTES_MAX)?;
            *list = Some((Instant::now(), new.clone()));
            Ok(new)
        }
    });
    match read.await {
        Ok(nodes) => axum::Json(nodes).into_response(),
        Err(failed) => failed,
    }
}

/// Answers with rejected records of one node. `?records=N&from=K` selects N records, beginning with the Kth (1 is the oldest one in the
/// files).
pub async fn records(
    State(shown): State<Arc<Shown>>,
    Path(node): Path<String>,
    uri: Uri,
) -> Response {
    let known = [
        ("records", RECORDS.0, RECORDS.1),
        ("from", 1, u64::from(u32::MAX)),
    ];
    let [most, from] = match query::numbers(&uri, known) {
        Ok(numbers) => numbers,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let redaction = shown.redaction.clone();
    let read = shown
        .rejected
        .read(move |directory, _| page(directory, &node, (from, most), &redaction));
    match read.await {
        Ok(page) => ([(header::CONTENT_TYPE, "application/json")], page).into_response(),
        Err(failed) => failed,
    }
}

/// A summary of the rejected records of a node.
#[derive(Default)]
struct Sum {
    records: u64,
    /// Whether `records` is an estimate, because some files were too long to count all of their records.
    is_estimate: bool,
    bytes: u64,
    files: u64,
    span: Option<(Time, Time)>,
}

/// The node that a file belongs to.
fn node_of(path: &FilePath) -> Option<&str> {
    path.file_name()?.to_str()?.split('.').next()
}

/// The nodes with rejected records, as JSON. At most `bytes_max` of each file are read.
fn summary(directory: &FilePath, bytes_max: u64) -> io::Result<Value> {
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for path in RejectedFile::all(directory)? {
        let Some(node) = node_of(&path) else { continue };
        let mut file = match RejectedFile::open(&path) {
            // An operator moved the file away after the directory was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?.up_to(bytes_max),
        };
        let length = std::fs::metadata(&path).map_or(0, |found| found.len());
        let sum = sums.entry(node.to_owned()).or_default();
        let mut records = 0_u64;
        file.read(|rejected| {
            if let Some(rejected) = rejected {
                records += 1;
                let time = rejected.time;
                let (first, last) = sum.span.unwrap_or((time, time));
                sum.span = Some((first.min(time), last.max(time)));
            }
            io::Result::Ok(())
        })?;
        if (bytes_max..length).contains(&file.bytes_read()) {
            sum.is_estimate = true;
            let share = u128::from(records) * u128::from(length);
            let all = share / u128::from(file.bytes_read().max(1));
            records = u64::try_from(all).unwrap_or(u64::MAX);
        }
        sum.records += records;
        sum.bytes += length;
        sum.files += 1;
    }
    let node = |(node, sum): (String, Sum)| {
        json!({
            "node": node, "records": sum.records, "is_estimate": sum.is_estimate, "bytes": sum.bytes, "files": sum.files,
            "oldest": sum.span.map(|(first, _)| stamp(first)), "newest": sum.span.map(|(_, last)| stamp(last)),
        })
    };
    Ok(json!({ "nodes": sums.into_iter().map(node).collect::<Vec<_>>() }))
}

/// A page of a node's records as JSON: up to `most` records, beginning with number `from`.
fn page(
    directory: &FilePath,
    node: &str,
    (from, most): (u64, u64),
    redaction: &Redaction,
) -> io::Result<String> {
    let (mut number, mut more, mut bytes) = (0, false, 0);
    let mut lines = Vec::new();
    for path in RejectedFile::all(directory)? {
        if node_of(&path) != Some(node) || more {
            continue;
        }
        let mut file = match RejectedFile::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        let read = file.read(|rejected| {
            let Some(rejected) = rejected else {
                return Ok(());
            };
            number += 1;
            if number < from {
                return Ok(());
            }
            if lines.len() as u64 == most || bytes > ANSWER_BYTES {
                more = true;
                return Err(io::Error::from(io::ErrorKind::FileTooLarge));
            }
            let line = line(&rejected, redaction);
            bytes += line.len();
            lines.push(line);
            Ok(())
        });
        match read {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {}
            read => _ = read?,
        }
    }
    let node = Value::from(node);
    Ok(format!(
        "{{\"node\":{node},\"from\":{from},\"records\":[{}],\"more\":{more}}}",
        lines.join(",")
    ))
}

#[cfg(test)]
mod tests {
    use millstream_pipeline::reject;
    use millstream_record::{Batch, Encoding};
    use tokio::time::timeout;

    use super::*;

    fn write(directory: &FilePath, name: &str, node: &str, count: usize) {
        let from = Batch {
            tag: "web".into(),
            encoding: Encoding::Lines,
            plain: false,
            body: Default::default(),
            count: 0,
            received: Time(1_700_000_000_000_000_000),
            values: Arc::default(),
            origins: Vec::new(),
        };
        let texts: Vec<_> = (0..count)
            .map(|n| format!("{{\"n\":{n},\"password\":\"x\"}}"))
            .collect();
        let records = texts.iter().map(String::as_bytes);
        let batch = reject::batch(node, &from, records, "why");
        std::fs::write(directory.join(name), batch.body).unwrap();
    }

    #[test]
    fn records_are_counted_by_node_and_shown_in_pages() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        assert_eq!(
            summary(&place.join("none"), READ_BYTES_MAX).unwrap(),
            json!({ "nodes": [] })
        );
        write(place, "bus.msgpack", "bus", 3);
        write(place, "bus.peer-10_0_0_1.msgpack", "bus", 2);
        write(place, "busy.msgpack", "busy", 1);
        std::fs::write(place.join("other.txt"), "no records").unwrap();
        let list = summary(place, READ_BYTES_MAX).unwrap();
        let row = &list["nodes"][0];
        assert_eq!(
            (&row["node"], &row["records"], &row["files"]),
            (&json!("bus"), &json!(5), &json!(2))
        );
        assert_eq!(row["oldest"], "2023-11-14T22:13:20Z");
        assert_eq!(list["nodes"].as_array().unwrap().len(), 2);

        let redaction = Redaction::new(&[".password".to_owned()]);
        let page = |from, most| -> Value {
            serde_json::from_str(&page(place, "bus", (from, most), &redaction).unwrap()).unwrap()
        };
        let whole = page(1, 100);
        assert_eq!(whole["records"].as_array().unwrap().len(), 5);
        assert_eq!(
            (&whole["more"], &whole["node"]),
            (&json!(false), &json!("bus"))
        );
        assert!(!whole.to_string().contains("\\\"x\\\""), "{whole}");
        let part = page(2, 2);
        assert_eq!(
            part["records"][0]["record"],
            "{\"n\":1,\"password\":\"***\"}"
        );
        assert_eq!(
            (part["records"].as_array().unwrap().len(), &part["more"]),
            (2, &json!(true))
        );
        assert_eq!(page(9, 2)["records"], json!([]));
    }

    #[test]
    fn a_long_file_of_short_records_is_read_in_part_and_estimated() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        write(place, "bus.msgpack", "bus", 1000);
        let length = std::fs::metadata(place.join("bus.msgpack")).unwrap().len();
        let row = &summary(place, length / 4).unwrap()["nodes"][0];
        let records = row["records"].as_u64().unwrap();
        assert!((950..1050).contains(&records), "{row}");
        assert_eq!(
            (&row["is_estimate"], &row["bytes"]),
            (&json!(true), &json!(length))
        );
        let row = &summary(place, length).unwrap()["nodes"][0];
        assert_eq!(
            (&row["records"], &row["is_estimate"]),
            (&json!(1000), &json!(false))
        );
    }

    #[tokio::test]
    async fn a_read_whose_client_has_gone_delays_the_next_one_until_it_ends() {
        let kept = Kept::new("unused".as_ref());
        let (release, released) = std::sync::mpsc::sync_channel::<()>(1);
        let long = kept.read(move |_, _| {
            let _ = released.recv();
            Ok(())
        });
        let short = Duration::from_millis(50);
        assert!(timeout(short, long).await.is_err(), "its client goes away");
        let next = || kept.read(|_, _| Ok(()));
        assert!(timeout(short, next()).await.is_err(), "two read at once");
        release.send(()).unwrap();
        let read = timeout(Duration::from_secs(20), next()).await;
        assert!(read.unwrap().is_ok());
    }
}
