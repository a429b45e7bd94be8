//! The handshake at the start of a connection, by which both sides learn whether they use the same protocol.
//!
//! A protocol is a JSON text, and a client identifies it by the MD5 of this text. All versions of Flume from 1.9 to 1.11 send the
//! same hash. For any other hash, the server asks for the text (answer NONE) and checks it. So a client whose protocol differs
//! only in a comment is accepted, too.

use super::{protocol::is_compatible, write_bytes, write_long};
use crate::avro::{ReadError, Reader};

/// The longest handshake; real ones have 40 bytes, or 2 KiB with the text of the protocol.
pub(super) const HANDSHAKE_BYTES_MAX: usize = 32 << 10;

/// MD5 of Flume's own protocol text, which differs from [`PROTOCOL`] only by a comment.
const FLUME_HASH: [u8; 16] = [
    0x86, 0xaa, 0xda, 0xe2, 0xc4, 0x54, 0x74, 0xc0, 0xfe, 0x93, 0xff, 0xd0, 0xf2, 0x35, 0x0a, 0x65,
];
/// MD5 of [`PROTOCOL`].
pub(super) const PROTOCOL_HASH: [u8; 16] = [
    0x30, 0xda, 0x54, 0x05, 0x9d, 0xf7, 0x2d, 0x95, 0x84, 0xb8, 0x67, 0xd5, 0x20, 0x2e, 0x20, 0x69,
];
/// The text of the protocol that this server supports.
pub(super) const PROTOCOL: &str = concat!(
    r#"{"protocol":"AvroSourceProtocol","namespace":"org.apache.flume.source.avro","types":["#,
    r#"{"type":"enum","name":"Status","symbols":["OK","FAILED","UNKNOWN"]},"#,
    r#"{"type":"record","name":"AvroFlumeEvent","fields":["#,
    r#"{"name":"headers","type":{"type":"map","values":"string"}},{"name":"body","type":"bytes"}]}],"#,
    r#""messages":{"append":{"request":[{"name":"event","type":"AvroFlumeEvent"}],"response":"Status"},"#,
    r#""appendBatch":{"request":[{"name":"events","type":{"type":"array","items":"AvroFlumeEvent"}}],"response":"Status"}}}"#,
);

/// A client's handshake.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    client_hash: [u8; 16],
    /// The text of the client's protocol, if the client sent it.
    client_protocol: Option<&'a [u8]>,
    server_hash: [u8; 16],
}

/// The result of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// Each side knows the protocol of the other.
    Both,
    /// The server knows the client's protocol, but the client does not know the server's.
    Client,
    /// The server does not know the client's protocol. The client then sends the text of its protocol with the next call.
    None,
    /// The protocols are incompatible.
    Incompatible,
}

impl<'a> Request<'a> {
    /// Reads a handshake.
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, ReadError> {
        let client_hash = hash(reader)?;
        let client_protocol = match reader.long()? {
            0 => None,
            1 => Some(reader.bytes()?),
            _ => return Err(ReadError::Malformed),
        };
        let server_hash = hash(reader)?;
        match reader.long()? {
            0 => {}
            1 => skip_map(reader)?,
            _ => return Err(ReadError::Malformed),
        }
        Ok(Self {
            client_hash,
            client_protocol,
            server_hash,
        })
    }

    /// Compares the protocols.
    pub(super) fn judge(&self) -> Match {
        let known = [FLUME_HASH, PROTOCOL_HASH];
        let client = known.contains(&self.client_hash);
        match self.client_protocol {
            Some(text) if !client && !is_compatible(text) => Match::Incompatible,
            None if !client => Match::None,
            _ if known.contains(&self.server_hash) => Match::Both,
            _ => Match::Client,
        }
    }
}

impl Match {
    /// Appends the answer.
    pub(super) fn write(self, out: &mut Vec<u8>) {
        let number = match self {
            Self::Both => 0,
            Self::Client => 1,
            Self::None | Self::Incompatible => 2,
        };
        write_long(out, number);
        if self == Self::Both {
            // The client knows the server's protocol, so the answer has neither its text nor its hash.
            out.extend_from_slice(&[0, 0]);
        } else {
            write_long(out, 1);
            write_bytes(out, PROTOCOL.as_bytes());
            write_long(out, 1);
            out.extend_from_slice(&PROTOCOL_HASH);
        }
        // No metadata.
        out.push(0);
    }
}

fn hash(reader: &mut Reader<'_>) -> Result<[u8; 16], ReadError> {
    let bytes = reader.take(16)?;
    bytes.try_into().map_err(|_| ReadError::Short)
}

fn skip_map(reader: &mut Reader<'_>) -> Result<(), ReadError> {
    loop {
        let count = reader.block()?;
        if count == 0 {
            return Ok(());
        }
        for _ in 0..count {
            reader.bytes()?;
            reader.bytes()?;
        }
    }
}
