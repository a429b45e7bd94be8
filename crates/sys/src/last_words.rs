//! The last words of a process: bytes that survive its end, whatever ends it.
//!
//! A write to the page cache survives SIGKILL and a crash; only a power cut can take it. So a small file shows the next start what this
//! process was doing when it died. In addition, a handler of fatal signals can mark the file: a process that aborts, overflows its stack or
//! violates memory dies by its own fault, and one that gets SIGKILL may not.

use std::{
    cell::Cell,
    fs::File,
    io::{self, Read},
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::Path,
    ptr,
    sync::{
        Once,
        atomic::{AtomicI32, AtomicI64, AtomicUsize, Ordering},
    },
};

use crate::private;

/// The signals that end a process by its own fault. Each has its earlier handler: that of the standard library recognizes stack
/// overflows, and then aborts.
static FATAL: [(i32, AtomicUsize); 7] = [
    (libc::SIGABRT, AtomicUsize::new(libc::SIG_DFL)),
    (libc::SIGSEGV, AtomicUsize::new(libc::SIG_DFL)),
    (libc::SIGBUS, AtomicUsize::new(libc::SIG_DFL)),
    (libc::SIGILL, AtomicUsize::new(libc::SIG_DFL)),
    (libc::SIGFPE, AtomicUsize::new(libc::SIG_DFL)),
    (libc::SIGTRAP, AtomicUsize::new(libc::SIG_DFL)),
    (libc::SIGSYS, AtomicUsize::new(libc::SIG_DFL)),
];
/// The descriptor of the file that the handler marks; -1: none.
static ARMED: AtomicI32 = AtomicI32::new(-1);
/// The offset of the mark.
static AT: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static IS_EXEMPT: Cell<bool> = const { Cell::new(false) };
}

/// A small file whose content survives the process.
#[derive(Debug)]
pub struct LastWords(File);

impl LastWords {
    /// Opens the file, or creates it. Also returns what an earlier process has written.
    pub fn open(path: &Path) -> io::Result<(Self, Vec<u8>)> {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let mut options = private::options();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let mut found = Vec::new();
        file.read_to_end(&mut found)?;
        Ok((Self(file), found))
    }

