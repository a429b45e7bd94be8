//! Decodes the requests of the kernel.

use super::fields::Fields;

/// The number of bytes before the body.
const HEADER_BYTES: usize = 40;

/// The header of a request: the process that made the request, and the node (file or directory) that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Repeated in the answer.
    pub unique: u64,
    /// The node that the request is about.
    pub node: u64,
    /// The user of the process (its `fsuid`).
    pub uid: u32,
    /// The group of the process.
    pub gid: u32,
    /// The id of the thread. 0 if Millstream cannot see the thread, or if the kernel itself makes the request.
    pub thread: u32,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The header.
    pub header: Header,
    /// The operation.
    pub operation: Operation<'a>,
}

/// The kernel sent a malformed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel sent a malformed request (operation {opcode})")]
pub struct Malformed {
    /// The number by which the kernel recognizes the answer; 0 if the request ends before this number.
    pub unique: u64,
    /// The number of the operation.
    pub opcode: u32,
}

/// A new time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSet {
    /// The current time.
    Now,
    /// Seconds and nanoseconds since 1970.
    At(i64, u32),
}

/// The attributes that SETATTR changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length.
    pub size: Option<u64>,
    /// Time of the last read.
    pub atime: Option<TimeSet>,
    /// Time of the last write.
    pub mtime: Option<TimeSet>,
}

/// An operation. The kernel expects an answer unless stated otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the fields have the names of fuse.h and of the system calls"
)]
pub enum Operation<'a> {
    Init {
        major: u32,
        minor: u32,
        flags: u32,
    },
    Destroy,
    Lookup {
        name: &'a [u8],
    },
    /// The kernel expects no answer.
    Forget {
        lookups: u64,
    },
    /// Nodes, each with the number of lookups to forget. The kernel expects no answer.
    BatchForget(Vec<(u64, u64)>),
    GetAttributes,
    SetAttributes(SetAttributes),
    ReadLink,
    SymLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        to_node: u64,
        to_name: &'a [u8],
        flags: u32,
    },
    Open {
        flags: u32,
    },
    Create {
        name: &'a [u8],
        mode: u32,
        flags: u32,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
    },
    /// `size` bytes of data are at [`super::WRITE_DATA_AT`] of the request. This length was checked.
    Write {
        handle: u64,
        offset: u64,
        size: u32,
        flags: u32,
    },
    Statistics,
    Release {
        handle: u64,
    },
    Sync {
        handle: u64,
    },
    OpenDirectory,
    ReadDirectory {
        offset: u64,
        size: u32,
    },
    ReleaseDirectory,
    SyncDirectory,
    Allocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    /// Seeks the next data or the next hole.
    Seek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
    /// The request with this `unique` was interrupted. If the answer is EAGAIN, the kernel sends the interrupt again. Otherwise no
    /// answer is needed.
    Interrupt {
        unique: u64,
    },
    /// An operation that is unknown or not supported.
    Other(u32),
}

impl<'a> Request<'a> {
    /// Decodes the bytes of one read.
    ///
    /// # Errors
    /// [`Malformed`] if the length does not fit the operation.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        let none = Malformed {
            unique: 0,
            opcode: 0,
        };
        let (length, opcode) = fields.u32().zip(fields.u32()).ok_or(none)?;
        let unique = fields.u64().ok_or(Malformed { unique: 0, opcode })?;
        let malformed = Malformed { unique, opcode };
        let body = bytes.get(HEADER_BYTES..).ok_or(malformed)?;
        if length as usize != bytes.len() {
            return Err(malformed);
        }
        let header = header(unique, fields).ok_or(malformed)?;
        let operation = operation(opcode, Fields(body)).ok_or(malformed)?;
        Ok(Self { header, operation })
    }
}

fn header(unique: u64, mut fields: Fields<'_>) -> Option<Header> {
    Some(Header {
        unique,
        node: fields.u64()?,
        uid: fields.u32()?,
        gid: fields.u32()?,
        thread: fields.u32()?,
    })
}

fn operation<'a>(opcode: u32, mut body: Fields<'a>) -> Option<Operation<'a>> {
    Some(match opcode {
        1 | 5..=13 | 35 | 45 => names(opcode, body)?,
        2 => Operation::Forget {
            lookups: body.u64()?,
        },
        3 => Operation::GetAttributes,
        4 => Operation::SetAttributes(set_attributes(body)?),
        14 => Operation::Open { flags: body.u32()? },
        15 | 28 => read(opcode, body)?,
        16 => write(body)?,
        17 => Operation::Statistics,
        18 => Operation::Release {
            handle: body.u64()?,
        },
        20 => Operation::Sync {
            handle: body.u64()?,
        },
        26 => Operation::Init {
            major: body.u32()?,
            minor: body.u32()?,
            flags: {
                body.skip(4)?;
                body.u32()?
            },
        },
        27 => Operation::OpenDirectory,
        29 => Operation::ReleaseDirectory,
        30 => Operation::SyncDirectory,
        36 => Operation::Interrupt {
            unique: body.u64()?,
        },
        38 => Operation::Destroy,
        42 => Operation::BatchForget(forgotten(body)?),
        43 => Operation::Allocate {
            handle: body.u64()?,
            offset: body.u64()?,
            length: body.u64()?,
            mode: body.u32()?,
        },
        46 => Operation::Seek {
            handle: body.u64()?,
            offset: body.u64()?,
            whence: body.u32()?,
        },
        other => Operation::Other(other),
    })
}

