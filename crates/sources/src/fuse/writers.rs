//! The values of batches (`host`, `path`, `pid`). `pid` depends on the thread that writes.

use std::sync::Arc;

use millstream_record::Values;

use super::{process::process_of, rules::values};

/// The number of threads per open file whose values are cached.
const THREADS_MAX: usize = 64;

/// The writers of one open file.
#[derive(Debug)]
pub(super) struct Writers {
    host: Arc<str>,
    path: Arc<str>,
    /// Values by thread. They are cached because looking up a thread's process in `/proc` costs more than a small write.
    known: Vec<(u32, Arc<Values>)>,
    /// The values of the last write, for records that are sent without a write: at the end of a file, or after a pause.
    last: Option<Arc<Values>>,
}

impl Writers {
    pub(super) fn new(host: Arc<str>, path: Arc<str>) -> Self {
        Self {
            host,
            path,
            known: Vec::new(),
            last: None,
        }
    }

    /// The path of the file below the mount, as it was opened.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The values of a write by this thread.
    pub(super) fn writes(&mut self, thread: u32) -> Arc<Values> {
        let values = self.of(thread);
        self.last = Some(values.clone());
        values
    }

    /// The values of records that are sent without a write.
    pub(super) fn last(&mut self) -> Arc<Values> {
        match &self.last {
            Some(values) => values.clone(),
            None => self.of(0),
        }
    }

    fn of(&mut self, thread: u32) -> Arc<Values> {
        if let Some((_, values)) = self.known.iter().find(|(known, _)| *known == thread) {
            return values.clone();
        }
        let mut values = values(&self.path, &self.host);
        if let Some(process) = process_of(thread) {
            values.set("pid", process.to_string());
        }
        let values = Arc::new(values);
        // The system does not reuse the id of a live thread. A cached value can be wrong only after its thread has ended and
        // another thread has got the same id.
        if self.known.len() >= THREADS_MAX {
            self.known.clear();
        }
        self.known.push((thread, values.clone()));
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_without_a_write_has_the_values_of_the_last_writer() {
        let mut writers = Writers::new("here".into(), "app/x".into());
        assert_eq!(writers.last().get("pid"), None);
        let thread = std::process::id();
        let values = writers.writes(thread);
        assert_eq!(values.get("path"), Some("app/x"));
        assert_eq!(values.get("host"), Some("here"));
        assert_eq!(values.get("pid"), Some(&*thread.to_string()));
        assert!(Arc::ptr_eq(&writers.last(), &values));
        // The cache is bounded.
        for thread in 0..1000 {
            writers.writes(u32::MAX - thread);
            assert!(writers.known.len() <= THREADS_MAX);
        }
    }
}
