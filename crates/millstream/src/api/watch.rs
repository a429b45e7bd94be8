//! The task that runs every second: adds a sample to the history, and sends an event to the browsers.

use std::{collections::HashMap, sync::Arc, time::Instant};

use jiff::Timestamp;
use tokio::time::MissedTickBehavior;

use super::{
    Shown,
    health::views,
    history::{Reading, STEP, Seen},
    view::status,
};

/// Adds a sample to the history and sends an event, every second.
pub(super) async fn watch(shown: Arc<Shown>) {
    let mut seconds = tokio::time::interval(STEP);
    seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        seconds.tick().await;
        sample(&shown);
        shown.events.send(|| status(&shown).to_string());
    }
}

/// Adds a sample of all nodes to the history.
fn sample(shown: &Shown) {
    let (meters, nodes) = (shown.meters.snapshot(), shown.nodes.now());
    let histograms = shown.meters.histograms();
    let now = Timestamp::now().as_second();
    let mut readings: HashMap<&str, Reading> = HashMap::new();
    for (component, meter, value) in &meters {
        let reading = readings.entry(component).or_default();
        reading.take(meter, *value, now);
    }
    for (component, name, times) in &histograms {
        let reading = readings.entry(component).or_default();
        reading.time(name, times.count(), times.sum);
    }
    let views = views(&nodes);
    let seen = views.iter().map(|view| Seen {
        name: view.node.name.clone(),
        reading: readings
            .get(&*view.node.name)
            .copied()
            .unwrap_or_default()
            .of(view.node.section),
        state: view.state,
        why: view.held.first().map(|held| &*held.why),
    });
    shown.history().sample(seen, Instant::now());
}
