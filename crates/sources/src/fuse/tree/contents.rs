//! What stands in the files: their sizes, and the windows of what was written last.

use millstream_record::Time;
use rustix::io::Errno;

use super::{CopyState, Kind, Node, Tree, Wrote, window::Window};

/// The largest size a file may get: offsets are signed.
pub(super) const SIZE_MAX: u64 = i64::MAX as u64;

impl Tree {
    /// Cuts or extends a file.
    pub(in crate::fuse) fn resize(&mut self, number: u64, to: u64, now: Time) -> Result<(), Errno> {
        if to > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        let node = self.get_mut(number)?;
        let Kind::File { size, window, copy } = &mut node.kind else {
            return Err(if node.is_directory() {
                Errno::ISDIR
            } else {
                Errno::INVAL
            });
        };
        let before = window.len();
        if to < *size {
            window.truncate(to);
        }
        if to == 0 {
            *copy = CopyState::Open;
        }
        *size = to;
        let after = window.len();
        node.wrote(now);
        self.recent_bytes = self.recent_bytes + after - before;
        Ok(())
    }

    /// Makes a file at least so long, as `fallocate` does.
    pub(in crate::fuse) fn extend(&mut self, number: u64, to: u64, now: Time) -> Result<(), Errno> {
        match &self.get(number)?.kind {
            Kind::File { size, .. } if *size < to => self.resize(number, to, now),
            Kind::File { .. } => Ok(()),
            _ => Err(Errno::BADF),
        }
    }

    /// Bytes were written to a file; says whether they are a copy (see copies.rs). Of those that are `masked` only the newlines can be read again.
    pub(in crate::fuse) fn wrote(
        &mut self,
        number: u64,
        offset: u64,
        data: &[u8],
        masked: bool,
        is_writer: impl Fn(u32) -> bool,
        now: Time,
    ) -> Result<Wrote, Errno> {
        let end = offset.saturating_add(data.len() as u64);
        if end > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        let wrote = self.compare(number, offset, data, is_writer)?;
        let recent = self.recent.file;
        let node = self.get_mut(number)?;
        let Kind::File { size, window, .. } = &mut node.kind else {
            return Err(Errno::BADF);
        };
        let before = window.len();
        if masked {
            // Of a large write the window takes the end.
            let skip = data.len().saturating_sub(recent);
            window.write(offset + skip as u64, &mask(&data[skip..]), recent);
        } else {
            window.write(offset, data, recent);
        }
        *size = (*size).max(end);
        let after = window.len();
        node.wrote(now);
        self.recent_bytes = self.recent_bytes + after - before;
        if self.recent_bytes > self.recent.all {
            self.forget_windows();
        }
        Ok(wrote)
    }

    /// Lets go of the windows of those files that were written longest ago, until a quarter is free.
    fn forget_windows(&mut self) {
        let files = self
            .nodes
            .iter()
            .filter_map(|(number, node)| match &node.kind {
                Kind::File { window, .. } if window.len() > 0 => Some((node.times[1], *number)),
                _ => None,
            });
        let mut files: Vec<_> = files.collect();
        files.sort_unstable();
        for (_, number) in files {
            if self.recent_bytes <= self.recent.all / 4 * 3 {
                break;
            }
            if let Some(Node {
                kind: Kind::File { size, window, .. },
                ..
            }) = self.nodes.get_mut(&number)
            {
                self.recent_bytes -= window.len();
                *window = Window::starting_at(*size);
            }
        }
    }

    /// Reads what is still there of a file. ENODATA: it is too long ago.
    pub(in crate::fuse) fn read(
        &self,
        number: u64,
        offset: u64,
        bytes: u32,
    ) -> Result<Vec<u8>, Errno> {
        match &self.get(number)?.kind {
            Kind::File { size, window, .. } => {
                let end = offset.saturating_add(u64::from(bytes)).min(*size);
                window.read(offset, end).ok_or(Errno::NODATA)
            }
            Kind::Directory(_) => Err(Errno::ISDIR),
            Kind::Link(_) => Err(Errno::INVAL),
        }
    }
}

/// The bytes with all but the newlines hidden.
fn mask(data: &[u8]) -> Vec<u8> {
    let hide = |byte: &u8| if *byte == b'\n' { b'\n' } else { b'*' };
    data.iter().map(hide).collect()
}
