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
    let serving = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        // A client may close its sending side once the request is sent.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = pin!(serving);
    let mut stop = endpoint.context.stop.clone();
    let mut stopped = pin!(stop.stopped());
    let mut stopping = false;
    loop {
        tokio::select! {
            biased;
            done = &mut serving => {
                if let Err(error) = done {
                    report(&error, &client);
                }
                return;
            }
            // On a stop, a connection that has sent no request ends immediately.
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

/// Reports a connection that does not speak HTTP. Connections that break or fall silent are not reported.
fn report(error: &hyper::Error, client: &Client) {
    if error.is_parse() || error.is_parse_too_large() {
        client.endpoint.meters.requests_refused.add(1);
        let (advice, peer) = (advice(error), &client.peer);
        let text = format_args!("{peer}: {error}{advice}; connection closed");
        client.endpoint.context.reporter.warn("refused", text);
    }
}

/// The advice for an error. Every gRPC client begins with the first bytes of HTTP/2.
fn advice(error: &hyper::Error) -> &'static str {
    match error.to_string().contains("HTTP2") {
        true => ": OTLP/gRPC is not supported; use OTLP/HTTP (`otlphttp` in the Collector)",
        false => "",
    }
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
            assert_eq!(advice(&error).contains("OTLP/gRPC"), told, "{error}");
        }
    }
}
