//! Encodes the answers to the kernel.

use super::{MAJOR, MINOR};

/// The number of bytes before the body of an answer.
const HEADER_BYTES: usize = 16;

/// The attributes of a node (a file or directory).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The number of the node.
    pub node: u64,
    /// The size in bytes.
    pub size: u64,
    /// The times of the last read, write and change: seconds and nanoseconds since 1970.
    pub times: [(i64, u32); 3],
    /// Type and permissions.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The size in bytes of the pieces in which programs should write.
    pub block_bytes: u32,
}

/// The result of `statfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// The size of a block in bytes.
    pub block_bytes: u32,
    /// Number of all blocks, and of free ones.
    pub blocks: (u64, u64),
    /// Number of all nodes, and of free ones.
    pub nodes: (u64, u64),
    /// The longest name in bytes.
    pub name_bytes_max: u32,
}

fn put32(out: &mut Vec<u8>, numbers: &[u32]) {
    for number in numbers {
        out.extend_from_slice(&number.to_ne_bytes());
    }
}

fn put64(out: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        out.extend_from_slice(&number.to_ne_bytes());
    }
}

/// The header of an answer with a body of `body_bytes` bytes. `error` is an error number, or 0.
pub fn header(unique: u64, error: i32, body_bytes: usize) -> [u8; HEADER_BYTES] {
    let length = u32::try_from(HEADER_BYTES + body_bytes).unwrap_or(u32::MAX);
    let mut out = [0; HEADER_BYTES];
    let (start, unique_at) = out.split_at_mut(8);
    start[..4].copy_from_slice(&length.to_ne_bytes());
    start[4..].copy_from_slice(&(-error).to_ne_bytes());
    unique_at.copy_from_slice(&unique.to_ne_bytes());
    out
}

/// A message to the kernel: it sends again all requests that were read and not answered. Kernels before 6.9 refuse it with EINVAL.
/// The numbers of these requests have the highest bit set, and the answers must have it, too.
pub fn resend() -> [u8; HEADER_BYTES] {
    const RESEND: i32 = 7;
    // Messages that are no answers have the number 0, and their code is not negated.
    header(0, -RESEND, 0)
}

/// The answer to INIT: the requested capabilities, and the largest write.
///
/// ```text
///  0  4  major          16  2  background max    24  4  time granularity   32  4  more flags
///  4  4  minor          18  2  congestion        28  2  pages max          36 28  (unused)
///  8  4  read-ahead     20  4  write max         30  2  (alignment)
/// 12  4  flags
/// ```
pub fn init(flags: u32, write_bytes_max: u32, page_bytes: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    put32(&mut out, &[MAJOR, MINOR, 0, flags, 0, write_bytes_max, 1]);
    let pages = write_bytes_max.div_ceil(page_bytes.max(1));
    let pages = u16::try_from(pages).unwrap_or(u16::MAX);
    out.extend_from_slice(&pages.to_ne_bytes());
    out.resize(64, 0);
    out
}

fn put_attributes(out: &mut Vec<u8>, of: &Attributes) {
    put64(out, &[of.node, of.size, of.size.div_ceil(512)]);
    put64(out, &of.times.map(|(seconds, _)| seconds as u64));
    put32(out, &of.times.map(|(_, nanos)| nanos));
    put32(
        out,
        &[of.mode, of.links, of.uid, of.gid, 0, of.block_bytes, 0],
    );
}

/// The answer to GETATTR and SETATTR. The kernel may cache it for `seconds` seconds.
pub fn attributes(of: &Attributes, seconds: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(104);
    put64(&mut out, &[seconds, 0]);
    put_attributes(&mut out, of);
    out
}

/// The answer to LOOKUP and to the operations that create a node. The kernel knows the node as `number`, and may cache the name for
/// `name_seconds` and the attributes for `seconds`.
pub fn entry(of: &Attributes, number: u64, name_seconds: u64, seconds: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    put64(&mut out, &[number, 0, name_seconds, seconds, 0]);
    put_attributes(&mut out, of);
    out
}

/// The answer to OPEN and OPENDIR.
pub fn opened(handle: u64, flags: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(16);
    put64(&mut out, &[handle]);
    put32(&mut out, &[flags, 0]);
    out
}

/// The answer to CREATE.
pub fn created(
    of: &Attributes,
    name_seconds: u64,
    seconds: u64,
    handle: u64,
    flags: u32,
) -> Vec<u8> {
    let mut out = entry(of, of.node, name_seconds, seconds);
    out.extend(opened(handle, flags));
    out
}

/// The answer to WRITE.
pub fn written(bytes: u32) -> [u8; 8] {
    let mut out = [0; 8];
    out[..4].copy_from_slice(&bytes.to_ne_bytes());
    out
}

/// The answer to LSEEK.
pub fn sought(offset: u64) -> [u8; 8] {
    offset.to_ne_bytes()
}

/// The answer to STATFS.
pub fn statistics(of: &FileSystem) -> Vec<u8> {
    let mut out = Vec::with_capacity(80);
    let ((blocks, free), (nodes, free_nodes)) = (of.blocks, of.nodes);
    put64(&mut out, &[blocks, free, free, nodes, free_nodes]);
    put32(
        &mut out,
        &[of.block_bytes, of.name_bytes_max, of.block_bytes],
    );
    out.resize(80, 0);
    out
}

/// The answer to READDIR: as many entries as fit.
#[derive(Debug)]
pub struct Entries {
    out: Vec<u8>,
    bytes_max: usize,
}

impl Entries {
    /// An empty answer of at most `bytes_max` bytes.
    pub fn new(bytes_max: u32) -> Self {
        Self {
            out: Vec::new(),
            bytes_max: bytes_max as usize,
        }
    }

    /// Adds an entry. A later request whose offset is `next` continues after this entry. Returns false, and adds nothing, if the
    /// entry does not fit.
    ///
    /// ```text
    /// 0  8  node     16  4  length of the name     24  -  name, zeros to the next multiple of 8
    /// 8  8  next     20  4  type
    /// ```
    pub fn add(&mut self, node: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        let bytes = (24 + name.len()).next_multiple_of(8);
        if self.out.len() + bytes > self.bytes_max {
            return false;
        }
        let end = self.out.len() + bytes;
        put64(&mut self.out, &[node, next]);
        let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
        put32(&mut self.out, &[length, (mode >> 12) & 15]);
        self.out.extend_from_slice(name);
        self.out.resize(end, 0);
        true
    }

    /// The encoded entries.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }
}
