//! The chunks that one server was given, in sending order: written, partly written, not begun.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! ```text
//! | written, ack awaited | partly written | not begun |
//! 0                      written (+ offset bytes)     chunks.len()
//! ```
//! The window promises three things. Bytes leave in order. An ack removes only the chunk whose id it carries, and only if that
//! chunk is wholly written. After a rewind (when a connection has ended), the same chunks go out again, byte for byte. The window
//! does no I/O.

use std::{collections::VecDeque, io::IoSlice};

use super::{
    chunk::Chunk,
    flow::{FLOWS, Flow},
};

/// Maximum number of slices in one vectored write. A chunk has three, so about twenty small chunks leave with one system call. More
/// slices (the kernel allows 1024) would save little: larger writes do not fit into the send buffer.
pub(super) const SLICES_MAX: usize = 64;

/// The chunks of one server.
#[derive(Debug)]
pub(super) struct Window {
    chunks: VecDeque<Chunk>,
    /// The sum of [`Chunk::cost`] over all chunks.
    cost: usize,
    /// Number of chunks, from the front, that are wholly written.
    written: usize,
    /// Number of bytes of the next chunk that are written already.
    offset: usize,
    /// A lease is a durable note that a server may have received a chunk. The leases up to this number are durable; a chunk with a
    /// higher `lease` must not go out yet.
    leased: u64,
    /// Number of chunks of each flow (records that `balance: hash` sends to one server, in order).
    flows: [u32; FLOWS],
}

impl Default for Window {
    fn default() -> Self {
        Self {
            chunks: VecDeque::new(),
            cost: 0,
            written: 0,
            offset: 0,
            leased: 0,
            flows: [0; FLOWS],
        }
    }
}

impl Window {
    /// Appends a chunk.
    pub(super) fn push(&mut self, chunk: Chunk) {
        self.cost += chunk.cost();
        if let Some(flow) = chunk.flow {
            self.flows[usize::from(flow)] += 1;
        }
        self.chunks.push_back(chunk);
    }

    /// Whether the window holds a chunk of this flow.
    pub(super) fn holds(&self, flow: Flow) -> bool {
        self.flows[usize::from(flow)] > 0
    }

    /// Subtracts a chunk that has been removed.
    fn subtract(&mut self, chunk: &Chunk) {
        self.cost -= chunk.cost();
        if let Some(flow) = chunk.flow {
            self.flows[usize::from(flow)] -= 1;
        }
    }

    /// Whether a chunk of this cost (approximate memory) fits under the bound. An empty window has room for any chunk.
    pub(super) fn has_room(&self, cost: usize, bytes_max: usize) -> bool {
        self.chunks.is_empty() || self.cost.saturating_add(cost) <= bytes_max
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Whether bytes were written of a chunk that is not acked.
    pub(super) fn has_begun(&self) -> bool {
        self.written > 0 || self.offset > 0
    }

    /// Whether a chunk is written in part.
    pub(super) fn is_amid(&self) -> bool {
        self.offset > 0
    }

    /// Whether there are bytes that may be written now.
    pub(super) fn has_unwritten(&self) -> bool {
        let next = self.chunks.get(self.written);
        next.is_some_and(|chunk| chunk.lease <= self.leased)
    }

    /// Notes that leases up to `serial` are durable, so that their chunks may go out.
    pub(super) fn leased(&mut self, serial: u64) {
        self.leased = serial;
    }

    /// Fills `slices` with the bytes to write next, at most `bytes_max`; returns how many slices are used.
    pub(super) fn unwritten<'a>(&'a self, slices: &mut [IoSlice<'a>], bytes_max: usize) -> usize {
        let (mut used, mut room) = (0, bytes_max);
        let mut skip = self.offset;
        let unwritten = self.chunks.range(self.written..);
        for chunk in unwritten.take_while(|chunk| chunk.lease <= self.leased) {
            for part in chunk.parts() {
                let unwritten = part.get(skip..).unwrap_or_default();
                skip = skip.saturating_sub(part.len());
                if unwritten.is_empty() {
                    continue;
                }
                let Some(slice) = slices.get_mut(used).filter(|_| room > 0) else {
                    return used;
                };
                let unwritten = unwritten.get(..room).unwrap_or(unwritten);
                *slice = IoSlice::new(unwritten);
                room -= unwritten.len();
                used += 1;
            }
        }
        used
    }

    /// Notes that the socket accepted `bytes` more. Calls `whole` for each chunk that is now wholly written.
    pub(super) fn wrote(&mut self, bytes: usize, mut whole: impl FnMut(&Chunk)) {
        self.offset += bytes;
        while let Some(chunk) = self.chunks.get_mut(self.written) {
            chunk.begun |= self.offset > 0;
            if self.offset < chunk.len() {
                return;
            }
            self.offset -= chunk.len();
            self.written += 1;
            whole(chunk);
        }
    }

    /// Removes the written chunk with this id, if there is one.
    pub(super) fn remove_acked(&mut self, id: &[u8]) -> Option<Chunk> {
        // This is nearly always the first chunk, because receivers answer in order.
        let place = self
            .chunks
            .range(..self.written)
            .position(|chunk| chunk.id() == id)?;
        self.remove_written(place)
    }

    /// Removes the first chunk if it is wholly written and has at most `bytes_max` bytes: for peers that do not ack.
    pub(super) fn remove_first_written(&mut self, bytes_max: u64) -> Option<Chunk> {
        let first = self.chunks.front()?;
        if self.written == 0 || first.len() as u64 > bytes_max {
            return None;
        }
        self.remove_written(0)
    }

    /// Starts over after the end of a connection: all chunks go out again on the next connection.
    pub(super) fn rewind(&mut self) {
        self.written = 0;
        self.offset = 0;
        for chunk in &mut self.chunks {
            chunk.again |= chunk.begun;
        }
    }

    /// Whether `is` holds for any chunk.
    pub(super) fn any(&self, is: impl Fn(&Chunk) -> bool) -> bool {
        self.chunks.iter().any(is)
    }

    /// Removes and returns the chunks for which `goes` holds, in order. The remaining chunks go out again from their first byte.
    pub(super) fn release(&mut self, goes: impl Fn(&Chunk) -> bool) -> Vec<Chunk> {
        self.rewind();
        let (gone, stays): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.chunks).into_iter().partition(goes);
        gone.iter().for_each(|chunk| self.subtract(chunk));
        self.chunks = stays.into();
        gone
    }

