//! Sends one request until the server has accepted or refused every item of it.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! ```text
//! request -> accepted
//!         -> failed: sent again unchanged, after a back-off
//!         -> refused: several items are split into halves, which are sent separately; a single item is refused finally
//!         -> bulk: the items that failed are sent again without the others; if the answer is too long, both halves are sent again
//! ```
//! A delivery promises that each item is accepted, or refused with a reason, unless the process stops first. A single bad record can
//! cause the statuses 400, 413 and 422. With these statuses, a good item is refused together with a bad one only after [`SPLITS_MAX`]
//! consecutive splits without an accepted item. A refusal with any other status applies to all items that were sent together. The lane
//! ([`super::relay`]) sends the records of refused items to the sink's port `rejected`.

use std::{rc::Rc, time::Duration};

use millstream_pipeline::{condition::Condition, meters::Meter, node::SinkContext};

use super::{
    answer::{Answer, Verdict},
    bulk,
    client::{Client, Part},
    request::Request,
    success::Success,
};
use crate::sending::{Outage, Retry, Then};

/// Maximum number of consecutive splits without an accepted item. After that, a refused piece is not split further. Otherwise a
/// server that refuses everything would receive a request for every record.
const SPLITS_MAX: u32 = 64;
/// Maximum number of redirections that a request follows.
const MOVES_MAX: u32 = 5;

/// Shared by all requests of a lane.
pub(super) struct Sender {
    pub(super) client: Client,
    pub(super) url: String,
    pub(super) again: Vec<u16>,
    pub(super) success: Success,
    pub(super) retry: Retry,
    /// With `framing: bulk`: whether this sink makes the documents' ids. `None`: another framing.
    pub(super) bulk: Option<bool>,
    /// Whether the records come from a durable channel, which keeps them until they are settled.
    pub(super) durable: bool,
    pub(super) context: SinkContext,
    /// Raised if the server accepts nothing of a request and a single bad record is not the cause (with a 404, for example). Cleared
    /// when the server accepts a request.
    pub(super) refused: Condition,
    pub(super) meters: Meters,
}

/// The meters of requests.
#[derive(Clone)]
pub(super) struct Meters {
    pub(super) sent: Meter,
    pub(super) resent: Meter,
    pub(super) there: Meter,
    pub(super) dropped: Meter,
}

/// A request that is finished.
pub(super) struct Finished {
    pub(super) request: Request,
    /// Items that the server refuses. Each entry holds items that are refused for the same reason, and the reason.
    pub(super) refused: Vec<(Vec<u32>, String)>,
    /// The server accepted nothing, and a single bad record is not the cause.
    pub(super) hopeless: bool,
    /// The process stopped before the server had accepted or refused every item.
    pub(super) stopped: bool,
}

/// Items that are sent together.
struct Piece {
    items: Vec<u32>,
    /// Suffix for the request's `Idempotency-Key`, so that each piece has its own key.
    name: String,
    /// The number of answers that refused some of the items for now.
    answers: u32,
}

impl Piece {
    /// The suffix for the request's `Idempotency-Key`. It changes with each answer, because the server could otherwise repeat its
    /// answer to the earlier body.
    fn key(&self) -> String {
        match self.answers {
            0 => self.name.clone(),
            answers => format!("{}.r{answers}", self.name),
        }
    }
}

/// A request in flight.
struct Delivery<'a> {
    sender: &'a Sender,
    request: &'a Request,
    path: String,
    moves: u32,
    /// Splits since the server accepted something.
    splits: u32,
    pieces: Vec<Piece>,
    refused: Vec<(Vec<u32>, String)>,
    outage: Outage,
    tries: u32,
    /// The server accepted something. With `framing: bulk`, this is also set if an answer to `_bulk` refuses single items.
    accepted: bool,
    /// The server refused something for a reason that does not depend on records.
    not_for_a_record: bool,
}

/// Sends a request until it is finished.
pub(super) async fn deliver(sender: Rc<Sender>, request: Request) -> Finished {
    let mut outage = Outage::new(&sender.retry, &sender.context, sender.durable, "server");
    outage.start_clock();
    let mut delivery = Delivery {
        sender: &sender,
        request: &request,
        path: request.target.path.clone(),
        moves: 0,
        splits: 0,
        pieces: vec![Piece {
            items: request.all(),
            name: String::new(),
            answers: 0,
        }],
        refused: Vec::new(),
        outage,
        tries: 0,
        accepted: false,
        not_for_a_record: false,
    };
    let mut stopped = false;
    while let Some(piece) = delivery.pieces.pop() {
        if !delivery.piece(piece).await {
            stopped = true;
            break;
        }
    }
    let refused = std::mem::take(&mut delivery.refused);
    let several = request.all().len() > 1;
    let hopeless = !delivery.accepted && (delivery.not_for_a_record || several);
    Finished {
        request,
        refused,
        hopeless,
        stopped,
    }
}

