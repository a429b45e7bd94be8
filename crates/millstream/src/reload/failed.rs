//! The condition after a reload that failed. The files no longer say what runs, and a restart would read them. So the
//! condition lasts until the next reload that succeeds.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use millstream_pipeline::condition::{Held, Trouble};

use super::Report;
use crate::page;

/// Why the last reload failed, and since when reloads fail. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Failed(Arc<Mutex<Option<(String, Instant)>>>);

impl Failed {
    /// Notes the outcome of a reload.
    pub(super) fn note(&self, report: &Report) {
        let mut failed = self.lock();
        let since = failed
            .as_ref()
            .map_or_else(Instant::now, |(_, since)| *since);
        *failed = why(report).map(|why| (why, since));
    }

    /// The condition; `None` if no reload has failed since the last one that succeeded.
    pub(super) fn held(&self) -> Option<Held> {
        let failed = self.lock();
        failed.as_ref().map(|(why, since)| Held {
            trouble: Trouble::Degraded,
            why: why.clone(),
            age: since.elapsed(),
            cause: None,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<(String, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a reload failed, and what to do; `None` if it succeeded.
fn why(report: &Report) -> Option<String> {
    const BEFORE: &str = "The configuration from before still runs";
    match report {
        Report::Applied { .. } => None,
        Report::Refused(problems) => {
            let (errors, _) = problems.counts();
            let errors = page::count(errors, "error");
            Some(format!(
                "the last reload failed: {errors} in the configuration. {BEFORE}, and a restart would fail. `millstream check` \
                 shows the errors; correct them and run `millstream reload`"
            ))
        }
        Report::Failed(why) => Some(format!(
            "the last reload failed: {why}. {BEFORE}, and a restart would use the new one. Remove the reason and run `millstream reload`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use millstream_config::Problems;

    use super::*;

    #[test]
    fn a_failed_reload_is_a_condition_until_one_succeeds() {
        let failed = Failed::default();
        assert_eq!(failed.held(), None);
        failed.note(&Report::Refused(Problems::default()));
        let first = failed.held().expect("a condition");
        assert!(first.why.contains("a restart would fail"), "{}", first.why);
        std::thread::sleep(std::time::Duration::from_millis(5));
        failed.note(&Report::Failed("out has a backlog".to_owned()));
        let second = failed.held().expect("a condition");
        assert!(second.why.contains("out has a backlog"), "{}", second.why);
        assert!(second.age > first.age, "it lasts since the first one");
        failed.note(&Report::Applied {
            changes: Vec::new(),
            waiting: Vec::new(),
            warnings: Problems::default(),
        });
        assert_eq!(failed.held(), None);
    }
}
