//! Ages: the time that something has waited, by a clock that never jumps. The age is computed when it is read, so it grows even while the
//! task that set it hangs.

use std::{
    sync::{
        Arc, LazyLock, Mutex, PoisonError, Weak,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

/// The start of the clock.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);
/// The value of [`Since`] while nothing waits.
const NOTHING: i64 = i64::MAX;

/// When the oldest waiting item of one task began to wait, in milliseconds from the start of the clock.
#[derive(Clone, Debug)]
pub struct Since(Arc<AtomicI64>);

impl Default for Since {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(NOTHING)))
    }
}

impl Since {
    /// Sets how long the oldest item has waited; `None`: nothing waits.
    pub fn set(&self, age: Option<Duration>) {
        let since = age.map_or(NOTHING, |age| milliseconds() - whole(age));
        self.0.store(since, Ordering::Relaxed);
    }
}

/// The time of the clock.
fn milliseconds() -> i64 {
    whole(START.elapsed())
}

fn whole(time: Duration) -> i64 {
    // At most half of the range, so that a difference never overflows.
    i64::try_from(time.as_millis()).map_or(i64::MAX / 2, |it| it.min(i64::MAX / 2))
}

/// The ages of several tasks. Clones share them. A task that has ended no longer counts.
#[derive(Clone, Debug, Default)]
pub struct Ages(Arc<Mutex<Vec<Weak<AtomicI64>>>>);

impl Ages {
    /// Adds a task.
    pub(crate) fn add(&self) -> Since {
        // Starts the clock before anything is measured with it.
        LazyLock::force(&START);
        let since = Since::default();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|since| since.strong_count() > 0);
        all.push(Arc::downgrade(&since.0));
        since
    }

    /// Returns the longest age of all tasks; zero if nothing waits.
    pub fn oldest(&self) -> Duration {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = all.iter().filter_map(Weak::upgrade);
        let since = since.map(|since| since.load(Ordering::Relaxed));
        let oldest = since.min().filter(|since| *since != NOTHING);
        let age = oldest.map_or(0, |since| milliseconds().saturating_sub(since));
        Duration::from_millis(u64::try_from(age).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_task_counts_until_it_ends() {
        let ages = Ages::default();
        let (old, young) = (ages.add(), ages.add());
        assert_eq!(ages.oldest(), Duration::ZERO);
        // This item began to wait before the clock started.
        let day = Duration::from_secs(24 * 3600);
        old.set(Some(day));
        young.set(Some(Duration::from_secs(60)));
        assert!(ages.oldest() >= day);
        drop(old);
        assert!((60..3600).contains(&ages.oldest().as_secs()));
        young.set(Some(Duration::MAX));
        assert!(ages.oldest() > day);
        young.set(None);
        assert_eq!(ages.oldest(), Duration::ZERO);
    }
}
