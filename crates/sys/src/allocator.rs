//! The program's allocator: large byte buffers begin in the middle of a page.
//!
//! The kernel copies with `rep movsb`, and so does glibc. On AMD Zen 3 and 4 that instruction is ten times slower when the
//! destination begins 1 to 15 bytes behind the source, both modulo 4096 (glibc's bug 30994; 3 GB/s in place of 30, and
//! bytes 16 to 63 behind it a quarter slower). The other side of a large copy usually begins at the start of a page: a
//! socket's first bytes, a file's page in the cache, the pages of a program that writes to a mount. malloc's large blocks
//! begin 16 bytes behind the start of a page, so a protocol's head of 1 to 15 bytes was enough to hit the slow distances.
//! From the middle of a page they are two thousand bytes away, in both directions.
//!
//! ```text
//! |----------- page -----------|----------- page -----------|--
//!       raw           [raw] buffer ...
//!       as malloc has it ^  ^ 2048 bytes behind the start of a page
//! ```
//!
//! It leaves to others: sources that are known to stand elsewhere in a page ([`crate::disk::read_at`]).

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ops::Range,
    ptr,
};

/// Pages, as the distance between source and destination counts.
pub(crate) const PAGE_BYTES: usize = 4096;
/// A copy to a destination that is this far behind its source, modulo [`PAGE_BYTES`], is slow.
pub(crate) const SLOW_DISTANCES: Range<u64> = 1..16;
/// Where in a page a large buffer begins.
const PLACE_IN_PAGE: usize = PAGE_BYTES / 2;
/// From this size on a buffer is large: a page more costs an eighth, and the time that such a read takes is its copy.
const LARGE_BYTES: usize = 32 << 10;
/// In front of a buffer stands where its block begins.
const HEAD_BYTES: usize = size_of::<usize>();
/// A block is this much larger than its buffer.
const ROOM_BYTES: usize = PAGE_BYTES + HEAD_BYTES;
/// The alignment of a block, for its head.
const BLOCK_ALIGN: usize = align_of::<usize>();

/// The system's allocator, except that byte buffers of 32 KiB and more begin in the middle of a page.
///
/// Install it with `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct MidPage;

/// The layout of the block that holds a large byte buffer; `None`: the system's allocator serves this layout.
fn block(layout: Layout) -> Option<Layout> {
    if layout.align() != 1 || layout.size() < LARGE_BYTES {
        return None;
    }
    // What is too large for a layout with the room is too large for any system.
    Layout::from_size_align(layout.size().checked_add(ROOM_BYTES)?, BLOCK_ALIGN).ok()
}

/// How far behind the start of its block a buffer begins: at most [`ROOM_BYTES`], at least [`HEAD_BYTES`].
fn distance(raw: *mut u8) -> usize {
    let first = raw.addr() + HEAD_BYTES;
    let missing = (PLACE_IN_PAGE + PAGE_BYTES - first % PAGE_BYTES) % PAGE_BYTES;
    HEAD_BYTES + missing
}

/// The buffer in a block, with the block's start in front of it. Null stays null.
///
/// # Safety
/// `raw` is null or begins a block of at least [`ROOM_BYTES`], aligned to [`BLOCK_ALIGN`].
#[allow(unsafe_code)]
unsafe fn place(raw: *mut u8) -> *mut u8 {
    if raw.is_null() {
        return raw;
    }
    // SAFETY: the distance is at most ROOM_BYTES and at least HEAD_BYTES, so the head stands within the block. The place
    // in the page is a multiple of BLOCK_ALIGN, so the head is aligned.
    unsafe {
        let buffer = raw.add(distance(raw));
        buffer.sub(HEAD_BYTES).cast::<*mut u8>().write(raw);
        buffer
    }
}

/// The start of the block that holds a buffer.
///
/// # Safety
/// `buffer` comes from [`place`], and its block is not freed.
#[allow(unsafe_code)]
unsafe fn raw(buffer: *mut u8) -> *mut u8 {
    // SAFETY: `place` wrote it there.
    unsafe { buffer.sub(HEAD_BYTES).cast::<*mut u8>().read() }
}

// SAFETY: layouts that `block` does not name go to `System` unchanged. For the others the block is `System`'s, of the
// layout that `block` gives for the same layout every time; the buffer lies in it with its whole size, as `distance` is at
// most ROOM_BYTES; and every call finds the block's start in front of the buffer. Nothing here allocates or panics.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for MidPage {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise for `layout`; a block is larger than 0.
        unsafe {
            match block(layout) {
                Some(block) => place(System.alloc(block)),
                None => System.alloc(layout),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`. The head stands in front of the buffer, which stays zero.
        unsafe {
            match block(layout) {
                Some(block) => place(System.alloc_zeroed(block)),
                None => System.alloc_zeroed(layout),
            }
        }
    }

    unsafe fn dealloc(&self, buffer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise: `buffer` comes from here with this layout, so `block` decides as it did then.
        unsafe {
            match block(layout) {
                Some(block) => System.dealloc(raw(buffer), block),
                None => System.dealloc(buffer, layout),
            }
        }
    }

    unsafe fn realloc(&self, buffer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise: `size` with this alignment is a layout.
        let larger = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as in `alloc` and `dealloc`. Both buffers lie whole in the moved block (`size` may be the smaller one);
        // they may overlap, which `copy` allows.
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
                    // The system moves whole pages, so this is rare.
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
    fn a_buffer_keeps_its_bytes_and_its_place_while_it_grows_and_shrinks() {
        let mut bytes: Vec<u8> = Vec::new();
        let mut others = Vec::new();
        for step in 0..2_000_u32 {
            bytes.extend(step.to_le_bytes().iter().cycle().take(4096));
            if bytes.capacity() >= LARGE_BYTES {
                assert_eq!(in_page(&bytes), PLACE_IN_PAGE);
            }
            if step % 7 == 0 {
                // Others lie between, so that blocks move.
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
    fn a_buffer_that_is_too_large_for_the_system_is_refused() {
        let mut bytes: Vec<u8> = Vec::new();
        assert!(bytes.try_reserve_exact(isize::MAX as usize - 10).is_err());
        assert!(bytes.try_reserve_exact(isize::MAX as usize).is_err());
    }
}
