//! `millstream rejected replay`: sends rejected records to the input of their node again.

use std::{path::PathBuf, thread::sleep, time::Duration};

use clap::Args;
use serde_json::Value;

use crate::{
    client::Client,
    commands::instance::Remote,
    exit,
    page::{self, count, grouped},
};

/// The interval at which the progress is polled.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Make the running instance send the rejected records of a node to the node's input again.
///
/// Records that the node accepts are removed from DATA_DIR/rejected; records that it rejects again are kept as new ones. First remove
/// the cause of the rejections, then run this command. A crash during a replay may repeat records, but loses none.
#[derive(Args)]
pub struct Replay {
    /// The node that rejected the records: a processor or a sink.
    node: String,
    /// Configuration files and directories of the instance; only `api.listen` and `api.tls` are taken from them.
    #[arg(default_value = "/etc/millstream")]
    config: Vec<PathBuf>,
    #[command(flatten)]
    remote: Remote,
}

impl Replay {
    /// Replays; returns the exit code.
    pub fn execute(self) -> u8 {
        let client = match self.remote.client(&self.config) {
            Ok(client) => client,
            Err(code) => return code,
        };
        match self.ended(&client) {
            Ok(end) => self.tell(&end),
            Err(text) => page::complain(&text, exit::FAILED),
        }
    }

    /// Waits for the end of the replay; returns the last answer of the instance.
    fn ended(&self, client: &Client) -> Result<Value, String> {
        let node: String = self.node.chars().map(page::coded).collect();
        let path = format!("/rejected/{node}/replay");
        let mut answer = client.post(&path)?;
        while answer["state"] == "running" {
            sleep(ASK_EVERY);
            answer = client.get(&path)?;
        }
        Ok(answer)
    }

    fn tell(&self, end: &Value) -> u8 {
        let number = |name: &str| end[name].as_u64().unwrap_or(0);
        let (settled, left) = (number("settled"), number("left"));
        let stay = match left {
            0 => String::new(),
            left => format!(
                "; {} cannot be sent again and stay",
                count(usize::try_from(left).unwrap_or(usize::MAX), "record")
            ),
        };
        match end["why"].as_str() {
            None => page::print(&format!(
                "{} records of {} were sent again{stay}\n",
                grouped(settled),
                self.node
            )),
            Some(why) => page::complain(why, exit::FAILED),
        }
    }
}
