//! `millstream channel`: looks into a disk channel's folder, and passes a consumer over what it cannot take.

mod cat;
mod forget;
mod ls;
mod read;
mod skip;
mod verify;
mod write;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use millstream_channels::disk::log::Error;
use millstream_record::Position;

use crate::{exit, page};

/// Look into a disk channel: what it holds, whether it is sound, what a consumer has before it.
///
/// PATH is the channel's folder, DATA_DIR/channels/NAME. `ls`, `verify` and `cat` may look at a channel that is in use;
/// `skip` and `forget` need it stopped.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream channel ls /var/lib/millstream/channels/buffer
  millstream channel verify /var/lib/millstream/channels/buffer
  millstream channel cat --after 1.2000 --limit 10 /var/lib/millstream/channels/buffer
  millstream channel skip --consumer archive --to 1.2003 --output passed.json /var/lib/millstream/channels/buffer
  millstream channel forget --consumer archive /var/lib/millstream/channels/buffer
  millstream channel forget --accept-loss /var/lib/millstream/channels/buffer

Exit codes: 0 done, 1 damage was found or the folder cannot be read, 64 wrong command line")]
pub struct Channel {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Ls(ls::Ls),
    Verify(verify::Verify),
    Cat(cat::Cat),
    Skip(skip::Skip),
    Forget(forget::Forget),
}

impl Channel {
    /// Does it; returns the exit code.
    pub fn execute(self) -> u8 {
        let done = match self.command {
            Command::Ls(ls) => ls.execute(),
            Command::Verify(verify) => verify.execute(),
            Command::Cat(cat) => cat.execute(),
            Command::Skip(skip) => skip.execute(),
            Command::Forget(forget) => forget.execute(),
        };
        match done {
            Ok(code) => code,
            Err(trouble) => page::complain(&trouble.0, exit::FAILED),
        }
    }
}

/// Why a command cannot go on.
struct Trouble(String);

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

/// The folder of a channel.
#[derive(Args)]
struct At {
    /// The channel's folder, DATA_DIR/channels/NAME.
    path: PathBuf,
}

/// Reads `EPOCH.SEQ`.
fn position(text: &str) -> Result<Position, String> {
    let parts = text.split_once('.');
    let read = parts.and_then(|(epoch, seq)| {
        Some(Position {
            epoch: epoch.parse().ok()?,
            seq: seq.parse().ok()?,
        })
    });
    read.ok_or_else(|| format!("`{text}` is no position, such as `1.2000`"))
}
