//! Runs a processor without a chain, for its unit tests and for the cases (tests beside a processor in a configuration).
//!
//! Every port is treated as if it had a consumer, and rejected records are part of the output. No meter counts, and no record is
//! sent.

use std::sync::Arc;

use millstream_record::{Batch, Pool};

use crate::{
    failure::Failure,
    guard,
    output::{Made, Out, Use},
    processor::{Processor, Task},
};

/// The size of the pool for the output. Output never waits for memory. The size bounds how much the records of a batch may grow.
const POOL_BYTES: usize = 512 << 20;

/// A processor with one task.
pub struct Trial {
    name: Arc<str>,
    ports: Vec<Arc<str>>,
    task: Box<dyn Task>,
    pool: Pool,
}

impl Trial {
    /// Starts a task of the processor `name`.
    pub fn new(name: &str, processor: &dyn Processor) -> Result<Self, Failure> {
        Ok(Self {
            name: name.into(),
            ports: processor.ports(),
            task: processor.task()?,
            pool: Pool::new(POOL_BYTES),
        })
    }

    /// The names of its ports, in the order of [`Made::ports`].
    pub fn ports(&self) -> &[Arc<str>] {
        &self.ports
    }

    /// Processes a batch. A panic becomes a failure, after which the trial must not be used again.
    pub fn run(&mut self, batch: &Batch) -> Result<Made, Failure> {
        let ports = (0..self.ports.len()).map(Use::Here);
        let mut out = Out::new(&self.name, batch, &self.pool, ports);
        let task = &mut self.task;
        match guard::attempt(|| task.process(batch, &mut out)) {
            Ok(processed) => processed.map(|()| out.finish()),
            Err(panic) => Err(Failure::us(format!("the processor panicked: {}", panic.0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_record::Encoding;

    use super::*;
    use crate::processor::MAIN;

    /// Passes on batches tagged `good`, fails on `bad` and panics on all others.
    struct Fussy;

    impl Processor for Fussy {
        fn task(&self) -> Result<Box<dyn Task>, Failure> {
            Ok(Box::new(Self))
        }
    }

    impl Task for Fussy {
        fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
            match batch.tag.as_str() {
                "good" => out.pass(MAIN),
                "bad" => return Err(Failure::config("no")),
                tag => panic!("what is {tag}"),
            }
            Ok(())
        }
    }

    #[test]
    fn a_failure_and_a_panic_of_the_processor_are_failures_of_the_trial() {
        let mut trial = Trial::new("fussy", &Fussy).unwrap();
        let batch = |tag: &str| Batch {
            tag: tag.into(),
            encoding: Encoding::Lines,
            plain: false,
            body: "a\n".into(),
            count: 1,
            received: Default::default(),
            values: Default::default(),
            origins: Vec::new(),
        };
        let made = trial.run(&batch("good")).unwrap();
        assert_eq!((made.ports[0].len(), made.counts.sent), (1, 1));
        assert_eq!(trial.run(&batch("bad")).unwrap_err().message, "no");
        let panicked = trial.run(&batch("ugly")).unwrap_err();
        assert!(panicked.message.contains("what is ugly"), "{panicked}");
    }
}
