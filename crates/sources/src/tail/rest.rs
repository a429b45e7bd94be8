//! How a reader waits at the end of its file, and when it lets go of it.
//!
//! The kernel tells of the next write, so waiting costs nothing. A file to which no matching name leads any more is read
//! to its end through the open handle and let go after it was quiet for `rotate_wait`; the scan finds it again if it
//! grows later under a rotated name. A file that was not written for long is closed and opened again when it is.

use std::{fs, io, time::Duration};

use millstream_pipeline::condition::Trouble;
use millstream_sys::disk::read_at;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    identity::{Mark, Stat},
    reader::{Reader, Step},
};
use crate::framing::TooLong;

/// A file that was not written for so long is not kept open.
const CLOSE_AFTER: Duration = Duration::from_secs(600);
/// A file of which the kernel does not tell is looked at after a part of the time for which it has been idle.
const LOOK_SHARE: u32 = 10;
/// But not more often.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a file that cannot be read is left alone.
const TROUBLE_WAIT: Duration = Duration::from_secs(5);

impl Reader {
    /// There is no whole line left: waits until there may be one. True: the reader is done with the file.
    pub(super) async fn rest(&mut self) -> bool {
        self.tracked.read.notify_one();
        let rotated = self.tracked.state().rotated;
        let last_read = self.pace.last_read;
        let since = match self.inflater {
            // It was whole long ago: others wait to be inflated.
            Some(_) => Some(self.written_at().unwrap_or(last_read)),
            None => rotated
                .or(self.is_to_be_done().then_some(last_read))
                .map(|since| since.max(last_read)),
        };
        let until = since.map(|since| since + self.common.options.rotate_wait);
        if self.context.once || until.is_some_and(|until| until <= std::time::Instant::now()) {
            return self.let_go().await && self.be_done().await;
        }
        let until = until.into_iter().chain(self.quiet_at()).min();
        let mut until = until.map(Instant::from_std);
        if let Some(file) = &self.file {
            match self
                .common
                .alarms
                .as_ref()
                .map(|alarms| alarms.set(file, &self.tracked.alarm))
            {
                // What was written before the alarm was set is not told.
                Some(Ok(true)) => return false,
                Some(Ok(false)) => self.close_if_old(rotated.is_some()),
                // No alarms to be had: it has to look by itself.
                Some(Err(_)) | None => {
                    let idle = self.pace.last_read.elapsed() / LOOK_SHARE;
                    let seldom = self.common.options.rescan.max(LOOK_EVERY);
                    let look = Instant::now() + idle.clamp(LOOK_EVERY, seldom);
                    until = Some(until.map_or(look, |until| until.min(look)));
                }
            }
        }
        self.wait(until).await;
        false
    }

    /// Waits for the alarm, an answer, the wish to stop or the time.
    async fn wait(&mut self, until: Option<Instant>) {
        let woken = tokio::select! {
            () = self.tracked.alarm.wake.notified() => true,
            () = self.stop.stopped() => false,
            () = self.flight.answered() => false,
            () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => false,
        };
        if let Some(nap) = self.pace.woken().filter(|_| woken) {
            self.pause(nap).await;
        }
    }

    /// Sleeps, but not longer than until the wish to stop.
    pub(super) async fn pause(&mut self, time: Duration) {
        tokio::select! {
            () = sleep(time) => {}
            () = self.stop.stopped() => {}
        }
    }

    /// When the file was last written; None where it says that this is still to come: the clock has jumped.
    pub(super) fn written_at(&self) -> Option<std::time::Instant> {
        let written = Stat::of(self.file.as_ref()?).ok()?.written;
        std::time::Instant::now().checked_sub(written.elapsed().ok()?)
    }

    fn close_if_old(&mut self, rotated: bool) {
        let old = |file| Stat::of(file).is_ok_and(|stat| stat.age() > CLOSE_AFTER);
        if !rotated && self.file.as_ref().is_some_and(old) {
            self.file = None;
            self.common.open_files.sub(1);
        }
    }

    /// Opens the file by its name; false if another has the name by now: the scan will tell where this one is.
    pub(super) fn open(&mut self) -> io::Result<bool> {
        let path = self.tracked.state().path.clone();
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.missing(),
            Err(error) => return Err(error),
        };
        if Stat::of(&file)?.inode != self.tracked.inode {
            return self.missing();
        }
        self.common.open_files.add(1);
        self.file = Some(file);
        Ok(true)
    }

    fn missing(&mut self) -> io::Result<bool> {
        self.common.scan_wanted.notify_one();
        Ok(false)
    }

    /// The file could not be read: says so and waits. True: the reader gives it back to the scan, which tries again.
    pub(super) async fn troubled(&mut self, error: &io::Error) -> bool {
        let text = format!("cannot read {}: {error}; retrying", self.path());
        let reporter = &self.context.reporter;
        self.failing
            .get_or_insert_with(|| reporter.condition("unreadable"))
            .raise(Trouble::Retrying, text);
        self.common.unreadable.add(1);
        self.tracked.read.notify_one();
        self.pause(TROUBLE_WAIT).await;
        self.context.once || self.file.is_none()
    }

    /// Sends what is left, a line without its newline, and is done with the file.
    async fn let_go(&mut self) -> bool {
        if self.partial == 0 || self.file.is_none() {
            return true;
        }
        if self.framer.is_some() {
            self.closing = true;
            let step = self.step().await;
            self.closing = false;
            return match step {
                // It is looked at once more.
                Ok(_) => {
                    self.partial = 0;
                    false
                }
                Err(error) => self.troubled(&error).await,
            };
        }
        match self.send_partial().await {
            Ok(true) => true,
            // It has grown meanwhile.
            Ok(false) => {
                self.partial = 0;
                false
            }
            Err(error) => self.troubled(&error).await,
        }
    }

    async fn send_partial(&mut self) -> io::Result<bool> {
        let wanted = usize::try_from(self.partial)
            .unwrap_or(usize::MAX)
            .min(self.common.options.line_max);
        let covered = self.next.covered();
        let Some(mut buffer) = self.reserve(covered + wanted + 2).await else {
            return Ok(true);
        };
        let Some(file) = &self.file else {
            return Ok(true);
        };
        // One byte more than there was: it shows whether the line goes on.
        read_at(
            file,
            &mut buffer,
            covered + wanted + 1,
            self.next.offset - covered as u64,
        )?;
        let fits = buffer
            .get(..covered)
            .is_some_and(|before| self.next.fits(before));
        let more = wanted as u64 == self.partial && buffer.len() > covered + wanted;
        if !fits || buffer.len() < covered + wanted || more {
            return Ok(false);
        }
        // Of a line that is too long and was not split, the first part is what is left of it.
        buffer.truncate(covered + wanted);
        let end = self.next.offset + self.partial;
        let mark = match wanted as u64 == self.partial {
            true => Mark::new(end, &buffer),
            false => Mark::read(file, end)?.ok_or(io::ErrorKind::UnexpectedEof)?,
        };
        if wanted as u64 != self.partial && self.too_long() == TooLong::Reject {
            return Ok(self.reject_line(end, mark).await? == Step::On);
        }
        buffer.push(b'\n');
        self.send(buffer, covered..covered + wanted + 1, mark)
            .await?;
        Ok(true)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.tracked.read.notify_one();
        if self.file.is_some() {
            self.common.open_files.sub(1);
        }
    }
}
