//! One connection: its requests, one after the other.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> decode -> send -> keep`

use std::{cell::Cell, convert::Infallible, pin::pin, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use millstream_net::{Connection, Timed, Times};
use tokio::time::Instant;

use super::{
    endpoint::{Client, Endpoint},
    grpc::{self, ADVICE},
    request,
};
use crate::connection::NEVER;

/// The maximum size of the head of a request, and the maximum number of bytes that are read ahead.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Serves one connection to its end.
pub(super) async fn serve(connection: Connection, endpoint: Arc<Endpoint>) {
    let client = Client {
        values: Arc::new(connection.peer.values(&endpoint.context.host)),
        peer: connection.peer.name.clone(),
        endpoint: endpoint.clone(),
    };
    let times = Times {
        step: endpoint.patience.with_answers(),
        idle: match endpoint.patience.idle {
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
        // No timeout here: the body has its own limits, and the answer may take longer than `idle`.
        handling.set(true);
        let (answer, handling) = (request::answer(&client, request), handling.clone());
        async move {
            let answer = answer.await;
            handling.set(false);
            Ok::<_, Infallible>(answer)
        }
    });
    let mut serving = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        // A client may close its sending side once the request is sent.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut stop = endpoint.context.stop.clone();
    let mut stopped = pin!(stop.stopped());
    let mut stopping = false;
    let error = loop {
        tokio::select! {
            biased;
            done = &mut serving => match done {
                Ok(()) => return,
                Err(error) => break error,
            },
            // On a stop, a connection that has sent no request ends immediately.
            () = &mut stopped, if !stopping => {
                stopping = true;
                if !begun.get() {
                    return;
                }
                std::pin::Pin::new(&mut serving).graceful_shutdown();
            }
        }
    };
    report(&error, &client);
    if is_grpc(&error) && !stopping {
        let http1::Parts { io, read_buf, .. } = serving.into_parts();
        grpc::answer(io.into_inner(), &read_buf).await;
    }
}

/// Reports a connection that does not speak HTTP. Connections that break or fall silent are not reported.
fn report(error: &hyper::Error, client: &Client) {
    if error.is_parse() || error.is_parse_too_large() {
        client.endpoint.meters.requests_refused.add(1);
        let (peer, reporter) = (&client.peer, &client.endpoint.context.reporter);
        match is_grpc(error) {
            true => reporter.warn("refused", format_args!("{peer}: {error}: {ADVICE}")),
            false => reporter.warn(
                "refused",
                format_args!("{peer}: {error}; connection closed"),
            ),
        }
    }
}

/// Whether the client speaks gRPC: it began with the first bytes of HTTP/2.
fn is_grpc(error: &hyper::Error) -> bool {
    error.is_parse() && error.to_string().contains("HTTP2")
}

#[cfg(test)]
mod tests {
    use hyper::Response;
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_grpc_client_is_reported_with_the_protocol_to_use() {
        for (first, told) in [
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", true),
            ("<34>1 syslog\r\n\r\n", false),
        ] {
            let (mut client, server) = tokio::io::duplex(1024);
            client.write_all(first.as_bytes()).await.unwrap();
            let service = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::new())));
            let served = http1::Builder::new().serve_connection(TokioIo::new(server), service);
            let error = served.await.unwrap_err();
            assert_eq!(is_grpc(&error), told, "{error}");
        }
    }
}
