//! Rewrites one record according to the plan of an edit. The plan is a tree of the field names that the edit changes.
//!
//! One walk over the record's top-level pairs finds those that the plan names; the bytes between them are copied
//! unchanged. Nested maps are walked only if the plan names a field in them.

use super::{MISSING, REPEATS_MAX, Reason, plan::Level, value::Values};
use crate::{
    condition::named::Pair, msgpack::is_map, record::TimedRecord, room::Room, template::Shared,
};

/// The plan of an edit, the values of `set`, and the state of the current record.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    plan: Level,
    values: Values,
    state: State,
}

/// The state of the current record.
#[derive(Clone, Debug, Default)]
struct State {
    /// The pairs that the plan names, as a stack: the pairs of the map that is being written are at the end, those of
    /// its parent maps before them.
    pairs: Vec<Pair>,
    /// For each rename, the start and end of the field's value in the record; [`MISSING`] if the record does not have
    /// the field.
    moved: Vec<(usize, usize)>,
}

/// The parts of the plan that apply to a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// All parts.
    Full,
    /// All parts except renames of fields in this map. A rename has moved the map here, and renames apply only to fields
    /// at their original place.
    Moved,
    /// Only `remove` and `keep`. This mode is for a value of `set`. If a key is repeated, it is also for all values of the
    /// key except the first one.
    Strip,
}

/// The value of a field before the changes inside it.
#[derive(Clone, Copy, Debug)]
enum Base {
    /// The value that the field has in the map.
    Own(Pair),
    /// The value that the rename with this index moves here.
    Moved(usize),
    Absent,
}

/// The buffers to which offsets refer, and the values of `set`.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    /// The buffer with the map that is being read: the record or the encoded values of `set`.
    body: &'a [u8],
    /// The record, which contains the values of renamed fields.
    record: &'a [u8],
    values: &'a Values,
}

/// The pairs of a map that is being read.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    /// The number of pairs.
    count: u32,
    /// The offset of the first pair.
    start: usize,
    /// The offset after the last pair.
    end: usize,
    /// The index in `State::pairs` of the first pair of this map that the plan names.
    first: usize,
}

impl Engine {
    pub(super) fn new(plan: Level, values: Values, renames: usize) -> Self {
        Self {
            plan,
            values,
            state: State {
                pairs: Vec::new(),
                moved: vec![(MISSING, MISSING); renames],
            },
        }
    }

    pub(super) fn begin(&mut self, shared: Shared<'_>) -> Result<(), Reason> {
        Ok(self.values.begin(shared)?)
    }

    /// Writes the map at `at` with its changes and returns the offset after the map. After an error, the caller must
    /// remove the partial output.
    #[inline]
    pub(super) fn record(
        &mut self,
        body: &[u8],
        at: usize,
        shared: Shared<'_>,
        record: TimedRecord<'_>,
        room: &mut Room<'_>,
    ) -> Result<usize, Reason> {
        self.values.record(shared, record)?;
        let state = &mut self.state;
        state.pairs.clear();
        state.moved.fill((MISSING, MISSING));
        let own = state.walk(&mut self.plan, body, at)?;
        if self.plan.sources {
            state.find_sources(&mut self.plan, body, own.first)?;
        }
        let bytes = Bytes {
            body,
            record: body,
            values: &self.values,
        };
        state.map(&mut self.plan, bytes, own, Mode::Full, room)?;
        Ok(own.end)
    }
}

impl State {
    /// Pushes to `State::pairs` those pairs of the map at `at` whose keys `level` names. A level is the plan for one map.
    #[inline]
    fn walk(&mut self, level: &mut Level, body: &[u8], at: usize) -> Result<Own, Reason> {
        let first = self.pairs.len();
        let mut room = REPEATS_MAX;
        let pairs = &mut self.pairs;
        let walked = level.named.walk(body, at, |pair| {
            if room > 0 {
                pairs.push(pair);
            }
            room = room.saturating_sub(1);
        });
        let (count, end) = walked.ok_or(Reason::Malformed)?;
        if room == 0 {
            return Err(Reason::Repeated);
        }
        let (_, start) = crate::condition::named::map_at(body, at).ok_or(Reason::Malformed)?;
        Ok(Own {
            count,
            start,
            end,
            first,
        })
    }

