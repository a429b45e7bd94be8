//! Turns a panic of a task into a value, so that no task ends unnoticed.

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
};

/// The text of a panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panic(pub String);

/// Runs `task` to its end or its panic. Its values are dropped with it, so its unsettled tokens fail.
pub async fn guarded<T>(task: impl Future<Output = T>) -> Result<T, Panic> {
    let mut task = pin!(task);
    std::future::poll_fn(|context| {
        match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(Panic(message(&*panic)))),
        }
    })
    .await
}

/// The text of a panic.
pub fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no text".to_owned())
}
