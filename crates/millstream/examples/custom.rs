//! A custom binary: Millstream with one more processor. `limit` rejects records that are larger than a size.
//!
//! Run it with `cargo run --example custom -- test crates/millstream/examples/custom.yaml`; every other command works, too. To build your
//! own binary, use this file as the `main.rs` of a crate. The crate must depend on the crates that this file uses.

use std::{process::ExitCode, sync::Arc};

use millstream_config::{Node, Size};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component},
    output::Out,
    processor::{MAIN, Processor, Task},
};
use millstream_record::Batch;
use millstream_wire::record::records;

const LIMIT: Component = Component {
    name: "limit",
    summary: "Rejects records that are larger than a size.",
    readme: "## Options\n\n<!-- options -->\n<!-- /options -->\n",
    example: include_str!("custom.yaml"),
    schema: || schemars::schema_for!(Limit),
    build: Build::Processor(
        |_name: &str, options: &Node| -> Checked<Arc<dyn Processor>> {
            Ok(Arc::new(options.read::<Limit>()?))
        },
    ),
};

/// The options of `limit`.
#[derive(Clone, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Limit {
    /// Size of the largest record that is passed on.
    size: Size,
}

impl Processor for Limit {
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Ok(Box::new(self.clone()))
    }
}

impl Task for Limit {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        for (range, _) in records(batch) {
            match range.len() as u64 <= self.size.as_bytes() {
                true => out.keep(MAIN, range, 1),
                false => out.reject(&batch.body[range], "it is larger than `size`"),
            }
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    millstream::main(&[LIMIT])
}
