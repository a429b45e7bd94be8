//! `/metrics`: everything that the instance counts, as OpenMetrics or as Prometheus' text format.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use millstream_pipeline::{
    meters::{
        exposition::{Family, Number, OPENMETRICS, PROMETHEUS, openmetrics, prometheus},
        family,
        known::Kind,
    },
    running::NodeStatus,
};

use super::{
    Shown,
    health::{STATES, View, ready, views},
    process,
};
use crate::log;

/// The media type of OpenMetrics.
const OPENMETRICS_TYPE: &str = "application/openmetrics-text";

/// The page, in the format that the scraper asks for.
pub(super) async fn get_metrics(State(shown): State<Arc<Shown>>, headers: HeaderMap) -> Response {
    let families = families(&shown);
    let accept = headers.get_all(header::ACCEPT).iter();
    let accept = accept.filter_map(|value| value.to_str().ok());
    let (kind, text) = match accept.into_iter().any(prefers_openmetrics) {
        true => (OPENMETRICS, openmetrics(&families)),
        false => (PROMETHEUS, prometheus(&families)),
    };
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Whether an `Accept` header names OpenMetrics with at least the weight of `text/plain`.
fn prefers_openmetrics(accept: &str) -> bool {
    let mut weights = (0.0, 0.0);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok());
        let weight: f32 = weight.unwrap_or(1.0);
        if media.eq_ignore_ascii_case(OPENMETRICS_TYPE) {
            weights.0 = weight.max(weights.0);
        } else if media.eq_ignore_ascii_case("text/plain") {
            weights.1 = weight.max(weights.1);
        }
    }
    weights.0 > 0.0 && weights.0 >= weights.1
}

/// All metrics of the instance.
pub(super) fn families(shown: &Shown) -> Vec<Family> {
    let nodes = shown.nodes.now();
    let views = views(&nodes);
    let mut all = instance(shown, &nodes, &views);
    all.extend(of_nodes(&views));
    all.extend(queues(&nodes));
    all.extend(shown.meters.families());
    all.extend(process::families());
    all
}

fn gauge(name: &str, value: u64) -> Family {
    family(name, Kind::Gauge).with(Vec::new(), Number::Whole(value))
}

/// The metrics of the instance: build, configuration, health and memory.
fn instance(shown: &Shown, nodes: &[NodeStatus], views: &[View<'_>]) -> Vec<Family> {
    let info = |name: &str, label: &'static str, value: String| {
        family(name, Kind::Info).with(vec![(label, value)], Number::Whole(1))
    };
    let healthy = views.iter().all(View::is_healthy);
    let is_ready = ready(nodes, shown.is_draining()).0;
    let mut all = vec![
        info("build", "version", env!("CARGO_PKG_VERSION").to_owned()),
        info("config", "hash", shown.reloads.fingerprint()),
        gauge("healthy", u64::from(healthy)),
        gauge("ready", u64::from(is_ready)),
        gauge("reload_failed", u64::from(shown.reloads.failed().is_some())),
        gauge("pool_used_bytes", shown.pool.taken_bytes() as u64),
        gauge("pool_max_bytes", shown.pool.bytes_max() as u64),
        family("log_lines_dropped", Kind::Counter)
            .with(Vec::new(), Number::Whole(log::dropped_lines())),
    ];
    let pushes = &shown.pushes;
    if pushes.is_on() {
        for (name, meter) in [
            ("graphite_failures", &pushes.failures),
            ("graphite_lines", &pushes.lines),
        ] {
            let family = family(name, Kind::Counter);
            all.push(family.with(Vec::new(), Number::Whole(meter.get())));
        }
    }
    all
}

/// The metrics of each node: section, type, state and log lines.
fn of_nodes(views: &[View<'_>]) -> Vec<Family> {
    let mut info = family("node", Kind::Info);
    let mut state = family("node_state", Kind::Gauge);
    let mut events = family("log_events", Kind::Counter);
    for view in views {
        let component = || ("component", view.node.name.to_string());
        let section = ("section", view.node.section.to_owned());
        let kind = ("type", view.node.kind.to_owned());
        info = info.with(vec![component(), section, kind], Number::Whole(1));
        for name in STATES {
            let number = Number::Whole(u64::from(name == view.state));
            state = state.with(vec![component(), ("state", name.to_owned())], number);
        }
        for (level, kind, count) in view.node.reporter.events() {
            let level = ("level", level.to_owned());
            let kind = ("kind", kind.to_owned());
            events = events.with(vec![component(), level, kind], Number::Whole(count));
        }
    }
    vec![info, state, events]
}

/// The metrics of the queues in memory in front of sinks.
fn queues(nodes: &[NodeStatus]) -> [Family; 2] {
    let mut used = family("queue_bytes", Kind::Gauge);
    let mut limit = family("queue_max_bytes", Kind::Gauge);
    for node in nodes {
        let fill = node.consumer.as_ref().and_then(|it| it.fill());
        let Some((bytes, bytes_max)) = fill else {
            continue;
        };
        let component = || vec![("component", node.name.to_string())];
        used = used.with(component(), Number::Whole(bytes));
        limit = limit.with(component(), Number::Whole(bytes_max));
    }
    [used, limit]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scrapers_that_ask_for_openmetrics_get_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert!(prefers_openmetrics(prometheus));
        assert!(prefers_openmetrics("Application/OpenMetrics-Text"));
        for other in [
            "*/*",
            "text/html",
            "",
            ";;,q=,",
            "application/openmetrics-text;q=0",
            "text/plain;q=0.9, application/openmetrics-text; q=0.1",
        ] {
            assert!(!prefers_openmetrics(other), "{other}");
        }
    }
}
