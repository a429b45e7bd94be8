//! Whether the log may still write. The log repairs a first disk failure. A second failure stops the log if no sync has succeeded in
//! between. A full disk never stops the log.

use std::{io, path::PathBuf};

use millstream_record::Position;

use super::{Error, error::is_no_room};

/// The disk failures of a log so far.
#[derive(Default)]
pub(super) struct Health {
    /// Whether a disk call has failed and no sync has succeeded since.
    failing: bool,
    /// Why the log has stopped.
    stopped: Option<Error>,
    /// Ranges (first, last) that were kept without a sync and could not be read back after the sync failed.
    pub(super) lost: Vec<(Position, Position)>,
}

impl Health {
    /// Fails if the log has stopped.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.stopped.clone().map_or(Ok(()), Err)
    }

    /// Stops the log if `result` is an error that is not temporary.
    pub(super) fn stop_on(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        if let Err(error) = &result
            && !error.is_for_now()
        {
            self.stopped = Some(error.clone());
        }
        result
    }

    /// Notes a failed disk call. Returns the error if an earlier call has also failed since the last successful sync. Also returns the
    /// error if the disk is full, because the caller then waits for space. On file systems that copy on write, even a write to allocated
    /// space can find the disk full.
    pub(super) fn fail(
        &mut self,
        doing: &'static str,
        path: PathBuf,
        error: io::Error,
    ) -> Result<(), Error> {
        if is_no_room(&error) {
            return Err(Error::disk(doing, &path, error));
        }
        if std::mem::replace(&mut self.failing, true) {
            return Err(Error::Disk {
                doing,
                path,
                source: error.into(),
            });
        }
        Ok(())
    }

    /// Notes a sync that succeeded.
    pub(super) fn recover(&mut self) {
        self.failing = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_second_failure_without_a_good_sync_in_between_is_an_error() {
        let mut health = Health::default();
        let mut fail = |good_sync: bool| {
            if good_sync {
                health.recover();
            }
            health.fail("syncing", "/c".into(), io::Error::from_raw_os_error(5))
        };
        assert!(fail(false).is_ok());
        assert!(fail(true).is_ok());
        assert!(fail(false).is_err());
    }

    #[test]
    fn a_full_disk_is_temporary_and_does_not_count_as_a_failure() {
        let mut health = Health::default();
        let mut fail =
            |errno| health.fail("syncing", "/c".into(), io::Error::from_raw_os_error(errno));
        for full in [28, 122, 30, 28] {
            assert!(fail(full).is_err_and(|error| error.is_for_now()));
        }
        assert!(fail(5).is_ok());
        assert!(fail(28).is_err_and(|error| error.is_for_now()));
        assert!(fail(5).is_err_and(|error| !error.is_for_now()));
    }

    #[test]
    fn a_log_stops_on_errors_that_are_not_temporary() {
        let mut health = Health::default();
        let full = Error::Full {
            path: "/c".into(),
            consumer: None,
        };
        assert!(health.stop_on(Err(full)).is_err() && health.check().is_ok());
        let gone = Error::Gone { path: "/c".into() };
        assert!(health.stop_on(Err(gone)).is_err() && health.check().is_err());
    }
}
