//! Makes the chains of a consumer: one for each thread that runs it, and new ones after failures.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use millstream_record::Pool;

use super::{Chain, NodeContext, workers::Workers};
use crate::{
    failure::Failure,
    plan::{ChainNode, ChainPlan},
};

/// Makes the chains of one consumer. All of them share the threads of their processors, which end with the last chain.
pub(crate) struct ChainMaker {
    plan: Arc<ChainPlan>,
    contexts: Vec<NodeContext>,
    pool: Pool,
    /// For each node, its threads while a chain uses them.
    workers: Mutex<Vec<Weak<Workers>>>,
}

impl ChainMaker {
    /// Makes chains of `plan`; `contexts` has one entry for each of its nodes.
    pub(crate) fn new(plan: Arc<ChainPlan>, contexts: Vec<NodeContext>, pool: &Pool) -> Arc<Self> {
        Arc::new(Self {
            workers: Mutex::new(plan.nodes.iter().map(|_| Weak::new()).collect()),
            plan,
            contexts,
            pool: pool.clone(),
        })
    }

    /// The processors of its chains.
    pub(crate) fn plan(&self) -> &Arc<ChainPlan> {
        &self.plan
    }

    /// A chain with new tasks. Starts the threads of processors that have some, unless another chain uses them already.
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
