//! `millstream channel forget`: removes a consumer, so that the channel no longer stores records for it.

use std::{path::Path, sync::Arc};

use clap::Args;
use millstream_channels::disk::log::{Error, inspect};
use millstream_sys::disk::HostDisk;

use super::{At, Instance, Trouble, coded};
use crate::{exit, page};

/// Remove a consumer whose sink is no longer configured: the next start drops records that only it has not settled.
///
/// To keep those records, first run `skip --to end` for this consumer. The channel must not be in use, unless `--running` asks its
/// instance to remove the consumer now.
///
/// The channel remembers which sinks read it after its last start. To forget one of these sinks, use `--force`, or start once
/// without the sink in the configuration. A sink that returns afterwards begins at the oldest batch that is still there.
#[derive(Args)]
pub struct Forget {
    #[command(flatten)]
    at: At,
    /// The consumer: the name of the former sink.
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present = "accept_loss",
        conflicts_with = "accept_loss"
    )]
    consumer: Option<String>,
    /// Forget it even if a sink of that name read the channel after its last start.
    #[arg(long)]
    force: bool,
    /// Ask the running instance to remove it now.
    #[arg(long, conflicts_with_all = ["force", "accept_loss"])]
    running: bool,
    #[command(flatten)]
    instance: Instance,
    /// Accept the losses that `verify` shows: the next start is healthy again.
    #[arg(long)]
    accept_loss: bool,
}

impl Forget {
    /// Removes the consumer; returns the exit code.
    pub fn execute(self) -> Result<u8, Trouble> {
        let Some(consumer) = &self.consumer else {
            return accept_loss(&self.at.path);
        };
        if self.running {
            return Ok(self.ask(consumer));
        }
        self.at.open()?;
        inspect::forget(&HostDisk, &self.at.path, consumer, self.force).map_err(|error| {
            match error {
                Error::Configured(_) => Trouble(format!(
                    "{error}; take it out of the configuration and start once without it, or add --force"
                )),
                error => error.into(),
            }
        })?;
        Ok(page::print(&format!(
            "{consumer} is forgotten: the next start drops the records that only it has not settled\n"
        )))
    }
}

impl Forget {
    /// Asks the running instance; returns the exit code.
    fn ask(&self, consumer: &str) -> u8 {
        let client = match self.instance.client() {
            Ok(client) => client,
            Err(code) => return code,
        };
        let channel = coded(&self.at.name());
        let path = format!("/channels/{channel}/forget?consumer={}", coded(consumer));
        match client.post(&path) {
            Ok(answer) => match answer["why"].as_str() {
                None => page::print(&format!(
                    "{consumer} is forgotten: records that only it has not settled are dropped\n"
                )),
                Some(why) => page::complain(why, exit::FAILED),
            },
            Err(text) => page::complain(&text, exit::FAILED),
        }
    }
}

/// Accepts the losses of a channel, and prints those that were not accepted before. Returns the exit code.
fn accept_loss(path: &Path) -> Result<u8, Trouble> {
    let accepted = inspect::accept_losses(Arc::new(HostDisk), path)?;
    if accepted.is_empty() {
        return Ok(page::print(
            "nothing is missing that was not accepted before\n",
        ));
    }
    for loss in accepted {
        page::print(&page::paragraph("ACCEPTED: ", &loss.to_string()));
    }
    Ok(exit::DRAINED)
}
