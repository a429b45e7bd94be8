//! The chunks that one server has been given, in the order they go out: written, being written, waiting.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! ```text
//! | written, ack awaited | partly written | not begun |
//! 0                      written (+ offset bytes)     chunks.len()
//! ```
//! It promises that bytes leave in order, that an ack takes out exactly the written chunk with its id, and that after a
//! rewind the same chunks go out again, byte for byte. It does no I/O.

use std::{collections::VecDeque, io::IoSlice};

use super::{
    chunk::Chunk,
    flow::{FLOWS, Flow},
};

/// How many slices one vectored write takes: three a chunk, so some twenty small chunks leave with one system call. More
/// (the kernel takes 1024) would not be cheaper: by then the write is as long as the send buffer.
pub(super) const SLICES_MAX: usize = 64;

/// The chunks of one server.
#[derive(Debug)]
pub(super) struct Window {
    chunks: VecDeque<Chunk>,
    /// What its chunks cost together.
    cost: usize,
    /// How many, from the front, are wholly written.
    written: usize,
    /// Bytes of the next one that are written.
    offset: usize,
    /// Leases are durable up to this number: chunks beyond it must not go out.
    leased: u64,
    /// How many of them belong to each flow.
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
    /// Takes in a chunk, to be written behind all others.
    pub(super) fn push(&mut self, chunk: Chunk) {
        self.cost += chunk.cost();
        if let Some(flow) = chunk.flow {
            self.flows[usize::from(flow)] += 1;
        }
        self.chunks.push_back(chunk);
    }

    /// Whether a chunk of this flow is in it.
    pub(super) fn holds(&self, flow: Flow) -> bool {
        self.flows[usize::from(flow)] > 0
    }

    /// A chunk has been taken out.
    fn out(&mut self, chunk: &Chunk) {
        self.cost -= chunk.cost();
        if let Some(flow) = chunk.flow {
            self.flows[usize::from(flow)] -= 1;
        }
    }

    /// Whether a chunk of this cost fits under the bound; one chunk fits always.
    pub(super) fn has_room(&self, cost: usize, bytes_max: usize) -> bool {
        self.chunks.is_empty() || self.cost.saturating_add(cost) <= bytes_max
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Whether bytes wait to be written.
    pub(super) fn has_unwritten(&self) -> bool {
        let next = self.chunks.get(self.written);
        next.is_some_and(|chunk| chunk.lease <= self.leased)
    }

    /// Leases up to this number are durable.
    pub(super) fn leased(&mut self, serial: u64) {
        self.leased = serial;
    }

    /// The bytes to be written next, as many as there are places in `slices`; returns how many places are used.
    pub(super) fn unwritten<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut used = 0;
        let mut skip = self.offset;
        let unwritten = self.chunks.range(self.written..);
        for chunk in unwritten.take_while(|chunk| chunk.lease <= self.leased) {
            for part in chunk.parts() {
                let rest = part.get(skip..).unwrap_or_default();
                skip = skip.saturating_sub(part.len());
                if rest.is_empty() {
                    continue;
                }
                let Some(slice) = slices.get_mut(used) else {
                    return used;
                };
                *slice = IoSlice::new(rest);
                used += 1;
            }
        }
        used
    }

    /// The peer's socket took `bytes` more. Calls `whole` for each chunk that is wholly written with it.
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

    /// Takes out the written chunk with this id; None if there is no such chunk.
    pub(super) fn acked(&mut self, id: &[u8]) -> Option<Chunk> {
        // Nearly always the first: receivers answer in order.
        let place = self
            .chunks
            .range(..self.written)
            .position(|chunk| chunk.id() == id)?;
        self.take(place)
    }

    /// Takes out the first chunk if it is wholly written: for a peer that does not ack.
    pub(super) fn first_written(&mut self) -> Option<Chunk> {
        if self.written == 0 {
            return None;
        }
        self.take(0)
    }

    /// The connection is gone: everything goes out again on the next one, from the first byte.
    pub(super) fn rewind(&mut self) {
        self.written = 0;
        self.offset = 0;
        for chunk in &mut self.chunks {
            chunk.again |= chunk.begun;
        }
    }

    /// Whether there is such a chunk.
    pub(super) fn any(&self, is: impl Fn(&Chunk) -> bool) -> bool {
        self.chunks.iter().any(is)
    }

    /// Gives up the chunks that `goes` picks, in order; what stays goes out again from its first byte.
    pub(super) fn release(&mut self, goes: impl Fn(&Chunk) -> bool) -> Vec<Chunk> {
        self.rewind();
        let (gone, stays): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.chunks).into_iter().partition(goes);
        gone.iter().for_each(|chunk| self.out(chunk));
        self.chunks = stays.into();
        gone
    }

    /// Takes out the chunks of which nothing was ever written.
    pub(super) fn take_unbegun(&mut self) -> Vec<Chunk> {
        let kept = self.written + usize::from(self.offset > 0);
        let rest = self.chunks.split_off(kept.min(self.chunks.len()));
        let (stays, gone): (Vec<_>, Vec<_>) = rest.into_iter().partition(|chunk| chunk.begun);
        gone.iter().for_each(|chunk| self.out(chunk));
        self.chunks.extend(stays);
        gone
    }

    fn take(&mut self, place: usize) -> Option<Chunk> {
        let chunk = self.chunks.remove(place)?;
        self.written -= 1;
        self.out(&chunk);
        Some(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(window: &Window) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let used = window.unwritten(&mut slices);
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
    fn bytes_leave_in_order_whatever_a_write_takes() {
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
    fn an_ack_takes_out_only_what_is_wholly_written() {
        let mut window = window(&["a", "b"]);
        let (a, b) = (Chunk::id_for_test("a"), Chunk::id_for_test("b"));
        assert!(window.acked(&a).is_none());
        let first = bytes_of(&window).len() / 2;
        window.wrote(first + 1, |_| ());
        assert!(window.acked(&b).is_none());
        assert_eq!(window.acked(&a).map(|chunk| chunk.number), Some(0));
        assert!(window.acked(&a).is_none());
        window.wrote(first - 1, |_| ());
        assert_eq!(window.acked(&b).map(|chunk| chunk.number), Some(1));
        assert!(window.is_empty());
    }

    #[test]
    fn after_a_rewind_the_same_bytes_go_out_again() {
        let mut window = window(&["a", "b", "c"]);
        let whole = bytes_of(&window);
        let third = whole.len() / 3;
        window.wrote(third * 2 + 3, |_| ());
        window.acked(&Chunk::id_for_test("b")).unwrap();
        window.rewind();
        let mut rest = whole[..third].to_vec();
        rest.extend_from_slice(&whole[third * 2..]);
        assert_eq!(bytes_of(&window), rest);
    }

    #[test]
    fn what_was_begun_can_stay_while_the_rest_goes() {
        let mut window = window(&["a", "b", "c"]);
        let third = bytes_of(&window).len() / 3;
        window.wrote(third + 1, |_| ());
        let gone = window.release(|chunk| !chunk.begun);
        assert_eq!(gone.iter().map(|c| c.number).collect::<Vec<_>>(), [2]);
        assert_eq!(bytes_of(&window).len(), 2 * third);
    }

    #[test]
    fn one_chunk_fits_always_and_more_under_the_bound() {
        let mut window = Window::default();
        assert!(window.has_room(1000, 10));
        window.push(Chunk::for_test(0, "a", b"body"));
        assert!(!window.has_room(1000, 10));
        assert!(window.has_room(1, 2000));
    }
}
