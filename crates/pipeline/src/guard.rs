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

/// Runs `work` to its end or its panic.
pub fn attempt<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| Panic(message(&*panic)))
}

/// Runs `task` to its end or its panic. A panic drops the task with all it holds, so its unsettled tokens fail.
pub async fn guarded<T>(task: impl Future<Output = T>) -> Result<T, Panic> {
    let mut task = pin!(task);
    std::future::poll_fn(|context| match attempt(|| task.as_mut().poll(context)) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// The text of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no text".to_owned())
}