    /// Removes and returns the chunks of which no byte was ever written.
    pub(super) fn remove_unbegun(&mut self) -> Vec<Chunk> {
        let kept = self.written + usize::from(self.offset > 0);
        let unsent = self.chunks.split_off(kept.min(self.chunks.len()));
        let (stays, gone): (Vec<_>, Vec<_>) = unsent.into_iter().partition(|chunk| chunk.begun);
        gone.iter().for_each(|chunk| self.subtract(chunk));
        self.chunks.extend(stays);
        gone
    }

    fn remove_written(&mut self, place: usize) -> Option<Chunk> {
        let chunk = self.chunks.remove(place)?;
        self.written -= 1;
        self.subtract(&chunk);
        Some(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(window: &Window) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let used = window.unwritten(&mut slices, usize::MAX);
        slices[..used].iter().flat_map(|s| s.to_vec()).collect()
    }

    fn window(ids: &[&str]) -> Window {
        let mut window = Window::default();
        for (number, id) in ids.iter().enumerate() {
            window.push(Chunk::for_test(number as u64, id, b"body"));
        }
        window
    }

    #[test]
    fn bytes_leave_in_order_however_short_the_writes_are() {
        let whole = bytes_of(&window(&["a", "b", "c"]));
        for step in 1..whole.len() {
            let mut window = window(&["a", "b", "c"]);
            let (mut sent, mut done) = (Vec::new(), Vec::new());
            while window.has_unwritten() {
                let next = bytes_of(&window);
                let taken = step.min(next.len());
                sent.extend_from_slice(&next[..taken]);
                window.wrote(taken, |chunk| done.push(chunk.number));
            }
            assert_eq!(sent, whole);
            assert_eq!(done, [0, 1, 2]);
        }
    }

    #[test]
    fn an_ack_removes_only_a_chunk_that_is_wholly_written() {
        let mut window = window(&["a", "b"]);
        let (a, b) = (Chunk::id_for_test("a"), Chunk::id_for_test("b"));
        assert!(window.remove_acked(&a).is_none());
        let first = bytes_of(&window).len() / 2;
        window.wrote(first + 1, |_| ());
        assert!(window.remove_acked(&b).is_none());
        assert_eq!(window.remove_acked(&a).map(|chunk| chunk.number), Some(0));
        assert!(window.remove_acked(&a).is_none());
        window.wrote(first - 1, |_| ());
        assert_eq!(window.remove_acked(&b).map(|chunk| chunk.number), Some(1));
        assert!(window.is_empty());
    }

    #[test]
    fn after_a_rewind_the_same_bytes_go_out_again() {
        let mut window = window(&["a", "b", "c"]);
        let whole = bytes_of(&window);
        let third = whole.len() / 3;
        window.wrote(third * 2 + 3, |_| ());
        window.remove_acked(&Chunk::id_for_test("b")).unwrap();
        window.rewind();
        let mut rest = whole[..third].to_vec();
        rest.extend_from_slice(&whole[third * 2..]);
        assert_eq!(bytes_of(&window), rest);
    }

    #[test]
    fn begun_chunks_can_stay_while_unbegun_chunks_are_released() {
        let mut window = window(&["a", "b", "c"]);
        let third = bytes_of(&window).len() / 3;
        window.wrote(third + 1, |_| ());
        let gone = window.release(|chunk| !chunk.begun);
        assert_eq!(gone.iter().map(|c| c.number).collect::<Vec<_>>(), [2]);
        assert_eq!(bytes_of(&window).len(), 2 * third);
    }

    #[test]
    fn a_single_chunk_always_fits_and_more_only_under_the_bound() {
        let mut window = Window::default();
        assert!(window.has_room(1000, 10));
        window.push(Chunk::for_test(0, "a", b"body"));
        assert!(!window.has_room(1000, 10));
        assert!(window.has_room(1, 2000));
    }
}