    /// Stores the ranges of the values of renamed fields in `State::moved`. If a key is repeated, the first
    /// occurrence counts.
    fn find_sources(&mut self, level: &mut Level, body: &[u8], first: usize) -> Result<(), Reason> {
        let mut seen = 0_u64;
        for index in first..self.pairs.len() {
            let (Some(&pair), true) = (self.pairs.get(index), level.sources) else {
                break;
            };
            let Some(node) = level.nodes.get_mut(pair.name) else {
                break;
            };
            if seen >> pair.name & 1 == 1 {
                continue;
            }
            seen |= 1 << pair.name;
            if let Some(moved) = node.source.and_then(|index| self.moved.get_mut(index)) {
                *moved = (pair.value, pair.end);
            }
            if let Some(below) = node.below.as_mut().filter(|below| below.sources)
                && is_map_at(body, pair.value)
            {
                let own = self.walk(below, body, pair.value)?;
                self.find_sources(below, body, own.first)?;
                self.pairs.truncate(own.first);
            }
        }
        Ok(())
    }

    fn moved(&self, rename: usize) -> Option<(usize, usize)> {
        let moved = self.moved.get(rename).copied();
        moved.filter(|(at, _)| *at != MISSING)
    }

    /// Writes a map whose pairs [`State::walk`] has pushed. Returns the number of pairs written.
    #[inline]
    fn map(
        &mut self,
        level: &mut Level,
        bytes: Bytes<'_>,
        own: Own,
        mode: Mode,
        room: &mut Room<'_>,
    ) -> Result<u32, Reason> {
        let most = own.count.saturating_add(level.nodes.len() as u32);
        let head = room.position();
        room.bytes(match most {
            0..16 => &[0x80][..],
            16..0x1_0000 => &[0xde, 0, 0],
            _ => &[0xdf, 0, 0, 0, 0],
        });
        let count = self.pairs_of(level, bytes, own, mode, room)?;
        self.pairs.truncate(own.first);
        match most {
            0..16 => room.patch(head, &[0x80 | count as u8]),
            16..0x1_0000 => room.patch(head + 1, &(count as u16).to_be_bytes()),
            _ => room.patch(head + 1, &count.to_be_bytes()),
        }
        Ok(count)
    }

    /// Writes the pairs of a map: the existing pairs in their order, then the new ones.
    fn pairs_of(
        &mut self,
        level: &mut Level,
        bytes: Bytes<'_>,
        own: Own,
        mode: Mode,
        room: &mut Room<'_>,
    ) -> Result<u32, Reason> {
        let last = self.pairs.len();
        let mut count = match level.keeps {
            true => 0,
            false => own.count - (last - own.first) as u32,
        };
        // Bit sets of the names seen in the map and of the names written, and the end of the copied bytes.
        let (mut seen, mut done, mut copied) = (0_u64, 0_u64, own.start);
        for index in own.first..last {
            let Some(&pair) = self.pairs.get(index) else {
                break;
            };
            if !level.keeps {
                room.bytes(bytes.body.get(copied..pair.key).unwrap_or_default());
            }
            copied = pair.end;
            let bit = 1 << pair.name;
            let is_first = seen & bit == 0;
            seen |= bit;
            let Some(node) = level.nodes.get(pair.name) else {
                break;
            };
            let source = node.source.filter(|_| mode == Mode::Full);
            let source = source.filter(|rename| self.moved(*rename).is_some());
            let target = node.target.filter(|_| mode != Mode::Strip);
            let target = target.filter(|(rename, _)| self.moved(*rename).is_some());
            if !is_first {
                let is_changed = source.is_some() || target.is_some() || node.set.is_some();
                if !is_changed || mode == Mode::Strip {
                    count +=
                        self.put(level, pair.name, bytes, Base::Own(pair), Mode::Strip, room)?;
                }
                continue;
            }
            match (source, target) {
                (Some(rename), _) => {
                    if let Some(sibling) = node.sibling {
                        done |= 1 << sibling;
                        count +=
                            self.put(level, sibling, bytes, Base::Moved(rename), mode, room)?;
                    }
                }
                // Another field of this map is renamed to this name. The renamed field keeps its place in the map, and the old
                // value of this name is dropped.
                (None, Some((_, true))) => {}
                (None, Some((rename, false))) => {
                    done |= bit;
                    count += self.put(level, pair.name, bytes, Base::Moved(rename), mode, room)?;
                }
                (None, None) => {
                    done |= bit;
                    count += self.put(level, pair.name, bytes, Base::Own(pair), mode, room)?;
                }
            }
        }
        if !level.keeps {
            room.bytes(bytes.body.get(copied..own.end).unwrap_or_default());
        }
        if mode != Mode::Strip && done.count_ones() as usize != level.nodes.len() {
            count += self.put_new(level, bytes, done, mode, room)?;
        }
        Ok(count)
    }

