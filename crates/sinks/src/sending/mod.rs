//! The common code of all sinks that send over a network. Each sink adds its codec and its connection.
//!
//! ```text
//! inlet -> Lane::next -> [codec] -> Lane::begin -> [connection] -> Lane::finish -> Lane::settle
//!                                                      |
//!                                                   Outage: back-off, give up, condition
//! ```
//! - [`Lane`]: the inlet, the batches in flight, the checkpoints that wait for them, rejects, and the age of the oldest record
//!   ([`Lateness`]).
//! - [`Outage`]: handles a destination that fails. [`Backoff`]: how long to wait.
//! - [`Trust`]: how much a new connection may write whose peer acknowledges nothing.
//! - [`Retry`], [`Batching`]: the options that all these sinks have.
//! - [`parts`] splits large batches, always between the same records. [`Ids`] makes ids, so that a resend has the same id.
//!
//! The lane promises that a checkpoint is settled only when everything sent before it is finished (acknowledged or rejected),
//! and that checkpoints are settled in their order.

mod backoff;
mod ids;
mod lane;
mod lateness;
mod ledger;
mod options;
mod outage;
mod parts;
mod refused;
mod trust;

pub(crate) use backoff::Backoff;
pub(crate) use ids::{DurableId, Ids, Part, PartNumbers};
pub(crate) use lane::{Input, Lane};
pub(crate) use lateness::Lateness;
pub(crate) use options::{Batching, Retry};
pub(crate) use outage::{Outage, Then};
pub(crate) use parts::{parts, records_max};
pub(crate) use refused::{Refused, by_reason, group, refuse, unencoded};
pub(crate) use trust::{ShortLived, TLS_BYTES, Trust};
