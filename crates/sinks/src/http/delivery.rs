//! One request, until the server has taken or refused every item of it.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! ```text
//! whole request -> done
//!               -> again, as it is, after a while
//!               -> refused: one item -> to be rejected; more -> each half by itself
//!               -> bulk: what is to be sent again goes by itself
//! ```
//! It promises that an item is either taken, or refused with its reason, or waits; and that a good one is not refused with
//! a bad one, unless [`SPLITS_MAX`] cuts in a row were in vain. It leaves to the relay: what becomes of those that are refused.

use std::{rc::Rc, time::Duration};

use millstream_pipeline::{
    condition::{Condition, Trouble},
    meters::Meter,
    report::Reporter,
    stop::Stop,
};
use tokio::time::{Instant, sleep};

use super::{
    answer::{Answer, Verdict},
    bulk,
    client::{Client, Part},
    request::Request,
};
use crate::{backoff::Backoff, retry::Retry};

/// A request is cut in halves so often, without the server taking any of them, to find what it refuses. What is left then
/// is refused together: a server that refuses everything is not asked for every record of it.
const SPLITS_MAX: u32 = 64;
/// So many redirections are followed.
const MOVES_MAX: u32 = 5;

/// What all requests of a lane share.
pub(super) struct Sender {
    pub(super) client: Client,
    pub(super) url: String,
    pub(super) again: Vec<u16>,
    pub(super) retry: Retry,
    /// `framing: bulk`, and documents have ids of ours.
    pub(super) bulk: Option<bool>,
    /// Whether what is not sent can wait for the next start.
    pub(super) durable: bool,
    pub(super) stop: Stop,
    pub(super) reporter: Reporter,
    /// Holds from a request of which the server took nothing, for which no single record can be the cause (401, 404 ...), until
    /// it takes one.
    pub(super) refused: Condition,
    pub(super) meters: Meters,
}

#[derive(Clone)]
pub(super) struct Meters {
    pub(super) sent: Meter,
    pub(super) resent: Meter,
    pub(super) there: Meter,
    pub(super) dropped: Meter,
}

/// A request that is through.
pub(super) struct Finished {
    pub(super) request: Request,
    /// Items that are refused for good, each group with its reason.
    pub(super) refused: Vec<(Vec<u32>, String)>,
    /// The server took nothing of it, and one bad record cannot be the cause.
    pub(super) hopeless: bool,
    /// The process wants to end, and the server did not take all of it.
    pub(super) left: bool,
}

/// Items that are still to be sent together.
struct Piece {
    items: Vec<u32>,
    /// Behind the request's key: which piece it is.
    name: String,
}

/// A request on its way.
struct Delivery<'a> {
    sender: &'a Sender,
    request: &'a Request,
    path: String,
    moves: u32,
    /// Cuts since the server took something.
    splits: u32,
    pieces: Vec<Piece>,
    refused: Vec<(Vec<u32>, String)>,
    backoff: Backoff,
    since: Instant,
    tries: u32,
    /// It took something.
    taken: bool,
    /// It refused something for what no record can be the cause of.
    not_for_a_record: bool,
    /// Holds while the request is retried.
    failing: Option<Condition>,
}

/// Sends a request until it is through.
pub(super) async fn deliver(sender: Rc<Sender>, request: Request) -> Finished {
    let (first, max) = (sender.retry.first, sender.retry.max);
    let mut delivery = Delivery {
        sender: &sender,
        request: &request,
        path: request.target.path.clone(),
        moves: 0,
        splits: 0,
        pieces: vec![Piece {
            items: request.all(),
            name: String::new(),
        }],
        refused: Vec::new(),
        backoff: Backoff::new(first.as_duration(), max.as_duration(), request.number),
        since: Instant::now(),
        tries: 0,
        taken: false,
        not_for_a_record: false,
        failing: None,
    };
    let mut left = false;
    while let Some(piece) = delivery.pieces.pop() {
        if !delivery.piece(piece).await {
            left = true;
            break;
        }
    }
    let refused = std::mem::take(&mut delivery.refused);
    let several = request.all().len() > 1;
    let hopeless = !delivery.taken && (delivery.not_for_a_record || several);
    Finished {
        request,
        refused,
        hopeless,
        left,
    }
}

