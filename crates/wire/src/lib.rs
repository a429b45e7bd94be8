//! Codecs between bytes and batches: the forward protocol, syslog, JSON, OTLP, Avro, compression. No I/O, no clock, no
//! async.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> [encode] -> write -> settle`

pub mod avro;
pub mod compression;
pub mod condition;
pub mod cri;
pub mod edit;
pub mod format;
pub mod forward;
pub mod fuse;
mod invalid_utf8;
pub mod journal;
pub mod json;
pub mod lines;
pub mod msgpack;
mod option_error;
pub mod otlp;
pub mod parse;
pub mod part_id;
pub mod record;
pub mod relp;
mod rfc3339;
mod room;
pub mod ruby;
pub mod split;
pub mod syslog;
pub mod template;
pub mod zone;
