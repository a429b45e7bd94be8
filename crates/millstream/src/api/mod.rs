//! The interface for people and monitoring, over HTTP/1.1. The dashboard is at `/`. Other pages are `/health`, `/ready`, `/live`,
//! `/metrics`, `/status`, `/events`, `/history/NODE`, `/nodes/NODE`, and `POST /reload`. The function `pages` lists all of them.
//!
//! By default, a peer on this machine may see and do everything. A peer on another machine needs a token or a certificate, except for
//! the pages that `api.open` names (`access.rs`). Each change is logged (`audit.rs`). The number of connections is bounded, and idle
//! connections are closed. The interface runs on the main thread, so it takes no time from the data threads.

mod access;
mod audit;
mod causes;
mod channels;
mod connection;
mod events;
mod filling;
mod flow;
mod graphite;
mod health;
mod history;
mod host;
mod line;
mod metrics;
mod oldest;
mod openapi;
mod order;
mod page;
mod process;
mod query;
mod rejected;
mod replay;
mod stalled;
mod tap;
mod transport;
mod view;
mod watch;

use std::{
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use axum::{
    Router,
    extract::{ConnectInfo, Path, Request, State},
    http::{HeaderValue, Method, StatusCode, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use millstream_config::{Api, Settings};
use millstream_net::ServerTls;
use millstream_pipeline::{
    condition::Trouble,
    failure::Failure,
    guard::guarded,
    meters::Meters,
    redact::Redaction,
    report::Reporter,
    running::{Nodes, Running},
};
use millstream_record::Pool;
use serde_json::Value;

use crate::{
    config,
    described::Descriptions,
    reload::{Report, Requests},
};
use access::{Access, Denied};
use audit::Said;
use connection::{Listener, Peer};
use events::Events;
use graphite::Pushes;
use history::History;
use transport::Tls;

pub use line::of as line;
pub use oldest::of as oldest;
pub use order::in_flow;

pub use graphite::Pusher;

/// Listeners that are bound and do not answer yet.
pub struct Bound {
    listeners: Vec<Listener>,
    access: Access,
    redaction: Redaction,
    reporter: Reporter,
}

/// The state that the pages show.
pub struct Shown {
    nodes: Nodes,
    meters: Meters,
    pool: Pool,
    /// The name of this machine, as configured.
    host: String,
    started: Instant,
    /// Why `data_dir` cannot be used.
    unusable: Option<String>,
    access: Access,
    redaction: Redaction,
    reporter: Reporter,
    reloads: Requests,
    draining: AtomicBool,
    pushes: Pushes,
    descriptions: Descriptions,
    history: Mutex<History>,
    events: Events,
    rejected: rejected::Kept,
    replays: replay::Replays,
}

impl Shown {
    /// Makes `/ready` fail, because the process is about to end.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The status as one line for the log.
    pub fn line(&self) -> String {
        line::of(&view::status(self))
    }
}

/// Binds the addresses of `api.listen`. `chosen` is true if the configuration sets `api.listen`. Then an address that cannot be bound is an
/// error. If `chosen` is false, an unavailable default address only causes a warning, and the interface does not listen there. `machine` is
/// the configured name of this machine.
pub async fn bind(
    api: &Api,
    tls: Option<ServerTls>,
    chosen: bool,
    machine: &str,
) -> Result<Bound, Failure> {
    let reporter = Reporter::new("api");
    let tls = tls.map(|tls| Tls::new(tls, reporter.clone()));
    let mut listeners = Vec::new();
    for address in &*api.listen {
        match Listener::bind(address, tls.clone()).await {
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
        access: Access::new(api, machine),
        redaction: Redaction::new(&api.redact),
        reporter,
    })
}

impl Bound {
    /// The addresses at which a browser reaches the page. `machine`: the name of this machine.
    pub fn addresses(&self, machine: &str) -> Vec<String> {
        let all = self.listeners.iter();
        all.filter_map(|listener| listener.url(machine)).collect()
    }

    /// Answers requests until the process ends. Returns the state that the pages show. The status line in the log and the reports to
    /// Graphite show it, too.
    pub fn serve(
        self,
        running: &Running,
        reloads: Requests,
        descriptions: Descriptions,
        settings: &Settings,
    ) -> Arc<Shown> {
        let shown = Arc::new(Shown {
            nodes: running.nodes.clone(),
            meters: running.meters.clone(),
            pool: running.pool.clone(),
            host: config::host(settings),
            started: Instant::now(),
            unusable: running.unusable_data_dir().map(str::to_owned),
            access: self.access,
            redaction: self.redaction,
            reporter: self.reporter,
            reloads,
            draining: AtomicBool::new(false),
            pushes: Pushes::new(settings.graphite.as_ref()),
            descriptions,
            history: Mutex::default(),
            events: Events::new(connection::streams_max()),
            rejected: rejected::Kept::new(running.rejected_place()),
            replays: replay::Replays::new(running.stopping()),
        });
        let limit = settings.health.stalled.as_duration();
        let stalled = stalled::watch(shown.nodes.clone(), shown.meters.clone(), limit);
        spawn(&shown.reporter, "the watch for stalled nodes", stalled);
        if !self.listeners.is_empty() {
            let watch = watch::watch(shown.clone());
            spawn(&shown.reporter, "the history of the meters", watch);
        }
        for listener in self.listeners {
            let pages = pages(shown.clone()).into_make_service_with_connect_info::<Peer>();
            // `serve` never ends: after a failed accept it waits and retries.
            let serve = async move { drop(axum::serve(listener, pages).await) };
            spawn(&shown.reporter, "a listener of the interface", serve);
        }
        shown
    }
}

/// Runs a task that ends only with the process. If it panics, a condition says so until the process ends.
fn spawn(reporter: &Reporter, what: &'static str, work: impl Future<Output = ()> + Send + 'static) {
    let condition = reporter.condition("failed");
    tokio::spawn(async move {
        let why = match guarded(work).await {
            Ok(()) => "it has ended".to_owned(),
            Err(panic) => format!("it panicked: {}", panic.0),
        };
        condition.raise(
            Trouble::Blocked,
            format_args!(
                "{what} does not work until Millstream is restarted: {why}; please report it"
            ),
        );
        pending::<()>().await;
    });
}

fn pages(shown: Arc<Shown>) -> Router {
    Router::new()
        .route("/", get(page::root))
        .route("/assets/{name}", get(page::file))
        .route("/events", get(events))
        .route("/history/{node}", get(history))
        .route("/nodes/{node}", get(node))
        .route("/health", get(get_health))
        .route("/ready", get(health::get_ready))
        .route("/live", get(health::get_live))
        .route("/metrics", get(metrics::get_metrics))
        .route("/status", get(status))
        .route("/reload", post(reload))
        .route("/openapi.json", get(openapi::openapi))
        .route("/tap/{node}", get(tap::tap))
        .route("/rejected", get(rejected::nodes))
        .route("/rejected/{node}", get(rejected::records))
        .route("/channels/{name}/forget", post(channels::forget))
        .route("/channels/{name}/skip", post(channels::skip))
        .route(
            "/rejected/{node}/replay",
            get(replay::state).post(replay::begin),
        )
        .layer(middleware::from_fn_with_state(shown.clone(), admit))
        .layer(middleware::from_fn(page::protect))
        .with_state(shown)
}

/// Refuses requests that the caller may not make. Runs all others, and logs each change.
async fn admit(
    State(shown): State<Arc<Shown>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = request.into_parts();
    match shown.access.admit(&peer, &head) {
        Err(denied) => {
            let target = head.uri.path();
            audit::refused(&shown.reporter, peer.address, &head.method, target, &denied);
            denied.into_response()
        }
        Ok(caller) if matches!(head.method, Method::GET | Method::HEAD) => {
            let mut request = Request::from_parts(head, body);
            request.extensions_mut().insert(caller);
            peer.handling.set(true);
            let answer = next.run(request).await;
            peer.handling.set(false);
            answer
        }
        Ok(caller) => {
            let (method, target) = (head.method.clone(), head.uri.to_string());
            let mut request = Request::from_parts(head, body);
            request.extensions_mut().insert(caller.clone());
            peer.handling.set(true);
            // The change runs in a separate task. If the client closes its connection, this function is dropped, but the task still makes
            // and logs the change.
            let reporter = shown.reporter.clone();
            let changing = tokio::spawn(async move {
                let answer = next.run(request).await;
                let said = answer.extensions().get::<Said>();
                let said = said.map_or("", |said| &said.0);
                let change = (&method, &*target);
                audit::changed(&reporter, &caller, change, answer.status(), said);
                answer
            });
            let answer = changing.await;
            peer.handling.set(false);
            answer.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
        }
    }
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let mut answer = (self.code, format!("{}\n", self.why)).into_response();
        if self.code == StatusCode::UNAUTHORIZED {
            let headers = answer.headers_mut();
            let bearer = HeaderValue::from_static("Bearer realm=\"Millstream\"");
            headers.append(header::WWW_AUTHENTICATE, bearer);
            if self.asks {
                let basic =
                    "Basic realm=\"Millstream: the password is a token\", charset=\"UTF-8\"";
                headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_static(basic));
            }
        }
        answer
    }
}

/// Answers 200 if every node is healthy, and otherwise 503.
async fn get_health(State(shown): State<Arc<Shown>>) -> Response {
    let process = view::process_conditions(&shown);
    health::answer(health::health(&shown.nodes.now(), process))
}

async fn status(State(shown): State<Arc<Shown>>) -> Response {
    axum::Json(view::status(&shown)).into_response()
}

/// Streams the status every second.
async fn events(State(shown): State<Arc<Shown>>) -> Response {
    shown.events.stream(|| view::status(&shown).to_string())
}

/// Answers with the history of a node in the last hour.
async fn history(State(shown): State<Arc<Shown>>, Path(node): Path<String>) -> Response {
    let page = shown.history().of(&node);
    // A node that has just started has no sample yet.
    let exists = || shown.nodes.now().iter().any(|it| *it.name == *node);
    let page = page.or_else(|| exists().then(|| history::empty(&node)));
    found(&node, page)
}

/// Answers with the options and guarantees of a node.
async fn node(State(shown): State<Arc<Shown>>, Path(node): Path<String>) -> Response {
    found(&node, shown.descriptions.of(&node))
}

/// Answers with the page about a node, or with 404 if there is no such node.
fn found(node: &str, page: Option<Value>) -> Response {
    match page {
        Some(page) => axum::Json(page).into_response(),
        None => {
            let why = format!("no node is called {node:?}; /status names them all\n");
            (StatusCode::NOT_FOUND, why).into_response()
        }
    }
}

/// Reloads the configuration.
async fn reload(State(shown): State<Arc<Shown>>, uri: Uri) -> Response {
    let forget = match query::names(&uri, "forget") {
        Ok(forget) => forget,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let Some(report) = shown.reloads.reload(forget).await else {
        let why = "too many reloads at once, or Millstream is about to end\n";
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let code = match &report {
        Report::Applied { .. } => StatusCode::OK,
        Report::Refused(_) | Report::Failed(_) => StatusCode::UNPROCESSABLE_ENTITY,
    };
    (code, axum::Json(report.json())).into_response()
}