impl Delivery<'_> {
    /// Sends a piece until it is finished or split. After a split, its two halves are the next pieces. Returns `false` if the process
    /// stops.
    async fn piece(&mut self, mut piece: Piece) -> bool {
        let packing = &self.sender.client.packing;
        let mut body = packing.body(self.request, &piece.items);
        loop {
            self.count();
            let key = self.request.key.as_ref();
            let part = Part {
                request: self.request,
                path: &self.path,
                key: key.map(|key| format!("{key}{}", piece.key())),
                body: body.clone(),
            };
            let (wait, why): (Option<Duration>, String) =
                match self.sender.client.exchange(&part).await {
                    Err(why) => (None, why),
                    Ok(answer) => match answer.verdict(&self.sender.again, &self.sender.success) {
                        Verdict::Done if piece.items.len() > 1 && self.is_unread(&answer) => {
                            self.split(piece);
                            return true;
                        }
                        Verdict::Done => match self.done(&answer, &piece) {
                            Ok(None) => return true,
                            Ok(Some((failed, why))) => {
                                piece.items = failed;
                                piece.answers += 1;
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
                            None => {
                                let text = "not followed; change `url`";
                                let why = format!("{} (redirect to {to}, {text})", answer.status);
                                (None, why)
                            }
                        },
                        Verdict::Again(wait, why) => (wait, why),
                        Verdict::Refused { why, parts } => {
                            self.refuse(piece, why, parts);
                            return true;
                        }
                    },
                };
            let why = self.request.masked(&piece.items, why);
            let text = format_args!("{}: {why}", self.sender.url);
            match self.outage.retry(text, wait.unwrap_or_default()).await {
                Then::Retry => {}
                Then::GiveUp => {
                    let why = format!("no server took it within `retry.give_up`: {why}");
                    self.refused.push((piece.items, why));
                    return true;
                }
                Then::Stop => return false,
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

    /// Handles a 2xx answer. With `framing: bulk` some items may have failed: returns the items to retry, and why the first of these
    /// failed. `None`: no item is to be retried.
    fn done(
        &mut self,
        answer: &Answer,
        piece: &Piece,
    ) -> Result<Option<(Vec<u32>, String)>, String> {
        let Some(ours) = self.sender.bulk else {
            self.progressed();
            self.partial(answer);
            return Ok(None);
        };
        let sorted = bulk::sort(&answer.body, &piece.items, &self.sender.again, ours)?;
        if sorted.again.len() < piece.items.len() {
            self.progressed();
        }
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

    /// Whether an answer is too long to learn the outcome of each item. Answers to fewer items are shorter.
    fn is_unread(&self, answer: &Answer) -> bool {
        if answer.whole || self.sender.bulk.is_none() {
            return false;
        }
        let url = &self.sender.url;
        let text = format_args!(
            "{url}: the answer to `_bulk` is too long to be read, so the documents are sent again in halves; add \
             `filter_path=errors,items.*.status,items.*.error` to `url`, or reduce `batch.size`"
        );
        self.sender.context.reporter.warn("answer", text);
        true
    }

    /// Notes that the server has finished at least one item.
    fn progressed(&mut self) {
        self.outage.progressed();
        self.accepted = true;
        self.sender.refused.clear();
        self.splits = 0;
    }

    /// Reports OTLP's partial success: the server has dropped some records and does not say which.
    fn partial(&self, answer: &Answer) {
        if let Some((count, why)) = self.sender.client.packing.partial(&answer.body) {
            self.sender.meters.dropped.add(count);
            let why = self.request.masked(&self.request.all(), why);
            let url = &self.sender.url;
            let text =
                format_args!("{url} accepted a request and dropped {count} records of it: {why}");
            self.sender.context.reporter.error("partial", text);
        }
    }

    /// Returns the path of a redirection, or `None` if it is not followed.
    fn moved(&mut self, to: &str) -> Option<String> {
        self.moves += 1;
        let path = self.sender.client.site.redirected(to)?;
        (self.moves <= MOVES_MAX).then_some(path)
    }

    /// Handles a refused piece: notes its items as refused, or splits the piece into halves if the server may accept one of the halves.
    fn refuse(&mut self, piece: Piece, why: String, parts: bool) {
        self.not_for_a_record |= !parts;
        if !parts || piece.items.len() < 2 || self.splits >= SPLITS_MAX {
            self.refused.push((piece.items, why));
            return;
        }
        self.splits += 1;
        self.split(piece);
    }

    /// Replaces a piece by its halves.
    fn split(&mut self, mut piece: Piece) {
        let key = piece.key();
        let second = piece.items.split_off(piece.items.len() / 2);
        // The first half goes out next, so it is pushed last.
        self.pieces.push(Piece {
            items: second,
            name: format!("{key}.1"),
            answers: 0,
        });
        self.pieces.push(Piece {
            items: piece.items,
            name: format!("{key}.0"),
            answers: 0,
        });
    }
}
