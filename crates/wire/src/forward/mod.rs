//! Fluentd's forward protocol, both ways, without I/O.
//!
//! On the line: read -> [decode] -> send ... -> [encode] -> write -> settle.
//!
//! A connection is an endless sequence of MessagePack values, without length or separator. Its first byte decides for the
//! whole connection: `{` or `[` makes it JSON. Which form a frame has is told by element 1:
//!
//! ```text
//! message        [tag, time, record, option?]            time: integer or EventTime; nil = now
//! forward        [tag, [[time, record], ...], option?]   element 1 is an array
//! packed         [tag, str or bin, option?]              its bytes are [time, record] [time, record] ...
//! lines          [tag, ext 76, option?]                  ours: its bytes are lines, each with its newline
//! heartbeat      nil                                     and `["", []]`
//! ```
//!
//! Option keys that are known (others are ignored; an option that is no map counts as none):
//!
//! ```text
//! chunk          any value; echoed byte for byte in {"ack": value} when the batch is kept
//! size           records in the frame; advice, never believed
//! compressed     "text" = not; "gzip" (one or more members), "zstd" (one or more frames)
//! fluent_signal  fluent-bit: 0 logs, 1 metrics, 2 traces (whose payloads are no records)
//! millstream     ours: {"values": {name: text, ...}, "received": nanoseconds since 1970}
//! ```
//!
//! **Between two Millstreams** (`peer: millstream` at the sink) a batch of lines stays lines: element 1 is an ext value of
//! type 76 (`L`), in any of its widths; it may be compressed like a packed payload. The option `millstream` carries what
//! else a batch has: `values` that all its records share, and the time it was received. Any receiver takes the option and
//! ignores it; lines are sent only to those that were configured as Millstreams. Versions up to 2026-11 also sent `floor`, the
//! position below which they had settled everything. It is ignored: any peer can write it, and what it would decide (that a
//! chunk is a repeat) only the chunk's own id and bytes can prove.
//!
//! This promises: no length is believed before its bytes are there, no byte is parsed twice but heads that were cut,
//! nothing recurses. It leaves to others: reading, buffers, gathering, acks in order (`sources/forward`).

mod ack;
mod check;
mod decode;
mod encode;
mod frame;
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
pub use sift::{Sifted, sift, write_timed};

/// Ext type code of a payload of lines, `L`.
pub const LINES: i8 = 76;
/// A payload longer than this is announced ([`Step::Payload`]) and read into a buffer of its own; a shorter one is waited
/// for and comes as a [`Frame`]. Half of a read buffer of 64 KiB: its copy costs less than a batch of its own would.
pub const PAYLOAD_INLINE_MAX: usize = 32 << 10;
/// The longest tag; an array with a longer one is no frame. So the head of any payload fits into a read buffer.
pub const TAG_BYTES_MAX: usize = 8 << 10;
/// The longest option map; an array with a longer one is no frame. Real ones have about 60 bytes.
pub const OPTION_BYTES_MAX: usize = 16 << 10;
