//! Encodes batches, gathers the text and writes it.

use std::io::{self, Write};

use millstream_record::{Batch, Buffer, Pool};
use millstream_wire::format::{Encoder, Reject};

/// Gathered output is written when it has this size. Larger writes are not cheaper: a pipe holds 64 KiB.
const WRITE_BYTES: usize = 64 << 10;

/// Writes batches to `out`.
pub(super) struct Writer<W> {
    out: W,
    encoder: Encoder,
    buffer: Buffer,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(out: W, encoder: Encoder, pool: Pool) -> Self {
        let mut buffer = pool.take(4 * WRITE_BYTES);
        buffer.extend_from_slice(encoder.header());
        Self {
            out,
            encoder,
            buffer,
        }
    }

    /// Encodes a batch and returns the records that cannot be written.
    pub(super) fn write(&mut self, batch: &Batch) -> io::Result<Vec<Reject>> {
        let mut rejects = Vec::new();
        if self.encoder.passes(batch) {
            self.flush()?;
            write_all(&mut self.out, &batch.body)?;
        } else {
            // In steps, because fields that are added can make records much longer.
            let mut range = 0..batch.len();
            while !range.is_empty() {
                let (encoder, buffer) = (&mut self.encoder, &mut self.buffer);
                let part =
                    encoder.encode_until(batch, range.clone(), WRITE_BYTES, buffer, &mut rejects);
                range.start = part.end;
                if self.buffer.len() >= WRITE_BYTES {
                    self.flush()?;
                }
            }
        }
        Ok(rejects)
    }

    /// Whether gathered output waits to be written.
    pub(super) fn has_more(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Writes the gathered output.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        write_all(&mut self.out, &self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

/// Writes all of `bytes`, also to a non-blocking file (a terminal shared with another program).
fn write_all(out: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Some kinds of file have no readiness events, so this loop polls. Sleeping for a millisecond costs no measurable
            // time.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        format::Formatting,
        rig::{lines, long_tag, node},
    };

    #[test]
    fn a_batch_that_added_fields_make_very_long_is_written_in_steps() {
        let add = serde_json::json!({ "add": { "tag": "{tag}", "time": null } });
        let formatting = Formatting::with::<super::super::Config>(&node(add));
        let encoder = formatting.unwrap().0.encoder();
        let mut writer = Writer::new(Vec::new(), encoder, Pool::new(1 << 20));
        let tag = long_tag();
        writer.write(&lines(&tag, &"a\n".repeat(1000))).unwrap();
        writer.flush().unwrap();
        assert!(writer.buffer.capacity() < 16 * WRITE_BYTES);
        let line = format!("{{\"message\":\"a\",\"tag\":\"{tag}\"}}\n");
        assert!(writer.out == line.repeat(1000).as_bytes());
    }
}