    /// Replaces the first bytes of the file.
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, 0)
    }

    /// Sets one byte to 1.
    pub fn mark(&self, at: u64) -> io::Result<()> {
        self.0.write_all_at(&[1], at)
    }

    /// From now on, the byte at `at` is set to 1 if this process dies by its own fault.
    pub fn arm(&self, at: u64) {
        AT.store(at.cast_signed(), Ordering::Relaxed);
        ARMED.store(self.0.as_raw_fd(), Ordering::Release);
    }

    /// Ends [`LastWords::arm`], unless another file was armed since.
    pub fn disarm(&self) {
        let own = self.0.as_raw_fd();
        let _ = ARMED.compare_exchange(own, -1, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl Drop for LastWords {
    fn drop(&mut self) {
        self.disarm();
    }
}

/// The faults of this thread are not those of the work that [`LastWords::arm`] watches.
pub fn exempt_this_thread() {
    IS_EXEMPT.set(true);
}

/// Installs the handler for all fatal signals. An error is ignored: then the signal ends the process as usual, without a mark.
fn install() {
    for (signal, earlier) in &FATAL {
        // SAFETY: both structures are valid for the call, and zeroed ones are valid values. The handler calls only functions that are
        // safe in a signal handler.
        #[allow(unsafe_code)]
        unsafe {
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = on_fatal as *const () as usize;
            new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            let mut old: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(*signal, ptr::null(), &raw mut old) != 0 {
                continue;
            }
            // A handler without SA_SIGINFO takes other arguments. None is installed by the standard library.
            if old.sa_flags & libc::SA_SIGINFO != 0 {
                earlier.store(old.sa_sigaction, Ordering::Release);
            }
            libc::sigaction(*signal, &raw const new, ptr::null_mut());
        }
    }
}

/// Sets the mark, and lets the signal take effect.
extern "C" fn on_fatal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid pointer, because the handler was installed with SA_SIGINFO.
    #[allow(unsafe_code)]
    let is_from_outside = unsafe { (*info).si_code } == libc::SI_USER;
    let file = ARMED.load(Ordering::Acquire);
    let is_exempt = IS_EXEMPT.try_with(Cell::get).unwrap_or(true);
    if file >= 0 && !is_from_outside && !is_exempt {
        let mark = 1_u8;
        let at = AT.load(Ordering::Relaxed);
        // SAFETY: `pwrite` may be called in a signal handler, and the buffer has one byte. If the descriptor is closed by another thread
        // meanwhile, the call fails.
        #[allow(unsafe_code)]
        unsafe {
            libc::pwrite(file, (&raw const mark).cast(), 1, at);
        }
    }
    let earlier = FATAL.iter().find(|(number, _)| *number == signal);
    let earlier = earlier.map_or(libc::SIG_DFL, |(_, earlier)| {
        earlier.load(Ordering::Acquire)
    });
    if earlier == libc::SIG_DFL || earlier == libc::SIG_IGN {
        // SAFETY: both calls may be made in a signal handler. The signal is blocked until the handler returns, and then ends the process.
        #[allow(unsafe_code)]
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        return;
    }
    // SAFETY: `earlier` is the handler that was installed before, with SA_SIGINFO, so it has this signature.
    #[allow(unsafe_code)]
    let earlier: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
        unsafe { std::mem::transmute(earlier) };
    earlier(signal, info, context);
}

#[cfg(test)]
mod tests {
    use std::{env, fs, os::unix::process::ExitStatusExt, process::Command};

    use super::*;

    /// Runs `child_that_dies` in another process, which dies in the way `how`. Returns the signal, and whether the mark is set.
    fn death(how: &str) -> (Option<i32>, bool) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("words");
        let status = Command::new(env::current_exe().unwrap())
            .args(["--exact", "last_words::tests::child_that_dies"])
            .env("MILLSTREAM_TEST_DIES", how)
            .env("MILLSTREAM_TEST_WORDS", &file)
            .output()
            .unwrap()
            .status;
        let words = fs::read(&file).unwrap();
        assert_eq!(&words[..5], b"words", "{how}: {status}");
        (status.signal(), words.get(9) == Some(&1))
    }

    #[test]
    fn child_that_dies() {
        // Does something only in the child process of `death`.
        let Some(how) = env::var_os("MILLSTREAM_TEST_DIES") else {
            return;
        };
        let path = env::var_os("MILLSTREAM_TEST_WORDS").unwrap();
        let (words, found) = LastWords::open(Path::new(&path)).unwrap();
        assert!(found.is_empty());
        words.write(b"words     ").unwrap();
        words.arm(9);
        match how.to_str().unwrap() {
            "abort" => std::process::abort(),
            "overflow" => drop(deep(1)),
            "exempt" => {
                exempt_this_thread();
                std::process::abort();
            }
            "disarmed" => {
                words.disarm();
                std::process::abort();
            }
            signal => {
                let id = std::process::id().to_string();
                let _ = Command::new("kill").args([signal, &id]).status();
                std::thread::sleep(std::time::Duration::from_secs(20));
            }
        }
    }

    /// Takes stack until it overflows.
    fn deep(number: u64) -> Vec<u64> {
        if number == 0 {
            return Vec::new();
        }
        let block = [number; 1024];
        let mut below = deep(std::hint::black_box(number + 1));
        below.push(std::hint::black_box(block)[7]);
        below
    }

    #[test]
    fn a_process_that_dies_by_its_own_fault_leaves_a_mark_and_one_that_is_killed_does_not() {
        let abort = Some(libc::SIGABRT);
        assert_eq!(death("abort"), (abort, true));
        assert_eq!(death("overflow"), (abort, true));
        assert_eq!(death("-KILL"), (Some(libc::SIGKILL), false));
        assert_eq!(death("-ABRT"), (abort, false), "a signal from outside");
        assert_eq!(death("exempt"), (abort, false));
        assert_eq!(death("disarmed"), (abort, false));
    }
}
