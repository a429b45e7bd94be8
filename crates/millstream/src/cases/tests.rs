//! Cases whose processors fail, and graphs for the tests of this directory. `tests/commands/cases.rs` runs cases through the program.

use std::{path::PathBuf, sync::Arc};

use millstream_config::RejectedLimits;
use millstream_pipeline::{
    failure::Failure,
    output::Out,
    plan::{Link, Plan, ProcessorPlan, RunSettings},
    processor::{MAIN, Processor, Task},
};
use millstream_record::{Batch, Encoding};

use super::*;

/// A graph with these connections and no nodes.
pub(super) fn plan(links: &[(&str, &str)]) -> Plan {
    let link = |(from, to): &(&str, &str)| Link {
        from: (*from).into(),
        port: "".into(),
        to: (*to).into(),
        tags: None,
    };
    Plan {
        sources: Vec::new(),
        processors: Vec::new(),
        channels: Vec::new(),
        sinks: Vec::new(),
        links: links.iter().map(link).collect(),
        settings: RunSettings {
            data_dir: PathBuf::new(),
            memory_max: 0,
            threads: 1,
            host: "h".into(),
            rejected: RejectedLimits::default(),
        },
    }
}

/// Fails on the tag `bad` and panics on the tag `ugly`. `Fussy(false)` does not start.
struct Fussy(bool);

impl Processor for Fussy {
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        match self.0 {
            true => Ok(Box::new(Self(true))),
            false => Err(Failure::config("it does not start")),
        }
    }
}

impl Task for Fussy {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        match batch.tag.as_str() {
            "bad" => return Err(Failure::config("it failed")),
            "ugly" => panic!("it panicked"),
            _ => out.pass(MAIN),
        }
        Ok(())
    }
}

#[test]
fn a_case_fails_if_a_processor_fails_panics_or_does_not_start() {
    let mut plan = plan(&[]);
    plan.processors = [("works", true), ("broken", false)]
        .map(|(name, starts)| ProcessorPlan {
            options: "".into(),
            name: name.into(),
            kind: "fussy",
            processor: Arc::new(Fussy(starts)),
            tasks: Default::default(),
            consumers: Vec::new(),
            rejects: Vec::new(),
        })
        .into();
    let case = |node: &str, tag: &str| Case {
        place: Place::path("c.yaml", 0),
        node: node.into(),
        name: "case 1".to_owned(),
        from: None,
        given: vec![Batch {
            tag: tag.into(),
            encoding: Encoding::Lines,
            plain: false,
            body: "a\n".into(),
            count: 1,
            received: Default::default(),
            values: Default::default(),
            origins: Vec::new(),
        }],
        expect: vec![Leaving {
            port: String::new(),
            place: Place::path("c.yaml", 0),
            records: Vec::new(),
        }],
        rejected: Vec::new(),
    };
    for (node, tag, word) in [
        ("works", "bad", "it failed"),
        ("works", "ugly", "it panicked"),
        ("broken", "good", "it does not start"),
    ] {
        let failure = case(node, tag).run(&plan).unwrap_err();
        assert!(failure.message.contains(word), "{failure}");
    }
    assert_eq!(case("works", "good").run(&plan).unwrap().len(), 1);
    assert!(case("works", "good").problems(&plan).is_empty());
}
