//! The machine on which a result was measured.

use std::fs;

use serde::Serialize;

/// The properties of the machine that figures depend on.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The name in /proc/cpuinfo.
    pub cpu: String,
    /// The family, model and stepping, if the processor has such numbers. They are useful because a virtual machine may hide the
    /// exact name.
    pub model: String,
    /// The cores that this process may use.
    pub cores: usize,
    /// The memory in bytes.
    pub memory: u64,
    /// The name and the release of the kernel.
    pub kernel: String,
    /// The load average of the last minute when the run began. Other work on the machine makes results worse.
    pub load: f64,
}

impl Machine {
    /// Describes the current machine.
    pub fn this() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let behind = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| line.split_once(':'));
            value.map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        let memory = behind(&read("/proc/meminfo"), "MemTotal");
        let kib = memory
            .split(' ')
            .next()
            .and_then(|kib| kib.parse::<u64>().ok());
        let load = read("/proc/loadavg");
        let cpu = read("/proc/cpuinfo");
        let numbers = ["cpu family", "model\t", "stepping"].map(|name| behind(&cpu, name));
        Self {
            cpu: behind(&cpu, "model name"),
            model: numbers.join("/"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory: kib.unwrap_or(0) * 1024,
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            load: load
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
        }
    }

    /// The model in brackets. In the header of a table it follows the processor's name. Empty if the model is unknown.
    pub fn model_text(&self) -> String {
        match self.model.chars().any(|c| c.is_ascii_digit()) {
            true => format!(" (family/model/stepping {})", self.model),
            false => String::new(),
        }
    }

    /// A name for a directory: `amd-epyc-2-cores`.
    pub fn name(&self) -> String {
        let mut name: String = format!("{} {} cores", self.cpu, self.cores)
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() {
                    c.to_ascii_lowercase()
                } else {
                    '-'
                }
            })
            .collect();
        while name.contains("--") {
            name = name.replace("--", "-");
        }
        name
    }
}

/// The current date in UTC, such as `2026-11-21`. The arithmetic uses years that begin in March, so that a leap day is the last
/// day of its year.
pub fn today() -> String {
    let now = std::time::SystemTime::now();
    let since = now
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let days = since.as_secs() / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{date:02}")
}
