//! Where a mount must not be: over a directory that the system needs, or over a file of Millstream itself.

use std::{fs, path::Path};

use millstream_sys::{disk::resolved, fuse};

/// Directories that programs of the system use. A mount hides what is in them.
const SYSTEM: [&str; 34] = [
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/dev/shm",
    "/etc",
    "/home",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/lost+found",
    "/media",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/run/lock",
    "/run/user",
    "/sbin",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/usr/local",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/mail",
    "/var/run",
    "/var/lock",
    "/var/spool",
    "/var/tmp",
];
/// Directories in which every directory belongs to the system.
const SYSTEM_TREES: [&str; 15] = [
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/sbin",
    "/sys",
    "/usr/bin",
    "/usr/lib",
    "/usr/sbin",
    "/usr/share",
];
/// A directory in [`SYSTEM_TREES`] in which all programs may have directories.
const SHARED_MEMORY: &str = "/dev/shm";
/// The descriptors to which Millstream writes its log and its output.
const LOGS: [&str; 2] = ["/proc/self/fd/1", "/proc/self/fd/2"];

/// Why the directory must not be mounted. Symbolic links and `..` are resolved first.
pub(super) fn obstacle(mount: &Path) -> Option<String> {
    let full = resolved(mount);
    let is = |path: &&str| full == Path::new(path);
    let is_in = |path: &&str| full.starts_with(path) && !full.starts_with(SHARED_MEMORY);
    if !SYSTEM.iter().any(is) && !SYSTEM_TREES.iter().any(is_in) {
        return None;
    }
    Some(format!(
        "{} is a directory of the system, and a mount would hide what is in it: mount a directory that only the logs of your \
         programs use",
        full.display()
    ))
}

/// Why a mount would hold up Millstream's own log. `full`: the canonical path of the mount point.
pub(super) fn own_log(full: &Path) -> Option<String> {
    let logs = LOGS.iter().filter_map(|log| fs::read_link(log).ok());
    let log = logs.into_iter().find(|log| log.starts_with(full))?;
    Some(format!(
        "Millstream writes its own log to {}, which is below its mount: each log line would wait for Millstream itself; write the \
         log to another directory",
        log.display()
    ))
}

/// Whether a Millstream has mounted the directory, or had until it died.
pub(super) fn is_mounted(mount: &Path) -> bool {
    fuse::type_of_mount(&resolved(mount)).is_ok_and(|kind| kind.as_deref() == Some(fuse::TYPE))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn directories_of_the_system_are_refused_however_they_are_named() {
        let place = tempfile::tempdir().unwrap();
        let link = place.path().join("link");
        symlink("/var", &link).unwrap();
        let through_link = link.join("log");
        let up = format!("{}{}", place.path().display(), "/..".repeat(20));
        for path in [
            "/",
            "/etc/nginx",
            "/usr/../var/./log",
            "//tmp//",
            "/proc/1",
            "/dev/x",
            through_link.to_str().unwrap(),
            link.to_str().unwrap(),
            &up,
        ] {
            let full = resolved(Path::new(path));
            assert!(obstacle(Path::new(path)).is_some(), "{path}: {full:?}");
        }
        for path in [
            "/var/log/app",
            "/mnt",
            "/mnt/logs",
            "/dev/shm/logs",
            "/srv/logs",
            "/home/app/log",
            "/etcetera",
            "/tmp/../mnt/x",
            "mnt",
        ] {
            assert_eq!(obstacle(Path::new(path)), None, "{path}");
        }
    }
}
