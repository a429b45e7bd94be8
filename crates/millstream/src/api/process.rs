//! Metrics of the process as the system sees it: memory, CPU time, open files, threads. The metrics have the same names as in
//! Prometheus' client libraries.

use std::{collections::BTreeMap, fs, sync::LazyLock};

use millstream_pipeline::meters::{
    exposition::{Family, Number},
    family,
    known::{Kind, Unit},
};
use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
};

/// When the process started, in seconds since 1970. Read once, because it does not change.
static STARTED: LazyLock<Option<f64>> = LazyLock::new(started);

/// The metrics of the process. Numbers that the system does not report are left out.
pub(super) fn families() -> Vec<Family> {
    let own = fs::read_to_string("/proc/self/stat").ok();
    let own = own.as_deref().and_then(Stat::read);
    let mut all = Vec::new();
    let mut push = |name: &str, kind, unit, help, number: Option<Number>| {
        let family = Family::new(format!("process_{name}"), kind, unit, help);
        all.extend(number.map(|number| family.with(Vec::new(), number)));
    };
    push(
        "cpu_seconds",
        Kind::Counter,
        Unit::Seconds,
        "CPU time of the process.",
        own.as_ref().map(|own| Number::Real(own.cpu_seconds())),
    );
    push(
        "resident_memory_bytes",
        Kind::Gauge,
        Unit::Bytes,
        "Memory of the process that is in RAM.",
        own.as_ref()
            .map(|own| Number::Whole(own.resident_pages.saturating_mul(page_size() as u64))),
    );
    push(
        "virtual_memory_bytes",
        Kind::Gauge,
        Unit::Bytes,
        "Address space of the process.",
        own.as_ref().map(|own| Number::Whole(own.virtual_bytes)),
    );
    push(
        "threads",
        Kind::Gauge,
        Unit::None,
        "Threads of the process.",
        own.as_ref().map(|own| Number::Whole(own.threads)),
    );
    push(
        "start_time_seconds",
        Kind::Gauge,
        Unit::Seconds,
        "When the process started, in seconds since 1970.",
        STARTED.map(Number::Real),
    );
    let open = fs::read_dir("/proc/self/fd").ok();
    push(
        "open_fds",
        Kind::Gauge,
        Unit::None,
        "Open file descriptors.",
        open.map(|open| Number::Whole(open.count() as u64)),
    );
    push(
        "max_fds",
        Kind::Gauge,
        Unit::None,
        "Limit of open file descriptors.",
        getrlimit(Resource::Nofile).current.map(Number::Whole),
    );
    all.push(threads());
    all
}

/// The CPU time of the threads, by the name of the thread. `data-0` is a data thread. `keep NAME` is the thread of the disk channel `NAME`.
/// The thread of a sink has the sink's name.
fn threads() -> Family {
    let mut by_name: BTreeMap<String, f64> = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        // The thread may have ended since the directory was read.
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        if let Some(stat) = Stat::read(&stat) {
            *by_name.entry(stat.name.to_owned()).or_default() += stat.cpu_seconds();
        }
    }
    by_name.into_iter().fold(
        family("thread_cpu_seconds", Kind::Counter),
        |family, (name, seconds)| family.with(vec![("thread", name)], Number::Real(seconds)),
    )
}

/// A line of /proc/PID/stat.
struct Stat<'a> {
    name: &'a str,
    ticks: u64,
    threads: u64,
    started_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl<'a> Stat<'a> {
    /// Parses `PID (NAME) STATE ...`; the name may contain spaces and brackets.
    fn read(line: &'a str) -> Option<Self> {
        let (begin, rest) = line.rsplit_once(')')?;
        let (_, name) = begin.split_once('(')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // proc(5) counts fields from 1, and `fields` begins with the third.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            name,
            ticks: field(14)?.saturating_add(field(15)?),
            threads: field(20)?,
            started_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }

    fn cpu_seconds(&self) -> f64 {
        self.ticks as f64 / clock_ticks_per_second() as f64
    }
}

fn started() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let since_boot = Stat::read(&stat)?.started_ticks as f64 / clock_ticks_per_second() as f64;
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot = system
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    Some(boot.trim().parse::<f64>().ok()? + since_boot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_spaces_and_brackets() {
        let line = "7 (a) b (c) S 1 7 7 0 -1 4194304 1 0 0 0 25 17 0 0 20 0 9 0 500 4096000 250 18446744073709551615";
        let stat = Stat::read(line).unwrap();
        assert_eq!((stat.name, stat.ticks, stat.threads), ("a) b (c", 42, 9));
        assert_eq!((stat.started_ticks, stat.resident_pages), (500, 250));
        assert!(Stat::read("7 (a) S 1").is_none());
        assert!(Stat::read("").is_none());
    }

    #[test]
    fn this_process_is_described() {
        let families = families();
        let find = |name: &str| families.iter().find(|it| it.name == name).unwrap();
        let whole = |name: &str| match find(name).samples[0].number {
            Number::Whole(number) => number,
            _ => panic!("{name}"),
        };
        assert!(whole("process_resident_memory_bytes") > 1 << 20);
        assert!(whole("process_open_fds") >= 3 && whole("process_max_fds") >= 3);
        assert!(whole("process_threads") >= 1);
        assert!(!find("millstream_thread_cpu_seconds").samples.is_empty());
        let Number::Real(started) = find("process_start_time_seconds").samples[0].number else {
            panic!("it is a time");
        };
        let now = jiff::Timestamp::now().as_second() as f64;
        assert!((now - 3600.0..=now + 1.0).contains(&started), "{started}");
    }
}