    /// Writes the fields that `rename` or `set` adds to the map, except those in the bit set `done`.
    fn put_new(
        &mut self,
        level: &mut Level,
        bytes: Bytes<'_>,
        done: u64,
        mode: Mode,
        room: &mut Room<'_>,
    ) -> Result<u32, Reason> {
        let mut count = 0;
        for index in 0..level.nodes.len() {
            let Some(node) = level.nodes.get(index) else {
                break;
            };
            if done >> index & 1 == 1 || node.removed {
                continue;
            }
            let target = node.target.map(|(rename, _)| rename);
            let base = match target.filter(|rename| self.moved(*rename).is_some()) {
                Some(rename) => Base::Moved(rename),
                None => Base::Absent,
            };
            let below = node.below.as_ref();
            let is_new = matches!(base, Base::Moved(_))
                || node.set.is_some()
                || below.is_some_and(|below| below.creates(&self.moved));
            if is_new {
                count += self.put(level, index, bytes, base, mode, room)?;
            }
        }
        Ok(count)
    }

    /// Writes the field with this index in the plan, with all changes inside it. Returns the number of pairs written: 0 or 1.
    #[inline]
    fn put(
        &mut self,
        level: &mut Level,
        index: usize,
        bytes: Bytes<'_>,
        base: Base,
        mode: Mode,
        room: &mut Room<'_>,
    ) -> Result<u32, Reason> {
        let Some(node) = level.nodes.get_mut(index).filter(|node| !node.removed) else {
            return Ok(0);
        };
        let mut key = &*node.key;
        let (from, at, end, mode) = match (node.set, base) {
            (Some(set), _) if mode != Mode::Strip => {
                let range = bytes.values.range(set);
                (bytes.values.encoded(), range.start, range.end, Mode::Strip)
            }
            (_, Base::Moved(rename)) => {
                let (at, end) = self.moved(rename).unwrap_or_default();
                (bytes.record, at, end, Mode::Moved)
            }
            (_, Base::Own(pair)) => {
                key = bytes.body.get(pair.key..pair.value).unwrap_or_default();
                (bytes.body, pair.value, pair.end, mode)
            }
            (_, Base::Absent) => (bytes.body, 0, 0, mode),
        };
        let Some(below) = &mut node.below else {
            room.bytes(key);
            room.bytes(from.get(at..end).unwrap_or_default());
            return Ok(1);
        };
        let is_map = at < end && is_map_at(from, at);
        if !is_map && (mode == Mode::Strip || !below.creates(&self.moved)) {
            if below.keeps {
                return Ok(0);
            }
            room.bytes(key);
            room.bytes(from.get(at..end).unwrap_or_default());
            return Ok(1);
        }
        let start = room.position();
        room.bytes(key);
        let own = match is_map {
            true => self.walk(below, from, at)?,
            false => Own {
                first: self.pairs.len(),
                ..Own::default()
            },
        };
        let bytes = Bytes {
            body: from,
            ..bytes
        };
        let count = self.map(below, bytes, own, mode, room)?;
        if below.keeps && count == 0 {
            room.back_to(start);
            return Ok(0);
        }
        Ok(1)
    }
}

fn is_map_at(body: &[u8], at: usize) -> bool {
    body.get(at).is_some_and(|marker| is_map(*marker))
}
