//! The option map at the end of a frame.

use millstream_record::{Time, Values};

use crate::msgpack::{ReadError, Reader, is_map};

/// How a payload is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compressed {
    /// Not at all: no such key, or `"text"`.
    #[default]
    No,
    /// One or more gzip members.
    Gzip,
    /// One or more zstd frames.
    Zstd,
    /// By something this program does not know.
    Unknown,
}

/// What the records of a frame are, fluent-bit's `fluent_signal`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signal {
    /// Events; so is a frame that does not say.
    #[default]
    Logs,
    /// Metrics, traces or what may come: not entries, so they are set aside whole.
    Other,
}

/// What an option map says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options<'a> {
    /// The id to be acked, as the MessagePack value it came as. Nil counts as none.
    pub chunk: Option<&'a [u8]>,
    /// How many records the sender says there are; never believed.
    pub size: Option<u64>,
    /// How the payload is compressed.
    pub compressed: Compressed,
    /// What the payload holds.
    pub signal: Signal,
    /// From another Millstream: the values that all records share.
    pub values: Option<Values>,
    /// From another Millstream: when it received the records.
    pub received: Option<Time>,
}

impl<'a> Options<'a> {
    /// Reads the option, which is one whole value. What is no map is no option.
    ///
    /// # Errors
    /// [`ReadError::Short`] when it is cut, [`ReadError::Malformed`].
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
                // What of it cannot be read is left out: it describes the records, it is none.
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
                _ => reader.skip()?,
            }
        }
        Ok(())
    }
}

fn read_values(reader: &mut Reader<'_>) -> Result<Values, ReadError> {
    let mut values = Values::new();
    for _ in 0..reader.map_len()? {
        let name = reader.bytes()?;
        let text = reader.bytes()?;
        values.set(
            &String::from_utf8_lossy(name),
            String::from_utf8_lossy(text),
        );
    }
    Ok(values)
}
