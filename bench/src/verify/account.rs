//! Counts the records of one flow: which numbers arrived, how often, and in what order.
//!
//! Each number is a bit in a page, and the memory of a page is freed when all of its bits are set. So the memory in use depends on how
//! many numbers are missing or late, and hardly on the number of records.

use std::ops::Range;

/// Numbers per page: 8 KiB of bits.
const PAGE: u64 = 1 << 16;
/// Only numbers below this limit are in the bitmap. No run of the generator reaches the limit. It bounds the memory of the page table
/// if a record has an absurd number.
pub const SEEN_MAX: u64 = PAGE << 26;

#[derive(Debug)]
enum Page {
    Empty,
    Some { bits: Box<[u64]>, set: u32 },
    Full,
}

/// A set of numbers.
#[derive(Debug, Default)]
pub struct Seen {
    pages: Vec<Page>,
}

impl Seen {
    /// Adds a number below [`SEEN_MAX`]. Returns false if it was in the set already.
    pub fn add(&mut self, number: u64) -> bool {
        let at = (number / PAGE) as usize;
        if at >= self.pages.len() {
            self.pages.resize_with(at + 1, || Page::Empty);
        }
        let page = &mut self.pages[at];
        if matches!(page, Page::Empty) {
            let bits = vec![0; (PAGE / 64) as usize].into_boxed_slice();
            *page = Page::Some { bits, set: 0 };
        }
        let Page::Some { bits, set } = page else {
            return false;
        };
        let within = number % PAGE;
        let word = &mut bits[(within / 64) as usize];
        let bit = 1 << (within % 64);
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        *set += 1;
        if u64::from(*set) == PAGE {
            *page = Page::Full;
        }
        true
    }

    /// The ranges of numbers below `end` that are not in the set, in order.
    pub fn missing(&self, end: u64) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut add = |start: u64, stop: u64| match ranges.last_mut() {
            Some(last) if last.end == start => last.end = stop,
            _ => ranges.push(start..stop),
        };
        for at in 0..end.div_ceil(PAGE) {
            let start = at * PAGE;
            let stop = (start + PAGE).min(end);
            match self.pages.get(at as usize) {
                None | Some(Page::Empty) => add(start, stop),
                Some(Page::Full) => {}
                Some(Page::Some { bits, .. }) => {
                    for number in start..stop {
                        let within = number - start;
                        if bits[(within / 64) as usize] >> (within % 64) & 1 == 0 {
                            add(number, number + 1);
                        }
                    }
                }
            }
        }
        ranges
    }
}

/// The records of one flow that arrived.
#[derive(Debug, Default)]
pub struct Account {
    /// Data records, repeats included.
    pub received: u64,
    /// Data records, each counted once.
    pub distinct: u64,
    /// How often a data record arrived again.
    pub duplicated: u64,
    /// Data records that first arrived after a record with a higher number in the same file.
    pub reordered: u64,
    /// End records, repeats included.
    pub ends: u64,
    /// The count in the first end record; `None` if no end record arrived.
    pub end: Option<u64>,
    /// End records whose count differs from that of the first one.
    pub contradictions: u64,
    /// The highest number + 1; 0 without data records.
    pub above: u64,
    /// Data records whose number is at or above [`SEEN_MAX`].
    pub absurd: u64,
    seen: Seen,
}

impl Account {
    /// Counts a data record. `order` is one more than the highest number of this flow in the current file so far.
    pub fn data(&mut self, number: u64, order: &mut u64) {
        if number >= SEEN_MAX {
            self.absurd += 1;
            return;
        }
        self.received += 1;
        if self.seen.add(number) {
            self.distinct += 1;
            self.reordered += u64::from(number < *order);
        } else {
            self.duplicated += 1;
        }
        *order = (*order).max(number + 1);
        self.above = self.above.max(number + 1);
    }

    /// Counts an end record.
    pub fn finish(&mut self, count: u64) {
        self.ends += 1;
        let known = *self.end.get_or_insert(count);
        self.contradictions += u64::from(known != count);
    }

    /// The ranges below `sent` that did not arrive.
    pub fn missing(&self, sent: u64) -> Vec<Range<u64>> {
        self.seen.missing(sent.min(SEEN_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_numbers_are_found_at_the_edges_of_pages() {
        let mut seen = Seen::default();
        let holes = [0, 63, 64, PAGE - 1, PAGE, 3 * PAGE - 1];
        for number in (0..3 * PAGE).filter(|number| !holes.contains(number)) {
            assert!(seen.add(number));
        }
        let expect = [0..1, 63..65, PAGE - 1..PAGE + 1, 3 * PAGE - 1..3 * PAGE];
        assert_eq!(seen.missing(3 * PAGE), expect);
        assert_eq!(
            seen.missing(3 * PAGE + 5).last(),
            Some(&(3 * PAGE - 1..3 * PAGE + 5))
        );
        for hole in holes {
            assert!(seen.add(hole));
            assert!(!seen.add(hole));
        }
        assert_eq!(seen.missing(3 * PAGE), []);
        assert!(seen.pages.iter().all(|page| matches!(page, Page::Full)));
    }

    #[test]
    fn repeats_and_late_records_are_distinguished() {
        let mut account = Account::default();
        let mut order = 0;
        for number in [0, 1, 3, 2, 3, 4, 1] {
            account.data(number, &mut order);
        }
        assert_eq!((account.received, account.distinct), (7, 5));
        assert_eq!((account.duplicated, account.reordered), (2, 1));
        assert_eq!(account.missing(7).len(), 1);
        assert_eq!(account.missing(7)[0], 5..7);
    }
}