impl Delivery<'_> {
    /// Sends a piece until it is through, or in parts that are sent next. False: the process wants to end.
    async fn piece(&mut self, mut piece: Piece) -> bool {
        let packing = &self.sender.client.packing;
        let mut body = packing.body(self.request, &piece.items);
        loop {
            self.count();
            let key = self.request.key.as_ref();
            let part = Part {
                request: self.request,
                path: &self.path,
                key: key.map(|key| format!("{key}{}", piece.name)),
                body: body.clone(),
            };
            let (wait, why) = match self.sender.client.exchange(&part).await {
                Err(why) => (None, why),
                Ok(answer) => match answer.verdict(&self.sender.again) {
                    Verdict::Done => match self.done(&answer, &piece) {
                        Ok(None) => return true,
                        Ok(Some((again, why))) => {
                            piece.items = again;
                            body = packing.body(self.request, &piece.items);
                            (answer.retry_after(), why)
                        }
                        Err(why) => (None, why),
                    },
                    Verdict::Moved(to) => match self.moved(&to) {
                        Some(path) => {
                            self.path = path;
                            continue;
                        }
                        None => (None, format!("{} (to {to}: set `url`)", answer.status)),
                    },
                    Verdict::Again(wait, why) => (wait, why),
                    Verdict::Refused { why, parts } => {
                        self.refuse(piece, why, parts);
                        return true;
                    }
                },
            };
            if self.is_too_late() {
                let why = format!("no server took it within `retry.give_up`: {why}");
                self.refused.push((piece.items, why));
                return true;
            }
            if !self.rest(wait, &why).await {
                return false;
            }
        }
    }

    fn count(&mut self) {
        let meters = &self.sender.meters;
        match self.tries {
            0 => meters.sent.add(1),
            _ => meters.resent.add(1),
        }
        self.tries = self.tries.saturating_add(1);
    }

    /// The server has taken it. Of `bulk` items may have to go again: which, and why.
    fn done(
        &mut self,
        answer: &Answer,
        piece: &Piece,
    ) -> Result<Option<(Vec<u32>, String)>, String> {
        self.backoff.reset();
        self.taken = true;
        self.sender.refused.clear();
        self.splits = 0;
        let Some(ours) = self.sender.bulk else {
            self.partial(answer);
            return Ok(None);
        };
        let sorted = bulk::sort(&answer.body, &piece.items, &self.sender.again, ours)?;
        self.sender.meters.there.add(sorted.there);
        for (item, why) in sorted.refused {
            match self.refused.last_mut() {
                Some((items, last)) if *last == why => items.push(item),
                _ => self.refused.push((vec![item], why)),
            }
        }
        let why = sorted.why.unwrap_or_default();
        Ok((!sorted.again.is_empty()).then_some((sorted.again, why)))
    }

    /// OTLP's partial success: the server has dropped some, and does not say which.
    fn partial(&self, answer: &Answer) {
        if let Some((count, why)) = self.sender.client.packing.partial(&answer.body) {
            self.sender.meters.dropped.add(count);
            let url = &self.sender.url;
            let text =
                format_args!("{url} took a request and dropped {count} records of it: {why}");
            self.sender.reporter.error("partial", text);
        }
    }

    fn moved(&mut self, to: &str) -> Option<String> {
        self.moves += 1;
        let path = self.sender.client.site.redirected(to)?;
        (self.moves <= MOVES_MAX).then_some(path)
    }

    /// The server refuses a piece: as a whole if it is one item, else each half is tried by itself.
    fn refuse(&mut self, mut piece: Piece, why: String, parts: bool) {
        self.not_for_a_record |= !parts;
        if !parts || piece.items.len() < 2 || self.splits >= SPLITS_MAX {
            self.refused.push((piece.items, why));
            return;
        }
        self.splits += 1;
        let second = piece.items.split_off(piece.items.len() / 2);
        // The last of them goes out next.
        self.pieces.push(Piece {
            items: second,
            name: format!("{}.1", piece.name),
        });
        self.pieces.push(Piece {
            items: piece.items,
            name: format!("{}.0", piece.name),
        });
    }

    fn is_too_late(&self) -> bool {
        let limit = self.sender.retry.give_up.0;
        limit.is_some_and(|limit| self.since.elapsed() >= limit)
    }

    /// Waits before the next try. False: the process wants to end, and a durable channel keeps what is left.
    async fn rest(&mut self, at_least: Option<Duration>, why: &str) -> bool {
        let wait = self.backoff.failed().max(at_least.unwrap_or_default());
        let (url, seconds) = (&self.sender.url, wait.as_secs_f64());
        let text = format_args!("{url}: {why}; next try in {seconds:.1} s");
        let reporter = &self.sender.reporter;
        self.failing
            .get_or_insert_with(|| reporter.condition("server"))
            .raise(Trouble::Retrying, text);
        let mut stop = self.sender.stop.clone();
        tokio::select! {
            () = stop.stopped(), if self.sender.durable => false,
            () = sleep(wait) => true,
        }
    }
}
