//! Object stores as the destination: outputs are multipart uploads, which are invisible until they are completed.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `encode -> [write] -> settle`
//!
//! The ticket of an output contains the ids of its upload and parts, which suffice to complete the upload. A manifest, an object
//! that names the outputs to publish, stores the tickets. Every request is repeatable. All requests except aborts are retried
//! after temporary failures. A local journal (`begun`) lists the uploads that were begun, so that the next start can abort those
//! that no manifest names. An upload that is not aborted only costs space in the store.

use std::{cell::Cell, io, sync::Arc};

use millstream_pipeline::{failure::Failure, report::Reporter};
use object_store::{
    Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    multipart::{MultipartStore, PartId},
    path::Path,
};
use serde::{Deserialize, Serialize};

use super::{begun::Begun, trouble::trouble};
use crate::publish::{Patience, Place, Published, Put, Store, too_long};

/// Maximum number of parts of an upload. S3 accepts 10,000.
const PARTS_MAX: u64 = 9_000;
/// Maximum bytes of a key in S3, Google Cloud Storage and Azure.
const KEY_BYTES_MAX: usize = 1024;

/// The operations that the stores support.
pub(super) trait Objects: ObjectStore + MultipartStore {}
impl<T: ObjectStore + MultipartStore> Objects for T {}

/// A bucket.
pub(super) struct Cloud {
    pub(super) objects: Arc<dyn Objects>,
    /// The URL in the configuration, for errors.
    pub(super) url: String,
    /// The directory in the bucket below which all objects are.
    pub(super) root: String,
    pub(super) part_bytes: usize,
    pub(super) patience: Patience,
    pub(super) reporter: Reporter,
    pub(super) begun: Begun,
}

/// An upload.
pub(super) struct Upload {
    path: Path,
    id: String,
    parts: Vec<String>,
    buffer: Vec<u8>,
}

/// The data needed to complete an upload.
#[derive(Serialize, Deserialize)]
struct Ticket {
    id: String,
    parts: Vec<String>,
}

impl Cloud {
    fn at(&self, path: &str) -> Path {
        Path::from(format!("{}/{path}", self.root))
    }

    fn trouble(&self, verb: &str, path: &Path, error: &Error) -> Failure {
        trouble(&self.url, verb, path, error)
    }

    async fn put_part(&self, upload: &mut Upload, bytes: Vec<u8>) -> Result<(), Failure> {
        let payload = PutPayload::from(bytes);
        let number = upload.parts.len();
        let part = self
            .patience
            .keep_trying(async || {
                let put = self
                    .objects
                    .put_part(&upload.path, &upload.id, number, payload.clone());
                put.await
                    .map_err(|error| self.trouble("put a part of", &upload.path, &error))
            })
            .await?;
        upload.parts.push(part.content_id);
        Ok(())
    }

    /// Logs a failure to note an upload. An upload that is not in the journal only costs space in the store.
    fn tell(&self, noted: io::Result<()>) {
        if let Err(error) = noted {
            let text = format_args!("cannot note which uploads were begun: {error}");
            self.reporter.warn("uploads", text);
        }
    }
}

impl Store for Cloud {
    type Output = Upload;

    async fn create(&mut self, place: &Place) -> Result<Upload, Failure> {
        let path = self.at(&place.path());
        let id = self
            .patience
            .keep_trying(async || {
                let begun = self.objects.create_multipart(&path).await;
                begun.map_err(|error| self.trouble("begin to upload", &path, &error))
            })
            .await?;
        let noted = self.begun.note(&id, path.as_ref());
        self.tell(noted);
        Ok(Upload {
            path,
            id,
            parts: Vec::new(),
            buffer: Vec::new(),
        })
    }

