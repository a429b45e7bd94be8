//! The life of a task of a sink, from the plan that has it to its end.
//!
//! - *planned* (an earlier task of the node still runs) -> *running*, when the earlier tasks have ended.
//! - *planned* -> *ended*, when the sink must leave, or when the process stops and a durable channel keeps everything.
//! - *running* -> *ended*, when the input ends or the sink must leave.
//! - *running* -> *failed*, after a failure that a retry cannot fix.
//! - *failed* -> *running*, when a reload replaces the sink.
//! - *failed* -> *ended*, when the sink must leave, or when the process stops.
//!
//! A reload asks for the transitions through the task's seat (`seat.rs`). A task that has failed keeps its input. If it dropped the input,
//! its memory channel would accept batches and drop them.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{Event, Lane};
use crate::{
    condition::Trouble,
    ending::Ending,
    failure::Failure,
    inlet::Inlet,
    node::{Sink, SinkContext},
    outlet::Outlet,
    probation::Entrance,
    seat::Seat,
    started::Started,
    stop::Stop,
    supervise::{self, NodeState},
};

/// A task of a sink.
pub(super) struct SinkTask {
    pub(super) sink: Arc<dyn Sink>,
    pub(super) seat: Seat<Arc<dyn Sink>>,
    pub(super) context: SinkContext,
    pub(super) lane: Lane,
    /// Puts the positions of the task in probation after an unclean end.
    pub(super) entrance: Arc<Entrance>,
    /// The id of the durable channel that the task reads. `None` behind a memory channel.
    pub(super) channel: Option<u128>,
    pub(super) rejects: Outlet,
    /// Each resolves when an earlier task of the node has ended.
    pub(super) before: Vec<Stop>,
    /// Stops all sources.
    pub(super) stop_sources: Stop,
    /// Reports the end of the task. `None` while a failure is reported.
    pub(super) ending: Option<Ending>,
    pub(super) ends: mpsc::Sender<Event>,
    pub(super) started: Arc<Started>,
}

impl SinkTask {
    /// Lives until the end.
    pub(super) async fn live(mut self) {
        let state = self.lane.state.clone();
        if !self.begins().await {
            state.set(NodeState::Ended);
            return self.tell_end(Ok(())).await;
        }
        let mut inlet = match self.inlet().await {
            Ok(inlet) => inlet,
            Err(failure) => {
                let text = format_args!("{failure}; it does not run");
                self.context.reporter.error("failed", text);
                state.fail(&failure);
                return self.tell_end(Err(failure)).await;
            }
        };
        loop {
            let (sink, seat, context) = (&mut self.sink, &self.seat, &mut self.context);
            let end = supervise::sink(sink, seat, &mut inlet, context, &state).await;
            if end.is_ok() {
                // The inlet is dropped before the end is reported, because the process may exit then.
                drop(inlet);
                return self.tell_end(end).await;
            }
            self.tell_end(end).await;
            if !self.is_replaced().await {
                return;
            }
            self.started.begin(false);
            let (name, reporter) = (&self.context.name, &self.context.reporter);
            self.ending = Some(Ending::new(&self.ends, false, name, &state, reporter));
            let repaired = Event::Repaired(self.context.name.clone());
            let _ = self.ends.send(repaired).await;
            state.set(NodeState::Running);
        }
    }

    /// Waits for the earlier tasks of the node. Returns false if the task must end instead.
    async fn begins(&mut self) -> bool {
        self.before.retain(|earlier| !earlier.is_over());
        if self.before.is_empty() {
            return true;
        }
        self.lane.state.set(NodeState::Planned);
        let waits = self.context.reporter.condition("planned");
        waits.raise(
            Trouble::Blocked,
            format_args!(
                "waits until its earlier task has ended, which still delivers what it had before the reload; if that task cannot, \
                 change the options of {name}, or give up its records with `millstream reload --forget {name}`",
                name = self.context.name
            ),
        );
        let mut before = std::mem::take(&mut self.before);
        let ended = async {
            for earlier in &mut before {
                earlier.stopped().await;
            }
        };
        let mut ended = std::pin::pin!(ended);
        let begins = loop {
            tokio::select! {
                biased;
                () = &mut ended => break !self.seat.is_left(),
                () = self.context.stop.stopped() => {}
            }
            if let Some(stop) = self.seat.turn_to_next(&mut self.sink) {
                self.context.stop = stop;
            } else if self.seat.is_left() {
                break false;
            } else if self.channel.is_some() {
                // The process stops. The channel keeps everything for the next start.
                break false;
            } else {
                // Its memory may hold batches that were accepted.
                ended.as_mut().await;
                break !self.seat.is_left();
            }
        };
        self.lane.state.set(NodeState::Running);
        begins
    }

    async fn inlet(&mut self) -> Result<Inlet, Failure> {
        let context = &self.context;
        let reader = self
            .lane
            .reader(&context.name, self.entrance.open())
            .await?;
        let (rejects, stop) = (self.rejects.clone(), context.stop.clone());
        let meters = &context.meters;
        Ok(Inlet::new(
            &context.name,
            reader,
            self.channel,
            rejects,
            stop,
            meters,
        ))
    }

    /// Waits after a failure until a reload replaces the sink. Returns false if the task must end instead.
    async fn is_replaced(&mut self) -> bool {
        tokio::select! {
            () = self.context.stop.stopped() => {}
            () = self.stop_sources.stopped() => return false,
        }
        if let Some(stop) = self.seat.turn_to_next(&mut self.sink) {
            self.context.stop = stop;
            return true;
        }
        if self.seat.is_left() {
            self.lane.state.set(NodeState::Ended);
            let repaired = Event::Repaired(self.context.name.clone());
            let _ = self.ends.send(repaired).await;
        } else {
            // The process stops.
            self.stop_sources.stopped().await;
        }
        false
    }

    async fn tell_end(&mut self, end: supervise::End) {
        if let Some(ending) = self.ending.take() {
            ending.report(end, !self.seat.is_removed()).await;
        }
    }
}
