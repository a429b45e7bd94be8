//! A connection that speaks RELP: a message is answered when it is kept.
//!
//! `[read] -> [decode] -> [send] -> keep`
//!
//! Numbers are answered in their order, together with all that became of the batch they stand in. A session that ends
//! otherwise than by `close` leaves the unanswered to the client, who sends them again in the next one.

use std::{io, pin::pin, sync::Arc, time::Duration};

use millstream_net::{Connection, sides::Reading};
use millstream_record::Time;
use millstream_wire::relp::{self, Command, Decoder, Offers, Refusal, Step};
use tokio::{io::AsyncWriteExt, time::timeout};

use super::{Shared, flow::Flow, stream::BESIDE_BYTES};
use crate::connection::{self, Answer, Answers, Quit, Stash, Unanswered, Watch, is_no_memory};

/// A batch leaves when so many numbers wait for it: there may be messages without a byte.
const NUMBERS_MAX: u32 = 4096;
/// Bytes of the head of a frame beside its data, at most.
const HEAD_BYTES: usize = 64;
/// How long the end of a session waits for the client to close too: closing over unread bytes would destroy the answers
/// that are under way.
const LINGER: Duration = Duration::from_millis(500);

/// Serves one session to its end.
pub(super) async fn serve(connection: Connection, shared: Arc<Shared>) {
    let values = connection.peer.values(&shared.context.host);
    let peer = connection.peer.name;
    let (mut reader, mut writer) = connection.stream.into_sides();
    let (answers, answering) = connection::answers();
    let mut intake = Intake {
        decoder: Decoder::new(shared.settings.bytes_max),
        stash: Stash::new(shared.context.pool.clone(), Vec::new()),
        watch: Watch::new(&shared.context, shared.patience),
        flow: Flow::new(shared.clone(), values),
        waiting: None,
        answers,
    };
    let patience = shared.patience.with_answers();
    let end = {
        let answered = &shared.meters.messages_answered;
        let mut answering = pin!(answering.run(&mut writer, patience, answered));
        // The queue of answers ends with `intake`, and then the side that writes.
        let mut reading = pin!(async {
            let end = intake.run(&mut reader).await;
            drop(intake);
            end
        });
        tokio::select! {
            biased;
            end = &mut reading => answering.await.err().map_or(end, End::Unanswered),
            // It ends before the reading side only by an error.
            answered = &mut answering => match answered {
                Ok(()) => reading.await,
                Err(unanswered) => End::Unanswered(unanswered),
            },
        }
    };
    report(&end, &peer, &shared);
    if !matches!(end, End::Gone | End::Broken(_)) {
        let _ = writer.shutdown().await;
        let _ = timeout(LINGER, tokio::io::copy(&mut reader, &mut tokio::io::sink())).await;
    }
}

/// Why a session ends.
enum End {
    /// By the client's `close`.
    Closed,
    /// The client is gone, between two frames.
    Gone,
    /// The client is gone amid a frame.
    Cut,
    Quit,
    /// The client does not go on with a frame that it has begun.
    Slow,
    Refused(Refusal),
    /// It offers nothing that we take.
    NoOffer,
    Broken(io::Error),
    NoMemory,
    Unanswered(Unanswered),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match is_no_memory(&error) {
            true => Self::NoMemory,
            false => Self::Broken(error),
        }
    }
}

impl From<Quit> for End {
    fn from(quit: Quit) -> Self {
        match quit {
            Quit::Stopped | Quit::Idle => Self::Quit,
            Quit::Slow => Self::Slow,
        }
    }
}

fn report(end: &End, peer: &str, shared: &Shared) {
    let (reporter, meters) = (&shared.context.reporter, &shared.meters);
    match end {
        End::Closed | End::Gone | End::Quit => {}
        End::Cut => {
            meters.messages_cut.add(1);
            let text = format_args!(
                "{peer} closed within a frame, which is not answered: it must send it again"
            );
            reporter.info("cut", text);
        }
        End::Refused(refusal) => {
            meters.connections_refused.add(1);
            reporter.warn(
                "refused",
                format_args!("{peer}: {refusal}; connection closed"),
            );
        }
        End::NoOffer => {
            meters.connections_refused.add(1);
            let text = format_args!(
                "{peer}: its session offers no messages (commands=syslog); connection closed"
            );
            reporter.warn("refused", text);
        }
        End::Broken(error) => {
            reporter.info(
                "broken",
                format_args!("{peer}: the connection broke: {error}"),
            );
        }
        End::NoMemory => {
            meters.connections_refused.add(1);
            let text = format_args!(
                "{peer}: no memory for its message beside what others hold (memory_max); connection closed, it must send it again"
            );
            reporter.warn("memory", text);
        }
        End::Slow => {
            meters.connections_refused.add(1);
            let text = format_args!(
                "{peer}: too few bytes a second of a message that it has begun (limits.progress); connection closed, it must send it again"
            );
            reporter.warn("slow", text);
        }
        End::Unanswered(Unanswered::Write(error)) => {
            reporter.info(
                "unanswered",
                format_args!("{peer} takes no more answers: {error}"),
            );
        }
        End::Unanswered(Unanswered::Unsettled) => {
            let text = format_args!(
                "{peer}: messages were lost on their way within Millstream and are not answered; their sender must send them again"
            );
            reporter.warn("unsettled", text);
        }
    }
}

