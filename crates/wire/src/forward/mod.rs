//! Fluentd's forward protocol, both directions, without I/O.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! A connection is an endless sequence of MessagePack values, without length or separator. The first byte decides for the
//! whole connection: `{` or `[` makes it JSON. Element 1 of an array (the first is element 0) shows the type of the frame:
//!
//! ```text
//! message        [tag, time, record, option?]            time: integer or EventTime; nil = now
//! forward        [tag, [[time, record], ...], option?]   element 1 is an array
//! packed         [tag, str or bin, option?]              its bytes are [time, record] [time, record] ...
//! lines          [tag, ext 76, option?]                  ours: its bytes are lines, each with its newline
//! heartbeat      nil                                     and `["", []]`
//! ```
//!
//! Fluent Bit writes `[time, {metadata}]` instead of a time, and marks groups of records (`groups`).
//!
//! Known option keys (others are ignored; an option that is not a map counts as none):
//!
//! ```text
//! chunk          any value; returned unchanged in {"ack": value} when the batch is kept
//! size           records in the frame; never trusted
//! compressed     "text" = not; "gzip" (one or more members), "zstd" (one or more frames)
//! fluent_signal  fluent-bit: 0 logs, 1 metrics, 2 traces (whose payloads are not records)
//! millstream     ours: {"values": {name: text, ...}, "received": nanoseconds since 1970, "frames": n}
//! ```
//!
//! **Between two Millstreams** (`peer: millstream` at the sink) a batch of lines stays lines: element 1 is an ext value of type
//! 76 (`L`), of any width. Like a packed payload, the lines may be compressed. The option `millstream` carries the other parts of
//! a batch: the `values` that all its records share, and its receive time. Other receivers accept this option and ignore it. They
//! cannot read lines, so lines are sent only to receivers that are configured as Millstreams. Versions up to 2026-11 also sent
//! `floor`, the position below which they had settled everything. `floor` is ignored: any peer can write it.
//!
//! A **bundle** is a packed frame with the option `frames`: its payload is that many complete frames (packed or lines, not compressed,
//! without ids), for example the batches of several tags into which processors have divided one position of a disk channel. The
//! receiver keeps all of them or none, so after a crash it has the whole position or nothing of it.
//!
//! No memory is allocated for announced bytes before they have arrived. While a frame is incomplete, only its head is parsed
//! again after each read. Nothing recurses. Reading, buffers, gathering and the order of acks are the task of `sources/forward`.

mod ack;
mod check;
mod decode;
mod encode;
mod frame;
mod groups;
pub mod handshake;
mod options;
mod run;
mod sift;

#[cfg(test)]
mod tests;

pub use ack::{Ack, read_ack, write_ack, write_json_ack};
pub use check::Check;
pub use decode::{Decoder, Payload, Refusal, Step};
pub use encode::{write_frame_head, write_options};
pub use frame::{Form, Frame};
pub use options::{Compressed, Options, Signal};
pub use run::message_head;
pub use sift::{Sifted, sift, sifted_bytes_max, write_timed};

/// The maximum number of frames in a bundle. Each becomes a batch, which takes more memory than a tiny frame.
pub const BUNDLE_FRAMES_MAX: usize = 1 << 14;

/// Ext type of a payload of lines, `L`.
pub const LINES: i8 = 76;
/// A payload that is longer than this and has not arrived completely is announced ([`Step::Payload`]) and read into its own
/// buffer. Any other payload is returned as a [`Frame`] when it is complete. The limit is half of a read buffer of 64 KiB: below
/// it, copying a payload costs less than a separate batch.
pub const PAYLOAD_INLINE_MAX: usize = 32 << 10;
/// The longest tag; an array with a longer tag is not a frame. This limit ensures that the head of every payload fits into a read
/// buffer.
pub const TAG_BYTES_MAX: usize = 8 << 10;
/// The longest option map; an array with a longer one is not a frame. Real ones have about 60 bytes.
pub const OPTION_BYTES_MAX: usize = 16 << 10;
