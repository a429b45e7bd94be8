//! The content of `/status`, as JSON.

use jiff::Timestamp;
use millstream_pipeline::{
    condition::{Held, Trouble},
    running::NodeStatus,
    tables::Rows,
};
use serde_json::{Map, Value, json};

use super::{
    Shown,
    causes::problems,
    flow::edges,
    health::{View, since, verdict, views, word},
};
use crate::log;

/// The full status.
pub fn status(shown: &Shown) -> Value {
    let (meters, tables) = (shown.meters.snapshot(), shown.meters.tables());
    let nodes = shown.nodes.now();
    let (views, conditions) = (views(&nodes), process_conditions(shown));
    let history = shown.history();
    let node = |view: &View<'_>| {
        let node: &NodeStatus = view.node;
        let own = meters.iter().filter(|(name, _, _)| *name == node.name);
        let own: Map<String, Value> = own
            .map(|(_, meter, value)| ((*meter).to_owned(), json!(value)))
            .collect();
        let mut shown = json!({
            "name": &*node.name, "section": node.section, "type": node.kind, "state": view.state, "meters": own,
        });
        if let Some(now) = history.now(&node.name) {
            shown["now"] = now;
        }
        if let Some(full) = history.full_in(&node.name) {
            shown["full_in"] = json!({ "seconds": full.seconds, "of": full.of });
        }
        if let Some((used, most)) = node.consumer.as_ref().and_then(|it| it.fill()) {
            shown["queue"] = json!({ "used_bytes": used, "max_bytes": most });
        }
        let tables = shown_tables(tables.of(&node.name));
        if !tables.is_empty() {
            shown["tables"] = Value::Object(tables);
        }
        view.tell(&mut shown);
        if view.held.len() > 1 {
            let held = view.held.iter().map(|held| {
                json!({ "state": word(held.trouble), "why": held.why, "since": since(held), "seconds": held.age.as_secs() })
            });
            shown["conditions"] = held.collect();
        }
        shown
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "host": shown.host,
        "pid": std::process::id(),
        "time": Timestamp::now().as_second(),
        "uptime_seconds": shown.started.elapsed().as_secs(),
        "healthy": views.iter().all(View::is_healthy),
        "verdict": verdict(&views, &conditions),
        "memory": { "used_bytes": shown.pool.taken_bytes(), "max_bytes": shown.pool.bytes_max() },
        "problems": problems(&views),
        "conditions": conditions,
        "nodes": views.iter().map(node).collect::<Vec<_>>(),
        "edges": edges(&shown.nodes.links(), |node| history.rates(node)),
    })
}

/// The conditions of the process itself. They do not make it unhealthy, because its nodes work.
pub(super) fn process_conditions(shown: &Shown) -> Vec<Value> {
    let told = |what: &str, held: &Held| {
        json!({
            "what": what, "state": word(held.trouble), "why": held.why, "since": since(held), "seconds": held.age.as_secs()
        })
    };
    let held = |trouble, why, age| Held {
        trouble,
        why,
        age,
        cause: None,
    };
    let log = log::trouble().map(|(why, age)| {
        let trouble = Trouble::Losing;
        told("log", &held(trouble, why, age))
    });
    let data_dir = shown.unusable.clone().map(|why| {
        let (trouble, age) = (Trouble::Blocked, shown.started.elapsed());
        told("data_dir", &held(trouble, why, age))
    });
    let api = shown.reporter.conditions();
    let configuration = shown.reloads.failed();
    let configuration = configuration.map(|held| told("configuration", &held));
    log.into_iter()
        .chain(data_dir)
        .chain(configuration)
        .chain(api.iter().map(|held| told("api", held)))
        .collect()
}

/// Returns `{ METRIC: [{ LABEL: text, "value": n }, ...] }`. The rows of each metric begin with the largest value.
fn shown_tables(tables: Vec<(&'static str, &'static str, Rows)>) -> Map<String, Value> {
    let table = |(name, label, rows): (&str, &str, Rows)| {
        let row = |(what, value): (String, u64)| json!({ (label): what, "value": value });
        (name.to_owned(), rows.into_iter().map(row).collect())
    };
    tables.into_iter().map(table).collect()
}
