//! Chooses the server of the next chunk: round robin by weight, with standbys in place of servers that have failed. This module
//! does no I/O.

/// The facts about a server that decide whether it gets the next chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Share of the chunks relative to the weights of the other servers; a server with weight 0 gets no chunks.
    pub(super) weight: u32,
    /// The server gets chunks only while it has to replace the weight of servers that have failed.
    pub(super) standby: bool,
    /// The server could not be reached, or its connection broke, and it has not recovered since then.
    pub(super) failed: bool,
    /// The server is connected and has room for the chunk.
    pub(super) ready: bool,
}

/// Deals chunks to servers. A server is identified by its index in the list.
#[derive(Debug)]
pub(super) struct Choice {
    credits: Vec<i64>,
}

impl Choice {
    pub(super) fn new(servers: usize) -> Self {
        Self {
            credits: vec![0; servers],
        }
    }

    /// Returns the index of the server for the next chunk, or None while no server is ready. Smooth weighted round robin: every
    /// ready server gains credit equal to its weight; the server with the most credit gets the chunk and loses credit equal to the
    /// sum of these weights.
    pub(super) fn next(&mut self, servers: &[Candidate]) -> Option<usize> {
        let wanted = wanted(servers);
        let mut total = 0;
        let mut best: Option<usize> = None;
        for (place, server) in servers.iter().enumerate() {
            if !(server.ready && wanted[place]) {
                continue;
            }
            total += i64::from(server.weight);
            self.credits[place] += i64::from(server.weight);
            if best.is_none_or(|best| self.credits[place] > self.credits[best]) {
                best = Some(place);
            }
        }
        self.credits[best?] -= total;
        best
    }
}

/// Returns for each server whether it takes part. All servers that are not standbys take part. Standbys take part in the order of
/// the list, until they replace the weight of the failed servers; a failed standby replaces no weight. A server with weight 0
/// never takes part.
pub(super) fn wanted(servers: &[Candidate]) -> Vec<bool> {
    let failed = servers.iter().filter(|s| s.failed && !s.standby);
    let mut lost: u64 = failed.map(|server| u64::from(server.weight)).sum();
    let takes_part = |server: &Candidate| {
        if server.weight == 0 || !server.standby {
            return server.weight > 0;
        }
        let needed = lost > 0;
        if !server.failed {
            lost = lost.saturating_sub(u64::from(server.weight));
        }
        needed
    };
    servers.iter().map(takes_part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: Candidate = Candidate {
        weight: 60,
        standby: false,
        failed: false,
        ready: true,
    };
    const FAILED: Candidate = Candidate {
        failed: true,
        ready: false,
        ..UP
    };
    const STANDBY: Candidate = Candidate {
        standby: true,
        ..UP
    };

    fn deal(servers: &[Candidate], chunks: usize) -> Vec<usize> {
        let mut choice = Choice::new(servers.len());
        let mut counts = vec![0; servers.len()];
        for _ in 0..chunks {
            counts[choice.next(servers).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn chunks_are_dealt_by_weight() {
        let heavy = Candidate { weight: 120, ..UP };
        assert_eq!(deal(&[heavy, UP], 9), [6, 3]);
        assert_eq!(deal(&[UP, UP, UP], 9), [3, 3, 3]);
    }

    #[test]
    fn a_server_with_weight_zero_gets_no_chunks() {
        let never = Candidate { weight: 0, ..UP };
        assert_eq!(deal(&[never, UP], 5), [0, 5]);
        assert_eq!(Choice::new(1).next(&[never]), None);
    }

    #[test]
    fn a_standby_gets_chunks_only_while_another_server_has_failed() {
        assert_eq!(deal(&[UP, STANDBY], 4), [4, 0]);
        assert_eq!(deal(&[FAILED, STANDBY, STANDBY], 4), [0, 4, 0]);
        assert_eq!(wanted(&[FAILED, FAILED, STANDBY, STANDBY]), [true; 4]);
    }

    #[test]
    fn a_standby_that_failed_replaces_no_weight() {
        let failed = Candidate {
            standby: true,
            ..FAILED
        };
        assert_eq!(wanted(&[FAILED, failed, STANDBY]), [true; 3]);
        assert_eq!(deal(&[FAILED, failed, STANDBY], 4), [0, 0, 4]);
    }

    #[test]
    fn a_server_that_is_not_ready_is_skipped() {
        let busy = Candidate { ready: false, ..UP };
        assert_eq!(deal(&[busy, UP], 3), [0, 3]);
        assert_eq!(Choice::new(2).next(&[busy, busy]), None);
    }
}
