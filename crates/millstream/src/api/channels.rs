//! Changes of running channels:
//!
//! - `POST /channels/{name}/forget?consumer=NAME`: the channel drops the records that only this consumer still needs. This is refused
//!   if a sink uses the consumer.
//! - `POST /channels/{name}/skip?consumer=NAME&to=POSITION&id=ID`: the consumer continues after `POSITION`, and its sink restarts. `ID` is
//!   the id of the channel, from its directory.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Path, State},
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Shown, audit::Said, query};
use crate::reload::Skip;

/// The maximum time to wait for the channel. The channel may be waiting for its disk, or counting a large backlog. The timeout of the
/// client is longer.
const WAIT: Duration = Duration::from_secs(50);

/// Forgets a consumer.
pub async fn forget(
    State(shown): State<Arc<Shown>>,
    Path(channel): Path<String>,
    uri: Uri,
) -> Response {
    let [consumer] = match query::words(&uri, ["consumer"]) {
        Ok(words) => words,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let why = asked(&channel, shown.reloads.forget(&channel, &consumer))
        .await
        .err();
    let said = Said(why.clone().unwrap_or_else(|| "forgotten".to_owned()));
    let page =
        json!({ "channel": channel, "consumer": consumer, "forgotten": why.is_none(), "why": why });
    answer(why.is_none(), page, said)
}

/// Moves a consumer past records.
pub async fn skip(
    State(shown): State<Arc<Shown>>,
    Path(channel): Path<String>,
    uri: Uri,
) -> Response {
    let skip = match skip_of(channel, &uri) {
        Ok(skip) => skip,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let (channel, consumer, to) = (
        skip.channel.clone(),
        skip.consumer.clone(),
        skip.to.to_string(),
    );
    let skipped = asked(&channel, shown.reloads.skip(skip)).await;
    let said = match &skipped {
        Ok(records) => Said(format!("{records} records skipped")),
        Err(why) => Said(why.clone()),
    };
    let (records, why) = (skipped.as_ref().ok(), skipped.as_ref().err());
    let page = json!({ "channel": channel, "consumer": consumer, "to": to, "skipped": records, "why": why });
    answer(skipped.is_ok(), page, said)
}

fn skip_of(channel: String, uri: &Uri) -> Result<Skip, String> {
    let [consumer, to, id] = query::words(uri, ["consumer", "to", "id"])?;
    let id = u128::from_str_radix(&id, 16);
    Ok(Skip {
        channel,
        consumer,
        to: to.parse().map_err(|why| format!("{why}\n"))?,
        id: id.map_err(|_| "`id` is the id of the channel, 32 hexadecimal digits\n".to_owned())?,
    })
}

/// Waits for a channel to carry out a request.
async fn asked<T>(
    channel: &str,
    request: impl Future<Output = Option<Result<T, String>>>,
) -> Result<T, String> {
    match timeout(WAIT, request).await {
        Ok(Some(done)) => done,
        Ok(None) => Err(format!("this disk channel does not run here: {channel}")),
        Err(_) => Err(format!(
            "{channel} has not answered yet: it waits for its disk, and may still carry out the request"
        )),
    }
}

fn answer(is_done: bool, page: Value, said: Said) -> Response {
    let code = match is_done {
        true => StatusCode::OK,
        false => StatusCode::CONFLICT,
    };
    let mut answer = (code, axum::Json(page)).into_response();
    answer.extensions_mut().insert(said);
    answer
}
