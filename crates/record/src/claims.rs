//! The memory that messages being received may still take from a pool, and whether all of them can be completed.
//!
//! Each message declares its maximum before it begins, and takes memory in steps as its bytes arrive. A step is granted only if all
//! messages can still be completed one after another. The message that needs the least is completed first, with the memory that no message
//! holds. The next one can also use the memory that the first one gives back, and so on (the banker's algorithm). So messages that each
//! hold a part never deadlock, and a message that only announces its size takes nothing from the others.

use std::collections::{BTreeMap, HashMap};

/// The messages being received.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    parts: HashMap<u64, Part>,
    /// The memory that each message holds. The key is the memory that the message may still take, and the number of its claim. So the
    /// messages are sorted by the memory that they may still take.
    by_need: BTreeMap<(usize, u64), usize>,
    /// The memory that all messages hold together.
    held: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    held: usize,
    need: usize,
}

impl Part {
    fn with(self, bytes: usize) -> Self {
        Self {
            held: self.held + bytes,
            need: self.need.saturating_sub(bytes),
        }
    }
}

/// A request of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    bytes: usize,
    /// The memory that the message holds.
    pub(crate) held: usize,
    need: usize,
}

impl Ask {
    /// The memory that the message would hold after this request and everything else that it may still take.
    pub(crate) fn total(&self) -> usize {
        self.held + self.need.max(self.bytes)
    }

    /// Whether this request is at least as hard to grant as `other`: it asks for at least as much, and its message holds at most as much
    /// and may still take at least as much. If `other` is unsafe, this request is unsafe, too.
    pub(crate) fn is_no_easier_than(&self, other: &Self) -> bool {
        self.bytes >= other.bytes && self.held <= other.held && self.need >= other.need
    }
}

impl Claims {
    /// Adds a message that may take `need` bytes.
    pub(crate) fn begin(&mut self, claim: u64, need: usize) {
        self.parts.insert(claim, Part { held: 0, need });
        self.by_need.insert((need, claim), 0);
    }

    /// Removes a message that is complete or was aborted. The pipeline may still use its buffers, whose memory is returned when they are
    /// dropped.
    pub(crate) fn end(&mut self, claim: u64) {
        if let Some(part) = self.parts.remove(&claim) {
            self.by_need.remove(&(part.need, claim));
            self.held -= part.held;
        }
    }

    /// The memory that a message holds.
    pub(crate) fn held(&self, claim: u64) -> usize {
        self.parts.get(&claim).map_or(0, |part| part.held)
    }

    /// Returns the request of a message for `bytes`.
    pub(crate) fn ask(&self, claim: u64, bytes: usize) -> Ask {
        let Part { held, need } = self.parts.get(&claim).copied().unwrap_or_default();
        Ask { bytes, held, need }
    }

    /// Returns whether a message may take `bytes`. It may do so if all messages can still be completed afterwards and together hold at most
    /// `memory`. While no other message holds memory, a message may take more than `memory`.
    pub(crate) fn allows(&mut self, claim: u64, bytes: usize, memory: usize) -> bool {
        let Some(before) = self.parts.get(&claim).copied() else {
            return true;
        };
        let after = before.with(bytes);
        self.set(claim, before, after);
        let fits = self.held <= memory || self.held == after.held;
        let allowed = fits && self.is_safe(memory);
        self.set(claim, after, before);
        allowed
    }

    /// Notes that the message takes `bytes`.
    pub(crate) fn take(&mut self, claim: u64, bytes: usize) {
        if let Some(before) = self.parts.get(&claim).copied() {
            self.set(claim, before, before.with(bytes));
        }
    }

    /// Raises the maximum of a message so that it may take `bytes` more. Returns false, and raises nothing, if the message could then hold
    /// more than `memory`, or if the other messages could then no longer be completed.
    pub(crate) fn extend(&mut self, claim: u64, bytes: usize, memory: usize) -> bool {
        let Some(before) = self.parts.get(&claim).copied() else {
            return true;
        };
        if bytes <= before.need {
            return true;
        }
        if before.held + bytes > memory {
            return false;
        }
        let after = Part {
            need: bytes,
            ..before
        };
        self.set(claim, before, after);
        let safe = self.is_safe(memory);
        if !safe {
            self.set(claim, after, before);
        }
        safe
    }

    /// Notes that the message gives back `bytes`.
    pub(crate) fn give_back(&mut self, claim: u64, bytes: usize) {
        if let Some(before) = self.parts.get(&claim).copied() {
            let after = Part {
                held: before.held - bytes,
                ..before
            };
            self.set(claim, before, after);
        }
    }

    fn set(&mut self, claim: u64, from: Part, to: Part) {
        self.held = self.held + to.held - from.held;
        if from.need != to.need {
            self.by_need.remove(&(from.need, claim));
        }
        self.by_need.insert((to.need, claim), to.held);
        self.parts.insert(claim, to);
    }

    fn is_safe(&self, memory: usize) -> bool {
        let Some(((most, _), _)) = self.by_need.last_key_value() else {
            return true;
        };
        let mut free = memory.saturating_sub(self.held);
        for ((need, _), held) in &self.by_need {
            if free >= *most {
                return true;
            }
            if *need > free {
                return false;
            }
            free += held;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(claims: &mut Claims, claim: u64, bytes: usize) -> bool {
        let allowed = claims.allows(claim, bytes, 48);
        if allowed {
            claims.take(claim, bytes);
        }
        allowed
    }

    #[test]
    fn messages_are_admitted_as_long_as_all_can_be_completed() {
        let mut claims = Claims::default();
        for claim in 0..4 {
            claims.begin(claim, 24);
        }
        // After each of these three steps, the memory that is left completes at least one message.
        assert!((0..3).all(|claim| take(&mut claims, claim, 12)));
        assert!(!take(&mut claims, 3, 1));
        assert!(take(&mut claims, 0, 12));
        claims.end(0);
        assert!(take(&mut claims, 3, 12));
    }

    #[test]
    fn an_announced_size_takes_nothing_from_others() {
        let mut claims = Claims::default();
        for claim in 0..100 {
            claims.begin(claim, 48);
        }
        claims.begin(100, 20);
        assert!(take(&mut claims, 0, 1));
        assert!(!take(&mut claims, 1, 1));
        assert!((0..20).all(|_| take(&mut claims, 100, 1)));
    }

    #[test]
    fn a_message_grows_beyond_its_claim_only_if_all_others_can_still_be_completed() {
        let mut claims = Claims::default();
        claims.begin(0, 10);
        claims.begin(1, 10);
        assert!(take(&mut claims, 0, 10) && take(&mut claims, 1, 10));
        // Message 0 can be completed first.
        assert!(claims.extend(1, 30, 48));
        assert!(!claims.extend(0, 29, 48));
        assert!(claims.extend(0, 28, 48));
        claims.give_back(0, 10);
        claims.end(0);
        // Message 1 is alone now and may take everything.
        assert!(!claims.extend(1, 39, 48));
        assert!(claims.extend(1, 38, 48) && take(&mut claims, 1, 38));
        assert_eq!(claims.held(1), 48);
    }
}
