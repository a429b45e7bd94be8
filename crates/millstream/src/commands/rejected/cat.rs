//! `millstream rejected cat`: writes rejected records as JSON lines.

use std::io::{self, BufWriter, Write, stdout};

use clap::Args;
use millstream_pipeline::redact::Redaction;

use super::{Which, ended};
use crate::{exit, rejects};

/// Write rejected records to stdout, one JSON object per line.
///
/// The fields are `node`, `reason`, `time` (the receive time), `tag`, `values` (such as the `peer` that sent it) and `record`: a
/// string, or an object if the record was an object. For an object, `event_time` is the time of the record. Bytes that are not text
/// are in `record_base64`.
#[derive(Args)]
pub struct Cat {
    #[command(flatten)]
    which: Which,
    /// Show at most this many records; 0 shows all.
    #[arg(long, value_name = "RECORDS", default_value_t = 0)]
    limit: u64,
}

impl Cat {
    /// Writes; returns the exit code.
    pub fn execute(self) -> u8 {
        let place = match self.which.place() {
            Ok(place) => place,
            Err(code) => return code,
        };
        let mut out = BufWriter::new(stdout().lock());
        let mut written = 0;
        let read = self.which.read(&place, |rejected| {
            if self.limit > 0 && written == self.limit {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            written += 1;
            let line = rejects::line(rejected, &Redaction::default());
            writeln!(out, "{line}")
        });
        let flushed = out.flush();
        match ended(&place, read) {
            exit::DRAINED => ended(&place, flushed),
            code => code,
        }
    }
}
