//! A custom binary for tests: Millstream with a processor on which some records end the process.

use std::{hint::black_box, process::ExitCode, sync::Arc, thread::sleep, time::Duration};

use millstream_config::Node;
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component},
    output::Out,
    processor::{MAIN, Processor, Task},
};
use millstream_record::Batch;
use millstream_wire::record::records;

const FATAL: Component = Component {
    name: "fatal",
    summary: "Ends the process at records that say so.",
    readme: "## Options\n\n<!-- options -->\n<!-- /options -->\n",
    example: include_str!("custom.yaml"),
    schema: || schemars::schema_for!(Fatal),
    build: Build::Processor(
        |_name: &str, options: &Node| -> Checked<Arc<dyn Processor>> {
            Ok(Arc::new(options.read::<Fatal>()?))
        },
    ),
};

/// The options of `fatal`: none.
#[derive(Clone, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Fatal {}

impl Processor for Fatal {
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Ok(Box::new(self.clone()))
    }
}

impl Task for Fatal {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        for (range, _) in records(batch) {
            let has = |word: &str| {
                batch.body[range.clone()]
                    .windows(word.len())
                    .any(|at| at == word.as_bytes())
            };
            if has("abort") {
                std::process::abort();
            } else if has("overflow") {
                black_box(deep(1));
            } else if has("memory") {
                take_memory();
            } else if has("hang") {
                loop {
                    sleep(Duration::from_secs(1));
                }
            }
            out.keep(MAIN, range, 1);
        }
        Ok(())
    }
}

/// Takes memory until the process dies. At 448 MiB it kills itself, as the kernel would if there were a limit.
fn take_memory() {
    let mut taken = Vec::new();
    while taken.len() < 448 {
        taken.push(black_box(vec![1_u8; 1 << 20]));
    }
    let id = std::process::id().to_string();
    let _ = std::process::Command::new("kill")
        .args(["-KILL", &id])
        .status();
    sleep(Duration::from_secs(60));
}

/// Takes stack until it overflows.
fn deep(number: u64) -> u64 {
    if number == 0 {
        return 0;
    }
    let block = [number; 1024];
    deep(black_box(number + 1)) + black_box(block)[7]
}

fn main() -> ExitCode {
    millstream::main(&[FATAL])
}
