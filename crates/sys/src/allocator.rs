//! The program's allocator: large byte buffers begin in the middle of a page.
//!
//! The kernel and glibc copy with `rep movsb`. On AMD Zen 3 and 4 that instruction is ten times slower when the destination begins 1 to 15
//! bytes after the source, both modulo 4096 (glibc bug 30994: 3 GB/s instead of 30; at 16 to 63 bytes it is a quarter slower). In a large
//! copy into or out of a buffer, the other side usually begins at the start of a page: it is the first bytes of a socket, a page of a file
//! in the cache, or the pages of a program that writes to a mount. malloc's large blocks begin 16 bytes after the start of a page, so a
//! protocol header of 1 to 15 bytes in front of the payload was enough to hit a slow distance. If the buffer begins in the middle of a
//! page instead, the slow distances are about 2000 bytes away in both directions.
//!
//! ```text
//! |----------- page -----------|----------- page -----------|--
//!       raw           [raw] buffer ...
//!  malloc would begin it ^  ^ 2048 bytes after the start of a page
//! ```
//!
//! This does not help if the source of a copy begins in the middle of a page. Callers that know the source's offset choose the destination
//! themselves, such as [`crate::disk::read_at`].

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ops::Range,
    ptr,
};

/// The page size. Distances between source and destination are taken modulo this size.
pub(crate) const PAGE_BYTES: usize = 4096;
/// A copy to a destination that begins this many bytes after the source, modulo [`PAGE_BYTES`], is slow.
pub(crate) const SLOW_DISTANCES: Range<u64> = 1..16;
/// The offset in a page at which a large buffer begins.
const PLACE_IN_PAGE: usize = PAGE_BYTES / 2;
/// The smallest buffer that begins in the middle of a page. For this size the extra page adds an eighth of memory, and copying dominates
/// the time of a read, so the alignment pays.
const LARGE_BYTES: usize = 32 << 10;
/// The size of the head in front of each buffer: a pointer to the start of its block.
const HEAD_BYTES: usize = size_of::<usize>();
/// The difference in size between a block and its buffer.
const ROOM_BYTES: usize = PAGE_BYTES + HEAD_BYTES;
/// The alignment of a block, for its head.
const BLOCK_ALIGN: usize = align_of::<usize>();

/// The system's allocator, except that byte buffers of 32 KiB and more begin in the middle of a page.
///
/// Install it with `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct MidPage;

/// The layout of the block for a large byte buffer; `None` if the system's allocator serves this layout directly.
fn block(layout: Layout) -> Option<Layout> {
    if layout.align() != 1 || layout.size() < LARGE_BYTES {
        return None;
    }
    // A size that overflows a layout here is larger than any system can allocate.
    Layout::from_size_align(layout.size().checked_add(ROOM_BYTES)?, BLOCK_ALIGN).ok()
}

/// The distance of a buffer from the start of its block: at least [`HEAD_BYTES`], at most [`ROOM_BYTES`].
fn distance(raw: *mut u8) -> usize {
    let first = raw.addr() + HEAD_BYTES;
    let missing = (PLACE_IN_PAGE + PAGE_BYTES - first % PAGE_BYTES) % PAGE_BYTES;
    HEAD_BYTES + missing
}

/// Returns the buffer in a block, and writes the block's start in front of it. Null stays null.
///
/// # Safety
/// `raw` is null or the start of a block of at least [`ROOM_BYTES`], aligned to [`BLOCK_ALIGN`].
#[allow(unsafe_code)]
unsafe fn place(raw: *mut u8) -> *mut u8 {
    if raw.is_null() {
        return raw;
    }
    // SAFETY: the distance is between HEAD_BYTES and ROOM_BYTES, so the head is within the block. The buffer's offset in the
    // page is a multiple of BLOCK_ALIGN, so the head is aligned.
    unsafe {
        let buffer = raw.add(distance(raw));
        buffer.sub(HEAD_BYTES).cast::<*mut u8>().write(raw);
        buffer
    }
}

/// Returns the start of the block that holds a buffer.
///
/// # Safety
/// `buffer` came from [`place`], and its block is not freed.
#[allow(unsafe_code)]
unsafe fn raw(buffer: *mut u8) -> *mut u8 {
    // SAFETY: `place` wrote the pointer there.
    unsafe { buffer.sub(HEAD_BYTES).cast::<*mut u8>().read() }
}

