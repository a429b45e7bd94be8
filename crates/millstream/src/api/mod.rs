//! The interface for people and monitoring, over HTTP/1.1: `/health`, `/metrics`, `/status`, and `POST /reload`.
//!
//! A peer on this machine may see and do everything; a peer elsewhere sees only the pages that `api.open` names, because there are no
//! tokens yet. Connections are bounded, and idle ones are closed. It runs on the main thread, so it takes no time
//! from the data threads.

mod connection;
mod host;
mod line;
mod view;

use std::{net::SocketAddr, sync::Arc, time::Instant};

use axum::{
    Router,
    extract::{ConnectInfo, Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use millstream_config::{Api, ApiEndpoint};
use millstream_pipeline::{
    failure::Failure,
    meters::Meters,
    running::{Nodes, Running},
};
use millstream_record::Pool;

use crate::reload::{Report, Requests};
use connection::{Listener, Peer};
use host::Hosts;

/// The format of `/metrics`.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Bound listeners that do not answer yet.
pub struct Bound {
    listeners: Vec<Listener>,
    open: Vec<ApiEndpoint>,
    hosts: Hosts,
}

/// The state that the pages show.
pub struct Shown {
    nodes: Nodes,
    meters: Meters,
    pool: Pool,
    started: Instant,
    open: Vec<ApiEndpoint>,
    hosts: Hosts,
    reloads: Requests,
}

impl Shown {
    /// The status as one line for the log.
    pub fn line(&self) -> String {
        line::of(&view::status(self))
    }
}

/// Binds the addresses. An address in use ends the start if the configuration names it (`chosen`); the default address only
/// costs a warning and the interface. `machine` is the configured name of this machine.
pub async fn bind(api: &Api, chosen: bool, machine: &str) -> Result<Bound, Failure> {
    let mut listeners = Vec::new();
    for address in &*api.listen {
        match Listener::bind(address).await {
            Ok(listener) => listeners.push(listener),
            Err(error) if chosen => {
                return Err(Failure::us(format!(
                    "cannot listen on {address} (api.listen): {error}; set `api: {{ listen: ... }}` to another address, or to [] for none"
                )));
            }
            Err(error) => tracing::warn!(
                "no /health, /metrics and /status: cannot listen on {address}: {error}; `api: {{ listen: ... }}` names another address"
            ),
        }
    }
    Ok(Bound {
        listeners,
        open: api.open.clone(),
        hosts: Hosts::new(machine, &api.hosts),
    })
}

impl Bound {
    /// Answers from now on until the process ends. The returned value gives the program the same views.
    pub fn serve(self, running: &Running, reloads: Requests) -> Arc<Shown> {
        let shown = Arc::new(Shown {
            nodes: running.nodes.clone(),
            meters: running.meters.clone(),
            pool: running.pool.clone(),
            started: Instant::now(),
            open: self.open,
            hosts: self.hosts,
            reloads,
        });
        for listener in self.listeners {
            let pages = pages(shown.clone()).into_make_service_with_connect_info::<Peer>();
            // It never ends: failures to accept are waited out.
            tokio::spawn(async move { axum::serve(listener, pages).await });
        }
        shown
    }
}

fn pages(shown: Arc<Shown>) -> Router {
    Router::new()
        .route(
            "/",
            get(async || "/health\n/metrics\n/status\nPOST /reload\n"),
        )
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/reload", post(reload))
        .layer(middleware::from_fn_with_state(shown.clone(), admit))
        .with_state(shown)
}

/// Refuses foreign `Host` headers, and peers that may not see the page.
async fn admit(
    State(shown): State<Arc<Shown>>,
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if let Err(host) = shown.hosts.admit(request.headers()) {
        let why = format!(
            "the interface does not answer to the host {host:?}; `api: {{ hosts: [{host:?}] }}` adds a name\n"
        );
        return (StatusCode::MISDIRECTED_REQUEST, why).into_response();
    }
    let page = match request.uri().path() {
        "/health" => Some(ApiEndpoint::Health),
        "/metrics" => Some(ApiEndpoint::Metrics),
        _ => None,
    };
    let is_open = page.is_some_and(|page| shown.open.contains(&page));
    if is_here(peer) || is_open {
        return next.run(request).await;
    }
    let why = "only for this machine: there are no tokens yet; `api: { open: [health, metrics] }` opens those two\n";
    (StatusCode::FORBIDDEN, why).into_response()
}

/// Whether a peer is on this machine.
fn is_here(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

async fn health(State(shown): State<Arc<Shown>>) -> Response {
    let (healthy, page) = view::health(&shown.nodes.now());
    let code = match healthy {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (code, axum::Json(page)).into_response()
}

async fn metrics(State(shown): State<Arc<Shown>>) -> Response {
    let text = shown.meters.prometheus();
    ([(header::CONTENT_TYPE, PROMETHEUS)], text).into_response()
}

async fn status(State(shown): State<Arc<Shown>>) -> Response {
    axum::Json(view::status(&shown)).into_response()
}

/// Reloads the configuration. A page of another site that a browser shows may not ask for it.
async fn reload(State(shown): State<Arc<Shown>>, headers: HeaderMap) -> Response {
    if headers.contains_key(header::ORIGIN) {
        let why = "not for a page of a browser; use `millstream reload`\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let Some(report) = shown.reloads.reload().await else {
        let why = "too many reloads at once, or Millstream is about to end\n";
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let code = match &report {
        Report::Applied { .. } => StatusCode::OK,
        Report::Refused(_) | Report::Failed(_) => StatusCode::UNPROCESSABLE_ENTITY,
    };
    (code, axum::Json(report.json())).into_response()
}
