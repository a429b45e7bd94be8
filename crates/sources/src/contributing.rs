//! The source that CONTRIBUTING.md walks through, so that its code compiles and runs. Tests only.

use std::sync::Arc;

use millstream_config::{Node, Period};
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
};
use millstream_record::{Batch, Encoding, Time, Values};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::sleep;

pub const COMPONENT: Component = Component {
    name: "pulse",
    summary: "Sends one record at a fixed interval.",
    readme: include_str!("stdin/README.md"),
    example: include_str!("stdin/example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

/// The options of `pulse`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Config {
    /// Time between two records.
    every: Period,
    /// Text of each record.
    text: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            every: Period::secs(1),
            text: "still here".to_owned(),
        }
    }
}

struct Pulse {
    config: Config,
}

fn build(_name: &str, options: &Node) -> Checked<Box<dyn Source>> {
    let config: Config = options.read()?;
    if config.every.is_zero() {
        return Err(vec![
            options.problem_at("every", "it must be longer than 0"),
        ]);
    }
    Ok(Box::new(Pulse { config }))
}

impl Source for Pulse {
    fn bind(&mut self, _context: &SourceContext) -> Result<(), Failure> {
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let mut values = Values::new();
            values.set("host", &*context.host);
            let values = Arc::new(values);
            let body = format!("{}\n", self.config.text);
            let mut stop = context.stop.clone();
            loop {
                tokio::select! {
                    biased;
                    () = stop.stopped() => return Ok(()),
                    () = sleep(self.config.every.as_duration()) => {}
                }
                let batch = Batch {
                    tag: (&*context.name).into(),
                    encoding: Encoding::Lines,
                    body: body.clone().into(),
                    count: 1,
                    plain: false,
                    received: Time::now(),
                    values: values.clone(),
                    origins: Vec::new(),
                };
                // Waits while the next channel is full: this is where back-pressure takes effect.
                let receipt = context.outlet.send(batch, true).await;
                if receipt.await.is_err() {
                    context
                        .reporter
                        .warn("lost", "a record was dropped before it was settled");
                }
                if context.once {
                    return Ok(());
                }
            }
        })
    }

    fn values(&self) -> &'static [&'static str] {
        &["host"]
    }

    fn promise(&self, _durable: bool) -> Promise {
        Promise::new(
            Guarantee::AtMostOnce,
            "a record that is lost is not sent again",
        )
    }
}

mod tests {
    use millstream_testkit::walk_through::assert_walk_through;

    use super::*;
    use crate::rig::{Downstream, Running, try_build, until};

    #[test]
    fn records_arrive_at_the_interval_until_it_is_stopped() {
        let downstream = Downstream::memory();
        let options = r#"{"every": "5ms", "text": "tick"}"#;
        let running = Running::start(&COMPONENT, options, &downstream, "unused".as_ref());
        until("two records", || downstream.lines().len() >= 2);
        running.stop();
        assert!(downstream.lines().iter().all(|line| line == "tick"));
        assert!(try_build(&COMPONENT, r#"{"every": "0s"}"#).is_err());
    }

    #[test]
    fn the_walk_through_of_contributing_is_this_file() {
        assert_walk_through(
            include_str!("../../../CONTRIBUTING.md"),
            "## Add a source",
            include_str!("contributing.rs"),
            &["modpulse", "pulse::"],
            2,
        );
    }
}