// SAFETY: layouts for which `block` returns `None` are passed to `System` unchanged. For the others, the block comes from
// `System` with the layout that `block` returns, which is the same on every call. The whole buffer is inside the block, because
// `distance` is at most ROOM_BYTES, and every call finds the block's start in front of the buffer. Nothing here allocates or
// panics.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for MidPage {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees a layout of non-zero size; a block is larger still.
        unsafe {
            match block(layout) {
                Some(block) => place(System.alloc(block)),
                None => System.alloc(layout),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`. The head is in front of the buffer, which stays zeroed.
        unsafe {
            match block(layout) {
                Some(block) => place(System.alloc_zeroed(block)),
                None => System.alloc_zeroed(layout),
            }
        }
    }

    unsafe fn dealloc(&self, buffer: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees that `buffer` came from this allocator with this layout, so `block` returns the same as when the
        // buffer was allocated.
        unsafe {
            match block(layout) {
                Some(block) => System.dealloc(raw(buffer), block),
                None => System.dealloc(buffer, layout),
            }
        }
    }

    unsafe fn realloc(&self, buffer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that `size` with this alignment is a valid layout.
        let larger = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as in `alloc` and `dealloc`. `copy` moves the smaller of the old and the new size. Source and
        // destination are both inside the moved block. They may overlap, which `copy` allows.
        unsafe {
            match (block(layout), block(larger)) {
                (None, None) => System.realloc(buffer, layout, size),
                (Some(before), Some(after)) => {
                    let from = raw(buffer);
                    let was = buffer.addr() - from.addr();
                    let to = System.realloc(from, before, after.size());
                    if to.is_null() {
                        return to;
                    }
                    let is = distance(to);
                    // Rarely needed: the system usually moves whole pages, so the distance stays the same.
                    if is != was {
                        ptr::copy(to.add(was), to.add(is), layout.size().min(size));
                    }
                    place(to)
                }
                _ => {
                    let moved = self.alloc(larger);
                    if !moved.is_null() {
                        ptr::copy_nonoverlapping(buffer, moved, layout.size().min(size));
                        self.dealloc(buffer, layout);
                    }
                    moved
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: MidPage = MidPage;

    fn in_page(bytes: &[u8]) -> usize {
        bytes.as_ptr().addr() % PAGE_BYTES
    }

    #[test]
    fn large_byte_buffers_begin_in_the_middle_of_a_page() {
        for size in [
            LARGE_BYTES,
            LARGE_BYTES + 1,
            64 << 10,
            100_001,
            1 << 20,
            9 << 20,
        ] {
            let empty = Vec::<u8>::with_capacity(size);
            let zeroed = vec![0_u8; size];
            assert_eq!(in_page(&empty), PLACE_IN_PAGE, "{size}");
            assert_eq!(in_page(&zeroed), PLACE_IN_PAGE, "{size}");
            assert!(zeroed.iter().all(|byte| *byte == 0), "{size}");
        }
    }

    #[test]
    fn a_buffer_keeps_its_bytes_and_its_offset_in_the_page_while_it_grows_and_shrinks() {
        let mut bytes: Vec<u8> = Vec::new();
        let mut others = Vec::new();
        for step in 0..2_000_u32 {
            bytes.extend(step.to_le_bytes().iter().cycle().take(4096));
            if bytes.capacity() >= LARGE_BYTES {
                assert_eq!(in_page(&bytes), PLACE_IN_PAGE);
            }
            if step % 7 == 0 {
                // Other blocks in between force this one to move.
                others.push(vec![step as u8; 40_000 + step as usize]);
            }
        }
        let holds = |bytes: &[u8]| {
            bytes
                .chunks(4096)
                .zip(0_u32..)
                .all(|(page, step)| page.chunks(4).all(|four| four == step.to_le_bytes()))
        };
        assert!(holds(&bytes));
        for pages in [1_900, 300, 20, 8, 7, 1] {
            bytes.truncate(pages * 4096);
            bytes.shrink_to_fit();
            assert!(holds(&bytes));
            if bytes.capacity() >= LARGE_BYTES {
                assert_eq!(in_page(&bytes), PLACE_IN_PAGE);
            }
        }
        let whole = others
            .iter()
            .zip((0_u32..).step_by(7))
            .all(|(other, step)| other.iter().all(|byte| *byte == step as u8));
        assert!(whole);
    }

    #[test]
    fn a_buffer_that_no_system_can_allocate_is_refused() {
        let mut bytes: Vec<u8> = Vec::new();
        assert!(bytes.try_reserve_exact(isize::MAX as usize - 10).is_err());
        assert!(bytes.try_reserve_exact(isize::MAX as usize).is_err());
    }
}
