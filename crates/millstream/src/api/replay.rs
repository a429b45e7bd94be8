//! `POST /rejected/{node}/replay`: sends rejected records to the input of their node again. `GET` shows the progress.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use millstream_pipeline::{replay::Progress, stop::Stop};
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};

use super::{Shown, audit::Said};

/// How long a request waits for the end of its replay. If a replay takes longer, the client polls for the result.
const WAIT: Duration = Duration::from_secs(3);
/// The maximum number of replays that run at a time.
const KEPT_MAX: usize = 100;

/// The last replay of each node. When a replay of any node begins, all replays that have ended are removed.
pub struct Replays {
    stop: Stop,
    last: Mutex<BTreeMap<String, Last>>,
}

/// The last replay of a node.
#[derive(Clone)]
struct Last {
    progress: Progress,
    /// `None` while the replay runs.
    result: watch::Receiver<Option<Result<(), String>>>,
}

impl Replays {
    /// Creates an empty list of replays. `stop` ends the replays that run.
    pub fn new(stop: Stop) -> Self {
        Self {
            stop,
            last: Mutex::default(),
        }
    }

    fn last(&self) -> MutexGuard<'_, BTreeMap<String, Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Last {
    /// Returns the status code of an answer, and its page `{"node", "state", "settled", "left", "why"}`.
    fn shown(&self, node: &str) -> (StatusCode, Value) {
        let (code, state, why) = match &*self.result.borrow() {
            None => (StatusCode::ACCEPTED, "running", None),
            Some(Ok(())) => (StatusCode::OK, "done", None),
            Some(Err(why)) => (StatusCode::CONFLICT, "failed", Some(why.clone())),
        };
        let mut shown = json!({
            "node": node, "state": state, "settled": self.progress.settled(), "left": self.progress.left(),
        });
        if let Some(why) = why {
            shown["why"] = why.into();
        }
        (code, shown)
    }
}

/// Begins a replay, and waits a few seconds for its end.
pub async fn begin(State(shown): State<Arc<Shown>>, Path(node): Path<String>) -> Response {
    let Some(replay) = shown.reloads.replay(&node).await else {
        let why = "too many requests at once, or Millstream is about to end\n";
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let replay = match replay {
        Ok(replay) => replay,
        Err(why) => return refused(&node, why),
    };
    let progress = Progress::default();
    let (sender, result) = watch::channel(None);
    let mut last = Last { progress, result };
    {
        let mut all = shown.replays.last();
        let running = all
            .get(&node)
            .is_some_and(|last| last.result.borrow().is_none());
        if running {
            return refused(&node, format!("a replay of {node} runs already"));
        }
        all.retain(|_, last| last.result.borrow().is_none());
        if all.len() >= KEPT_MAX {
            return refused(&node, "too many replays run".to_owned());
        }
        all.insert(node.clone(), last.clone());
    }
    let (progress, stop) = (last.progress.clone(), shown.replays.stop.clone());
    tokio::spawn(async move {
        let result = replay.run(stop, &progress).await;
        // The watch channel keeps the result for later requests.
        sender.send_replace(Some(result));
    });
    let _ = timeout(WAIT, last.result.wait_for(Option::is_some)).await;
    let (code, page) = last.shown(&node);
    let text = |name: &str| page[name].to_string();
    let said = Said(format!(
        "replay {}: {} records settled, {} left",
        text("state"),
        text("settled"),
        text("left")
    ));
    let mut answer = (code, axum::Json(page)).into_response();
    answer.extensions_mut().insert(said);
    answer
}

fn refused(node: &str, why: String) -> Response {
    let page = json!({ "node": node, "state": "refused", "why": &why });
    let mut answer = (StatusCode::CONFLICT, axum::Json(page)).into_response();
    answer.extensions_mut().insert(Said(why));
    answer
}

/// Answers with the progress of the last replay of a node.
pub async fn state(State(shown): State<Arc<Shown>>, Path(node): Path<String>) -> Response {
    let last = shown.replays.last().get(&node).cloned();
    match last {
        Some(last) => axum::Json(last.shown(&node).1).into_response(),
        None => {
            let why = "no replay of this node was begun, or another one was begun since\n";
            (StatusCode::NOT_FOUND, why).into_response()
        }
    }
}
