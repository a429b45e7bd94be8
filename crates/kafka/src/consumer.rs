//! What the source asks of a consumer.

use std::time::Duration;

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
    /// Joins the group and takes the topics that the broker deals to it: names, or patterns that begin with `^`.
    fn subscribe(&mut self, topics: &[String]) -> Result<(), Error>;

    /// The partitions of the topics (names or patterns) that exist now.
    fn partitions(&mut self, topics: &[String], timeout: Duration)
    -> Result<Vec<Partition>, Error>;

    /// The identity of the cluster.
    fn cluster(&mut self, timeout: Duration) -> Result<String, Error>;

    /// What the group has committed: the offset where each partition goes on, None where it has none.
    fn committed(
        &mut self,
        partitions: &[Partition],
        timeout: Duration,
    ) -> Result<Vec<Option<u64>>, Error>;

    /// The first offset that a partition holds, and the one behind its last.
    fn bounds(&mut self, partition: &Partition, timeout: Duration) -> Result<(u64, u64), Error>;

    /// The first offset at or after a time (milliseconds since 1970); the end if all are older.
    fn offset_at(
        &mut self,
        partition: &Partition,
        time: i64,
        timeout: Duration,
    ) -> Result<u64, Error>;

    /// Reads these partitions from these offsets on, besides those that it reads already.
    fn assign(&mut self, partitions: &[(Partition, u64)]) -> Result<(), Error>;

    /// Gives partitions up that the group has taken away. The next ones are dealt after this.
    fn unassign(&mut self, partitions: &[Partition]) -> Result<(), Error>;

    /// Gives what comes next, waiting for so long at most. Records are handed to `take` one after the other, until it
    /// says that it has enough or none is ready.
    fn poll(
        &mut self,
        wait: Duration,
        take: &mut dyn FnMut(Incoming<'_>) -> Taken,
    ) -> Result<Polled, Error>;

    /// Commits where each partition goes on, for the group; waits for the broker if `wait`.
    fn commit(&mut self, offsets: &[(Partition, u64)], wait: bool) -> Result<(), Error>;

    /// Stops or goes on with the delivery of records; everything else is still served by [`Consumer::poll`].
    fn pause(&mut self, paused: bool) -> Result<(), Error>;

    /// Leaves the group.
    fn close(&mut self);

    /// What the client complains of since the last call (brokers that do not answer), if anything.
    fn complaint(&mut self) -> Option<String>;
}

/// Whether there is room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// There is.
    More,
    /// There is not.
    Enough,
}

/// What [`Consumer::poll`] came upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Polled {
    /// Records, or nothing in time.
    Records,
    /// The group deals these partitions to this member: [`Consumer::assign`] them.
    Assigned(Vec<Partition>),
    /// The group takes these away: commit what is done, then [`Consumer::unassign`] them. `lost`: somebody else has them
    /// already, and a commit would be refused.
    Revoked {
        /// Which.
        partitions: Vec<Partition>,
        /// Whether they are gone already.
        lost: bool,
    },
    /// A partition of this number has no more for now; the client does not say of which topic.
    End(i32),
}

/// A record as it comes in.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Its topic.
    pub topic: &'a str,
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: u64,
    /// Milliseconds since 1970, if it has a time.
    pub timestamp: Option<i64>,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value; None is a tombstone.
    pub value: Option<&'a [u8]>,
    /// Its headers, in order; a value may be null.
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
}
