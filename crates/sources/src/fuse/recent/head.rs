//! The head of a spill: the name and the attributes of its file, so that the file is in the mount again after a restart.
//!
//! ```text
//!  0  8  magic                      24  4  user                 36  4  1 for a symbolic link
//!  8  4  CRC-32C of all that follows  28  4  group               40  -  path, then the link's target
//! 12  4  length of all that follows  32  4  length of the path
//! 16  4  permissions
//! 20  4  (zero)
//! ```
//!
//! All numbers are little-endian. The head of a file whose name was removed is zero.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use millstream_sys::checksum::crc32c;

/// The space for a head at the start of a spill. The content follows. A path and a link's target take at most 4,096 bytes each.
pub(super) const HEAD_BYTES: u64 = 16 << 10;
/// Also names the version of the format.
const MAGIC: &[u8; 8] = b"MSSPILL1";
const FIXED_BYTES: usize = 40;

/// The name and the attributes of a file or a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::fuse) struct Head {
    /// The path below the mount point.
    pub path: PathBuf,
    /// The target, if this is a symbolic link.
    pub target: Option<OsString>,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Head {
    /// The encoded head. `None` if it is too long; the file is then not in the mount after a restart.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let path = self.path.as_os_str().as_bytes();
        let target = self.target.as_deref().map_or(&b""[..], OsStr::as_bytes);
        let length = FIXED_BYTES + path.len() + target.len();
        if length as u64 > HEAD_BYTES {
            return None;
        }
        let mut bytes = Vec::with_capacity(length);
        let numbers = [
            self.mode,
            0,
            self.uid,
            self.gid,
            path.len() as u32,
            u32::from(self.target.is_some()),
        ];
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&((length - 16) as u32).to_le_bytes());
        bytes.extend(numbers.into_iter().flat_map(u32::to_le_bytes));
        bytes.extend_from_slice(path);
        bytes.extend_from_slice(target);
        let checksum = crc32c(&bytes[16..]).to_le_bytes();
        bytes[8..12].copy_from_slice(&checksum);
        Some(bytes)
    }

    /// Decodes the first bytes of a spill. `None` if its file has no name, or if the head is damaged.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| {
            let four = bytes.get(at..at + 4)?;
            Some(u32::from_le_bytes(four.try_into().ok()?))
        };
        let length = number(12)? as usize;
        let rest = bytes.get(16..16 + length)?;
        if bytes.get(..8)? != MAGIC || number(8)? != crc32c(rest) {
            return None;
        }
        let (path, target) = bytes
            .get(FIXED_BYTES..16 + length)?
            .split_at_checked(number(32)? as usize)?;
        let is_link = number(36)? != 0;
        Some(Self {
            path: Path::new(OsStr::from_bytes(path)).to_owned(),
            target: is_link.then(|| OsStr::from_bytes(target).to_owned()),
            mode: number(16)?,
            uid: number(24)?,
            gid: number(28)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written_and_a_damaged_one_is_not() {
        let mut head = Head {
            path: "app/x.log".into(),
            target: None,
            mode: 0o640,
            uid: 7,
            gid: 8,
        };
        for target in [None, Some("../\u{e9}".into())] {
            head.target = target;
            let bytes = head.encode().unwrap();
            let mut padded = bytes.clone();
            padded.resize(HEAD_BYTES as usize, 0);
            assert_eq!(Head::decode(&padded), Some(head.clone()));
            for at in [0, 9, 13, 17, 30, bytes.len() - 1] {
                let mut damaged = padded.clone();
                damaged[at] ^= 1;
                assert_eq!(Head::decode(&damaged), None, "{at}");
            }
            assert_eq!(Head::decode(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(Head::decode(&[0; HEAD_BYTES as usize]), None);
        head.path = "x/".repeat(HEAD_BYTES as usize).into();
        assert_eq!(head.encode(), None);
    }
}
