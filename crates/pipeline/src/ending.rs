//! Reports how the task of a source or sink ends, also if its thread dies.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::{
    failure::{Failure, Who},
    report::Reporter,
    supervise::{End, StateCell},
};

/// A message of a task, or of a reload, to the pipeline.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A task of a source or sink has ended in an orderly way.
    Ended { is_source: bool },
    /// A task of a source or sink has failed and runs again only if a reload replaces it.
    Failed {
        is_source: bool,
        node: Arc<str>,
        failure: Failure,
        /// Whether the process must stop.
        stops: bool,
    },
    /// A reload has replaced or removed a node that had failed, so its failure is over.
    Repaired(Arc<str>),
}

impl Event {
    /// Tells how a task of `node` has ended. A node that the plan no longer has (`is_planned` is false) does not stop the process.
    pub(crate) fn of(is_source: bool, node: &Arc<str>, end: End, is_planned: bool) -> Self {
        match end {
            Ok(()) => Self::Ended { is_source },
            Err(failure) => Self::Failed {
                is_source,
                node: node.clone(),
                stops: is_planned && failure.who != Who::State,
                failure,
            },
        }
    }
}

/// Reports the end of a task to the pipeline. If it is dropped first, the task or its thread has died: the node counts as failed.
pub(crate) struct Ending {
    /// `None` once the end is reported.
    ends: Option<mpsc::Sender<Event>>,
    is_source: bool,
    node: Arc<str>,
    state: StateCell,
    reporter: Reporter,
}

impl Ending {
    /// Returns the value that a task holds from before its start until its end.
    pub(crate) fn new(
        ends: &mpsc::Sender<Event>,
        is_source: bool,
        node: &Arc<str>,
        state: &StateCell,
        reporter: &Reporter,
    ) -> Self {
        Self {
            ends: Some(ends.clone()),
            is_source,
            node: node.clone(),
            state: state.clone(),
            reporter: reporter.clone(),
        }
    }

    /// Reports an orderly end or a failure. `is_planned`: the plan still has the node.
    pub(crate) async fn report(mut self, end: End, is_planned: bool) {
        if let Some(ends) = self.ends.take() {
            let event = Event::of(self.is_source, &self.node, end, is_planned);
            // The pipeline may be gone.
            let _ = ends.send(event).await;
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else {
            return;
        };
        let failure = Failure::us(
            "its thread has died: this is a fault of Millstream, please report it with the panic in the log",
        )
        .never_again();
        self.state.fail(&failure);
        self.reporter
            .error("failed", format_args!("{failure}; it has stopped"));
        // If there is no room, the pipeline has ended, or learns at the deadline of its stop that this task is missing.
        let event = Event::of(self.is_source, &self.node, Err(failure), true);
        let _ = ends.try_send(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::NodeState;

    #[tokio::test]
    async fn a_task_that_dies_fails_its_node_and_one_that_ends_reports_its_end() {
        let (ends, mut ended) = mpsc::channel(2);
        let (state, reporter) = (StateCell::new(), Reporter::new("in"));
        let ending = |is_source| Ending::new(&ends, is_source, &"n".into(), &state, &reporter);
        ending(true).report(Ok(()), true).await;
        let event = ended.recv().await;
        assert_eq!(event, Some(Event::Ended { is_source: true }));
        assert_eq!(state.get(), NodeState::Running);
        drop(ending(false));
        let event = ended.recv().await.unwrap();
        let Event::Failed {
            is_source: false,
            failure,
            stops: true,
            ..
        } = event
        else {
            panic!("{event:?}");
        };
        assert!(failure.message.contains("died"));
        assert!(matches!(state.get(), NodeState::Failed(_)));
    }
}
