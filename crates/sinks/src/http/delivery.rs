//! Sends one request until the server has accepted or refused every item of it.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! ```text
//! request -> accepted
//!         -> failed: sent again unchanged, after a back-off
//!         -> failed again and again with the same status: divided, to find out whether a record is at fault (`stuck.rs`)
//!         -> refused: several items are split into halves, which are sent separately; a single item is refused finally
//!         -> bulk: the items that failed are sent again without the others; if the answer is too long, both halves are sent again
//! ```
//! A delivery promises that each item is accepted, or refused with a reason, unless the process stops first. A single bad record can
//! cause the statuses 400, 413 and 422. With these statuses, a good item is refused together with a bad one only after [`SPLITS_MAX`]
//! consecutive splits without an accepted item. A refusal with any other status applies to all items that were sent together, and is
//! retried for `refuse_after` first. The lane
//! ([`super::relay`]) sends the records of refused items to the sink's port `rejected`.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millstream_pipeline::{condition::Condition, meters::Meter, node::SinkContext};

use super::{
    answer::{Answer, Verdict},
    bulk,
    client::{Client, Part},
    patience::Patience,
    request::Request,
    stuck::{Blame, EQUAL_MAX, Piece},
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
    /// How long refusals are retried that concern whole requests.
    pub(super) patience: Patience,
    /// The number of answers of this lane by which the server has accepted something.
    pub(super) accepted: Cell<u64>,
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

/// The outcome of one attempt.
enum Attempt {
    Finished,
    /// Accepted, but the answer is too long to learn the outcome of each item.
    Unread,
    Moved,
    Failed(Failed),
    /// With `framing: bulk`: the items that failed; the others are finished.
    Left(Vec<u32>, Failed),
    /// `parts`: whether the server may accept some of the items.
    Refused {
        why: String,
        parts: bool,
    },
}

/// A failure after which the same items are sent again.
struct Failed {
    /// How long the server asks to wait.
    wait: Option<Duration>,
    why: String,
    /// The status, if a record may have caused it.
    status: Option<u16>,
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self {
            wait: None,
            why,
            status: None,
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
    /// The pieces to send; the last one is next.
    pieces: Vec<Piece>,
    /// Single items that got the same answer again, although they are alone. They are sent again after all other pieces.
    aside: Vec<Piece>,
    /// The answer to the last of them.
    aside_why: String,
    /// How much the server had accepted when the request first got the same answer too often.
    stuck_at: Option<u64>,
    /// The number of equal answers after which the request is divided.
    limit: u32,
    /// Whether the second half of a divided piece is sent first.
    from_end: bool,
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
        pieces: vec![Piece::whole(request.all())],
        aside: Vec::new(),
        aside_why: String::new(),
        stuck_at: None,
        limit: EQUAL_MAX,
        from_end: false,
        refused: Vec::new(),
        outage,
        tries: 0,
        accepted: false,
        not_for_a_record: false,
    };
    let mut stopped = false;
    loop {
        let goes_on = match delivery.pieces.pop() {
            Some(piece) => delivery.piece(piece).await,
            None if delivery.aside.is_empty() => break,
            None => delivery.resume().await,
        };
        if !goes_on {
            stopped = true;
            break;
        }
    }
    let refused = std::mem::take(&mut delivery.refused);
    let several = request.all().len() > 1;
    if delivery.accepted && !stopped {
        delivery.outage.succeeded();
    }
    let hopeless = !delivery.accepted && (delivery.not_for_a_record || several);
    Finished {
        request,
        refused,
        hopeless,
        stopped,
    }
}

impl Delivery<'_> {
    /// Sends a piece until it is finished, divided or set aside. After a division, its two halves are the next pieces. Returns `false`
    /// if the process stops.
    async fn piece(&mut self, mut piece: Piece) -> bool {
        let packing = &self.sender.client.packing;
        let mut body = packing.body(self.request, &piece.items);
        loop {
            let failed = match self.attempt(&piece, &body).await {
                Attempt::Finished => return true,
                Attempt::Unread => {
                    self.push(piece.halves(false));
                    return true;
                }
                Attempt::Moved => continue,
                Attempt::Refused { why, parts } => {
                    self.refuse(piece, why, parts);
                    return true;
                }
                Attempt::Failed(failed) => failed,
                Attempt::Left(items, failed) => {
                    if items.len() < piece.items.len() {
                        // The server has accepted other items of the same request.
                        let accepted = self.sender.accepted.get();
                        self.stuck_at = Some(accepted.saturating_sub(1));
                    }
                    piece.keep(items);
                    body = packing.body(self.request, &piece.items);
                    failed
                }
            };
            let why = self.request.masked(&piece.items, failed.why);
            if piece.is_stuck(failed.status) {
                match self.divide(piece, &why) {
                    Some(left) => piece = left,
                    None => return true,
                }
                body = packing.body(self.request, &piece.items);
            }
            let text = format_args!("{}: {why}", self.sender.url);
            let wait = failed.wait.unwrap_or_default();
            match self.outage.retry(text, wait).await {
                Then::Retry => {}
                Then::GiveUp => {
                    self.give_up(piece.items, &why);
                    return true;
                }
                Then::Stop => return false,
            }
        }
    }

    /// Sends the items of a piece once.
    async fn attempt(&mut self, piece: &Piece, body: &Bytes) -> Attempt {
        self.count();
        let key = self.request.key.as_ref();
        let part = Part {
            request: self.request,
            path: &self.path,
            key: key.map(|key| format!("{key}{}", piece.key())),
            body: body.clone(),
        };
        let (outage, client, url) = (&mut self.outage, &self.sender.client, &self.sender.url);
        let late = |since: Instant| {
            let (still, limit) = (since.elapsed().as_secs(), client.timeout);
            outage.late(
                since,
                format_args!(
                    "{url}: no answer yet, and no byte has moved for {still} s; the attempt ends after {limit:?} (`retry.timeout`)"
                ),
            );
        };
        let answer = match client.exchange(&part, late).await {
            Ok(answer) => answer,
            Err(why) => return Attempt::Failed(why.into()),
        };
        match answer.verdict(&self.sender.again, &self.sender.success) {
            Verdict::Done if piece.items.len() > 1 && self.is_unread(&answer) => Attempt::Unread,
            Verdict::Done => self.done(&answer, piece),
            Verdict::Moved(to) => match self.moved(&to) {
                Some(path) => {
                    self.path = path;
                    Attempt::Moved
                }
                None => {
                    let text = "not followed; change `url`";
                    let why = format!("{} (redirect to {to}, {text})", answer.status);
                    Attempt::Failed(why.into())
                }
            },
            Verdict::Again(wait, why) => Attempt::Failed(Failed {
                wait,
                why,
                status: answer.suspicious_status(),
            }),
            // A missing table may appear soon.
            Verdict::Refused { why, parts: false } if !self.sender.patience.is_over(&self.path) => {
                Attempt::Failed(Failed {
                    wait: answer.retry_after(),
                    why,
                    status: None,
                })
            }
            Verdict::Refused { why, parts } => Attempt::Refused { why, parts },
        }
    }

    fn give_up(&mut self, items: Vec<u32>, why: &str) {
        let why = format!("no server took it within `retry.give_up`: {why}");
        self.refused.push((items, why));
    }

    /// Handles a piece that got the same answer too often: divides it, sets its only item aside, or refuses the item. Returns the
    /// piece that is to be retried after a wait, if there is one.
    fn divide(&mut self, mut piece: Piece, why: &str) -> Option<Piece> {
        let accepted = self.sender.accepted.get();
        let stuck_at = *self.stuck_at.get_or_insert(accepted);
        if piece.items.len() > 1 {
            if self.splits >= SPLITS_MAX {
                return Some(self.unite(Some(piece)));
            }
            if self.splits == 0 {
                let text = format_args!(
                    "{}: {why}: the same answer again and again, so the request is divided to find out whether a record causes it",
                    self.sender.url
                );
                self.sender.context.reporter.warn("divided", text);
            }
            self.splits += 1;
            self.push(piece.halves(true));
            return None;
        }
        if piece.blame(accepted > stuck_at) == Blame::Record {
            let why = format!("{why} (each time, alone, while the server accepts other records)");
            self.refused.push((piece.items, why));
            return None;
        }
        if self.pieces.is_empty() && self.aside.is_empty() {
            return Some(piece);
        }
        self.aside.push(piece);
        self.aside_why.clear();
        self.aside_why.push_str(why);
        None
    }

    /// Makes the pieces that were set aside the next ones, after a wait. Returns `false` if the process stops.
    async fn resume(&mut self) -> bool {
        let accepted = self.sender.accepted.get();
        if self.stuck_at.is_none_or(|before| accepted <= before) {
            let united = self.unite(None);
            self.aside.push(united);
        }
        let text = format!("{}: {}", self.sender.url, self.aside_why);
        let then = self.outage.retry(text, Duration::ZERO).await;
        let aside = std::mem::take(&mut self.aside);
        match then {
            Then::Retry => self.pieces.extend(aside.into_iter().rev()),
            Then::GiveUp => {
                let items = aside.into_iter().flat_map(|piece| piece.items).collect();
                let why = std::mem::take(&mut self.aside_why);
                self.give_up(items, &why);
            }
            Then::Stop => return false,
        }
        true
    }

    /// Makes one piece of all that are left, because the server accepts none of them.
    fn unite(&mut self, piece: Option<Piece>) -> Piece {
        self.limit = self.limit.saturating_mul(2);
        self.splits = 0;
        self.from_end = !self.from_end;
        let (pieces, aside) = (&mut self.pieces, &mut self.aside);
        let all = pieces.drain(..).chain(aside.drain(..)).chain(piece);
        Piece::united(all, self.request.items.len(), self.limit)
    }

    /// Makes both halves the next pieces.
    fn push(&mut self, [first, second]: [Piece; 2]) {
        let (next, after) = match self.from_end {
            false => (first, second),
            true => (second, first),
        };
        self.pieces.extend([after, next]);
    }

    fn count(&mut self) {
        let meters = &self.sender.meters;
        match self.tries {
            0 => meters.sent.add(1),
            _ => meters.resent.add(1),
        }
        self.tries = self.tries.saturating_add(1);
    }

    /// Handles a 2xx answer. With `framing: bulk` some items may have failed.
    fn done(&mut self, answer: &Answer, piece: &Piece) -> Attempt {
        let Some(ours) = self.sender.bulk else {
            self.progressed();
            self.partial(answer);
            return Attempt::Finished;
        };
        let sorted = bulk::sort(&answer.body, &piece.items, &self.sender.again, ours);
        let mut sorted = match sorted {
            Ok(sorted) => sorted,
            Err(why) => return Attempt::Failed(why.into()),
        };
        // An index that is missing may appear soon.
        let patience = &self.sender.patience;
        sorted.wait_for(|why| !patience.is_over(why));
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
        if sorted.again.is_empty() {
            return Attempt::Finished;
        }
        let failed = Failed {
            wait: answer.retry_after(),
            why: sorted.why.unwrap_or_default(),
            status: sorted.suspicious,
        };
        Attempt::Left(sorted.again, failed)
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
        self.sender.accepted.update(|accepted| accepted + 1);
        self.sender.patience.accepted(&self.path);
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
        self.push(piece.halves(false));
    }
}
