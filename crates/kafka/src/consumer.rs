//! The consumer, as the source uses it.

use std::{collections::BTreeSet, time::Duration};

use crate::Error;

/// A partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition {
    /// The topic.
    pub topic: String,
    /// The number.
    pub number: i32,
}

/// Reads records from Kafka. It belongs to one thread, which it may block.
pub trait Consumer: Send {
    /// Joins the group, and reads the partitions that the group assigns. `topics` holds names, or patterns that begin with `^`.
    fn subscribe(&mut self, topics: &[String]) -> Result<(), Error>;

    /// The partitions that exist now in the topics. `topics` holds names or patterns.
    fn partitions(&mut self, topics: &[String], timeout: Duration)
    -> Result<Vec<Partition>, Error>;

    /// The identity of the cluster.
    fn cluster(&mut self, timeout: Duration) -> Result<String, Error>;

    /// The offset that the group has committed for each partition, at which reading continues. `None` for a partition without a committed
    /// offset.
    fn committed(
        &mut self,
        partitions: &[Partition],
        timeout: Duration,
    ) -> Result<Vec<Option<u64>>, Error>;

    /// Those of the partitions that have no leader at the moment, so that no broker can be asked
    /// for them.
    fn without_leader(
        &mut self,
        partitions: &[Partition],
        timeout: Duration,
    ) -> Result<BTreeSet<Partition>, Error>;

    /// The offset of the first record of a partition, and the offset after the last record that can be read. With the isolation level
    /// `read_committed`, records from the first open transaction on cannot be read.
    fn bounds(&mut self, partition: &Partition, timeout: Duration) -> Result<(u64, u64), Error>;

    /// The offset after the last record of a partition, including the records of open transactions.
    fn end(&mut self, partition: &Partition, timeout: Duration) -> Result<u64, Error>;

    /// The offset of the first record at or after a time (milliseconds since 1970). If all records are older, returns the offset after the
    /// last record.
    fn offset_at(
        &mut self,
        partition: &Partition,
        time: i64,
        timeout: Duration,
    ) -> Result<u64, Error>;

    /// Starts to read these partitions at these offsets, in addition to the partitions that are
    /// already assigned. After [`Polled::Assigned`] it must be called once, even without
    /// partitions; the others can follow later.
    fn assign(&mut self, partitions: &[(Partition, u64)]) -> Result<(), Error>;

    /// Releases partitions that the group has revoked, whether they were assigned here or not. The
    /// group assigns new partitions only after this call.
    fn unassign(&mut self, partitions: &[Partition]) -> Result<(), Error>;

    /// Waits up to `wait` for records or events. Passes records to `take` one after the other, until `take` returns
    /// [`Taken::Enough`] or no more records are ready.
    fn poll(
        &mut self,
        wait: Duration,
        take: &mut dyn FnMut(Incoming<'_>) -> Taken,
    ) -> Result<Polled, Error>;

    /// Commits the offset at which each partition continues. With `wait`, returns only after the broker's answer.
    fn commit(&mut self, offsets: &[(Partition, u64)], wait: bool) -> Result<(), Error>;

    /// Pauses or resumes the delivery of records; [`Consumer::poll`] still serves everything else.
    fn pause(&mut self, paused: bool) -> Result<(), Error>;

    /// Leaves the group.
    fn close(&mut self);

    /// The last complaint of the client since the previous call, for example that no broker answers. `None` if there was no complaint.
    fn complaint(&mut self) -> Option<String>;
}

/// The answer of the closure `take` in [`Consumer::poll`]: whether the caller can take more records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It can take more.
    More,
    /// It cannot take more now.
    Enough,
}

/// The outcome of [`Consumer::poll`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Polled {
    /// Records were passed to the caller, or none arrived in time.
    Records,
    /// The group assigns these partitions: [`Consumer::assign`] them.
    Assigned(Vec<Partition>),
    /// The group revokes these partitions: commit the offsets of the settled records, then [`Consumer::unassign`] the partitions. If `lost`
    /// is true, a broker would reject the commit.
    Revoked {
        /// The partitions.
        partitions: Vec<Partition>,
        /// Whether the partitions already belong to another member.
        lost: bool,
    },
    /// No broker can be reached. The client keeps trying.
    Unreachable,
    /// A partition with this number has no more records for now. The client does not report the topic of the partition.
    End(i32),
}

/// A received record.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Its topic.
    pub topic: &'a str,
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: u64,
    /// Milliseconds since 1970, if the record has a time.
    pub timestamp: Option<i64>,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value; `None` for a tombstone.
    pub value: Option<&'a [u8]>,
    /// Its headers, in order; a value may be null.
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
}
