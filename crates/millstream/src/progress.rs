//! The progress line of `run --once`, updated every second. Shown only in a terminal.

use std::{
    future::pending,
    io::{IsTerminal, stderr},
    time::Duration,
};

use millstream_pipeline::meters::Meters;

use crate::{log, page::grouped};

/// How often the line is updated.
const REFRESH: Duration = Duration::from_secs(1);

/// The progress line. Dropping this value clears the line.
pub struct Progress {
    meters: Option<Meters>,
    shown: bool,
}

impl Progress {
    /// There is a line only with `--once`, and only if stderr is a terminal.
    pub fn new(once: bool, meters: &Meters) -> Self {
        Self {
            meters: (once && stderr().is_terminal()).then(|| meters.clone()),
            shown: false,
        }
    }

    /// Updates the line forever, if there is one. Never returns.
    pub async fn show(&mut self) {
        let Some(meters) = self.meters.clone() else {
            return pending().await;
        };
        let mut before = sums(&meters);
        loop {
            tokio::time::sleep(REFRESH).await;
            let now = sums(&meters);
            let rate = now.1.saturating_sub(before.1);
            let line = format!(
                "{} records in, {} settled, {}/s",
                grouped(now.0),
                grouped(now.1),
                grouped(rate)
            );
            // Returns to the start of the line and clears it.
            log::show(&format!("\r\x1b[K{line}"));
            self.shown = true;
            before = now;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            log::show("\r\x1b[K");
        }
    }
}

/// The numbers of records received and settled.
fn sums(meters: &Meters) -> (u64, u64) {
    let mut sums = (0, 0);
    for (_, name, value) in meters.snapshot() {
        match name {
            "records_sent" => sums.0 += value,
            "records_settled" => sums.1 += value,
            _ => {}
        }
    }
    sums
}
