//! The resources of this process: CPUs and memory, within the limits of its cgroups.

use std::fs;
use std::path::{Component, Path};

/// The memory that is assumed if the system reports nothing: small enough for every machine.
const MEMORY_UNKNOWN: u64 = 1 << 30;

/// Returns the number of CPUs that this process may use. The standard library considers the process's affinity and the quota of its
/// cgroups.
#[must_use]
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

/// The memory that this process may use, in bytes: the memory of the machine, or the lowest limit of the process's cgroups if that is
/// lower.
#[must_use]
pub fn memory_bytes() -> u64 {
    memory_below(Path::new("/"))
}

/// Like [`memory_bytes`], with another root than `/`.
fn memory_below(root: &Path) -> u64 {
    let machine = fs::read_to_string(root.join("proc/meminfo"))
        .ok()
        .and_then(|text| total_of(&text));
    let cgroups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limit = cgroups
        .lines()
        .filter_map(|line| limit_of(&root.join("sys/fs/cgroup"), line))
        .min();
    match (machine, limit) {
        (Some(machine), Some(limit)) => machine.min(limit),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => MEMORY_UNKNOWN,
    }
}

/// Returns the value of the line `MemTotal:       24689764 kB` of /proc/meminfo, in bytes.
fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Parses a line of /proc/self/cgroup, which names a cgroup. Returns the lowest of the limits of this cgroup and its parents; `None` if no
/// limit is set. These are examples of lines, with the file that holds the limit:
///
/// ```text
/// 0::/system.slice/millstream.service      version 2: memory.max
/// 9:memory:/system.slice/...               version 1: memory.limit_in_bytes
/// ```
fn limit_of(base: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (base, file) = match controllers {
        "" if number == "0" => (base.to_owned(), "memory.max"),
        _ if controllers.split(',').any(|c| c == "memory") => {
            (base.join("memory"), "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let mut directory = base;
    let mut least = limit_in(&directory, file);
    // The part `..` of a path leads out of the cgroup namespace of this process. It is skipped, because no file is visible there.
    for component in Path::new(path).components() {
        if let Component::Normal(name) = component {
            directory.push(name);
            least = least.into_iter().chain(limit_in(&directory, file)).min();
        }
    }
    least
}

/// Returns the limit of one cgroup; `None` if it is `max` or missing.
fn limit_in(directory: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(directory.join(file))
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  8192 kB\nMemFree: 1 kB\n");

    #[test]
    fn the_lowest_limit_of_all_parent_cgroups_applies() {
        let root = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "4096\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ]);
        assert_eq!(memory_below(root.path()), 4096);
    }

    #[test]
    fn without_a_limit_the_memory_of_the_machine_applies() {
        let root = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
        ]);
        assert_eq!(memory_below(root.path()), 8192 * 1024);
    }

    #[test]
    fn a_container_sees_its_limit_at_the_root() {
        let root = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/../../x\n"),
            ("sys/fs/cgroup/memory.max", "1000000\n"),
        ]);
        assert_eq!(memory_below(root.path()), 1_000_000);
    }

    #[test]
    fn cgroups_version_1_are_supported() {
        let root = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "3:cpu,cpuacct:/a\n2:memory:/a\n0::/\n"),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000\n"),
        ]);
        assert_eq!(memory_below(root.path()), 5000);
    }

    #[test]
    fn a_system_that_reports_nothing_gets_a_small_default() {
        assert_eq!(memory_below(machine(&[]).path()), MEMORY_UNKNOWN);
    }

    #[test]
    fn this_machine_has_cpus_and_memory() {
        assert!(cpus() >= 1);
        assert!(memory_bytes() > 1 << 20);
    }
}