/// Decodes the operations with names.
fn names<'a>(opcode: u32, mut body: Fields<'a>) -> Option<Operation<'a>> {
    Some(match opcode {
        1 => Operation::Lookup { name: body.name()? },
        5 => Operation::ReadLink,
        6 => Operation::SymLink {
            name: body.name()?,
            target: body.name()?,
        },
        8 => {
            let mode = body.u32()?;
            body.skip(12)?;
            Operation::MakeNode {
                name: body.name()?,
                mode,
            }
        }
        9 => {
            let mode = body.u32()?;
            body.skip(4)?;
            Operation::MakeDirectory {
                name: body.name()?,
                mode,
            }
        }
        10 => Operation::Unlink { name: body.name()? },
        11 => Operation::RemoveDirectory { name: body.name()? },
        12 | 45 => rename(opcode == 45, body)?,
        35 => {
            let (flags, mode) = (body.u32()?, body.u32()?);
            body.skip(8)?;
            Operation::Create {
                name: body.name()?,
                mode,
                flags,
            }
        }
        other => Operation::Other(other),
    })
}

fn rename<'a>(with_flags: bool, mut body: Fields<'a>) -> Option<Operation<'a>> {
    let to_node = body.u64()?;
    let flags = if with_flags { body.u32()? } else { 0 };
    body.skip(if with_flags { 4 } else { 0 })?;
    Some(Operation::Rename {
        name: body.name()?,
        to_node,
        to_name: body.name()?,
        flags,
    })
}

fn read<'a>(opcode: u32, mut body: Fields<'a>) -> Option<Operation<'a>> {
    let (handle, offset, size) = (body.u64()?, body.u64()?, body.u32()?);
    Some(match opcode {
        15 => Operation::Read {
            handle,
            offset,
            size,
        },
        _ => Operation::ReadDirectory { offset, size },
    })
}

/// ```text
///  0  8  handle     16  4  size           24  8  lock owner   36  4  (padding)
///  8  8  offset     20  4  write flags    32  4  open flags   40  -  data
/// ```
fn write<'a>(mut body: Fields<'a>) -> Option<Operation<'a>> {
    let (handle, offset, size) = (body.u64()?, body.u64()?, body.u32()?);
    body.skip(12)?;
    let flags = body.u32()?;
    body.skip(4)?;
    (body.0.len() == size as usize).then_some(Operation::Write {
        handle,
        offset,
        size,
        flags,
    })
}

/// ```text
///  0  4  which      24  8  lock owner     56  4  nanos of atime    68  4  mode
///  8  8  handle     32  8  atime          60  4  nanos of mtime    76  4  uid
/// 16  8  size       40  8  mtime          64  4  nanos of ctime    80  4  gid
/// ```
fn set_attributes(mut body: Fields<'_>) -> Option<SetAttributes> {
    let which = body.u32()?;
    body.skip(12)?;
    let size = body.u64()?;
    body.skip(8)?;
    let (atime, mtime) = (body.u64()? as i64, body.u64()? as i64);
    body.skip(8)?;
    let (atime_nanos, mtime_nanos) = (body.u32()?, body.u32()?);
    body.skip(4)?;
    let mode = body.u32()?;
    body.skip(4)?;
    let (uid, gid) = (body.u32()?, body.u32()?);
    let has = |bit: u32| which & (1 << bit) != 0;
    let time = |bit: u32, now: u32, seconds: i64, nanos: u32| match (has(bit), has(now)) {
        (true, true) => Some(TimeSet::Now),
        (true, false) => Some(TimeSet::At(seconds, nanos)),
        _ => None,
    };
    Some(SetAttributes {
        mode: has(0).then_some(mode),
        uid: has(1).then_some(uid),
        gid: has(2).then_some(gid),
        size: has(3).then_some(size),
        atime: time(4, 7, atime, atime_nanos),
        mtime: time(5, 8, mtime, mtime_nanos),
    })
}

fn forgotten(mut body: Fields<'_>) -> Option<Vec<(u64, u64)>> {
    let count = body.u32()? as usize;
    body.skip(4)?;
    if count > body.0.len() / 16 {
        return None;
    }
    (0..count).map(|_| body.u64().zip(body.u64())).collect()
}
