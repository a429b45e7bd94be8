//! The option map at the end of a frame.

use millstream_record::{Time, Values};

use crate::msgpack::{ReadError, Reader, is_map};

/// The maximum number of values that the records of a frame share. If a frame has more, all its shared values are
/// ignored.
const VALUES_MAX: u32 = 64;

/// Compression of a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compressed {
    /// No compression: the key is missing or `"text"`.
    #[default]
    No,
    /// One or more gzip members.
    Gzip,
    /// One or more zstd frames.
    Zstd,
    /// Unknown to this program.
    Unknown,
}

/// The kind of records in a frame, fluent-bit's `fluent_signal`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signal {
    /// Log events; also if the option map has no `fluent_signal`.
    #[default]
    Logs,
    /// Metrics, traces or others: the payload does not consist of entries.
    Other,
}

/// The content of an option map.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options<'a> {
    /// The chunk id to acknowledge, as the MessagePack value that was received; `None` if it is missing or nil.
    pub chunk: Option<&'a [u8]>,
    /// The number of records that the sender claims; never trusted.
    pub size: Option<u64>,
    /// The compression of the payload.
    pub compressed: Compressed,
    /// The kind of records in the payload.
    pub signal: Signal,
    /// From another Millstream: the values that all records share.
    pub values: Option<Values>,
    /// From another Millstream: the time at which that Millstream received the records.
    pub received: Option<Time>,
    /// From another Millstream: the payload is a bundle of this many complete frames.
    pub frames: Option<u64>,
}

impl<'a> Options<'a> {
    /// Reads the option map, which is one complete value. Any other value is skipped and counts as an empty map.
    ///
    /// # Errors
    /// [`ReadError::Short`] if the value is incomplete, [`ReadError::Malformed`] if it is invalid.
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, ReadError> {
        let mut options = Self::default();
        if !is_map(reader.peek()?) {
            reader.skip()?;
            return Ok(options);
        }
        for _ in 0..reader.map_len()? {
            let key = reader.value()?;
            let value = reader.value()?;
            options.set(Reader::new(key).bytes().unwrap_or_default(), value);
        }
        Ok(options)
    }

    fn set(&mut self, key: &[u8], value: &'a [u8]) {
        let mut reader = Reader::new(value);
        match key {
            b"chunk" => self.chunk = (value != [0xc0]).then_some(value),
            b"size" => self.size = reader.int().ok().and_then(|size| u64::try_from(size).ok()),
            b"compressed" => {
                self.compressed = match reader.bytes() {
                    Ok(b"text") => Compressed::No,
                    Ok(b"gzip") => Compressed::Gzip,
                    Ok(b"zstd") => Compressed::Zstd,
                    _ if value == [0xc0] => Compressed::No,
                    _ => Compressed::Unknown,
                }
            }
            b"fluent_signal" => {
                self.signal = match reader.int() {
                    Ok(0) | Err(_) => Signal::Logs,
                    Ok(_) => Signal::Other,
                }
            }
            b"millstream" => {
                // Errors are ignored: these parts only describe the records.
                let _ = self.read_ours(&mut reader);
            }
            _ => {}
        }
    }

    fn read_ours(&mut self, reader: &mut Reader<'a>) -> Result<(), ReadError> {
        for _ in 0..reader.map_len()? {
            match reader.bytes()? {
                b"values" => self.values = Some(read_values(reader)?),
                b"received" => {
                    let nanos = i64::try_from(reader.int()?).map_err(|_| ReadError::Type)?;
                    self.received = Some(Time(nanos));
                }
                b"frames" => {
                    let frames = u64::try_from(reader.int()?).map_err(|_| ReadError::Type)?;
                    self.frames = Some(frames);
                }
                _ => reader.skip()?,
            }
        }
        Ok(())
    }
}

fn read_values(reader: &mut Reader<'_>) -> Result<Values, ReadError> {
    let mut values = Values::new();
    let count = reader.map_len()?;
    // `Values::set` compares each name with all names before it, so a large number of values would take long.
    if count > VALUES_MAX {
        return Err(ReadError::Type);
    }
    for _ in 0..count {
        let name = reader.bytes()?;
        let text = reader.bytes()?;
        values.set(
            &String::from_utf8_lossy(name),
            String::from_utf8_lossy(text),
        );
    }
    Ok(values)
}
