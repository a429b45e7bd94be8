//! One connection: reads, decodes and sends, and writes answers at the same time.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> decode -> send -> keep`

use std::{pin::pin, sync::Arc, time::Duration};

use millstream_net::{Connection, sides::Reading};
use tokio::{io::AsyncWriteExt, time::timeout};

use super::{
    compressed::Compressed,
    end::{End, report},
    endpoint::Endpoint,
    intake::Intake,
};
use crate::connection::{self, Quit, Stash, Unanswered, Watch, is_no_memory};

/// How long a connection that ends waits for the peer to close its side. If this side closed the socket while bytes are unread,
/// answers in flight would be discarded.
const LINGER: Duration = Duration::from_millis(500);

/// Serves one connection to its end.
pub(super) async fn serve(connection: Connection, endpoint: Arc<Endpoint>) {
    let values = connection.peer.values(&endpoint.context.host);
    let peer = connection.peer.name;
    let (mut reader, writer) = connection.stream.into_sides();
    let mut writer = Compressed::new(writer, endpoint.deflate);
    let (answers, answering) = connection::answers();
    let mut intake = Intake::new(endpoint.clone(), peer.clone(), values, answers);
    let end = {
        let answered = &endpoint.meters.calls_answered;
        let mut answering =
            pin!(answering.run(&mut writer, endpoint.patience.with_answers(), answered));
        // Dropping `intake` closes the queue of answers, which ends the writing side.
        let mut reading = pin!(async {
            let end = read_all(&mut reader, &mut intake).await;
            drop(intake);
            end
        });
        tokio::select! {
            biased;
            end = &mut reading => answering.await.map_or_else(End::Unanswered, |()| end),
            // The writing side ends before the reading side only after an error.
            answered = &mut answering => match answered {
                Ok(()) => reading.await,
                Err(unanswered) => End::Unanswered(unanswered),
            },
        }
    };
    report(&end, &peer, &endpoint);
    if !matches!(
        end,
        End::Closed | End::Broken | End::Unanswered(Unanswered::Write(_))
    ) {
        let _ = writer.shutdown().await;
        let _ = timeout(LINGER, tokio::io::copy(&mut reader, &mut tokio::io::sink())).await;
    }
}

/// Reads until the peer closes the connection or another reason ends it.
async fn read_all(reader: &mut Reading, intake: &mut Intake) -> End {
    let pool = &intake.endpoint.context.pool;
    let mut stash = Stash::new(pool.clone(), Vec::new());
    let endpoint = intake.endpoint.clone();
    let mut watch = Watch::new(&endpoint.context, endpoint.patience);
    let end = loop {
        let amid = intake.amid();
        let fill = stash.fill(reader, usize::MAX);
        let drained = match watch.until(|| intake.is_awaited(), amid, fill).await {
            Ok(Ok((0, _))) if intake.is_amid() => break End::Cut,
            Ok(Ok((0, _))) => break End::Closed,
            Ok(Ok((_, drained))) => drained,
            Ok(Err(error)) if is_no_memory(&error) => break End::NoMemory,
            Ok(Err(_)) => break End::Broken,
            Err(Quit::Idle) => break End::Idle,
            Err(Quit::Slow) => break End::Slow,
            Err(Quit::Stopped) => break End::Stopped,
        };
        let bytes = stash.bytes();
        let count = bytes.len();
        watch.came(count);
        if let Err(end) = intake.decode(bytes).await {
            break end;
        }
        stash.consume(count);
        if drained {
            intake.send_batch().await;
        }
        if watch.stop.is_stopped() {
            break End::Stopped;
        }
    };
    // Complete calls are kept, for whatever reason the connection ends.
    intake.send_batch().await;
    end
}
