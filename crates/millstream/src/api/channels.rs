//! `POST /channels/{name}/forget?consumer=NAME`: a running channel gives up what it holds for a consumer without a sink.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Path, State},
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
};
use serde_json::json;
use tokio::time::timeout;

use super::{Shown, audit::Said, query};

/// How long a request waits for the channel, which may wait for its disk.
const WAIT: Duration = Duration::from_secs(5);

/// Forgets a consumer.
pub async fn forget(
    State(shown): State<Arc<Shown>>,
    Path(channel): Path<String>,
    uri: Uri,
) -> Response {
    let consumer = match query::name(&uri, "consumer") {
        Ok(consumer) => consumer,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let asked = shown.reloads.forget(&channel, &consumer);
    let (code, why) = match timeout(WAIT, asked).await {
        Ok(Some(Ok(()))) => (StatusCode::OK, None),
        Ok(Some(Err(why))) => (StatusCode::CONFLICT, Some(why)),
        Ok(None) => (
            StatusCode::CONFLICT,
            Some(format!("no disk channel called {channel} runs")),
        ),
        Err(_) => (
            StatusCode::CONFLICT,
            Some(format!("{channel} does not answer: it waits for its disk")),
        ),
    };
    let said = Said(why.clone().unwrap_or_else(|| "forgotten".to_owned()));
    let page =
        json!({ "channel": channel, "consumer": consumer, "forgotten": why.is_none(), "why": why });
    let mut answer = (code, axum::Json(page)).into_response();
    answer.extensions_mut().insert(said);
    answer
}
