//! One connection: its requests one after the other, by hyper.
//!
//! `[read] -> decode -> send -> keep`

use std::{cell::Cell, convert::Infallible, pin::pin, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use millstream_net::Connection;
use tokio::time::sleep_until;

use super::{Shared, request::Client};

/// The longest head of a request, and the most that is read ahead of one.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// An idle limit of 0 is none.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Serves one connection to its end.
pub(super) async fn serve(connection: Connection, shared: Arc<Shared>) {
    let client = Client {
        values: Arc::new(connection.peer.values(&shared.context.host)),
        peer: connection.peer.name.clone(),
        shared: shared.clone(),
    };
    let idle = if shared.idle.is_zero() {
        NEVER
    } else {
        shared.idle
    };
    let begun = Cell::new(false);
    let service = service_fn(|request| {
        begun.set(true);
        let answer = client.answer(request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_buf_size(HEAD_BYTES_MAX)
        // A client may close its side when it has sent its request.
        .half_close(true)
        .serve_connection(TokioIo::new(connection.stream), service);
    let mut serving = pin!(serving);
    let mut late = pin!(sleep_until(connection.deadline));
    let mut stop = shared.context.stop.clone();
    let mut stopped = pin!(stop.stopped());
    let (mut stopping, mut checked) = (false, false);
    loop {
        tokio::select! {
            biased;
            done = &mut serving => {
                if let Err(error) = done {
                    tell(&error, &client);
                }
                return;
            }
            // Who has not sent the head of a request by then, or when it is time to stop, is let go.
            () = &mut late, if !checked => {
                checked = true;
                if !begun.get() {
                    return;
                }
            }
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
