//! Signals that wait: the signal mask of a thread.
//!
//! A signal that no handler handles ends the process. So the program blocks the signals by which operators ask for something before
//! it does anything else, and lets them through once it has handlers. A blocked signal stays pending, also over an `exec`: the next
//! program gets it.

use std::{marker::PhantomData, mem::MaybeUninit, ptr};

/// The signals that ask a running program for something: a reload, a line in the log, an upgrade. Their default action ends the
/// process.
const REQUESTS: [libc::c_int; 3] = [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
/// The requests, and the signals that stop the program.
const ALL: [libc::c_int; 5] = [
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTERM,
    libc::SIGINT,
];

/// Makes SIGHUP, SIGUSR1 and SIGUSR2 wait until [`release`]. Threads that this thread starts inherit this.
pub fn hold_requests() {
    change(libc::SIG_BLOCK, &REQUESTS);
}

/// Lets all signals through that [`hold_requests`] and [`hold`] made wait.
pub fn release() {
    change(libc::SIG_UNBLOCK, &ALL);
}

/// Makes SIGTERM, SIGINT and the requests wait until the returned value is dropped. Threads that this thread starts meanwhile never
/// take these signals.
pub fn hold() -> Held {
    Held {
        before: change(libc::SIG_BLOCK, &ALL),
        of_this_thread: PhantomData,
    }
}

/// While this value exists, the calling thread blocks signals. See [`hold`].
#[must_use]
pub struct Held {
    before: libc::sigset_t,
    /// The mask belongs to one thread, so this value must stay in it.
    of_this_thread: PhantomData<*const ()>,
}

impl Held {
    /// Leaves the signals blocked for the rest of the thread's life, and over an `exec`.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        set(&self.before);
    }
}

/// Runs `work` in a thread that blocks no signal. A process that `work` starts inherits this. The program must have handlers by
/// then.
pub(crate) fn with_none_blocked<T>(work: impl FnOnce() -> T) -> T {
    let _held = Held {
        before: change(libc::SIG_SETMASK, &[]),
        of_this_thread: PhantomData,
    };
    work()
}

/// Changes the mask of the calling thread; returns the mask before.
fn change(how: libc::c_int, signals: &[libc::c_int]) -> libc::sigset_t {
    let (mut set, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: `sigemptyset` initializes `set`, and `pthread_sigmask` initializes `before`. Both fail only for wrong arguments, and
    // these are right.
    #[allow(unsafe_code)]
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        libc::sigemptyset(before.as_mut_ptr());
        libc::pthread_sigmask(how, set.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

/// Sets the mask of the calling thread.
fn set(mask: &libc::sigset_t) {
    // SAFETY: the mask is initialized, and the previous one is not asked for.
    #[allow(unsafe_code)]
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The signals that this thread blocks, as the kernel shows them.
    fn blocked() -> u64 {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("SigBlk:"));
        let mask = line.and_then(|line| line.split_whitespace().nth(1));
        u64::from_str_radix(mask.unwrap(), 16).unwrap()
    }

    fn bits(signals: &[libc::c_int]) -> u64 {
        signals.iter().map(|signal| 1 << (signal - 1)).sum()
    }

    #[test]
    fn signals_wait_while_they_are_held_and_the_mask_before_comes_back() {
        // The mask belongs to the thread, so the test has its own.
        let work = || {
            release();
            assert_eq!(blocked() & bits(&ALL), 0);
            hold_requests();
            assert_eq!(blocked() & bits(&ALL), bits(&REQUESTS));
            let held = hold();
            assert_eq!(blocked() & bits(&ALL), bits(&ALL));
            assert_eq!(with_none_blocked(blocked), 0);
            assert_eq!(blocked() & bits(&ALL), bits(&ALL));
            drop(held);
            assert_eq!(blocked() & bits(&ALL), bits(&REQUESTS));
            hold().keep();
            let inherited = std::thread::spawn(blocked).join().unwrap();
            assert_eq!(inherited & bits(&ALL), bits(&ALL));
            release();
            assert_eq!(blocked() & bits(&ALL), 0);
        };
        std::thread::spawn(work).join().unwrap();
    }
}
