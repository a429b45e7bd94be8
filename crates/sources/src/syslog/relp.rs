//! A connection that speaks RELP. A message is answered when it is kept.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read] -> [decode] -> [send] -> keep`
//!
//! Messages are answered in the order of their numbers, once everything in their batch is kept. If a session ends without
//! `close`, the client sends the unanswered messages again in its next session.

use std::{io, pin::pin, sync::Arc, time::Duration};

use millstream_net::{Connection, sides::Reading};
use millstream_record::Time;
use millstream_wire::relp::{self, Command, Decoder, Offers, Refusal, Step};
use tokio::{io::AsyncWriteExt, time::timeout};

use super::{
    endpoint::{BESIDE_BYTES, Endpoint},
    flow::Flow,
};
use crate::connection::{self, Answer, Answers, Quit, Stash, Unanswered, Watch, is_no_memory};

/// A batch with this many messages is sent, even if it has few bytes: messages may be empty.
const NUMBERS_MAX: u32 = 4096;
/// The longest head of a frame.
const HEAD_BYTES: usize = 64;
/// How long a session that ends waits until the client closes its side. If this side closed the socket first, with unread bytes,
/// the kernel would discard answers in flight.
const LINGER: Duration = Duration::from_millis(500);

/// Serves one session to its end.
pub(super) async fn serve(connection: Connection, endpoint: Arc<Endpoint>) {
    let values = connection.peer.values(&endpoint.context.host);
    let peer = connection.peer.name;
    let (mut reader, mut writer) = connection.stream.into_sides();
    let (answers, answering) = connection::answers();
    let mut intake = Intake {
        decoder: Decoder::new(endpoint.settings.bytes_max),
        stash: Stash::new(endpoint.context.pool.clone(), Vec::new()),
        watch: Watch::new(&endpoint.context, endpoint.patience),
        flow: Flow::new(endpoint.clone(), values),
        waiting: None,
        answers,
    };
    let patience = endpoint.patience.with_answers();
    let end = {
        let answered = &endpoint.meters.messages_answered;
        let mut answering = pin!(answering.run(&mut writer, patience, answered));
        // Dropping `intake` closes the queue of answers, which ends the writing side.
        let mut reading = pin!(async {
            let end = intake.run(&mut reader).await;
            drop(intake);
            end
        });
        tokio::select! {
            biased;
            end = &mut reading => answering.await.err().map_or(end, End::Unanswered),
            // The writing side ends before the reading side only after an error.
            answered = &mut answering => match answered {
                Ok(()) => reading.await,
                Err(unanswered) => End::Unanswered(unanswered),
            },
        }
    };
    report(&end, &peer, &endpoint);
    if !matches!(end, End::Gone | End::Broken(_)) {
        let _ = writer.shutdown().await;
        let _ = timeout(LINGER, tokio::io::copy(&mut reader, &mut tokio::io::sink())).await;
    }
}

/// Why a session ends.
enum End {
    /// The client sent `close`.
    Closed,
    /// The client closed the connection between two frames.
    Gone,
    /// The client closed the connection within a frame.
    Cut,
    Quit,
    /// The client does not continue a frame.
    Slow,
    Refused(Refusal),
    /// The client offers no command that this source supports.
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

fn report(end: &End, peer: &str, endpoint: &Endpoint) {
    let (reporter, meters) = (&endpoint.context.reporter, &endpoint.meters);
    match end {
        End::Closed | End::Gone | End::Quit => {}
        End::Cut => {
            meters.messages_cut.add(1);
            let text = format_args!(
                "{peer} closed the connection within a frame, which is not answered and must be sent again"
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
                "{peer}: no memory for its message (memory_max); connection closed, the message must be sent again"
            );
            reporter.warn("memory", text);
        }
        End::Slow => {
            meters.connections_refused.add(1);
            let text = format_args!(
                "{peer}: too few bytes per second within a message (limits.progress); connection closed, the message must be sent again"
            );
            reporter.warn("slow", text);
        }
        End::Unanswered(Unanswered::Write(error)) => {
            reporter.info("unanswered", format_args!("cannot answer {peer}: {error}"));
        }
        End::Unanswered(Unanswered::Unsettled) => {
            let text = format_args!(
                "{peer}: messages were lost within Millstream and are not answered; their sender must send them again"
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
    /// The numbers of the messages in the batch.
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
        // Complete messages are kept and answered, for whatever reason the session ends.
        self.send_batch().await;
        let end = end.err().unwrap_or(End::Gone);
        let mut text = Vec::new();
        match &end {
            End::Closed => return end,
            End::Gone if self.decoder.is_amid(self.stash.bytes().len()) => return End::Cut,
            End::Quit | End::Slow | End::Refused(_) | End::NoMemory => relp::serverclose(&mut text),
            _ => return end,
        }
        self.answer(text).await;
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
            self.flow.endpoint.meters.bytes_received.add(count as u64);
            self.decode().await?;
            if drained {
                self.send_batch().await;
            }
            if self.watch.stop.is_stopped() {
                return Err(End::Quit);
            }
        }
    }

    /// Decodes all complete frames in the read buffer.
    async fn decode(&mut self) -> Result<(), End> {
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
                    self.send_batch().await;
                    self.command(number, command, offers).await?;
                }
            }
            self.stash.consume(consumed);
            let many = |waiting: &Waiting| waiting.count >= NUMBERS_MAX;
            if self.flow.is_full() || self.waiting.as_ref().is_some_and(many) {
                self.send_batch().await;
            }
        }
    }

    async fn grow(&mut self) -> Result<(), End> {
        if !self.stash.is_full() {
            return Ok(());
        }
        // A task that waits for memory must not hold any, so the batch is sent first.
        self.send_batch().await;
        let bytes_max = self.flow.endpoint.settings.bytes_max + HEAD_BYTES + BESIDE_BYTES;
        match self.stash.grow(bytes_max).await {
            true => Ok(()),
            false => Err(End::NoMemory),
        }
    }

    /// Answers a frame that is not a message.
    async fn command(&mut self, number: u32, command: Command, offers: Offers) -> Result<(), End> {
        let mut text = Vec::new();
        match command {
            Command::Open if offers.syslog => relp::accept(number, &mut text),
            Command::Open => {
                relp::refuse(number, "only the command syslog is supported", &mut text)
            }
            Command::Close => relp::closed(number, &mut text),
            Command::Syslog | Command::Other => {
                relp::refuse(number, "this command was not offered", &mut text);
            }
        }
        self.answer(text).await;
        match command {
            Command::Open if !offers.syslog => Err(End::NoOffer),
            Command::Close => Err(End::Closed),
            _ => Ok(()),
        }
    }

    /// Adds a message to those that are answered with the batch. The message must be answered even if it became no record.
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

    /// Sends the batch, and queues the answers to its messages.
    async fn send_batch(&mut self) {
        let receipts = self.flow.send(true).await;
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

    /// Queues `text` after the earlier answers.
    async fn answer(&mut self, text: Vec<u8>) {
        let answer = Answer {
            receipts: Vec::new(),
            acks: text,
            count: 0,
        };
        self.answers.push(answer).await;
    }
}
