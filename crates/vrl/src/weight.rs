//! Estimates the memory that values take.
//!
//! The estimate counts the parts of a value, not the bytes of its text. A map in memory is a tree whose smallest node has room for 11
//! fields: a list of small maps takes far more memory than their text.
//!
//! The limit for a value is a part of `memory_max`, because a program may copy the value. And only one thread at a time runs a program on a
//! record with large values: the others wait until it has finished the record.

use std::{
    cell::RefCell,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use vrl::value::Value;

use crate::DEPTH_MAX;

/// The most that [`memory_max`] returns, and what it returns until [`bound_memory`] is called.
pub(crate) const MEMORY_MAX: usize = 256 << 20;
/// The least that it returns.
const MEMORY_LEAST: usize = 32 << 20;
/// The part of the memory of all queues and batches that a value may take.
const MEMORY_PART: usize = 8;
/// Values above this size are large: one thread at a time has some.
const LARGE: usize = 8 << 20;

static MEMORY: AtomicUsize = AtomicUsize::new(MEMORY_MAX);
static LARGE_VALUES: Mutex<()> = Mutex::new(());

thread_local! {
    /// `None` outside of a run. In a run: the right to have large values, once the run has some.
    static RUN: RefCell<Option<Option<MutexGuard<'static, ()>>>> = const { RefCell::new(None) };
}

/// Bounds the values of all programs for a process in which all queues and batches together may take `memory_max` bytes. Call this before
/// the first record: for the same configuration, a replay must have the same limit.
pub fn bound_memory(memory_max: usize) {
    MEMORY.store(part_of(memory_max), Ordering::Relaxed);
}

fn part_of(memory_max: usize) -> usize {
    (memory_max / MEMORY_PART).clamp(MEMORY_LEAST, MEMORY_MAX)
}

/// The limit for a value that a program could let grow: what closures read, and results that can be much larger than the record.
pub(crate) fn memory_max() -> usize {
    MEMORY.load(Ordering::Relaxed)
}

/// A run of a program on one record.
pub(crate) struct Run(());

impl Run {
    pub(crate) fn begin() -> Self {
        RUN.set(Some(None));
        Self(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        RUN.set(None);
    }
}

/// Notes that the run has values of `bytes` bytes. If they are large, waits until no other run has large ones.
pub(crate) fn note(bytes: usize) {
    if bytes > LARGE {
        RUN.with_borrow_mut(|run| {
            if let Some(right @ None) = run {
                *right = Some(LARGE_VALUES.lock().unwrap_or_else(PoisonError::into_inner));
            }
        });
    }
}
/// The deepest nesting of a value that a closure reads. A record may have [`DEPTH_MAX`] levels, and the program may add some.
pub(crate) const READ_DEPTH_MAX: usize = 2 * DEPTH_MAX;

/// The bytes of an element of an array, or of a value without parts.
pub(crate) const ELEMENT: usize = size_of::<Value>();
/// The bytes of a node of a map, and the number of fields in it. Nodes are partly filled.
const NODE: usize = 720;
const NODE_FIELDS: usize = 8;
/// The bytes of a field in a map with many fields.
pub(crate) const FIELD: usize = NODE / NODE_FIELDS;

/// The bytes of a map with this number of fields, without what the keys and values have outside of the nodes.
pub(crate) fn map(fields: usize) -> usize {
    NODE.saturating_mul(fields.div_ceil(NODE_FIELDS))
}

/// Returns the estimated bytes of a value.
///
/// # Errors
/// If they exceed [`memory_max`], or if the value nests deeper than [`READ_DEPTH_MAX`]. The text says which.
pub(crate) fn of(value: &Value) -> Result<usize, String> {
    add(value, ELEMENT, READ_DEPTH_MAX)
}

/// Adds what `value` has outside of its place to `sum`. It may nest `depth` levels deep.
fn add(value: &Value, sum: usize, depth: usize) -> Result<usize, String> {
    let deeper = || {
        let deep = || format!("a value nests deeper than {READ_DEPTH_MAX} levels");
        depth.checked_sub(1).ok_or_else(deep)
    };
    match value {
        Value::Object(fields) => {
            let depth = deeper()?;
            let mut sum = within(sum.saturating_add(map(fields.len())))?;
            for (key, value) in fields {
                sum = add(value, sum + key.len(), depth)?;
            }
            Ok(sum)
        }
        Value::Array(items) => {
            let depth = deeper()?;
            let mut sum = within(sum.saturating_add(ELEMENT.saturating_mul(items.len())))?;
            for item in items {
                sum = add(item, sum, depth)?;
            }
            Ok(sum)
        }
        other => within(sum.saturating_add(other.as_bytes().map_or(0, Bytes::len))),
    }
}

/// Returns `bytes`, or an error if they exceed [`memory_max`].
pub(crate) fn within(bytes: usize) -> Result<usize, String> {
    let most = memory_max();
    if bytes > most {
        return Err(format!("a value takes more than {most} bytes"));
    }
    note(bytes);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::sync_channel, thread, time::Duration};

    use super::*;

    #[test]
    fn the_limit_is_a_part_of_the_memory_within_bounds() {
        assert_eq!(part_of(128 << 20), 32 << 20);
        assert_eq!(part_of(1 << 30), 128 << 20);
        assert_eq!(part_of(1 << 40), 256 << 20);
    }

    #[test]
    fn one_run_at_a_time_has_large_values() {
        let run = Run::begin();
        note(LARGE + 1);
        let (sender, noted) = sync_channel(2);
        let other = thread::spawn(move || {
            let _run = Run::begin();
            // Values that are not large do not wait.
            note(LARGE);
            sender.send(LARGE).unwrap();
            note(LARGE + 1);
            sender.send(LARGE + 1).unwrap();
        });
        assert_eq!(noted.recv(), Ok(LARGE));
        assert!(noted.recv_timeout(Duration::from_millis(100)).is_err());
        drop(run);
        assert_eq!(noted.recv(), Ok(LARGE + 1));
        other.join().unwrap();
        // Outside of a run, such as while a program is compiled, nothing waits.
        let _other = LARGE_VALUES.lock();
        note(LARGE + 1);
    }
}
