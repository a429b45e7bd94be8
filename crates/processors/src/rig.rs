//! Runs a processor on batches, for tests.

use std::{collections::HashMap, sync::Arc};

use millstream_config::{Environment, Node, load};
use millstream_pipeline::{
    node::{Build, Component},
    output::{Counts, Made as Output, Out},
    processor::{Processor, Task},
};
use millstream_record::{Batch, Encoding, Values};
use millstream_wire::{json, msgpack};

/// A processor with one task.
pub(crate) struct Rig {
    processor: Arc<dyn Processor>,
    task: Box<dyn Task>,
}

/// The output for a batch.
pub(crate) struct Made {
    /// The batches of each port, by its name.
    pub(crate) ports: HashMap<Arc<str>, Vec<Batch>>,
    pub(crate) counts: Counts,
    pub(crate) rejected: Option<Batch>,
}

/// Options as they are read from a file.
fn options(text: &str) -> Node {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let loaded = load(&[file.path().to_owned()], &Environment::empty());
    loaded
        .unwrap_or_else(|_| panic!("{text} is no YAML"))
        .tree
        .root
}

fn built(component: &Component, options: &str) -> Result<Arc<dyn Processor>, Vec<String>> {
    let Build::Processor(build) = component.build else {
        panic!("{} is no processor", component.name);
    };
    let options = self::options(options);
    let messages = |problems: Vec<millstream_config::Problem>| {
        let text = |problem: millstream_config::Problem| {
            [Some(problem.message), problem.help]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(": ")
        };
        problems.into_iter().map(text).collect()
    };
    build("p", &options).map_err(messages)
}

/// The messages of the problems of options that cannot be used.
pub(crate) fn problems(component: &Component, options: &str) -> Vec<String> {
    match built(component, options) {
        Ok(_) => Vec::new(),
        Err(problems) => problems,
    }
}

impl Rig {
    pub(crate) fn new(component: &Component, options: &str) -> Self {
        let processor = built(component, options).unwrap();
        let task = processor.task().unwrap();
        Self { processor, task }
    }

    pub(crate) fn run(&mut self, batch: &Batch) -> Made {
        let ports = self.processor.ports();
        let mut out = Out::alone("p", batch, ports.len());
        self.task.process(batch, &mut out).unwrap();
        let Output {
            ports: batches,
            counts,
            rejected,
        } = out.finish();
        Made {
            ports: ports.into_iter().zip(batches).collect(),
            counts,
            rejected,
        }
    }
}

impl Made {
    /// The records of a port: lines as they are, entries as JSON.
    pub(crate) fn lines(&self, port: &str) -> Vec<String> {
        self.ports[port].iter().flat_map(texts).collect()
    }
}

fn texts(batch: &Batch) -> Vec<String> {
    if batch.encoding == Encoding::Lines {
        let text = String::from_utf8_lossy(&batch.body).into_owned();
        return text.lines().map(str::to_owned).collect();
    }
    let (mut at, mut texts) = (0, Vec::new());
    while at < batch.len() {
        let head = msgpack::entry_head(&batch.body, at).unwrap();
        let mut text = Vec::new();
        json::write_value(&batch.body, head.record, &mut text).unwrap();
        texts.push(String::from_utf8(text).unwrap());
        let mut open = 1;
        at = msgpack::skip(&batch.body, at, &mut open).unwrap();
    }
    texts
}

/// A batch of lines.
pub(crate) fn lines(tag: &str, text: &str) -> Batch {
    Batch {
        tag: tag.into(),
        encoding: Encoding::Lines,
        plain: false,
        body: text.to_owned().into(),
        count: text.lines().count() as u32,
        received: Default::default(),
        values: Arc::new(Values::new()),
        origins: Vec::new(),
    }
}
