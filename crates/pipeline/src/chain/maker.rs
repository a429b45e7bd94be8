//! Makes the chains of a consumer: one for each thread that runs the chain, and a new one after each failure.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use millstream_record::Pool;

use super::{Chain, NodeContext, workers::Workers};
use crate::{
    failure::Failure,
    plan::{ChainNode, ChainPlan},
};

/// Makes the chains of one consumer. The chains share the threads of their processors. These threads end when the last chain is dropped.
pub(crate) struct ChainMaker {
    plan: Arc<ChainPlan>,
    contexts: Vec<NodeContext>,
    pool: Pool,
    /// For each node, its threads while a chain uses them.
    workers: Mutex<Vec<Weak<Workers>>>,
}

impl ChainMaker {
    /// Returns a maker of chains of `plan`; `contexts` has one entry for each node of the plan.
    pub(crate) fn new(plan: Arc<ChainPlan>, contexts: Vec<NodeContext>, pool: &Pool) -> Arc<Self> {
        Arc::new(Self {
            workers: Mutex::new(plan.nodes.iter().map(|_| Weak::new()).collect()),
            plan,
            contexts,
            pool: pool.clone(),
        })
    }

    /// Returns the plan of the chains.
    pub(crate) fn plan(&self) -> &Arc<ChainPlan> {
        &self.plan
    }

    /// Makes a chain with new tasks. Also starts the threads of those processors that run on separate threads, unless another chain
    /// already uses them.
    pub(crate) fn make(&self) -> Result<Chain, Failure> {
        let mut all = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes = self.plan.nodes.iter().zip(&self.contexts);
        let workers = nodes.zip(&mut *all).map(|((node, context), known)| {
            if let Some(workers) = known.upgrade() {
                return Ok(Some(workers));
            }
            let started = self.start(node, context)?;
            *known = started.as_ref().map(Arc::downgrade).unwrap_or_default();
            Ok(started)
        });
        let workers = workers.collect::<Result<Vec<_>, Failure>>()?;
        Chain::new(self.plan.clone(), &self.contexts, workers, &self.pool)
    }

    fn start(
        &self,
        node: &ChainNode,
        context: &NodeContext,
    ) -> Result<Option<Arc<Workers>>, Failure> {
        Workers::start(node, &context.meters, &self.pool)
    }
}
