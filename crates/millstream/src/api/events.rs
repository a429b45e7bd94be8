//! `/events`: the status as server-sent events, one per second. Each event is computed once for all browsers.
//!
//! While no browser reads, no event is computed. The limit on streams is lower than the limit on connections, so some connections always
//! stay free for monitoring. Each event extends the deadline of its connection. A browser that does not read misses events, because events
//! are not queued. At the deadline, its connection is closed.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_core::Stream;
use tokio::sync::watch;

/// A new stream begins with the last event if that event is younger than this. Otherwise it begins with a new event.
const FRESH: Duration = Duration::from_secs(1);

/// The last event, and the number of its readers.
pub struct Events {
    sender: watch::Sender<Bytes>,
    /// When the last event was made.
    made: Mutex<Option<Instant>>,
    open: Arc<AtomicUsize>,
    most: usize,
}

impl Events {
    /// `most` is the maximum number of open streams.
    pub fn new(most: usize) -> Self {
        Self {
            sender: watch::Sender::new(Bytes::new()),
            made: Mutex::default(),
            open: Arc::default(),
            most,
        }
    }

    /// Sends an event to all browsers. Does not make the event if no browser reads.
    pub fn send(&self, make: impl FnOnce() -> String) {
        if self.open.load(Ordering::Relaxed) > 0 {
            self.make(make);
        }
    }

    fn make(&self, make: impl FnOnce() -> String) {
        let event = format!("event: status\ndata: {}\n\n", make());
        self.sender.send_replace(event.into());
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        *made = Some(Instant::now());
    }

    /// Answers with a stream of events, or with 503 if too many streams are open. The first event of the stream is at most [`FRESH`] old.
    pub fn stream(&self, make: impl FnOnce() -> String) -> Response {
        let Some(place) = self.place() else {
            let why = "too many open pages: close some, or ask for /status\n";
            // The answer closes the connection, because an idle connection counts towards the limit of connections.
            let head = [(header::RETRY_AFTER, "10"), (header::CONNECTION, "close")];
            return (StatusCode::SERVICE_UNAVAILABLE, head, why).into_response();
        };
        let made = *self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.is_none_or(|made| made.elapsed() >= FRESH) {
            self.make(make);
        }
        let mut events = self.sender.subscribe();
        events.mark_changed();
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-store"),
        ];
        let updates = Updates {
            next: Box::pin(next(events)),
            _place: place,
        };
        (headers, Body::from_stream(updates)).into_response()
    }

    /// Counts one more stream until the result is dropped. Returns `None` if too many streams are open.
    fn place(&self) -> Option<Place> {
        let taken = self.open.fetch_add(1, Ordering::Relaxed);
        // If too many streams are open, `place` is dropped below, which decrements the count again.
        let place = Place(self.open.clone());
        (taken < self.most).then_some(place)
    }
}

struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

type Next = Pin<Box<dyn Future<Output = Option<(Bytes, watch::Receiver<Bytes>)>> + Send>>;

async fn next(mut events: watch::Receiver<Bytes>) -> Option<(Bytes, watch::Receiver<Bytes>)> {
    events.changed().await.ok()?;
    let event = events.borrow_and_update().clone();
    Some((event, events))
}

/// The events of one browser, until the process ends.
struct Updates {
    next: Next,
    _place: Place,
}

impl Stream for Updates {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.next.as_mut().poll(context) {
            Poll::Ready(Some((event, events))) => {
                self.next = Box::pin(next(events));
                Poll::Ready(Some(Ok(event)))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn first(response: Response) -> String {
        let mut stream = response.into_body().into_data_stream();
        let event = poll_fn(|context| Pin::new(&mut stream).poll_next(context)).await;
        String::from_utf8(event.unwrap().unwrap().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn an_event_is_made_once_for_all_browsers_and_not_at_all_without_browsers() {
        let (events, made) = (Events::new(50), AtomicUsize::new(0));
        let make = || (made.fetch_add(1, Ordering::Relaxed) + 1).to_string();
        events.send(make);
        assert_eq!(made.load(Ordering::Relaxed), 0);
        let open: Vec<_> = (0..50).map(|_| events.stream(make)).collect();
        assert_eq!(made.load(Ordering::Relaxed), 1);
        events.send(make);
        for response in open {
            assert_eq!(first(response).await, "event: status\ndata: 2\n\n");
        }
        events.send(make);
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn the_number_of_streams_is_bounded_and_a_closed_one_frees_its_place() {
        let events = Events::new(2);
        let make = String::new;
        let open = [events.stream(make), events.stream(make)];
        let refused = events.stream(make);
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(open);
        assert_eq!(events.stream(make).status(), StatusCode::OK);
    }
}
