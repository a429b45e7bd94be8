//! The limits on rejected records: how many bytes a node, and each share of it, may hold. A share is the files of one peer, or those of
//! no peer in particular.

use std::{collections::HashMap, path::Path, sync::Arc};

use millstream_config::{RejectedLimits, Size};

/// When a limit is used to this percentage, the node becomes unhealthy, so that an operator can move files away in time.
const NEARLY_FULL: u64 = 80;
/// At most this many peers of a node have their own files; records of further peers go to the file of the node.
const PEERS_MAX: usize = 1000;
/// The name of a peer is truncated to this many characters.
const PEER_CHARS_MAX: usize = 64;

/// The bytes that a node holds, by share.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// The key is the beginning of the file names: `NODE` or `NODE.peer-PEER`.
    shares: HashMap<String, u64>,
}

impl Usage {
    pub(super) fn of(&self, share: &str) -> u64 {
        self.shares.get(share).copied().unwrap_or(0)
    }

    pub(super) fn total(&self) -> u64 {
        self.shares.values().sum()
    }

    pub(super) fn add(&mut self, share: &str, bytes: u64) {
        *self.shares.entry(share.to_owned()).or_default() += bytes;
    }

    pub(super) fn remove(&mut self, share: &str, bytes: u64) {
        let held = self.shares.entry(share.to_owned()).or_default();
        *held = held.saturating_sub(bytes);
    }

    fn largest(&self) -> Option<&str> {
        let largest = self.shares.iter().max_by_key(|(_, bytes)| **bytes);
        largest.map(|(share, _)| &**share)
    }
}

/// The limits of one node and its peers.
pub(super) struct Shares {
    node: Arc<str>,
    node_max: Size,
    peer_max: Size,
}

/// A limit that would be exceeded.
pub(super) struct Full<'a> {
    node: &'a str,
    /// The share whose oldest files may be removed. If the peer's limit would be exceeded, this is the share of the peer. If the node's
    /// limit would be exceeded, this is the largest share.
    pub(super) largest: String,
    /// The share that needs space.
    share: &'a str,
    option: &'static str,
    limit: Size,
}

impl Full<'_> {
    /// The text for the operator.
    pub(super) fn text(&self, directory: &Path) -> String {
        let Self {
            node,
            option,
            limit,
            ..
        } = self;
        let files = match *option {
            "rejected.peer_max" => self.share,
            _ => node,
        };
        format!(
            "the files {}/{files}.* hold {limit} of rejected records, which is the limit (`{option}`): read them with \
             `millstream rejected cat --node {node}`, then move them elsewhere on this file system",
            directory.display()
        )
    }
}

impl Shares {
    pub(super) fn new(node: &str, limits: &RejectedLimits) -> Self {
        Self {
            node: node.into(),
            node_max: limits.node_max,
            peer_max: limits.peer_max,
        }
    }

    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// Returns the name of the share that gets a peer's records. File names begin with it.
    pub(super) fn name(&self, peer: Option<&str>, usage: &Usage) -> String {
        let Some(peer) = peer else {
            return self.node.to_string();
        };
        // The name has no dots, because dots separate the parts of a file name.
        let plain = |c: char| match c.is_ascii_alphanumeric() || matches!(c, ':' | '-') {
            true => c,
            false => '_',
        };
        let peer: String = peer.chars().take(PEER_CHARS_MAX).map(plain).collect();
        let share = format!("{}.peer-{peer}", self.node);
        match usage.shares.len() < PEERS_MAX || usage.shares.contains_key(&share) {
            true => share,
            false => self.node.to_string(),
        }
    }

    /// Returns the limit that would be exceeded if a share grew by `bytes`; `None` if there is space. A group of records may exceed a
    /// limit if nothing else is there: it would never get more space, so the node would stop forever. `added` is the number of bytes
    /// in `usage` that belong to the same group.
    pub(super) fn full<'a>(
        &'a self,
        share: &'a str,
        bytes: u64,
        usage: &Usage,
        added: u64,
    ) -> Option<Full<'a>> {
        let is_peer = share != &*self.node;
        let exceeds = |used: u64, limit: Size| used + bytes > limit.as_bytes();
        let held = usage.of(share);
        let (largest, option, limit) = if is_peer && held > 0 && exceeds(held, self.peer_max) {
            (share, "rejected.peer_max", self.peer_max)
        } else if usage.total() > added && exceeds(usage.total(), self.node_max) {
            let largest = usage.largest().unwrap_or(share);
            (largest, "rejected.node_max", self.node_max)
        } else {
            return None;
        };
        Some(Full {
            node: &self.node,
            largest: largest.to_owned(),
            share,
            option,
            limit,
        })
    }

    /// Returns the name of the node or share that is nearly full, with its bytes and its limit; `None` if there is none.
    pub(super) fn nearly_full<'a>(&'a self, usage: &'a Usage) -> Option<(&'a str, u64, Size)> {
        let is_near = |bytes: u64, limit: Size| bytes > limit.as_bytes() / 100 * NEARLY_FULL;
        if is_near(usage.total(), self.node_max) {
            return Some((&self.node, usage.total(), self.node_max));
        }
        let shares = usage.shares.iter();
        let (share, bytes) = shares
            .filter(|(share, _)| ***share != *self.node)
            .max_by_key(|(_, bytes)| **bytes)?;
        is_near(*bytes, self.peer_max).then_some((&**share, *bytes, self.peer_max))
    }
}
