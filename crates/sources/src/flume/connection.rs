//! One connection: reads, decodes, sends; and writes answers at the same time.
//!
//! `[read] -> decode -> send -> keep`

use std::{pin::pin, sync::Arc, time::Duration};

use millstream_net::{Connection, sides::Reading};
use tokio::{io::AsyncWriteExt, time::timeout};

use super::{
    Shared,
    compressed::Compressed,
    intake::{End, Intake, report},
};
use crate::connection::{self, Quit, Stash, Unanswered, Watch, is_no_memory};

/// How long the end of a connection waits for the peer to close too: closing over unread bytes would destroy the answers
/// that are under way.
const LINGER: Duration = Duration::from_millis(500);

/// Serves one connection to its end.
pub(super) async fn serve(connection: Connection, shared: Arc<Shared>) {
    let values = connection.peer.values(&shared.context.host);
    let peer = connection.peer.name;
    let (mut reader, writer) = connection.stream.into_sides();
    let mut writer = Compressed::new(writer, shared.deflate);
    let (answers, answering) = connection::answers();
    let mut intake = Intake::new(shared.clone(), peer.clone(), values, answers);
    let end = {
        let answered = &shared.meters.calls_answered;
        let mut answering =
            pin!(answering.run(&mut writer, shared.patience.with_answers(), answered));
        // The queue of answers ends with `intake`, and then the side that writes.
        let mut reading = pin!(async {
            let end = read_all(&mut reader, &mut intake).await;
            drop(intake);
            end
        });
        tokio::select! {
            biased;
            end = &mut reading => answering.await.map_or_else(End::Unanswered, |()| end),
            // It ends before the reading side only by an error.
            answered = &mut answering => match answered {
                Ok(()) => reading.await,
                Err(unanswered) => End::Unanswered(unanswered),
            },
        }
    };
    report(&end, &peer, &shared);
    if !matches!(
        end,
        End::Closed | End::Broken | End::Unanswered(Unanswered::Write(_))
    ) {
        let _ = writer.shutdown().await;
        let _ = timeout(LINGER, tokio::io::copy(&mut reader, &mut tokio::io::sink())).await;
    }
}

/// Reads until the peer has closed or something ends the connection.
async fn read_all(reader: &mut Reading, intake: &mut Intake) -> End {
    let pool = &intake.shared.context.pool;
    let mut stash = Stash::new(pool.clone(), Vec::new());
    let shared = intake.shared.clone();
    let mut watch = Watch::new(&shared.context, shared.patience);
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
        if let Err(end) = intake.take(bytes).await {
            break end;
        }
        stash.consume(count);
        if drained {
            intake.leave().await;
        }
        if watch.stop.is_stopped() {
            break End::Stopped;
        }
    };
    // What stands whole is kept, however the connection ends.
    intake.leave().await;
    end
}
