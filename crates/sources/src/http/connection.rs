//! One connection: its requests one after the other, by hyper.
//!
//! `[read] -> decode -> send -> keep`

use std::{cell::Cell, convert::Infallible, pin::pin, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use millstream_net::{Connection, Timed, Times};
use tokio::time::Instant;

use super::{Shared, request::Client};
use crate::connection::NEVER;

/// The longest head of a request, and the most that is read ahead of one.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Serves one connection to its end.
pub(super) async fn serve(connection: Connection, shared: Arc<Shared>) {
    let client = Client {
        values: Arc::new(connection.peer.values(&shared.context.host)),
        peer: connection.peer.name.clone(),
        shared: shared.clone(),
    };
    let times = Times {
        step: shared.patience.with_answers(),
        idle: match shared.patience.idle {
            Duration::ZERO => NEVER,
            idle => idle,
        },
    };
    let first = connection
        .deadline
        .saturating_duration_since(Instant::now());
    let stream = Timed::new(connection.stream, times, first);
    let handling = stream.handling();
    let begun = Cell::new(false);
    let service = service_fn(|request| {
        begun.set(true);
        // The body has limits of its own, and what is behind the source may take its time.
        handling.set(true);
        let (answer, handling) = (client.answer(request), handling.clone());
        async move {
            let answer = answer.await;
            handling.set(false);
            Ok::<_, Infallible>(answer)
        }
    });
    let serving = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        // A client may close its side when it has sent its request.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = pin!(serving);
    let mut stop = shared.context.stop.clone();
    let mut stopped = pin!(stop.stopped());
    let mut stopping = false;
    loop {
        tokio::select! {
            biased;
            done = &mut serving => {
                if let Err(error) = done {
                    tell(&error, &client);
                }
                return;
            }
            // A connection without a request ends when it is time to stop.
            () = &mut stopped, if !stopping => {
                stopping = true;
                if !begun.get() {
                    return;
                }
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}

/// What is no HTTP is told; a connection that breaks or falls silent is nothing new.
fn tell(error: &hyper::Error, client: &Client) {
    if error.is_parse() || error.is_parse_too_large() {
        client.shared.meters.requests_refused.add(1);
        let text = format_args!("{}: {error}; connection closed", client.peer);
        client.shared.context.reporter.warn("refused", text);
    }
}
