//! A file that is not what it was: where its reader begins, and begins again.
//!
//! `[read] -> decode -> send -> keep -> take -> process -> encode -> write -> settle`

use std::{io, sync::atomic::Ordering, time::Duration};

use bytes::Bytes;

use super::{
    heads::Likeness,
    identity::{Mark, Stat, read_file_id},
    reader::{READ_BYTES, Reader},
};
use crate::flight::Flight;

/// How long a reader waits before it sends again what was not settled.
const RESEND_WAIT: Duration = Duration::from_millis(500);
/// How long a file that ends as another begins is held, as it may be its copy.
const COPY_WAIT: Duration = Duration::from_secs(10);
/// How often such a file is looked at.
const COPY_LOOK: Duration = Duration::from_millis(20);

impl Reader {
    /// Tells a durable channel where the file begins, with a batch without records: were it told only with the first
    /// lines, a crash before them would begin at a later end.
    pub(super) async fn announce_start(&mut self) {
        let Some(id) = self.id.filter(|_| self.common.durable) else {
            return self.common.announced();
        };
        let mut wait = false;
        while !self.stop.is_stopped() {
            if std::mem::replace(&mut wait, true) {
                self.pause(RESEND_WAIT).await;
            }
            let batch = self.batch(id, Bytes::new(), 0, self.next.offset);
            if self.context.outlet.send(batch, false).await.await.is_ok() {
                return self.common.announced();
            }
        }
    }

    /// Whether the file is the copy of one that was truncated; then it goes on from where that one was left. Waits while
    /// it may become one.
    pub(super) async fn is_copy(&mut self, mut len: u64) -> io::Result<bool> {
        let mut quiet = tokio::time::Instant::now();
        while !self.stop.is_stopped() && quiet.elapsed() < COPY_WAIT {
            let Some(file) = &self.file else {
                return Ok(false);
            };
            match self.common.heads.likeness(&self.tracked, file, len)? {
                Likeness::Own => return Ok(false),
                Likeness::CopyUpTo(offset) => {
                    let Some(mark) = Mark::read(file, offset)? else {
                        return Ok(false);
                    };
                    let id = read_file_id(file, self.tracked.inode, self.generation)?;
                    self.next = mark;
                    self.flight = Flight::new(mark);
                    self.adopt(id);
                    self.common.announcing();
                    self.announce_start().await;
                    return Ok(true);
                }
                // With `--once` what is there now counts.
                Likeness::Perhaps if self.context.once => return Ok(false),
                Likeness::Perhaps => {}
            }
            self.pause(COPY_LOOK).await;
            let Some(file) = &self.file else {
                return Ok(false);
            };
            let now = Stat::of(file)?.len;
            if now != len {
                len = now;
                quiet = tokio::time::Instant::now();
            }
        }
        // Nothing is sent of what may be a copy when it is time to stop.
        Ok(self.stop.is_stopped())
    }

    /// The inode holds another content: what was sent of the old one is waited for, then it begins anew.
    pub(super) async fn begin_anew(&mut self) {
        let sent = self.next.offset;
        if self.flight.land().await.is_err() {
            self.context.reporter.error(
                "destroyed",
                format_args!(
                    "{} was truncated before its bytes {}..{sent} were settled; only a copy of it has them",
                    self.path(),
                    self.flight.settled().offset
                ),
            );
        }
        self.publish();
        self.common.truncated.add(1);
        self.tracked.state().replace();
        self.common.urgent.store(true, Ordering::Relaxed);
        self.common.dirty.notify_one();
        self.generation = self.generation.wrapping_add(u16::from(self.id.is_some()));
        self.id = None;
        self.next = Mark::default();
        self.flight = Flight::new(Mark::default());
        self.read_bytes = READ_BYTES;
        self.inflater = self.inflater.is_some().then(Default::default);
        self.forget_partial();
    }

    /// What was seen behind the position says nothing any more.
    fn forget_partial(&mut self) {
        self.partial = 0;
        self.searched = 0;
        self.open_since = None;
        if let Some(framer) = &mut self.framer {
            framer.reset();
        }
    }

    /// Somebody dropped what was sent: it is read again from the settled mark, or from where a durable channel says.
    pub(super) async fn go_back(&mut self) {
        let _ = self.flight.land().await;
        let mut mark = self.flight.settled();
        self.pause(RESEND_WAIT).await;
        if let (Some(id), Some(file), Some(origins)) =
            (self.id, &self.file, self.context.outlet.file_origins())
            && self.inflater.is_none()
        {
            let kept = origins.into_iter().find(|(other, _)| *other == id);
            let kept = kept.filter(|(_, next)| *next > mark.offset && *next <= self.next.offset);
            if let Some(Ok(Some(kept))) = kept.map(|(_, next)| Mark::read(file, next)) {
                mark = kept;
            }
        }
        self.next = mark;
        self.flight = Flight::new(mark);
        self.forget_partial();
        self.publish();
    }
}
