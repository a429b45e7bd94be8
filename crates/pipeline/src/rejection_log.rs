//! The log lines about rejected records: the first one is logged immediately, later ones every ten seconds with the number of records.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use millstream_record::Batch;

use crate::{
    redact,
    reject::{self, Original, Rejected, excerpt},
};

/// The minimum time between two lines of one node.
const QUIET: Duration = Duration::from_secs(10);
/// The maximum number of characters that are shown of a record and of a reason; both may come from a peer.
const SHOWN_CHARS: usize = 200;

/// Logs the records that leave one node through its port `rejected`. Dropping it logs the records that no line has reported yet.
pub(crate) struct RejectionLog(Arc<Lines>);

struct Lines {
    node: Arc<str>,
    /// The destination, as the end of the sentence "N records rejected ...".
    to: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether a line was logged within the last [`QUIET`].
    is_quiet: bool,
    waiting: Option<Waiting>,
}

/// The records rejected since the last line.
struct Waiting {
    records: u64,
    /// The first of these records, with the reason of its rejection.
    first: String,
}

impl RejectionLog {
    pub(crate) fn new(node: &str, to: String) -> Self {
        Self(Arc::new(Lines {
            node: node.into(),
            to,
            state: Mutex::default(),
        }))
    }

    /// Logs rejected records, immediately or in one line with later ones.
    pub(crate) fn note(&self, batch: &Batch) {
        let mut state = self.0.lock();
        let waiting = state.waiting.get_or_insert_with(|| Waiting {
            records: 0,
            first: first(batch),
        });
        waiting.records += reject::records(batch);
        if state.is_quiet {
            return;
        }
        self.0.log(state.waiting.take());
        // Outside a runtime (tests) every line is logged immediately.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            state.is_quiet = true;
            runtime.spawn(later_lines(Arc::downgrade(&self.0)));
        }
    }
}

/// Logs a line every [`QUIET`] while there is something to log.
async fn later_lines(lines: Weak<Lines>) {
    loop {
        tokio::time::sleep(QUIET).await;
        let Some(lines) = lines.upgrade() else {
            return;
        };
        let mut state = lines.lock();
        let waiting = state.waiting.take();
        state.is_quiet = waiting.is_some();
        if !state.is_quiet {
            return;
        }
        lines.log(waiting);
    }
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, waiting: Option<Waiting>) {
        let Some(Waiting { records, first }) = waiting else {
            return;
        };
        let to = &self.to;
        match records {
            1 => tracing::warn!(
                node = &*self.node,
                kind = "rejection",
                "1 record rejected {to}: {first}"
            ),
            _ => tracing::warn!(
                node = &*self.node,
                kind = "rejection",
                "{records} records rejected {to}; the first: {first}"
            ),
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let waiting = self.lock().waiting.take();
        self.log(waiting);
    }
}

impl fmt::Debug for RejectionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RejectionLog({})", self.0.node)
    }
}

/// Returns the text about the first record of a batch, with the reason of its rejection.
fn first(batch: &Batch) -> String {
    let Some(rejected) = Rejected::read(&batch.body) else {
        return String::new();
    };
    let redaction = redact::chosen();
    let record = match rejected.original() {
        Original::Text(text) if redaction.is_empty() => excerpt(text, SHOWN_CHARS),
        Original::Text(text) => excerpt(&redaction.text(text), SHOWN_CHARS),
        Original::Entry(_, json) => excerpt(&redaction.json(json), SHOWN_CHARS),
        Original::Binary(bytes) => format!("{} bytes that are no text", bytes.len()),
    };
    let reason = excerpt(&redaction.reason(&rejected), SHOWN_CHARS);
    let peer = rejected.values.iter().find(|(name, _)| *name == "peer");
    let from = peer.map(|(_, peer)| format!(" from {}", excerpt(peer, SHOWN_CHARS)));
    let from = from.unwrap_or_default();
    format!(
        "{reason}; tag {}{from}, record: {record}",
        excerpt(rejected.tag, SHOWN_CHARS)
    )
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use millstream_record::{Encoding, Time};
    use tracing::{
        Event, Metadata, Subscriber,
        field::{Field, Visit},
        span,
    };

    use super::*;
    use crate::reject;

    /// Collects the messages of all events that have the kind of rejections.
    #[derive(Clone, Default)]
    struct Collected(Arc<Mutex<Vec<String>>>);

    /// The fields of one event.
    #[derive(Default)]
    struct Fields {
        kind: String,
        message: String,
    }

    impl Subscriber for Collected {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut fields = Fields::default();
            event.record(&mut fields);
            assert_eq!(fields.kind, "\"rejection\"", "{}", fields.message);
            self.0.lock().unwrap().push(fields.message);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    impl Visit for Fields {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            match field.name() {
                "message" => self.message = format!("{value:?}"),
                "kind" => self.kind = format!("{value:?}"),
                _ => {}
            }
        }
    }

    fn rejects(message: &str) -> Batch {
        let from = Batch {
            tag: "web".into(),
            plain: false,
            encoding: Encoding::Lines,
            body: Bytes::new(),
            count: 0,
            received: Time(0),
            values: Arc::default(),
            origins: Vec::new(),
        };
        reject::batch("in", &from, [message.as_bytes(), b"next"], "no number")
    }

    #[test]
    fn the_first_rejection_is_logged_immediately_and_later_ones_are_counted_every_ten_seconds() {
        let collected = Collected::default();
        let lines = || std::mem::take(&mut *collected.0.lock().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        tracing::subscriber::with_default(collected.clone(), || {
            runtime.block_on(async {
                let log = RejectionLog::new("in", "and kept in FILE".to_owned());
                let line = |records: u32, record: &str| {
                    vec![format!(
                        "{records} records rejected and kept in FILE; the first: no number; tag web, record: {record}"
                    )]
                };
                (0..500).for_each(|n| log.note(&rejects(&format!("{n}\n"))));
                assert_eq!(lines(), line(2, "0\\n"));
                tokio::time::sleep(QUIET + Duration::from_secs(1)).await;
                assert_eq!(lines(), line(998, "1\\n"));
                // After ten quiet seconds, the next rejection is logged immediately again.
                tokio::time::sleep(2 * QUIET).await;
                log.note(&rejects("a"));
                assert_eq!(lines(), line(2, "a"));
                log.note(&rejects("b"));
                assert!(lines().is_empty());
                drop(log);
                assert_eq!(lines(), line(2, "b"));
            });
        });
    }
}
