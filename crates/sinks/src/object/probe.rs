//! Tests whether a bucket exists and grants access, for `check --connect`. It removes everything that it creates.

use millstream_pipeline::{failure::Failure, report::Reporter};
use object_store::{ObjectStore, path::Path};

use super::{ObjectSink, connect, trouble::trouble};
use crate::probe::{self, PATIENCE};

/// Tests whether manifests can be listed and uploads created.
pub(super) fn bucket(sink: &ObjectSink) -> Result<String, Failure> {
    let http = sink.http(PATIENCE, &Reporter::new(&sink.settings.sink));
    let objects = connect::connect(&sink.bucket, &http)?;
    // This directory holds few objects, even in a full bucket.
    let directory = format!("{}/_millstream/{}", sink.root, sink.settings.sink);
    let directory = Path::from(directory);
    let failed = |verb: &str, path: &Path, error| trouble(&sink.url, verb, path, &error);
    probe::run(async {
        let listed = objects.list_with_delimiter(Some(&directory)).await;
        listed.map_err(|error| failed("list", &directory, error))?;
        let path = directory.clone().join("probe");
        let begun = objects.create_multipart(&path).await;
        let id = begun.map_err(|error| failed("begin to upload", &path, error))?;
        let aborted = objects.abort_multipart(&path, &id).await;
        aborted.map_err(|error| failed("abort the upload of", &path, error))
    })?;
    let at = match &sink.bucket.endpoint {
        Some(endpoint) => format!(" at {endpoint}"),
        None => String::new(),
    };
    let name = &sink.bucket.name;
    Ok(format!(
        "the bucket {name}{at} can be listed and takes uploads"
    ))
}
