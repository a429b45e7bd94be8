//! After a mount: names the programs that hold files of an earlier mount, and runs the command `after_mount`.
//!
//! A file of a mount whose process has died stays open, but cannot be written any more. Its program must open it again. Such files
//! are recognized by the number of their mount, which the kernel shows in `/proc/PID/fdinfo`. Nothing here touches the files
//! themselves, so a mount that hangs cannot hang this process.

use std::{
    fs,
    io::{self, Read},
    os::{fd::AsRawFd, unix::process::CommandExt},
    path::Path,
    process::Stdio,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use millstream_sys::child;
use rustix::{
    fs::{CWD, Mode, OFlags},
    process::{Pid, Signal, kill_process_group},
};

use super::shipper::Shipper;

/// The file in the node's directory with the numbers of its mounts: the id of the boot, then one number per line.
const NAME: &str = "mounts";
/// The number of programs that a log line names.
const NAMED_MAX: usize = 20;
/// The longest run of the command.
const COMMAND_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// The number of bytes of the command's error output that the log shows.
const SHOWN_BYTES: u64 = 2000;

/// Notes the number of the mount at `target`. `is_new`: no file of an earlier mount lives on in it. Then names the programs that
/// hold such files, and runs the command. Blocks.
pub(super) fn mounted(shipper: &Arc<Shipper>, target: &Path, is_new: bool) {
    let reporter = &shipper.context.reporter;
    let place = shipper.context.directory.join(NAME);
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let known = fs::read_to_string(&place).unwrap_or_default();
    let known = known.strip_prefix(boot.as_str()).unwrap_or_default();
    let noted = number(target).and_then(|number| {
        let before = if is_new { "" } else { known };
        fs::write(&place, format!("{boot}{before}{number}\n"))
    });
    if let Err(error) = noted {
        let text = format_args!("cannot note the mount in {}: {error}", place.display());
        reporter.warn("mounted", text);
    }
    if !is_new {
        return;
    }
    let dead: Vec<_> = known.lines().collect();
    let holders = holders(&dead);
    if !holders.is_empty() {
        let named: Vec<_> = holders.iter().take(NAMED_MAX).cloned().collect();
        let rest = match holders.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        let text = format_args!(
            "files of an earlier mount of {} are still open, and what is written to them fails until these programs open them again: \
             {}{rest}",
            target.display(),
            named.join(", ")
        );
        reporter.warn("dead", text);
    }
    let words = &shipper.options().after_mount;
    if !words.is_empty()
        && let Err(why) = run(words)
    {
        let text = format_args!("`after_mount`: `{}` {why}", words.join(" "));
        reporter.error("after_mount", text);
    }
}

/// The number of the mount at this path.
fn number(target: &Path) -> io::Result<String> {
    // Such a descriptor is opened without a request to the mount.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mount = rustix::fs::openat(CWD, target, flags, Mode::empty())?;
    let number = number_of(Path::new("/proc/self"), &mount.as_raw_fd().to_string());
    number.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The number of the mount of a process's descriptor.
fn number_of(process: &Path, descriptor: &str) -> Option<String> {
    let shown = fs::read_to_string(process.join("fdinfo").join(descriptor)).ok()?;
    let number = shown
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))?;
    Some(number.trim().to_owned())
}

/// The processes that have files of these mounts open: `PROGRAM (PID)`.
fn holders(mounts: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    if mounts.is_empty() {
        return found;
    }
    let own = std::process::id().to_string();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().filter(|name| name.parse::<u32>().is_ok()) else {
            continue;
        };
        let open = fs::read_dir(entry.path().join("fd")).into_iter().flatten();
        let mut open = open
            .flatten()
            .filter_map(|open| open.file_name().into_string().ok());
        let is_dead = |open: String| {
            let number = number_of(&entry.path(), &open);
            number.is_some_and(|number| mounts.contains(&number.as_str()))
        };
        if pid != own && open.any(is_dead) {
            let program = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.push(format!("{} ({pid})", program.trim()));
        }
    }
    found
}

/// Runs a command to its end. The error says why it failed.
fn run(words: &[String]) -> Result<(), String> {
    let (program, arguments) = words.split_first().ok_or("names no program")?;
    let mut command = child::command(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0);
    let child = child::spawn(&mut command);
    let mut child = child.map_err(|error| format!("cannot be started: {error}"))?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begun.elapsed() < COMMAND_MAX => thread::sleep(POLL),
            Ok(None) => {
                let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
                let _ = child.wait();
                return Err(format!(
                    "was killed because it had not ended after {} s",
                    COMMAND_MAX.as_secs()
                ));
            }
            Err(error) => return Err(format!("cannot be waited for: {error}")),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut errors = Vec::new();
    if let Some(shown) = child.stderr.take() {
        // A program that the command has started may keep the pipe open, so only what is there is read.
        let _ = rustix::io::ioctl_fionbio(&shown, true);
        let _ = shown.take(SHOWN_BYTES).read_to_end(&mut errors);
    }
    let errors = String::from_utf8_lossy(&errors);
    Err(format!("ended with {status}: {}", errors.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_open_files_of_a_mount_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let of_directory = number(directory.path()).unwrap();
        let file = fs::File::create(path).unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .stdout(file)
            .spawn()
            .unwrap();
        let named = format!("sleep ({})", child.id());
        // A new program may have the name of its parent for a moment.
        while !holders(&[&of_directory]).contains(&named) {
            assert!(child.try_wait().unwrap().is_none());
        }
        assert!(!holders(&["4000000000"]).contains(&named));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_command_that_fails_is_reported_with_its_error_output() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let run = |script: &str| {
            let words: Vec<String> = words(&["sh", "-c", script]);
            run(&words)
        };
        assert_eq!(run("exit 0"), Ok(()));
        let why = run("echo no such log >&2; exit 3").unwrap_err();
        assert!(
            why.contains("exit status: 3") && why.contains("no such log"),
            "{why}"
        );
        assert!(
            super::run(&["/missing".to_owned()])
                .unwrap_err()
                .contains("cannot be started")
        );
    }
}
