//! Keeps the tests of different modules apart: only tests of one module run programs at a time.
//!
//! Tests of one binary run as parallel threads. Some modules use the whole machine (ten thousand connections, a slow disk, a Hadoop
//! cluster) and others measure time, so each module has the machine to itself. A test takes a turn for its module when it starts
//! its first program, and gives the turn back when its thread ends. The test harness starts tests in the order of their names, so a
//! module waits only for the last tests of the previous module.

use std::{
    cell::RefCell,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// The module whose tests run programs now, and the number of these tests.
struct Running {
    module: String,
    tests: usize,
}

static RUNNING: Mutex<Running> = Mutex::new(Running {
    module: String::new(),
    tests: 0,
});
static FREE: Condvar = Condvar::new();

thread_local! {
    /// The turn of the test that runs in this thread. Dropped when the thread ends.
    static TURN: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

/// While a turn exists, tests of other modules wait.
struct Turn;

impl Turn {
    fn take(module: &str) -> Self {
        let others = |running: &mut Running| running.tests > 0 && running.module != module;
        let free = FREE.wait_while(running(), others);
        let mut running = free.unwrap_or_else(PoisonError::into_inner);
        module.clone_into(&mut running.module);
        running.tests += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        running().tests -= 1;
        FREE.notify_all();
    }
}

fn running() -> MutexGuard<'static, Running> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no test of another module has a turn, and then takes a turn for the module of the current test. Returns immediately in
/// a thread that a test started, because the turn of the test covers it.
pub fn wait() {
    // The test harness names the thread of a test after the test: `crowd::hostile::...`. With `--test-threads=1`, tests run in the
    // main thread and need no turn.
    let current = thread::current();
    let Some((module, _)) = current.name().and_then(|name| name.split_once("::")) else {
        return;
    };
    TURN.with_borrow_mut(|turn| {
        turn.get_or_insert_with(|| Turn::take(module));
    });
}