    async fn append(&mut self, upload: &mut Upload, mut bytes: &[u8]) -> Result<(), Failure> {
        while upload.buffer.len() + bytes.len() >= self.part_bytes {
            // All parts but the last have the same size, as some stores require.
            let (now, later) = bytes.split_at(self.part_bytes - upload.buffer.len());
            upload.buffer.extend_from_slice(now);
            bytes = later;
            let part = std::mem::take(&mut upload.buffer);
            self.put_part(upload, part).await?;
        }
        upload.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn held(&self, upload: &Upload) -> usize {
        upload.buffer.len()
    }

    async fn finish(&mut self, mut upload: Upload) -> Result<String, Failure> {
        let rest = std::mem::take(&mut upload.buffer);
        if !rest.is_empty() || upload.parts.is_empty() {
            self.put_part(&mut upload, rest).await?;
        }
        let Upload { id, parts, .. } = upload;
        serde_json::to_string(&Ticket { id, parts }).map_err(|error| Failure::us(error.to_string()))
    }

    async fn publish(&mut self, place: &Place, ticket: &str) -> Result<Published, Failure> {
        let path = self.at(&place.path());
        let Ticket { id, parts } = serde_json::from_str(ticket).map_err(|error| {
            Failure::peer(format!("{path}: a manifest names no upload: {error}")).never_again()
        })?;
        let part = |content_id: &String| PartId {
            content_id: content_id.clone(),
        };
        let missing = Cell::new(false);
        let published = self
            .patience
            .keep_trying(async || {
                let parts = parts.iter().map(part).collect();
                let completed = self.objects.complete_multipart(&path, &id, parts).await;
                // Only the existence of the object proves the result. If the request failed, an earlier attempt or run may have
                // created the object. If it succeeded, the object may still be missing: a server that was killed while it completed
                // an upload has been observed to report success to the next attempt.
                match (self.objects.head(&path).await, completed) {
                    (Ok(_), _) => Ok(Published::Done),
                    (Err(Error::NotFound { .. }), Err(refused)) if is_gone(&refused) => {
                        Ok(Published::Gone)
                    }
                    (Err(Error::NotFound { .. }), Err(refused)) => {
                        Err(self.trouble("complete the upload of", &path, &refused))
                    }
                    (Err(Error::NotFound { .. }), Ok(_)) if missing.replace(true) => {
                        Ok(Published::Gone)
                    }
                    (Err(error), _) => Err(self.trouble("look at", &path, &error)),
                }
            })
            .await?;
        self.begun.done(id);
        Ok(published)
    }

    async fn published(&mut self, _: &[Place]) -> Result<(), Failure> {
        let forgotten = self.begun.forget();
        self.tell(forgotten);
        Ok(())
    }

    async fn withdraw(&mut self, place: &Place) -> Result<(), Failure> {
        self.delete(&place.path()).await
    }

    async fn drop_in_use(&mut self, _: &str) -> Result<(), Failure> {
        let mut left = Vec::new();
        for (id, noted) in self.begun.all() {
            let path = Path::parse(&noted).unwrap_or_else(|_| Path::from(&*noted));
            match self.objects.abort_multipart(&path, &id).await {
                // Published and aborted uploads no longer exist.
                Ok(()) | Err(Error::NotFound { .. }) => {}
                Err(error) if is_no_upload(&error) => {}
                Err(error) => {
                    let failure = self.trouble("abort the upload of", &path, &error);
                    self.reporter.warn("uploads", failure);
                    left.push((id, noted));
                }
            }
        }
        // The next start retries the abort of these uploads.
        let kept = self.begun.keep(&left);
        self.tell(kept);
        Ok(())
    }

    async fn misfit(&mut self, place: &Place) -> Result<Option<String>, Failure> {
        // Some characters are escaped, so a key can be longer than its path.
        let bytes = self.at(&place.path()).as_ref().len();
        let text = || format!("a key of {bytes} bytes is too long: stores accept {KEY_BYTES_MAX}");
        let long = (bytes > KEY_BYTES_MAX).then(text);
        Ok(too_long(&place.directory).or(long))
    }

    fn output_max(&self) -> u64 {
        PARTS_MAX * self.part_bytes as u64
    }

    async fn put_if_absent(&mut self, path: &str, bytes: &[u8]) -> Result<Put, Failure> {
        let path = self.at(path);
        let payload = PutPayload::from(bytes.to_vec());
        self.patience
            .keep_trying(async || {
                let options = PutOptions::from(PutMode::Create);
                match self.objects.put_opts(&path, payload.clone(), options).await {
                    Ok(_) => Ok(Put::Made),
                    // 409 (Conflict) may only mean that another request for this name is in
                    // progress, or has just ended; S3 documents it as "retry". Only the existence
                    // of the object proves that the name is taken.
                    Err(refused @ (Error::AlreadyExists { .. } | Error::Precondition { .. })) => {
                        match self.objects.head(&path).await {
                            Ok(_) => Ok(Put::Exists),
                            Err(Error::NotFound { .. }) => {
                                Err(self.trouble("create", &path, &refused))
                            }
                            Err(error) => Err(self.trouble("look at", &path, &error)),
                        }
                    }
                    Err(error) => Err(self.trouble("create", &path, &error)),
                }
            })
            .await
    }

    async fn list(&mut self, directory: &str) -> Result<Vec<String>, Failure> {
        let directory = self.at(directory);
        let list = self
            .patience
            .keep_trying(async || {
                let list = self.objects.list_with_delimiter(Some(&directory)).await;
                list.map_err(|error| self.trouble("list", &directory, &error))
            })
            .await?;
        let names = list.objects.iter().filter_map(|object| {
            let name = object.location.filename()?;
            Some(name.to_owned())
        });
        Ok(names.collect())
    }

    async fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Failure> {
        let path = self.at(path);
        self.patience
            .keep_trying(async || {
                let read = async { self.objects.get(&path).await?.bytes().await };
                match read.await {
                    Ok(bytes) => Ok(Some(bytes.to_vec())),
                    Err(Error::NotFound { .. }) => Ok(None),
                    Err(error) => Err(self.trouble("read", &path, &error)),
                }
            })
            .await
    }

    async fn delete(&mut self, path: &str) -> Result<(), Failure> {
        let path = self.at(path);
        self.patience
            .keep_trying(async || match self.objects.delete(&path).await {
                Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(self.trouble("delete", &path, &error)),
            })
            .await
    }
}

/// Whether a store reports that an upload or some of its parts are missing, so that no retry can complete it.
fn is_gone(error: &Error) -> bool {
    is_no_upload(error) || error.to_string().contains("InvalidPart")
}

/// Whether a store reports that there is no such upload, in any of the forms that the crate object_store returns. An error about an
/// unknown key or bucket does not mean that the upload is missing.
fn is_no_upload(error: &Error) -> bool {
    let text = error.to_string();
    let elsewhere = ["XAdminUserNotFound", "NoSuchBucket"];
    text.contains("NoSuchUpload")
        || matches!(error, Error::NotFound { .. })
            && !elsewhere.iter().any(|what| text.contains(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_is_missing_only_if_the_store_reports_it_about_the_upload() {
        let not_found = |said: &str| Error::NotFound {
            path: "a/b".into(),
            source: said.into(),
        };
        for said in ["NoSuchUpload", "404 Not Found"] {
            assert!(is_gone(&not_found(said)), "{said}");
        }
        for said in ["XAdminUserNotFound", "NoSuchBucket"] {
            assert!(!is_gone(&not_found(said)), "{said}");
        }
        let generic = |said: &str| Error::Generic {
            store: "S3",
            source: said.into(),
        };
        assert!(is_gone(&generic("400 <Code>InvalidPart</Code>")));
        assert!(!is_gone(&generic("503 SlowDown")));
    }
}
