//! Reads from `/proc` the process and the pending signals of a thread that sent a request.

use std::fs;

/// SIGKILL in the signal masks of `/proc/PID/status`. The kernel turns every fatal signal into SIGKILL.
const KILL_BIT: u64 = 1 << 8;

/// The process that a thread belongs to. `None` if `/proc` does not show the thread.
pub(super) fn process_of(thread: u32) -> Option<u32> {
    field(&status(thread)?, "Tgid:")?.parse().ok()
}

/// Whether a fatal signal is pending for a thread, or `/proc` does not show the thread.
pub(super) fn is_dying(thread: u32) -> bool {
    let Some(status) = status(thread) else {
        return true;
    };
    ["SigPnd:", "ShdPnd:"].iter().any(|name| {
        let mask = field(&status, name).and_then(|mask| u64::from_str_radix(mask, 16).ok());
        mask.is_none_or(|mask| mask & KILL_BIT != 0)
    })
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
}