/// The reading side.
struct Intake {
    decoder: Decoder,
    stash: Stash,
    watch: Watch,
    flow: Flow,
    /// Numbers of the open batch.
    waiting: Option<Waiting>,
    answers: Answers,
}

#[derive(Clone, Copy)]
struct Waiting {
    first: u32,
    last: u32,
    count: u32,
}

impl Intake {
    async fn run(&mut self, reader: &mut Reading) -> End {
        let end = self.read_all(reader).await;
        // What stands whole is kept and answered, however the session ends.
        self.leave().await;
        let end = end.err().unwrap_or(End::Gone);
        let mut text = Vec::new();
        match &end {
            End::Closed => return end,
            End::Gone if self.decoder.is_amid(self.stash.bytes().len()) => return End::Cut,
            End::Quit | End::Slow | End::Refused(_) | End::NoMemory => relp::serverclose(&mut text),
            _ => return end,
        }
        self.say(text).await;
        end
    }

    async fn read_all(&mut self, reader: &mut Reading) -> Result<(), End> {
        loop {
            let answers = &self.answers;
            let amid = self.decoder.is_amid(self.stash.bytes().len());
            let amid = amid.then(|| self.stash.held());
            let fill = self.stash.fill(reader, usize::MAX);
            let read = self.watch.until(|| answers.open() > 0, amid, fill).await;
            let (count, drained) = read??;
            if count == 0 {
                return Ok(());
            }
            self.watch.came(count);
            self.flow.now = Time::now();
            self.flow.shared.meters.bytes_received.add(count as u64);
            self.take().await?;
            if drained {
                self.leave().await;
            }
            if self.watch.stop.is_stopped() {
                return Err(End::Quit);
            }
        }
    }

    /// Takes all frames that stand whole in the read buffer.
    async fn take(&mut self) -> Result<(), End> {
        loop {
            let input = self.stash.bytes();
            let (consumed, step) = self.decoder.next(input).map_err(End::Refused)?;
            match step {
                Step::More => {
                    self.stash.consume(consumed);
                    return self.grow().await;
                }
                Step::Frame {
                    number,
                    command: Command::Syslog,
                    data,
                } => {
                    let data = input.get(data).unwrap_or_default();
                    self.flow.message(data, None).await;
                    self.wait(number);
                }
                Step::Part { number, data, last } => {
                    let data = input.get(data).unwrap_or_default();
                    self.flow.part(data, last, None).await;
                    if last {
                        self.wait(number);
                    }
                }
                Step::Frame {
                    number,
                    command,
                    data,
                } => {
                    let offers = Offers::read(input.get(data).unwrap_or_default());
                    self.leave().await;
                    self.command(number, command, offers).await?;
                }
            }
            self.stash.consume(consumed);
            let many = |waiting: &Waiting| waiting.count >= NUMBERS_MAX;
            if self.flow.is_full() || self.waiting.as_ref().is_some_and(many) {
                self.leave().await;
            }
        }
    }

    async fn grow(&mut self) -> Result<(), End> {
        if !self.stash.is_full() {
            return Ok(());
        }
        // Who waits for memory holds none.
        self.leave().await;
        let bytes_max = self.flow.shared.settings.bytes_max + HEAD_BYTES + BESIDE_BYTES;
        match self.stash.grow(bytes_max).await {
            true => Ok(()),
            false => Err(End::NoMemory),
        }
    }

    /// The answer to a frame that is no message.
    async fn command(&mut self, number: u32, command: Command, offers: Offers) -> Result<(), End> {
        let mut text = Vec::new();
        match command {
            Command::Open if offers.syslog => relp::accept(number, &mut text),
            Command::Open => relp::refuse(number, "syslog is what is taken here", &mut text),
            Command::Close => relp::closed(number, &mut text),
            Command::Syslog | Command::Other => {
                relp::refuse(number, "this was not offered", &mut text);
            }
        }
        self.say(text).await;
        match command {
            Command::Open if !offers.syslog => Err(End::NoOffer),
            Command::Close => Err(End::Closed),
            _ => Ok(()),
        }
    }

    /// Notes a message that the open batch holds, whatever became of it.
    fn wait(&mut self, number: u32) {
        match &mut self.waiting {
            Some(waiting) => {
                waiting.last = number;
                waiting.count += 1;
            }
            None => {
                self.waiting = Some(Waiting {
                    first: number,
                    last: number,
                    count: 1,
                });
            }
        }
    }

    /// Sends the open batch, and its numbers to where they are answered.
    async fn leave(&mut self) {
        let receipts = self.flow.leave(true).await;
        let waiting = self.waiting.take();
        if receipts.is_empty() && waiting.is_none() {
            return;
        }
        let mut acks = Vec::new();
        if let Some(waiting) = waiting {
            let mut number = waiting.first;
            relp::acknowledge(number, &mut acks);
            while number != waiting.last {
                number = relp::after(number);
                relp::acknowledge(number, &mut acks);
            }
        }
        let count = waiting.map_or(0, |waiting| waiting.count.into());
        let answer = Answer {
            receipts,
            acks,
            count,
        };
        self.answers.push(answer).await;
    }

    /// Writes `text` behind the answers that are due before it.
    async fn say(&mut self, text: Vec<u8>) {
        let answer = Answer {
            receipts: Vec::new(),
            acks: text,
            count: 0,
        };
        self.answers.push(answer).await;
    }
}
