//! Reads from `/proc` the process and the pending signals of a thread that sent a request.

use std::fs;

/// The signals that do not end a process by default: they are ignored (CHLD, CONT, URG, WINCH) or
/// stop it (STOP, TSTP, TTIN, TTOU). Bit 0 of a mask of `/proc/PID/status` is signal 1.
const HARMLESS: u64 = 1 << 16 | 1 << 17 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 21 | 1 << 22 | 1 << 27;
/// SIGKILL. It cannot be blocked, ignored or caught.
const KILL: u64 = 1 << 8;

/// The process that a thread belongs to. `None` if `/proc` does not show the thread.
pub(super) fn process_of(thread: u32) -> Option<u32> {
    field(&status(thread)?, "Tgid:")?.parse().ok()
}

/// Whether a thread belongs to the program `shred`, which overwrites a file before it is removed.
pub(super) fn is_shred(thread: u32) -> bool {
    fs::read(format!("/proc/{thread}/comm")).is_ok_and(|name| name == b"shred\n")
}

/// Whether a signal that will end the process is pending for a thread, or `/proc` does not show
/// the thread.
pub(super) fn is_dying(thread: u32) -> bool {
    status(thread).is_none_or(|status| awaits_death(&status))
}

/// Whether a pending signal will end the process: the thread does not block it, the process neither
/// ignores nor catches it, and its default action ends the process.
///
/// The kernel usually adds SIGKILL to a fatal signal. It does not if the process still has to handle
/// an earlier signal, and if the fatal signal writes a core file (SIGQUIT, for example).
fn awaits_death(status: &str) -> bool {
    let mask = |name| {
        let mask = field(status, name).and_then(|mask| u64::from_str_radix(mask, 16).ok());
        mask.unwrap_or(0)
    };
    let pending = mask("SigPnd:") | mask("ShdPnd:");
    let survived = mask("SigBlk:") | mask("SigIgn:") | mask("SigCgt:") | HARMLESS;
    pending & (!survived | KILL) != 0
}

fn status(thread: u32) -> Option<String> {
    // /proc resolves thread ids as well as process ids.
    fs::read_to_string(format!("/proc/{thread}/status")).ok()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    value.map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_thread_and_its_process_are_recognised() {
        let thread = std::process::id();
        assert!(!is_dying(thread));
        assert_eq!(process_of(thread), Some(thread));
        assert!(is_dying(0));
        assert_eq!(process_of(0), None);
    }

    /// The status of a thread with these signals pending, blocked, ignored and caught.
    fn status_of(pending: &[u32], [blocked, ignored, caught]: [&[u32]; 3]) -> String {
        let mask = |signals: &[u32]| {
            signals
                .iter()
                .fold(0_u64, |mask, one| mask | 1 << (one - 1))
        };
        format!(
            "Name:\tx\nSigPnd:\t0000000000000000\nShdPnd:\t{:016x}\nSigBlk:\t{:016x}\nSigIgn:\t{:016x}\nSigCgt:\t{:016x}\n",
            mask(pending),
            mask(blocked),
            mask(ignored),
            mask(caught)
        )
    }

    #[test]
    fn a_pending_signal_ends_a_process_unless_it_is_blocked_ignored_caught_or_harmless() {
        const NONE: [&[u32]; 3] = [&[], &[], &[]];
        // HUP, INT, QUIT, KILL, USR1, TERM, IO, a real-time signal.
        for fatal in [1, 2, 3, 9, 10, 15, 29, 34, 64] {
            assert!(awaits_death(&status_of(&[fatal], NONE)), "{fatal}");
            // USR2 is caught and pending, too.
            let beside = [10_u32, 12].map(|it| if it == fatal { 14 } else { it });
            let caught: [&[u32]; 3] = [&[], &[], &beside];
            assert!(awaits_death(&status_of(&[beside[1], fatal], caught)));
        }
        for harmless in [17, 18, 19, 20, 21, 22, 23, 28] {
            assert!(!awaits_death(&status_of(&[harmless], NONE)), "{harmless}");
        }
        for place in 0..3 {
            let mut survived = NONE;
            survived[place] = &[2, 9, 15];
            assert!(!awaits_death(&status_of(&[2, 15], survived)));
            assert!(awaits_death(&status_of(&[9], survived)));
        }
        assert!(!awaits_death(&status_of(&[], NONE)));
    }
}
