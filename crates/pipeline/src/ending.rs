//! Reports how the task of a source or sink ends, also if its thread dies.

use tokio::sync::mpsc;

use crate::{
    failure::Failure,
    report::Reporter,
    supervise::{End, StateCell},
};

/// Reports the end of a task to the pipeline. If it is dropped first, the task or its thread has died: the node counts as failed.
pub(crate) struct Ending {
    /// `None` once the end is reported.
    ends: Option<mpsc::Sender<(bool, End)>>,
    is_source: bool,
    state: StateCell,
    reporter: Reporter,
}

impl Ending {
    /// Returns the value that a task holds from before its start until its end.
    pub(crate) fn new(
        ends: &mpsc::Sender<(bool, End)>,
        is_source: bool,
        state: &StateCell,
        reporter: &Reporter,
    ) -> Self {
        Self {
            ends: Some(ends.clone()),
            is_source,
            state: state.clone(),
            reporter: reporter.clone(),
        }
    }

    /// Reports an orderly end or a failure.
    pub(crate) async fn report(mut self, end: End) {
        if let Some(ends) = self.ends.take() {
            // The pipeline may be gone.
            let _ = ends.send((self.is_source, end)).await;
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
        let _ = ends.try_send((self.is_source, Err(failure)));
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
        Ending::new(&ends, true, &state, &reporter)
            .report(Ok(()))
            .await;
        assert_eq!(ended.recv().await, Some((true, Ok(()))));
        assert_eq!(state.get(), NodeState::Running);
        drop(Ending::new(&ends, false, &state, &reporter));
        let (is_source, end) = ended.recv().await.unwrap();
        assert!(!is_source && end.unwrap_err().message.contains("died"));
        assert!(matches!(state.get(), NodeState::Failed(_)));
    }
}
